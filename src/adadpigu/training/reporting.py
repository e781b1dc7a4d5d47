"""From a run's plan and ledger to its privacy report. Reads public facts only."""

from __future__ import annotations

import math

from adadpigu.accounting import Ledger, PrivacyReport, ReleaseSummary, privacy_report
from adadpigu.randomness import Randomness
from adadpigu.training.preparation import Preparation


def report_on(
    prepared: Preparation,
    ledger: Ledger,
    randomness: Randomness,
    *,
    done: int,
    interrupted: bool,
    exposed: bool,
) -> PrivacyReport:
    """The privacy report of a run after `done` of its steps."""
    clip = getattr(prepared.method, "clip_norm", None)
    return privacy_report(
        plan=prepared.plan,
        spent=ledger.events(),
        delta=prepared.budget.delta,
        target_epsilon=prepared.budget.epsilon if prepared.method.private else None,
        method=prepared.method.name,
        records=prepared.data.records,
        expected_batch_size=prepared.options.batch_size,
        noise_multiplier=prepared.noise_multiplier,
        clip_norm=clip if isinstance(clip, float) and math.isfinite(clip) else None,
        steps_done=_steps_done(prepared, done),
        releases=_released(ledger),
        randomness=randomness.description,
        randomness_private=randomness.private,
        diagnostics_exposed=exposed,
        interrupted=interrupted,
        not_covered=[f"declared public of {prepared.data.name!r}: {fact}" for fact in prepared.data.public],
        warnings=prepared.warnings,
    )


def _released(ledger: Ledger) -> list[ReleaseSummary]:
    return [
        ReleaseSummary(name=name, dimension=size, sensitivity=sensitivity, noise_multiplier=sigma)
        for name, size, sensitivity, sigma in ledger.released
    ]


def _steps_done(prepared: Preparation, done: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for stage in prepared.stages:
        counts[stage.name] = max(0, min(stage.steps, done))
        done -= stage.steps
    return counts
