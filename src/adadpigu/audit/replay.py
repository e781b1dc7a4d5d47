"""Record and replay: does any input of the noise change by more than its declared sensitivity when one record changes?

A run on D records every bounded sum and every release. It is replayed on neighbours D′ = D ± one record: the mechanism
hands out the *recorded* releases, the chance that common records meet is the same, and the record that differs is in
every batch. Then the call sequence and everything public must be the same, and ‖sum − sum′‖ ≤ sensitivity at every
call. Deterministic, and it takes seconds.

The tape holds sensitive values in memory: recording is a diagnostic, and a run under it says so.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from adadpigu.accounting import Plan, epsilon
from adadpigu.audit.adversarial import EDGE, Edge, Record, Unchecked, adversarial_records, held
from adadpigu.audit.coins import NeighbourCoins, RecordedCoins, ReplayError
from adadpigu.audit.result import AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Attach, Subject
from adadpigu.audit.tapes import LOSS_TOLERANCE, TOLERANCE, Player, Recorder, public_state
from adadpigu.bounding import Query
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.errors import AdaDPIGUError, InputError, ModelError
from adadpigu.randomness import Randomness, ReproducibleRandomness
from adadpigu.training.preparation import Preparation
from adadpigu.training.train import train_prepared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REMOVED = "removed"
"""the neighbour that has an ordinary record less"""
_POPULATION, _SHARE = 96, 1 / 3
"""records that an audited run is cut to, and how many of them are in a batch"""
_EMPTY = frozenset({1})
"""draws of D that take nobody"""
_MOST_SHOWN = 10.0
"""where bars of the figure end"""


class PrepareOn(Protocol):
    """Makes a run ready on a data set, with a model initialised alike and the same seed every time."""

    def __call__(self, data: DataSet, attach: Attach | None = None) -> Preparation: ...


@dataclass(frozen=True)
class ReplayResult:
    """What a replay found, what was wrong with the recording included.

    Clean: no breach, and `largest` ≤ 1 up to rounding.
    """

    draws: int
    largest: float
    breaches: tuple[str, ...]
    effects: tuple[float, ...] = ()
    """for each draw how far the record moved all that was released of it, in units of σ; see `Player`"""
    exposed: bool = False
    """whether something differs that no noise covers"""


class Recording:
    """A run on D, of which the last record is in every batch, to be replayed on as many neighbours as one likes."""

    def __init__(
        self,
        prepare_on: Callable[[DataSet], Preparation],
        data: DataSet,
        *,
        randomness: Randomness | None = None,
        share: float | None = None,
        empty: frozenset[int] = frozenset(),
        aim: Callable[[Sequence[Query]], None] | None = None,
    ) -> None:
        """`share` and `empty` say who is drawn, instead of q; `aim` is told what a neighbour's run is about to ask."""
        self._prepare_on, self._data, self._records, self._aim = prepare_on, data, held(data), aim
        inner = ReproducibleRandomness(0) if randomness is None else randomness
        self._coins = RecordedCoins(inner, always=len(self._records) - 1, share=share, empty=empty)
        ready = prepare_on(data)
        self._tape = Recorder(partial(public_state, ready.model, ready.front))
        with self._coins.chance:
            train_prepared(ready, randomness=self._coins, observers=[self._tape], tape=self._tape)

    @property
    def breaches(self) -> tuple[str, ...]:
        """What was wrong with the run on D by itself."""
        return (*self._tape.breaches, *self._tape.bare())

    def with_record(self, record: Record) -> ReplayResult:
        """The replay with one record more; no check of input sees it."""
        return self._play(Unchecked(self._records, record), removed=None)

    def without_last(self) -> ReplayResult:
        """The replay without the last record."""
        records = TensorRecords(self._records.inputs[:-1], self._records.targets[:-1], name=self._records.name)
        return self._play(records, removed=len(records))

    def _play(self, records: TensorRecords, removed: int | None) -> ReplayResult:
        ready = self._prepare_on(replace(self._data, train=records))
        if isinstance(records, Unchecked):
            records.show()
        player = Player(self._tape, partial(public_state, ready.model, ready.front), self._aim)
        coins = NeighbourCoins(self._coins, removed)
        try:
            with coins.chance if self._coins.chance.used else contextlib.nullcontext():
                train_prepared(ready, randomness=coins, observers=[player], tape=player)
            player.finish()
        except ReplayError as breach:
            player.expose(str(breach))
        except AdaDPIGUError as error:
            player.expose(f"the neighbour's run ends where the recorded one goes on: {error}")
        return ReplayResult(
            draws=len(self._tape.calls),
            largest=player.largest,
            breaches=self.breaches + tuple(player.breaches),
            effects=tuple(player.effects),
            exposed=player.exposed or bool(self.breaches),
        )


