"""Is the noise of every release Gaussian, of the claimed size, and drawn afresh each time?

The subject's own training loop is run, and heard from outside (`listening`). The noise over what is claimed has to be
N(0, 1), also on each tensor and coordinate, and independent from one coordinate, tensor, release, step, run, life of a
run and process to the next (`laws`, `keys`); empty draws get it, others too, and a frozen coordinate never.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, get_args

import numpy as np

from adadpigu.accounting import PlannedDraw
from adadpigu.audit.keys import Keys
from adadpigu.audit.laws import (
    Check,
    Numbers,
    binomial_p,
    distance_p,
    equal_sizes,
    lag_shares,
    mean_p,
    product_p,
    product_reach,
    rare_p,
    refuted,
    repeats,
    sizes,
)
from adadpigu.audit.listening import Heard, Part, Parts, listen
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.spreads import Kind, Tensors, by_release, flat, settled_or_not_p
from adadpigu.audit.subject import Subject
from adadpigu.core.layout import Layout
from adadpigu.core.randomness import Randomness, Tier
from adadpigu.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEWEST = 10_000
_TAILS = (3.0, 4.0, 4.5)
_COMPARED = 2**18
"""numbers of which it is looked at whether any are equal: of more, some are by rounding"""
_PROCESSES_FROM = 1_000_000
"""numbers from which on two more processes are started: seconds, which a smaller audit does not take itself"""
_ONE_PROCESS = (
    "another process has another key (two generators of this one were compared; from 1,000,000 numbers on, two more "
    "processes are)"
)
_UNPEOPLED = "draws that have taken records get the noise of empty ones: no dummy block can be attached to the model"
_GIVEN = "the generator that was handed to the audit has a key of its own in every run and process"


def audit_noise(
    subject: Subject,
    *,
    numbers: int = 1_000_000,
    confidence: float = 0.95,
    progress: Progress | None = None,
    randomness: Randomness | None = None,
) -> AuditResult:
    """Trains until so many numbers of noise were drawn, and holds them to what is claimed.

    `randomness` unset is what training would choose.

    Two generators that are made afresh in this process must not share a number, nor must two fresh processes, which
    are started from 1,000,000 numbers on: a constant key gives noise that no other test tells from good noise. What is
    changed in this process alone (a test's patch) does not reach the others; a constant key shows here too, a generator
    that all of a process shares does not.

    Formal guarantee: noise that is as claimed fails with a probability of at most 1e-6: half of it for all findings
    together (of which equal numbers have 1e-9), half for the standard deviations that `epsilon_certain` goes by. That
    holds under masks that are learned from earlier noise: a mask is settled before its release's noise is drawn, so the
    first `numbers` due numbers are N(0, 1) and independent, and the tests of what is chosen by masks are bets on the
    next number (`laws`).
    """
    check_confidence(confidence)
    few = f"numbers={numbers} are too few to tell a standard deviation; allowed: at least {_FEWEST}"
    require(numbers >= _FEWEST, few)
    heard = listen(subject, numbers, randomness, progress)
    kinds, tensors, z = by_release(heard.whole.parts), Tensors.of(heard), flat(heard.whole.parts)
    lags, checks = _Repeats.among(heard.whole.parts), [*_shape_checks(kinds, z[:numbers]), *tensors.checks()]
    checks += _fresh_checks(heard, lags)
    keys, key_assumed = _keys(subject, heard, numbers, randomness)
    return subject.result(
        "noise",
        epsilon_lower=_cost(subject, kinds, tensors.kinds, 1 - confidence),
        epsilon_certain=_cost(subject, kinds, tensors.kinds, REFUTING / 2),
        confidence=confidence,
        observations=len(z),
        assumed=(
            "one record moves a sum by no more than its sensitivity (`adadpigu audit replay` tests that)",
            "records are sampled as claimed (`adadpigu audit sampler` tests that)",
            "noise has no pattern of a kind that these tests do not look at",
            *key_assumed,
            *([_UNPEOPLED] if heard.peopled is None else []),
            *heard.whole.assumed(),
        ),
        findings=(*_plain(heard), *keys.findings(), *refuted(checks, REFUTING / 2)),
        details={
            "noise_multiplier": subject.noise_multiplier,
            "releases": [kind.summary(confidence) for kind in kinds],
            "tensors": [{"tensor": kind.tensor, **kind.summary(confidence)} for kind in tensors.kinds],
            "processes": 1 + keys.processes,
            "largest": float(np.abs(z).max()),
            "frozen_disturbed": sum(part.disturbed for part in heard.all),
            "empty_draws": heard.whole.released,
            "draws_with_records": 0 if heard.peopled is None else len(heard.peopled.noise.parts),
            **heard.whole.details(),
            "p_values": {check.name: check.p for check in checks},
        },
        draw=partial(_draw, z=z, lags=lags),
    )


def _keys(subject: Subject, heard: Heard, numbers: int, randomness: Randomness | None) -> tuple[Keys, tuple[str, ...]]:
    """Generators as the subject's runs make them, compared, and what is then left to assume."""
    keys, tier = Keys(), subject.tier if randomness is None else randomness.tier
    if tier is not None and tier not in get_args(Tier):
        return keys, (_GIVEN,)
    keys.here(tier, heard.device)  # type: ignore[arg-type]  # narrowed above
    if numbers < _PROCESSES_FROM:
        return keys, (_ONE_PROCESS,)
    keys.elsewhere(tier, heard.device)  # type: ignore[arg-type]
    return keys, ()


def _plain(heard: Heard) -> Iterator[str]:
    """What needs no test to be wrong."""
    whole, peopled = heard.whole, heard.peopled
    if disturbed := sum(part.disturbed for part in heard.all):
        yield f"{disturbed} numbers were released of coordinates that are frozen"
    if odd := sum(part.odd for part in heard.all):
        yield f"{odd} numbers of noise are not finite"
    if whole.released != whole.planned:
        yield f"of {whole.planned} draws in which nobody is drawn, {whole.released} were answered"
    if whole.bare:
        yield f"{whole.bare} of {whole.count} numbers that were released of nobody have no noise"
    if peopled is not None and peopled.noise.bare:
        yield f"{peopled.noise.bare} of {peopled.noise.count} numbers have no noise where records were drawn"
    yield from heard.findings()
    if heard.single_precision:
        yield "noise is drawn in single precision: it has gaps, and an end at 5.8 standard deviations"


def _shape_checks(kinds: Sequence[Kind], z: Numbers) -> Iterator[Check]:
    """Whether the numbers are N(0, 1), one by one."""
    from scipy.stats import norm

    for kind in kinds:
        yield Check(
            name=f"{kind.draw.name}, {kind.name}: standard deviation",
            p=kind.p,
            told=f"the noise on {kind.name!r} has {kind.spread:.4g} times the standard deviation that is claimed",
        )
    yield Check(name="mean", p=mean_p(float(z.sum()), len(z)), told=f"the noise has mean {z.mean():.4g} instead of 0")
    for edge in _TAILS:
        chance = float(norm.sf(edge))
        for side, seen in (("above", int((z > edge).sum())), ("below −", int((z < -edge).sum()))):
            yield Check(
                name=f"{side} {edge:g}".replace("− ", "−"),
                p=binomial_p(seen, len(z), chance),
                told=f"{seen} of {len(z)} numbers lie {side} {edge:g} standard deviations, "
                f"{len(z) * chance:.1f} are expected".replace("− ", "−"),
            )
    p, distance = distance_p(np.sort(z))
    yield Check(name="distance", p=p, told=f"the noise's distribution is {distance:.3g} away from a Gaussian's")


@dataclass(frozen=True)
class _Repeats:
    """Of a sequence of noise, how much it agrees with itself at every lag from 1 on.

    Pairs may be chosen by a mask that was learned from the earlier number: the later one is N(0, 1) all the same, given
    that one and the mask, since it is drawn after both (`laws.product_p`).
    """

    products: Numbers
    variances: Numbers

    @classmethod
    def among(cls, parts: Sequence[Part], *, signed: bool = True) -> _Repeats:
        """Numbers that are not due keep their place, so that what repeats does so at one lag, whatever the mask."""
        z, due = np.concatenate([part.z for part in parts]), np.concatenate([part.due for part in parts])
        return cls(*repeats(z if signed else sizes(z, due), due))

    def check(self, name: str, where: str) -> Check:
        """The worst lag, each with its share of the significance."""
        chances = product_p(self.products, self.variances) / lag_shares(len(self.products))
        worst = int(np.argmin(chances))
        strength = self.products[worst] / max(1.0, self.variances[worst])
        return Check(
            name=name,
            p=min(1.0, float(chances[worst])),
            told=f"{where}the noise repeats itself after {worst + 1} numbers (correlation {strength:.3g})",
        )


def _fresh_checks(heard: Heard, lags: _Repeats) -> Iterator[Check]:
    """Whether the numbers were drawn afresh."""
    yield lags.check("repeats", "")
    yield _Repeats.among(heard.whole.parts, signed=False).check("repeats up to a sign", "but for its sign ")
    yield _equal_check(heard.whole)
    yield _Repeats.among(heard.lives.parts).check("repeats after a resume", "in a run that was resumed ")
    yield from _tensor_check(heard.whole.parts, heard.layout)
    if heard.peopled is not None and heard.peopled.noise.count:
        yield from _peopled_checks(heard.peopled.noise)


def _tensor_check(parts: Sequence[Part], layout: Layout) -> Iterator[Check]:
    """Whether the noise of a tensor begins as that of the largest one does: too little to see at a single lag."""
    largest = max(layout.slots, key=lambda slot: slot.stop - slot.start)
    slots = [slot for slot in layout.slots if slot is not largest]
    if not slots:
        return
    products, variances = np.zeros(len(slots)), np.zeros(len(slots))
    z, due = np.zeros(layout.size), np.zeros(layout.size, dtype=np.bool_)
    for part in parts:
        if part.places is None:
            continue
        z[:], due[:] = 0.0, False
        z[part.places], due[part.places] = part.z, part.due
        for number, slot in enumerate(slots):
            one, other = slice(slot.start, slot.stop), slice(largest.start, largest.start + slot.stop - slot.start)
            products[number] += z[one] @ z[other]
            variances[number] += due[one] @ z[other] ** 2
    chances = product_p(products, variances)
    worst = int(np.argmin(chances))
    strength = products[worst] / max(1.0, variances[worst])
    yield Check(
        name="tensors",
        p=min(1.0, float(chances[worst]) * len(slots)),
        told=f"the noise on {slots[worst].name!r} is that on {largest.name!r} again (correlation {strength:.3g})",
    )


def _equal_check(heard: Parts) -> Check:
    """Numbers of one size: releases of nobody are noise alone, to the last digit."""
    z = flat(heard.parts)[:_COMPARED]
    equal, expected = equal_sizes(z[z != 0], heard.digits)
    return Check(
        name="equal numbers",
        p=rare_p(equal, expected),
        told=f"{equal} of {len(z)} numbers of noise have the size of an earlier one, {expected:.2g} at most may",
    )


def _peopled_checks(heard: Parts) -> Iterator[Check]:
    """Whether draws that have taken records get the same noise."""
    z = flat(heard.parts)
    squares = float(z @ z)
    yield Check(
        name="draws with records",
        p=settled_or_not_p(squares, len(z), all(part.due.all() for part in heard.parts)),
        told=f"where records are drawn, noise has {math.sqrt(squares / len(z)):.4g} times the standard deviation that "
        "is claimed",
    )
    yield _Repeats.among(heard.parts).check("repeats with records", "where records are drawn ")


def _cost(subject: Subject, kinds: Sequence[Kind], tensors: Sequence[Kind], significance: float) -> float:
    """ε of the claim's plan with no more noise than the bounds that hold together leave possible.

    Half of the significance is the whole releases', half the tensors'. The worst bound counts: a record may move any
    tensor as far as the whole. Of several releases of one draw, the one that tells most is counted alone: the others
    can only add to ε.
    """
    noise: dict[PlannedDraw, float] = {}
    for them in (kinds, tensors):
        for kind in them:
            factor = kind.most(significance / 2 / len(them)) / math.sqrt(kind.share)
            noise[kind.draw] = min(factor, noise.get(kind.draw, math.inf))

    def found(_: str, draw: PlannedDraw) -> PlannedDraw | None:
        return replace(draw, noise_multiplier=draw.noise_multiplier * noise[draw]) if draw in noise else None

    return subject.cost(found)


def _draw(figure: Figure, *, z: Numbers, lags: _Repeats) -> None:
    left, right = figure.subplots(1, 2)
    _histogram(left, z)
    _correlogram(right, lags)
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)


