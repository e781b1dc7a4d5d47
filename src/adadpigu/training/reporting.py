"""From a run's plan and ledger to its privacy report. Reads public facts only."""

import math

from adadpigu.accounting import Ledger, PrivacyReport, privacy_report
from adadpigu.accounting.shared import SharedTotal
from adadpigu.accounting.wording import owner_unit
from adadpigu.core.exact import sampler_delta
from adadpigu.core.randomness import Randomness
from adadpigu.models.starts import started_from
from adadpigu.training.preparation import Preparation

RAN_OUT = "that the GPU ran out of memory over a draw, and when: that is not noised"
COUNTED = "how many runs this one is the best of: the folder that the search worked in tells it; keep it to yourself"
FAILED = "that the run failed, and when: an error amid private records is not noised"
COMPARED = "scores on test records, by which the runs of a shared ledger are compared: these are exact"
OWNERS_TESTED = "scores on test records of owners who are trained on: these are exact (split by owner)"


def print_path(prepared: Preparation) -> None:
    """The first line of output: how per-record gradients are computed, and why."""
    from adadpigu.console import notes, print_prose

    print_prose(f"per-record gradients: {prepared.engine.reason}", notes())


def report_on(
    prepared: Preparation,
    ledger: Ledger,
    randomness: Randomness,
    *,
    done: int,
    interrupted: bool,
    exposed: bool,
    shared: SharedTotal | None = None,
) -> PrivacyReport:
    """The privacy report of a run after `done` of its steps."""
    sessions, drawn_by = ledger.sessions(), [randomness.description]
    if randomness.tier == "exact":
        every = [draw.noise_multiplier for stage in prepared.plan.stages for draw in stage.draws]
        numbers = prepared.plan.steps * max(len(stage.draws) for stage in prepared.plan.stages) * _numbers(prepared)
        finer, noise = prepared.options.grid is not None, 2 * max(every)  # a query may have a quarter of an event
        added = sampler_delta(prepared.epsilons["pld"], numbers, noise, finer=finer)
        drawn_by.append(f"what its sampler is off by adds at most {added:.1g} to delta")
    bounds = [release.sensitivity for release in ledger.released if release.name == "gradient"]
    return privacy_report(
        plan=prepared.plan,
        spent=ledger.events(),
        delta=prepared.delta,
        target_epsilon=None if prepared.budget is None else prepared.budget.epsilon,
        method=prepared.method.name,
        records=prepared.data.records,
        expected_batch_size=prepared.options.batch_size,
        noise_multiplier=prepared.noise_multiplier,
        clip_norm=max((bound for bound in bounds if math.isfinite(bound)), default=None),
        steps_done=_steps_done(prepared, done),
        releases=ledger.released,
        randomness="; ".join(dict.fromkeys([*(session.randomness for session in sessions), *drawn_by])),
        randomness_private=randomness.private and all(session.secret for session in sessions),
        diagnostics_exposed=exposed,
        interrupted=interrupted,
        repeats=prepared.repeats,
        sessions=sessions,
        shared=shared,
        not_covered=[
            *([COMPARED] if shared is not None else []),
            *([] if prepared.repeats is None else [COUNTED]),
            *([FAILED] if any(session.end == "failed" for session in sessions) else []),
            *([OWNERS_TESTED] if prepared.data.owners is not None and prepared.data.test is not None else []),
            *ledger.record.caveats,
            *declared_by(prepared),
        ],
        **({} if prepared.data.owners is None else {"unit_of_privacy": owner_unit(prepared.per_owner)}),
        warnings=[*ledger.record.warnings, *prepared.warnings],
    )


def _numbers(prepared: Preparation) -> int:
    """Of one release, at most."""
    return 2 * prepared.engine.layout.size


def declared_by(prepared: Preparation) -> list[str]:
    """All that is taken as public because somebody says so."""
    facts = [f"declared public of {prepared.data.name!r}: {fact}" for fact in prepared.data.public]
    front = [] if prepared.front is None else [f"declared public: {fact}" for fact in prepared.front.declared()]
    public = [] if prepared.public is None else [prepared.public.declared(prepared.seed)]
    return [
        *facts,
        *front,
        *(f"declared public: {fact}" for fact in started_from(prepared.model)),
        *public,
        *(f"declared public: {fact}" for fact in prepared.method.declared()),
        *prepared.caveats,
    ]


def _steps_done(prepared: Preparation, done: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for stage in prepared.stages:
        counts[stage.name] = max(0, min(stage.steps, done))
        done -= stage.steps
    return counts