def replay(
    prepare_on: Callable[[DataSet], Preparation],
    data: DataSet,
    *,
    removed: int | None = None,
    added: Record | None = None,
    seed: int = 0,
) -> ReplayResult:
    """Records a run on `data` and replays it without record `removed`, or with one record `added`.

    `prepare_on` makes the run ready on either data set, with a model initialised alike and the same seed both times.
    """
    if (removed is None) == (added is None):
        raise InputError("replay takes exactly one of removed and added")
    if removed is not None:
        data = _with_last(data, removed)
    recording = Recording(prepare_on, data, randomness=ReproducibleRandomness(seed))
    return recording.without_last() if added is None else recording.with_record(added)


def _with_last(data: DataSet, position: int) -> DataSet:
    """The same records, with one of them at the end."""
    records = held(data)
    order = torch.arange(len(records))
    order = torch.cat([order[order != position], order[position : position + 1]])
    return replace(data, train=TensorRecords(*records.take(order), name=records.name))


def replay_all(
    prepare_on: PrepareOn,
    data: DataSet,
    *,
    records: Mapping[str, Record] | None = None,
    randomness: Callable[[], Randomness] | None = None,
    share: float | None = None,
    progress: Progress | None = None,
) -> dict[str, ReplayResult]:
    """Records a run and replays it on every neighbour, by name: `records` added one by one, an ordinary one removed.

    `records` are all adversarial ones unless given. In the second draw of D nobody is drawn, so that the extra record
    is alone there; `share` chooses who else is drawn.
    """
    fresh = randomness or partial(ReproducibleRandomness, 0)
    recording = Recording(prepare_on, data, randomness=fresh(), share=share, empty=_EMPTY)
    records, found = adversarial_records(data) if records is None else records, dict[str, ReplayResult]()
    for name in (*records, REMOVED):
        found[name] = recording.without_last() if name == REMOVED else recording.with_record(records[name])
        if progress is not None:
            progress(len(found), len(records) + 1)
    return found


def replay_edge(
    prepare_on: PrepareOn,
    data: DataSet,
    *,
    randomness: Callable[[], Randomness] | None = None,
    share: float | None = None,
) -> ReplayResult:
    """The same with a dummy block beside the model, and a record at the mask's edge."""
    edge, fresh = Edge(), randomness or partial(ReproducibleRandomness, 0)
    attached = partial(prepare_on, attach=edge.attach)
    recording = Recording(attached, data, randomness=fresh(), share=share, empty=_EMPTY, aim=edge.aim)
    return recording.with_record(edge.record(data))


def audit_replay(
    subject: Subject, *, steps: int = 8, confidence: float = 0.95, progress: Progress | None = None
) -> AuditResult:
    """Replays the subject's own run, cut to a few records and `steps` steps, on every neighbour.

    ε_lower is what the worst neighbour would have shown, had it done in all steps of the plan what it did in its worst
    one: the claim, where a record moves a sum by exactly its sensitivity; infinite, where anything public differs after
    the same releases. Deterministic, so that the confidence is 1, whatever is asked for.
    """
    check_confidence(confidence)
    if steps < 1:
        raise InputError(f"steps={steps} is not at least 1")
    data, prepare_on = _cut_data(subject.data), _cut(subject, steps)
    found, without_edge = replay_all(prepare_on, data, share=_SHARE, progress=progress), []
    try:
        found[EDGE] = replay_edge(prepare_on, data, share=_SHARE)
    except (InputError, ModelError) as error:
        without_edge.append(f"nothing is wrong at the mask's edge: the dummy block cannot be attached ({error})")
    shown = _shown(subject, steps, found)
    return AuditResult(
        audit="replay",
        subject=subject.label,
        epsilon_claimed=subject.epsilon,
        delta=subject.delta,
        epsilon_lower=shown,
        epsilon_certain=shown,
        confidence=confidence,
        observations=sum(len(result.effects) for result in found.values()),
        assumed=(
            "the adversary knows all other records, its own is in every batch, and it sees every release",
            "it moves every draw of the run as far as the farthest of the few that were replayed",
            "noise and sampling are as claimed (`adadpigu audit noise` and `adadpigu audit sampler` test that)",
            *without_edge,
        ),
        findings=(*subject.findings, *_findings(found)),
        details=_details(found, records=len(held(data)), steps=_cut_plan(subject.plan, steps).steps),
        draw=lambda figure: _draw(figure, found),
    )


def _cut_data(data: DataSet) -> DataSet:
    """The first records alone; the declared record count stays, and with it q, σ and the plan."""
    records = held(data)
    first = TensorRecords(records.inputs[:_POPULATION], records.targets[:_POPULATION], name=records.name)
    return replace(data, train=first)