def _histogram(axes: Axes, z: Numbers) -> None:
    edges = np.linspace(-6, 6, 97)
    middle, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    axes.hist(z, bins=edges.tolist(), color="#1b6ca8", alpha=0.5, label="seen")
    expected = len(z) * width * np.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi)
    axes.plot(middle, expected, color="#c8553d", linewidth=1.2, label="N(0, 1)")
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.set_xlabel("noise over what is claimed")
    axes.set_ylabel("numbers")


def _correlogram(axes: Axes, repeated: _Repeats) -> None:
    """The largest correlation in each of some hundred ranges of lags, and where a test would have refuted."""
    pairs, lags = np.maximum(repeated.variances, 1), np.arange(1, len(repeated.products) + 1)
    strength = np.abs(repeated.products) / pairs
    limit = product_reach(repeated.variances, REFUTING * lag_shares(len(lags))) / pairs
    kept = pairs >= 0.02 * pairs.max()
    ranges = np.array_split(np.flatnonzero(kept), 300)
    worst = [block[np.argmax(strength[block])] for block in ranges if len(block)]
    axes.plot(lags[worst], strength[worst], ".", markersize=3, color="#1b6ca8", label="largest seen")
    axes.plot(lags[worst], limit[worst], color="#c8553d", linewidth=1.2, label="not by chance (1e-6)")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("lag, numbers")
    axes.set_ylabel("correlation")
