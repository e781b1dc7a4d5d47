"""Runs on neighbouring data sets: one on D is recorded, and played again on D′ = D ± one record.

The mechanism hands out the *recorded* releases, the chance that common records meet is the same, and the record that
differs is in every batch. Then everything public must be the same, and ‖sum − sum′‖ ≤ sensitivity at every call.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from adadpigu.audit.adversarial import Edge, Record, Unchecked, adversarial_records
from adadpigu.audit.coins import NeighbourCoins, RecordedCoins, ReplayError
from adadpigu.audit.result import Progress
from adadpigu.audit.subject import Attach, held, trained
from adadpigu.audit.tapes import Player, Recorder, public_state
from adadpigu.core.bounding import Query
from adadpigu.core.randomness import Randomness, ReproducibleRandomness
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.errors import AdaDPIGUError
from adadpigu.training.earlier import earlier_runs
from adadpigu.training.preparation import Preparation

REMOVED = "removed"
"""the neighbour that has an ordinary record less"""
_EMPTY = frozenset({1})
"""draws of D that take nobody"""
_FULL = frozenset({2})
"""and that take everybody"""


class PrepareOn(Protocol):
    """Makes a run ready on a data set, with a model initialised alike and the same seed every time."""

    def __call__(self, data: DataSet, attach: Attach | None = None) -> Preparation: ...


@dataclass(frozen=True)
class ReplayResult:
    """What a replay found, what was wrong with the recording included."""

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
        full: frozenset[int] = frozenset(),
        aim: Callable[[Sequence[Query]], None] | None = None,
    ) -> None:
        """`share`, `empty`, `full` say who is drawn, instead of q; `aim` is told what a neighbour is about to ask."""
        self._prepare_on, self._data, self._records, self._aim = prepare_on, data, held(data), aim
        inner = ReproducibleRandomness(0) if randomness is None else randomness
        self._coins = RecordedCoins(inner, always=len(self._records) - 1, share=share, empty=empty, full=full)
        ready = prepare_on(data)
        self._tape = Recorder(partial(public_state, ready.model, ready.front))
        with self._coins.chance, _in_order(ready.device), earlier_runs.apart():
            trained(ready, randomness=self._coins, observers=[self._tape], mechanism=self._tape.mechanism)

    @property
    def breaches(self) -> tuple[str, ...]:
        """What was wrong with the run on D by itself."""
        return (*self._tape.breaches, *self._tape.bare())

    def with_record(self, record: Record) -> ReplayResult:
        """The replay with one record more, which no check of input sees."""
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
            frozen = coins.chance if self._coins.chance.used else contextlib.nullcontext()
            with frozen, _in_order(ready.device), earlier_runs.apart():
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
            breaches=self.breaches + tuple(player.breaches),
            effects=tuple(player.effects),
            exposed=player.exposed or bool(self.breaches),
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
    prepare_on: Callable[[DataSet], Preparation],
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
    recording = Recording(attached, data, empty=_EMPTY, full=_FULL, aim=edge.aim, **drawn)
    return recording.with_record(edge.record(data))