def _cut(subject: Subject, steps: int) -> PrepareOn:
    """Makes the subject's run ready with so many steps, and micro-batches as small beside the smaller batches."""
    size, changes = subject.config.physical_batch_size, {}
    if isinstance(size, int):
        assert subject.config.batch_size is not None
        changes["physical_batch_size"] = max(1, round(size * _POPULATION * _SHARE / subject.config.batch_size))

    def prepare_on(data: DataSet, attach: Attach | None = None) -> Preparation:
        ready = subject.prepare(data=data, attach=attach, **changes)
        plan = _cut_plan(ready.plan, steps)
        kept = tuple(replace(old, steps=new.steps) for old, new in zip(ready.stages, plan.stages, strict=True))
        return replace(ready, stages=kept, plan=plan)

    return prepare_on


def _cut_plan(plan: Plan, steps: int) -> Plan:
    """Every stage of a plan, with an equal part of so many steps, and no more than it has."""
    each = max(1, steps // len(plan.stages))
    return replace(plan, stages=tuple(replace(stage, steps=min(stage.steps, each)) for stage in plan.stages))


def _order(plan: Plan) -> list[tuple[str, str]]:
    """The draws of a plan as they are made, each by its stage and name."""
    return [(stage.name, draw.name) for stage in plan.stages for _ in range(stage.steps) for draw in stage.draws]


def _shown(subject: Subject, steps: int, found: Mapping[str, ReplayResult]) -> float:
    """ε of the subject's plan, had one neighbour its largest effect on each kind of draw whenever it is made."""
    if any(result.exposed or math.inf in result.effects for result in found.values()):
        return math.inf
    order = _order(_cut_plan(subject.plan, steps))
    kinds = tuple(dict.fromkeys(order))
    seen = set()
    for result in found.values():
        moved = list(zip(order, result.effects, strict=True))
        seen.add(tuple(round(max(effect for kind, effect in moved if kind == which), 6) for which in kinds))
    farthest = [one for one in seen if not any(one != other and _within(one, other) for other in seen)]
    shown = max(_epsilon(subject, dict(zip(kinds, effects, strict=True))) for effects in farthest)
    return shown if any(result.breaches for result in found.values()) else min(shown, subject.epsilon)


def _within(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def _epsilon(subject: Subject, effects: Mapping[tuple[str, str], float]) -> float:
    """ε of the plan with every σ over the effect that a record has there; a draw that it does not move is free."""
    stages = []
    for stage in subject.plan.stages:
        moved = [(draw, effects.get((stage.name, draw.name), 0.0)) for draw in stage.draws]
        draws = tuple(replace(draw, noise_multiplier=draw.noise_multiplier / by) for draw, by in moved if by > 0)
        stages.append(replace(stage, draws=draws))
    plan = replace(subject.plan, stages=tuple(stages))
    return epsilon(plan.event(), subject.delta) if plan.charges() else 0.0


def _findings(found: Mapping[str, ReplayResult]) -> list[str]:
    """The first breach of every neighbour, each once."""
    by_breach: dict[str, list[str]] = {}
    for name, result in found.items():
        for breach in result.breaches[:1]:
            by_breach.setdefault(breach, []).append(name)
    return [f"{breach} (record: {', '.join(names)})" for breach, names in by_breach.items()]


def _details(found: Mapping[str, ReplayResult], *, records: int, steps: int) -> dict[str, object]:
    largest = max(result.largest for result in found.values())
    neighbours = {
        name: {"largest_share": _finite(result.largest), "breaches": len(result.breaches)}
        for name, result in found.items()
    }
    shared = {
        "largest_share": _finite(largest),
        "tolerance": TOLERANCE,
        "tolerance_of_losses": LOSS_TOLERANCE,
        "replayed_records": records,
    }
    return {**shared, "replayed_steps": steps, "neighbours": neighbours}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _draw(figure: Figure, found: Mapping[str, ReplayResult]) -> None:
    """A bar a neighbour: how far it moved a sum, as a share of what was declared."""
    axes = figure.subplots()
    names = list(found)
    shares = [min(found[name].largest, _MOST_SHOWN) for name in names]
    breached = [bool(found[name].breaches) for name in names]
    places = range(len(names))
    axes.barh(places, shares, color=["#c8553d" if bad else "#1b6ca8" for bad in breached], height=0.6)
    for place, name, bad in zip(places, names, breached, strict=True):
        text = f"{found[name].largest:.6g}" + ("  breach" if bad else "")
        axes.annotate(text, (shares[place], place), (4, 0), textcoords="offset points", fontsize=8, va="center")
    axes.axvline(1.0, color="gray", linewidth=1, linestyle="--")
    axes.set_yticks(list(places), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(1.0, *shares))
    axes.set_xlabel("largest move of a sum by one record, as a share of its declared sensitivity")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("one record more or less: how far sums move (dashed: what is declared)", loc="left", fontsize=9)
