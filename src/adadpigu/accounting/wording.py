"""The guarantee in plain words, for a reader who has never heard of differential privacy.

It says what is protected, how much, under which assumptions, what is not covered and how to check it; and it says
NOT PRIVATE first when there is nothing to claim.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adadpigu.accounting.events import RELATION, SAMPLER
from adadpigu.accounting.membership import MembershipBounds

if TYPE_CHECKING:
    from adadpigu.accounting.statement import EventCount, PrivacyReport

_WIDTH = 100
_ENDS = {
    "crashed": "it ended without notice (a crash, a kill or a power cut)",
    "interrupted": "it was interrupted",
    "failed": "it failed",
    "exhausted": "it stopped before the budget would have been exceeded",
    "finished": "it finished",
}


def render(report: PrivacyReport) -> str:
    """The whole statement, wrapped at 100 columns."""
    return "\n\n".join("\n".join(row for line in part for row in _wrapped(line)) for part in paragraphs(report))


def paragraphs(report: PrivacyReport) -> list[list[str]]:
    """The whole statement; the items of a list are lines that begin with two spaces."""
    history = [_history(report)] if len(report.sessions) > 1 else []
    warned = [[f"Warning: {warning}."] for warning in report.warnings]
    if report.private:
        return [*_claim(report), *history, *_besides(report), *warned, *_conditions(report)]
    return [*_not_private(report), *history, *warned]


def _wrapped(line: str) -> list[str]:
    item = line.startswith("  ")
    return textwrap.wrap(line, _WIDTH, subsequent_indent=" " * (line.index(" ", 2) + 1) if item else "")


def _not_private(report: PrivacyReport) -> Iterator[list[str]]:
    yield ["NOT PRIVATE: this run gives no guarantee for anybody's record."]
    unbounded = (
        f"The method {report.method!r} let values that depend on single records out without enough noise, so its "
        "epsilon is infinite. Treat the model as you would treat the records themselves."
    )
    repeated = (
        f"The noise can be repeated ({report.randomness}): whoever knows the seed can subtract it, so the "
        f"epsilon of {rounded_up(report.epsilon_pld)} that the same plan has with secret noise does not apply. "
        "Run again without fixed noise before the model leaves your hands."
    )
    finite = math.isfinite(report.epsilon_pld)
    yield [*([] if finite else [unbounded]), *([] if report.randomness_private else [repeated])]


def owner_unit(cap: int) -> str:
    return f"one owner with up to {cap} records"


def _unit(report: PrivacyReport) -> str:
    return "record" if report.unit_of_privacy == "one record" else "owner"


def _claim(report: PrivacyReport) -> Iterator[list[str]]:
    epsilon, delta, unit = report.epsilon_pld, report.delta, _unit(report)
    one = "a record" if unit == "record" else "an owner"
    again = " A record there k times counts k times." if unit == "record" else ""
    exposed = ", BUT diagnostics were exposed" if report.diagnostics_exposed else ""
    yield [f"PRIVATE: epsilon = {rounded_up(epsilon)} at delta = {delta:g}{exposed}"]
    yield [
        f"What is protected: the presence of any {report.unit_of_privacy} among about {report.records:,} training "
        f"records. The model trained by {report.method!r}, and all that was released on the way, looks almost the "
        f"same without that {unit}, or with one more.{again}"
    ]
    target = f" (the budget was {report.target_epsilon:g})" if report.target_epsilon is not None else ""
    weak = " At this size the bound alone says little; ask for a smaller epsilon." if epsilon > 10 else ""
    yield [
        f"How much: epsilon = {rounded_up(epsilon)}{target}. Whatever somebody believed about {one} being used, "
        f"studying the model can multiply those odds by at most e^epsilon = {odds(epsilon)}, but with a probability of "
        f"about delta = {delta:g}, 1 in {1 / delta:,.0f}.{weak}"
    ]
    if report.membership is not None:
        yield [_guesses(report.membership, one)]
    if report.interrupted:
        yield [
            f"Interrupted: {_progress(report)} steps were done, and the steps charged until then cost epsilon = "
            f"{rounded_up(report.epsilon_spent)}. The claim stays the full {rounded_up(epsilon)}, because the "
            "moment of stopping may have depended on what was seen."
        ]


def _guesses(found: MembershipBounds, one: str) -> str:
    """What those odds come to for a typical guess: e^ε is hardly ever reached."""
    right, rate = percent(found.best_accuracy["0.5"]), percent(found.true_positive_rates["0.001"])
    named = " / ".join(percent(share)[:-2] for share in found.precision["0.001"].values())
    return (
        f"What a guess gains: where it was a coin toss whether {one} was used, at most {right} of guesses are right "
        f"(50 % without the model). A guesser who wrongly names 1 in 1,000 of those not used names at most {rate} of "
        f"those used; of all named, at most {named} % were used, if 1 in 2 / 100 / 10,000 was beforehand."
    )


def _progress(report: PrivacyReport) -> str:
    return f"{sum(stage.done for stage in report.stages)} of {sum(stage.planned for stage in report.stages)}"


def _history(report: PrivacyReport) -> list[str]:
    """Every process that worked on the run, and what the crashes among them have cost."""
    return [
        f"Resumed: {len(report.sessions)} processes worked on this run, one after the other, each with fresh noise. "
        f"Together {report.steps_charged} steps were charged for {_progress(report)} that the model has seen; those "
        "charged and lost are counted in full.",
        *(
            f"  {place}. began at step {one.first_step}, charged {one.steps}: {_ENDS.get(one.end, one.end)}"
            for place, one in enumerate(report.sessions, start=1)
        ),
    ]


def _besides(report: PrivacyReport) -> Iterator[list[str]]:
    """What other runs have spent, and what was looked at outside the guarantee."""
    if (total := report.shared) is not None:
        yield [
            f"All runs on this data: {total.runs} runs share a ledger, and when this was written they had spent at "
            f"most epsilon = {rounded_up(total.epsilon)} together, at delta = {total.delta:g}. What holds for good is "
            f"the budget of {total.budget:g}, fixed before the first of them (Rényi accounting at order "
            f"{total.order:g}, valid although later runs were chosen because of earlier ones): whoever knows all of "
            "them learns no more than that."
        ]
    if report.diagnostics_exposed:
        yield [
            "Diagnostics were exposed: somebody looked at un-noised values (losses, norms, batch sizes) during the "
            "run. These are outside the guarantee, and so is everything decided because of them."
        ]


def _conditions(report: PrivacyReport) -> Iterator[list[str]]:
    """Under which assumptions, what is not covered, and how to check it."""
    steps = ", ".join(f"{stage.name} {stage.planned}" for stage in report.stages)
    unit, clip = _unit(report), ""
    if report.clip_norm is not None:
        clip = f", each {unit}'s part of a gradient sum bounded by {report.clip_norm:g}"
    yield [
        f"Under which assumptions: two data sets are neighbours when they differ by one {unit} ({RELATION}); "
        f"every draw takes each {unit} independently ({SAMPLER} sampling){clip}, with Gaussian noise. Draws: "
        f"{'; '.join(_draw(group) for group in report.events)}. Steps: {steps}. "
        f"Noise and sampling: {report.randomness}."
    ]
    if report.not_covered:
        yield ["Not covered:", *(f"  - {item}" for item in report.not_covered)]
    yield [
        "How to check: privacy.json lists every planned event for any accountant to replay, ledger.log every draw "
        "that was charged; `adadpigu ledger verify` finds whether the record is whole. Here: "
        f"{_by_accountants(report)}."
    ]


def _by_accountants(report: PrivacyReport) -> str:
    by_renyi = f"by Rényi accounting ({rounded_up(report.epsilon_rdp_classic)}: classic)"
    if any(group.event.get("event") == "RepeatAndSelect" for group in report.events):
        return (
            f"{rounded_up(report.epsilon_rdp)} {by_renyi}, which is the claim: no other is known for a choice of runs"
        )
    pld = f"{rounded_up(report.epsilon_pld)} by privacy loss distributions (the claim)"
    return f"{pld}, {rounded_up(report.epsilon_rdp)} {by_renyi}"


def _draw(group: EventCount) -> str:
    """One kind of planned draw: how many, with which probability and noise."""
    event: Mapping[str, Any] = group.event
    if event.get("event") == "RepeatAndSelect":
        law = "a Poisson" if event["shape"] is None else "a geometric"
        parts = "; ".join(_draw(replace(group, event=part, count=count)) for part, count in event["of"])
        return (
            f"those of the best of K runs by a private score, K from {law} law of mean {event['mean']:g}, each {parts}"
        )
    rate, event = (event["sample_rate"], event["of"]) if event.get("event") == "PoissonSampled" else (1.0, event)
    return f"{group.count} with probability {rate:.6g} and noise multiplier {event.get('noise_multiplier', 0.0):.6g}"


def rounded_up(value: float, digits: int = 4) -> str:
    """An ε for people, rounded up, so that what is read is never below what is spent.

    >>> rounded_up(3.99412), rounded_up(math.inf), rounded_up(0.0)
    ('3.995', 'infinite', '0')
    """
    if not math.isfinite(value):
        return "infinite"
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / unit - 1e-9) * unit:.{digits}g}"


def odds(epsilon: float) -> str:
    """The factor e^ε for people.

    >>> odds(4.0), odds(30.0), odds(2000.0)
    ('54.6', '1.07e+13', 'more than 1e+300')
    """
    return f"{math.exp(epsilon):.3g}" if epsilon < 690 else "more than 1e+300"


def percent(share: float) -> str:
    """A probability for people, rounded up, but never to certainty.

    >>> percent(0.67731), percent(0.0021), percent(1 - 1e-9)
    ('67.8 %', '0.21 %', '99.9999999 %')
    """
    digits = 3
    while (text := rounded_up(100 * share, digits)) == "100" and share < 1 - 1e-12:
        digits += 1
    return f"{text} %"
