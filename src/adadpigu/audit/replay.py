"""The replay audit: does any input of the noise change by more than its declared sensitivity when one record changes?

The subject's own run, cut to a few public records (or stand-ins) and steps, is recorded and played again on neighbours
with a hostile record more or an ordinary one less (`neighbours`). Deterministic, and it takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import le

from adadpigu.accounting import Plan, PlannedDraw
from adadpigu.audit import figures
from adadpigu.audit.adversarial import EDGE, Record, Steep, adversarial_records, hostile_base
from adadpigu.audit.neighbours import PrepareOn, ReplayResult, replay_all, replay_edge
from adadpigu.audit.result import AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Attach, Subject
from adadpigu.audit.tapes import LOSS_TOLERANCE, TOLERANCE
from adadpigu.audit.watching import so_many_records
from adadpigu.data.datasets import DataSet
from adadpigu.errors import InputError, require
from adadpigu.training.preparation import Preparation

_POPULATION, _SHARE = 300, 32 / 300
"""records that an audited run is cut to, and how many of them are in a batch but for one that takes them all"""
_SLICE = 256
"""of those at once at most, so that a draw of all is of several slices"""


def audit_replay(
    subject: Subject, *, steps: int = 8, confidence: float = 0.95, progress: Progress | None = None
) -> AuditResult:
    """Replays the subject's own run, cut to a few records and `steps` steps, on every neighbour.

    ε_lower is what the worst neighbour would have shown, had it done in all steps of the plan what it did in its worst
    one: the claim, where a record moves a sum by exactly its sensitivity; infinite, where anything public differs after
    the same releases. Deterministic, so that the confidence is 1, whatever is asked for.
    """
    check_confidence(confidence)
    require(steps >= 1, f"steps={steps} is not at least 1")
    data, prepare_on = so_many_records(subject, _POPULATION), _cut(subject, steps)
    found, untried = replay_all(prepare_on, data, share=_SHARE, progress=progress), []
    found |= _on_hostile_base(prepare_on, data)
    try:
        found[EDGE] = replay_edge(prepare_on, data, share=_SHARE)
    except InputError as error:
        untried.append(f"nothing is wrong at the mask's edge: the dummy block cannot be attached ({error})")
    shown = _shown(subject, steps, found)
    return subject.result(
        "replay",
        epsilon_lower=shown,
        epsilon_certain=shown,
        confidence=confidence,
        observations=sum(len(result.effects) for result in found.values()),
        assumed=(
            "the adversary knows all other records, its own is in every batch, and it sees every release",
            "it moves every draw of the run as far as the farthest of the few that were replayed",
            "noise and sampling are as claimed (`adadpigu audit noise` and `adadpigu audit sampler` test that)",
            *untried,
        ),
        findings=_findings(found),
        details={
            "largest_share": max(result.largest for result in found.values()),
            "tolerance": TOLERANCE,
            "tolerance_of_losses": LOSS_TOLERANCE,
            "replayed_records": _POPULATION,
            "replayed_steps": _cut_plan(subject.plan, steps).steps,
            "neighbours": {
                name: {"largest_share": result.largest, "breaches": len(result.breaches)}
                for name, result in found.items()
            },
        },
        draw=partial(figures.replay, found=found),
    )


def _on_hostile_base(prepare_on: PrepareOn, data: DataSet) -> dict[str, ReplayResult]:
    """Ordinary records more or less, where the others tie or saturate, and where the last digit decides."""
    every = adversarial_records(data)
    few: dict[str, Record] = {name: every[name] for name in ("large", "duplicated", "wrong class") if name in every}
    base = replay_all(prepare_on, hostile_base(data), records=few, share=_SHARE)
    steep = partial(prepare_on, attach=Steep.attach)
    rounded = replay_all(steep, data, records={"duplicated": every["duplicated"]}, share=_SHARE)
    found = {f"{name} beside ties": result for name, result in base.items()}
    return found | {f"{name} where rounding decides": result for name, result in rounded.items()}


def _cut(subject: Subject, steps: int) -> PrepareOn:
    """Makes the subject's run ready with so many steps."""
    size = subject.config.physical_batch_size
    changes = {"physical_batch_size": min(size, _SLICE)} if isinstance(size, int) else {}

    def prepare_on(data: DataSet, attach: Attach | None = None) -> Preparation:
        ready = subject.prepare(data=data, attach=attach, **changes)
        if isinstance(ready.loss, Steep):
            ready.loss.on = True
        plan = _cut_plan(ready.plan, steps)
        kept = tuple(replace(old, steps=new.steps) for old, new in zip(ready.stages, plan.stages, strict=True))
        return replace(ready, stages=kept, plan=plan)

    return prepare_on


def _cut_plan(plan: Plan, steps: int) -> Plan:
    """Every stage of a plan, with an equal part of so many steps, and no more than it has."""
    each = max(1, steps // len(plan.stages))
    return replace(plan, stages=tuple(replace(stage, steps=min(stage.steps, each)) for stage in plan.stages))


def _shown(subject: Subject, steps: int, found: Mapping[str, ReplayResult]) -> float:
    """ε of the subject's plan, had one neighbour its largest effect on each kind of draw whenever it is made."""
    if any(result.exposed or math.inf in result.effects for result in found.values()):
        return math.inf
    stages = _cut_plan(subject.plan, steps).stages
    order = [(stage.name, draw.name) for stage in stages for _ in range(stage.steps) for draw in stage.draws]
    kinds = list(dict.fromkeys(order))
    seen = set()
    for result in found.values():
        moved = dict.fromkeys(kinds, 0.0)
        for kind, effect in zip(order, result.effects, strict=True):
            moved[kind] = max(moved[kind], round(effect, 6))
        seen.add(tuple(moved.values()))
    farthest = [one for one in seen if not any(one != other and all(map(le, one, other)) for other in seen)]
    shown = max(_epsilon(subject, dict(zip(kinds, effects, strict=True))) for effects in farthest)
    return shown if any(result.breaches for result in found.values()) else min(shown, subject.epsilon)


def _epsilon(subject: Subject, effects: Mapping[tuple[str, str], float]) -> float:
    """ε of the plan, each σ divided by how far the record moves the draw; a draw that it does not move is free."""

    def found(stage: str, draw: PlannedDraw) -> PlannedDraw | None:
        moved = effects.get((stage, draw.name), 0.0)
        return replace(draw, noise_multiplier=draw.noise_multiplier / moved) if moved > 0 else None

    return subject.cost(found)


def _findings(found: Mapping[str, ReplayResult]) -> list[str]:
    """The first breach of every neighbour, each once."""
    by_breach: dict[str, list[str]] = {}
    for name, result in found.items():
        for breach in result.breaches[:1]:
            by_breach.setdefault(breach, []).append(name)
    told = {breach: ", ".join(names) if len(names) < len(found) else "any" for breach, names in by_breach.items()}
    return [f"{breach} (record: {names})" for breach, names in told.items()]
