"""The replay audit: does any input of the noise change by more than its declared sensitivity when one record changes?

The subject's own run, cut to a few public records (or stand-ins) and steps, is recorded on D and played again on
D′ = D ± one record: the mechanism hands out the *recorded* releases, common records meet the same chance, and the
record that differs is in every batch. Then everything public must be the same, and ‖sum − sum′‖ ≤ sensitivity at every
call. Deterministic, and it takes seconds.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import le
from typing import Any

import torch

from adadpigu.accounting import Plan, PlannedDraw
from adadpigu.audit import figures
from adadpigu.audit.adversarial import EDGE, Edge, Record, Steep, Unchecked, adversarial_records, hostile_base
from adadpigu.audit.coins import NeighbourCoins, RecordedCoins, ReplayError
from adadpigu.audit.result import AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Attach, Subject, held, trained
from adadpigu.audit.tapes import LOSS_TOLERANCE, TOLERANCE, Recorder, TraceReplayer, public_state
from adadpigu.core.bounding import Query
from adadpigu.core.randomness import Randomness, ReproducibleRandomness
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.errors import AdaDPIGUError, InputError, require
from adadpigu.training.preparation import Preparation

PrepareOn = Callable[..., Preparation]
"""makes a run ready on a data set (and an `attach`), with a model initialised alike and the same seed every time"""
REMOVED = "removed"  # the neighbour that has an ordinary record less
_EMPTY, _FULL = frozenset({1}), frozenset({2})  # draws of D that take nobody, and that take everybody
_POPULATION, _SHARE = 257, 32 / 257
"""records that an audited run is cut to, and how many of them are in a batch but for one that takes them all: there
the last slice has one row, or two or none on a neighbour, and few rows are rounded otherwise than many"""
_SLICE = 256  # of those at once at most, so that a draw of all is of several slices


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
    data, prepare_on = subject.first(_POPULATION), _cut(subject, steps)
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


def _on_hostile_base(prepare_on: PrepareOn, data: DataSet) -> "dict[str, ReplayResult]":
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


def _shown(subject: Subject, steps: int, found: "Mapping[str, ReplayResult]") -> float:
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


def _findings(found: "Mapping[str, ReplayResult]") -> list[str]:
    """The first breach of every neighbour, each once."""
    by_breach: dict[str, list[str]] = {}
    for name, result in found.items():
        for breach in result.breaches[:1]:
            by_breach.setdefault(breach, []).append(name)
    told = {breach: ", ".join(names) if len(names) < len(found) else "any" for breach, names in by_breach.items()}
    return [f"{breach} (record: {names})" for breach, names in told.items()]


@dataclass(frozen=True)
class ReplayResult:
    """What a replay found, what was wrong with the recording included."""

    draws: int
    largest: float
    breaches: tuple[str, ...]
    effects: tuple[float, ...] = ()
    """for each draw how far the record moved all that was released of it, in units of σ; see `TraceReplayer`"""
    exposed: bool = False  # whether something differs that no noise covers


class Recording:
    """A run on D, of which the last record is in every batch, to be replayed on as many neighbours as one likes.

    Where records have owners, the last one and the one who is added have a record more than the cap.
    """

    def __init__(
        self,
        prepare_on: PrepareOn,
        data: DataSet,
        *,
        randomness: Randomness | None = None,
        share: float | None = None,
        empty: frozenset[int] = frozenset(),
        full: frozenset[int] = frozenset(),
        aim: Callable[[Sequence[Query]], None] | None = None,
    ) -> None:
        """`share`, `empty`, `full` say who is drawn, instead of q; `aim` is told what a neighbour is about to ask."""
        self._prepare_on, self._records, self._aim = prepare_on, held(data), aim
        self._more = 1 if data.owners is None else data.owners.cap + 1
        self._last = min(self._more, max(1, len(self._records) // 2))
        self._data = data.holding(self._records, [self._last])
        inner = ReproducibleRandomness(0) if randomness is None else randomness
        self._always = len(self._records) - self._last  # the last one's coin
        self._coins = RecordedCoins(inner, always=self._always, share=share, empty=empty, full=full)
        ready = prepare_on(self._data)
        self._tape = Recorder(partial(public_state, ready.model, ready.front))
        with self._coins.chance, _in_order(ready.device):
            trained(ready, randomness=self._coins, observers=[self._tape], mechanism=self._tape.mechanism)

    def with_record(self, record: Record) -> ReplayResult:
        """The replay with one record more, or an owner of such records, which no check of input sees."""
        data = self._data.holding(Unchecked(self._records, record, self._more), [self._last, self._more])
        return self._play(data, NeighbourCoins(self._coins, None, added=self._always + 1, records=self._more))

    def without_last(self) -> ReplayResult:
        """The replay without the last record, or its owner."""
        inputs, targets = self._records.inputs[: self._always], self._records.targets[: self._always]
        data = self._data.holding(TensorRecords(inputs, targets, name=self._records.name))
        return self._play(data, NeighbourCoins(self._coins, self._always, records=self._last))

    def _play(self, data: DataSet, coins: NeighbourCoins) -> ReplayResult:
        ready = self._prepare_on(data)
        if isinstance(data.train, Unchecked):
            data.train.show()
        player = TraceReplayer(self._tape, partial(public_state, ready.model, ready.front), self._aim)
        try:
            frozen = coins.chance if self._coins.chance.used else contextlib.nullcontext()
            with frozen, _in_order(ready.device):
                trained(  # one that stops is a breach
                    ready, randomness=coins, observers=[player], mechanism=player.mechanism, to_the_end=False
                )
        except ReplayError as breach:
            player.expose(str(breach))
        except AdaDPIGUError as error:
            player.expose(f"the neighbour's run ends where the recorded one goes on: {error}")
        return ReplayResult(
            draws=len(self._tape.calls),
            largest=player.largest,
            breaches=(*self._tape.breaches, *player.breaches),
            effects=tuple(player.effects),
            exposed=player.exposed or bool(self._tape.breaches),
        )


@contextlib.contextmanager
def _in_order(device: torch.device) -> Iterator[None]:
    """Has a GPU add in a fixed order, where it otherwise adds in any: what is public is compared bit by bit."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            warnings.filterwarnings("ignore", message=".*deterministic")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def replay_all(
    prepare_on: PrepareOn,
    data: DataSet,
    *,
    records: Mapping[str, Record] | None = None,
    progress: Progress | None = None,
    **drawn: Any,
) -> dict[str, ReplayResult]:
    """Records a run and replays it on every neighbour, by name: `records` added one by one, an ordinary one removed.

    `records` are all adversarial ones unless given. In the second draw of D nobody is drawn, so that the extra record
    is alone there, in the third everybody; `drawn` (of `Recording`) chooses who else is drawn.
    """
    recording = Recording(prepare_on, data, empty=_EMPTY, full=_FULL, **drawn)
    records, found = adversarial_records(data) if records is None else records, dict[str, ReplayResult]()
    for name in (*records, REMOVED):
        found[name] = recording.without_last() if name == REMOVED else recording.with_record(records[name])
        if progress is not None:
            progress(len(found), len(records) + 1)
    return found


def replay_edge(prepare_on: PrepareOn, data: DataSet, **drawn: Any) -> ReplayResult:
    """The same with a dummy block beside the model, and a record at the mask's edge."""
    edge = Edge()
    attached = partial(prepare_on, attach=edge.attach)
    return Recording(attached, data, empty=_EMPTY, full=_FULL, aim=edge.aim, **drawn).with_record(edge.record(data))
