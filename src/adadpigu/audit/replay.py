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

from adadpigu.accounting import Plan, PlannedDraw, PlannedStage, epsilon
from adadpigu.audit.adversarial import EDGE, Edge, Record, Unchecked, adversarial_records, held
from adadpigu.audit.coins import NeighbourCoins, RecordedCoins, ReplayError
from adadpigu.audit.result import AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Attach, Subject
from adadpigu.audit.tapes import TOLERANCE, Player, Recorder, public_state
from adadpigu.bounding import Query
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.errors import AdaDPIGUError, InputError
from adadpigu.randomness import Randomness, ReproducibleRandomness
from adadpigu.training.preparation import Preparation
from adadpigu.training.train import train_prepared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REMOVED = "removed"
"""the neighbour that has an ordinary record less"""
_POPULATION, _SHARE = 96, 1 / 3
"""records that an audited run is cut to, and how many of them are in a batch"""
_MOST_SHOWN = 10.0
"""where bars of the figure end"""


class PrepareOn(Protocol):
    """Makes a run ready on a data set, with a model initialised alike and the same seed every time."""

    def __call__(self, data: DataSet, attach: Attach | None = None) -> Preparation: ...


@dataclass(frozen=True)
class ReplayResult:
    """What a replay found. Clean: no breach, and `largest` ≤ 1 up to rounding."""

    draws: int
    largest: float
    breaches: tuple[str, ...]
    effects: tuple[float, ...] = ()
    """for each draw how far the record moved all that was released of it, in units of σ; see `Player`"""


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
        self.plan = ready.plan
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
            player.breaches.append(str(breach))
        except AdaDPIGUError as error:
            player.breaches.append(f"the neighbour's run ends where the recorded one goes on: {error}")
        draws = len(self._tape.calls)
        return ReplayResult(draws, player.largest, tuple(player.breaches), tuple(player.effects))


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
    found = recording.without_last() if added is None else recording.with_record(added)
    return replace(found, breaches=recording.breaches + found.breaches)


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
    randomness: Callable[[], Randomness] | None = None,
    share: float | None = None,
    progress: Progress | None = None,
) -> dict[str, ReplayResult]:
    """Two recordings, and a replay of every neighbour by name: each adversarial record added, an ordinary one removed.

    In the second draw of D nobody is drawn, so that the extra record is alone there. The second recording has a dummy
    block beside the model, for the record at the mask's edge. What is wrong with a recording by itself is told of all
    its neighbours.
    """
    records, edge = adversarial_records(data), Edge()
    total, found = len(records) + 2, dict[str, ReplayResult]()
    empty, fresh = frozenset({1}), randomness or partial(ReproducibleRandomness, 0)

    def note(name: str, recording: Recording, result: ReplayResult) -> None:
        found[name] = replace(result, breaches=recording.breaches + result.breaches)
        if progress is not None:
            progress(len(found), total)

    plain = Recording(prepare_on, data, randomness=fresh(), share=share, empty=empty)
    for name, record in records.items():
        note(name, plain, plain.with_record(record))
    note(REMOVED, plain, plain.without_last())
    attached = partial(prepare_on, attach=edge.attach)
    beside = Recording(attached, data, randomness=fresh(), share=share, empty=empty, aim=edge.aim)
    note(EDGE, beside, beside.with_record(edge.record(data)))
    return found


def audit_replay(
    subject: Subject, *, steps: int = 8, confidence: float = 0.95, progress: Progress | None = None
) -> AuditResult:
    """Replays the subject's own run, cut to a few records and `steps` steps, on every neighbour.

    ε_lower is what the worst neighbour would have shown, had it done in all steps of the plan what it did in its worst
    one: the claim, where a record moves a sum by exactly its sensitivity. Deterministic, so that the confidence is 1,
    whatever is asked for.
    """
    check_confidence(confidence)
    if steps < 1:
        raise InputError(f"steps={steps} is not at least 1")
    data = _cut_data(subject.data)
    found = replay_all(_cut(subject, steps), data, share=_SHARE, progress=progress)
    largest = max(result.largest for result in found.values())
    order = [(stage.name, draw.name) for stage, draw in _draws(_cut_plan(subject.plan, steps))]
    shown = max(_epsilon(subject, order, result.effects) for result in found.values())
    if largest <= 1 + TOLERANCE:
        shown = min(shown, subject.epsilon)
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
        ),
        findings=(*subject.findings, *_findings(found)),
        details=_details(found, largest, records=len(held(data)), steps=_cut_plan(subject.plan, steps).steps),
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


def _draws(plan: Plan) -> list[tuple[PlannedStage, PlannedDraw]]:
    """The draws of a plan in the order in which they are made."""
    return [(stage, draw) for stage in plan.stages for _ in range(stage.steps) for draw in stage.draws]


def _epsilon(subject: Subject, order: Sequence[tuple[str, str]], effects: Sequence[float]) -> float:
    """ε of the subject's plan, had a record the largest effect that was seen on each kind of draw."""
    worst: dict[tuple[str, str], float] = {}
    for kind, effect in zip(order, effects, strict=False):  # fewer effects where the replay was broken off
        worst[kind] = max(worst.get(kind, 0.0), round(effect, 6))
    if math.inf in worst.values():
        return math.inf
    stages = []
    for stage in subject.plan.stages:
        seen = [(draw, worst.get((stage.name, draw.name), 0.0)) for draw in stage.draws]
        moved = tuple(replace(d, noise_multiplier=d.noise_multiplier / e) for d, e in seen if e > 0)
        stages.append(replace(stage, draws=moved))
    plan = replace(subject.plan, stages=tuple(stages))
    return epsilon(plan.event(), subject.delta) if plan.charges() else 0.0


def _findings(found: Mapping[str, ReplayResult]) -> list[str]:
    """The first breach of every neighbour, each once."""
    by_breach: dict[str, list[str]] = {}
    for name, result in found.items():
        for breach in result.breaches[:1]:
            by_breach.setdefault(breach, []).append(name)
    return [f"{breach} (record: {', '.join(names)})" for breach, names in by_breach.items()]


def _details(found: Mapping[str, ReplayResult], largest: float, *, records: int, steps: int) -> dict[str, object]:
    neighbours = {
        name: {"largest_share": _finite(result.largest), "breaches": len(result.breaches)}
        for name, result in found.items()
    }
    shared = {"largest_share": _finite(largest), "tolerance": TOLERANCE, "replayed_records": records}
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
