"""Record and replay: does any input of the noise change by more than its declared sensitivity when one record changes?

A run on D records every bounded sum and every release. It is replayed on a neighbour D′ = D ± one record: the
mechanism hands out the *recorded* releases, the inclusion coins of the common records are the same, and the extra
record is in every batch. Then the call sequence must be the same, and ‖sum − sum′‖ ≤ sensitivity at every call.
Deterministic, and it takes seconds.

The tape holds sensitive values in memory: recording is a diagnostic, and a run under it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from adadpigu.bounding import BoundedSum, Query
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.errors import AdaDPIGUError, InputError
from adadpigu.mechanism import Release
from adadpigu.randomness import Randomness, ReproducibleRandomness
from adadpigu.sensitive import unseal
from adadpigu.training.preparation import Preparation
from adadpigu.training.train import train_prepared

TOLERANCE = 1e-5
"""relative to the sensitivity, for floating-point noise"""


@dataclass(frozen=True)
class Call:
    """What reached the noise for one release."""

    name: str
    sensitivity: float
    size: int
    public: dict[str, Tensor]
    """the learned tensors that shaped the sum: mask, centre, scale, parameters"""
    total: Tensor = field(repr=False)

    @property
    def active(self) -> Tensor | None:
        return self.public.get("active")


def _call(total: BoundedSum) -> Call:
    query = total.query
    tensors = {key: value for key, value in vars(query).items() if isinstance(value, Tensor)}
    tensors |= {f"losses_at[{k}]": value for k, value in enumerate(getattr(query, "losses_at", ()))}
    copies = {key: value.detach().clone() for key, value in tensors.items()}
    return Call(total.name, total.sensitivity, total.size, copies, unseal(total).detach().clone())


class Recorder:
    """A tape that keeps what reached the noise and what was released."""

    def __init__(self) -> None:
        self.calls: list[list[Call]] = []
        self.released: list[dict[str, Release]] = []

    def asked(self, queries: Sequence[Query]) -> None:
        return None

    def releases(self, sums: Sequence[BoundedSum]) -> dict[str, Release] | None:
        return None

    def record(self, sums: Sequence[BoundedSum], releases: dict[str, Release]) -> None:
        self.calls.append([_call(total) for total in sums])
        self.released.append(releases)


class Player:
    """A tape that hands out the recorded releases and notes every breach."""

    def __init__(self, recorded: Recorder) -> None:
        self._recorded = recorded
        self._position = 0
        self.breaches: list[str] = []
        self.largest = 0.0
        """largest difference seen, as a share of its sensitivity"""

    def asked(self, queries: Sequence[Query]) -> None:
        return None

    def releases(self, sums: Sequence[BoundedSum]) -> dict[str, Release]:
        position = self._position
        self._position += 1
        if position >= len(self._recorded.calls):
            raise ReplayError(f"draw {position}: the neighbour asks for more draws than were recorded")
        before, now = self._recorded.calls[position], [_call(total) for total in sums]
        if [(c.name, c.size, c.sensitivity) for c in before] != [(c.name, c.size, c.sensitivity) for c in now]:
            raise ReplayError(f"draw {position}: the neighbour asks for other releases than were recorded")
        for old, new in zip(before, now, strict=True):
            self._compare(position, old, new)
        return self._recorded.released[position]

    def record(self, sums: Sequence[BoundedSum], releases: dict[str, Release]) -> None:
        return None

    def finish(self) -> None:
        """To be called after the run: everything recorded must have been asked for again."""
        if self._position != len(self._recorded.calls):
            self.breaches.append(f"{len(self._recorded.calls)} draws recorded, {self._position} replayed")

    def _compare(self, position: int, old: Call, new: Call) -> None:
        for key in old.public.keys() | new.public.keys():
            if not (key in old.public and key in new.public and torch.equal(old.public[key], new.public[key])):
                raise ReplayError(f"draw {position}: {new.name!r} has another {key} on the neighbour")
        difference = float(torch.linalg.vector_norm(old.total - new.total))
        share = difference / old.sensitivity
        if not share <= self.largest:
            self.largest = share
        if not difference <= old.sensitivity * (1 + TOLERANCE):
            self.breaches.append(
                f"draw {position}: {new.name!r} moves by {difference:.6g}, above its sensitivity {old.sensitivity:.6g}"
            )


class ReplayError(AdaDPIGUError):
    """The neighbour's run asks for something else than was recorded: state depends on un-noised data."""


class RecordedCoins:
    """Randomness whose inclusion coins are kept, for the run on D; the record at `always` is in every batch."""

    description = "recorded coins: not private"
    tier: Literal["reproducible"] = "reproducible"
    private = False

    def __init__(self, inner: Randomness, always: int | None = None) -> None:
        self._inner = inner
        self._always = always
        self.coins: list[Tensor] = []
        self.filled: list[Tensor] = []

    def uniform(self, count: int) -> Tensor:
        coins = self._inner.uniform(count)
        if self._always is not None:
            coins[self._always] = 0.0
        self.coins.append(coins)
        return coins

    def normal(self, count: int) -> Tensor:
        return self._inner.normal(count)

    def words(self, count: int) -> Tensor:
        self.filled.append(self._inner.words(count))
        return self.filled[-1]


class NeighbourCoins:
    """The same coins for the common records; the one extra record is in every batch it could be in.

    `removed` is the position that D has and D′ has not; None means that D′ has one more record, at its end.
    """

    description = "replayed coins: not private"
    tier: Literal["reproducible"] = "reproducible"
    private = False

    def __init__(self, recorded: RecordedCoins, removed: int | None) -> None:
        self._coins = iter(recorded.coins)
        self._filled = iter(recorded.filled)
        self._removed = removed

    def uniform(self, count: int) -> Tensor:
        coins = next(self._coins, None)
        if coins is None:
            raise ReplayError("the neighbour asks for more draws than were recorded")
        if self._removed is None:
            return torch.cat([coins, coins.new_zeros(1)])
        return torch.cat([coins[: self._removed], coins[self._removed + 1 :]])

    def normal(self, count: int) -> Tensor:
        raise ReplayError("noise was drawn in a replay: a release did not pass the tape")

    def words(self, count: int) -> Tensor:
        return next(self._filled)


@dataclass(frozen=True)
class ReplayResult:
    """What a replay found. Clean: no breach, and `largest` ≤ 1 up to rounding."""

    draws: int
    largest: float
    breaches: tuple[str, ...]


def replay(
    prepare_on: Callable[[DataSet], Preparation],
    data: DataSet,
    *,
    removed: int | None = None,
    added: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
) -> ReplayResult:
    """Records a run on `data` and replays it without record `removed`, or with one record `added`.

    `prepare_on` makes the run ready on either data set, with a model initialised alike and the same seed both times.
    """
    neighbour = _neighbour(data, removed, added)
    recorder, coins = Recorder(), RecordedCoins(ReproducibleRandomness(seed), always=removed)
    train_prepared(prepare_on(data), randomness=coins, tape=recorder)
    player = Player(recorder)
    try:
        train_prepared(prepare_on(neighbour), randomness=NeighbourCoins(coins, removed), tape=player)
        player.finish()
    except ReplayError as breach:
        player.breaches.append(str(breach))
    return ReplayResult(len(recorder.calls), player.largest, tuple(player.breaches))


def _neighbour(data: DataSet, removed: int | None, added: tuple[Tensor, Tensor] | None) -> DataSet:
    """D′, under the same public description: the declared record count does not move."""
    records = data.train
    if not isinstance(records, TensorRecords):
        raise InputError(f"replay needs records held as tensors, not {type(records).__name__}")
    if (removed is None) == (added is None):
        raise InputError("replay takes exactly one of removed and added")
    if added is not None:
        inputs = torch.cat([records.inputs, added[0][None].to(records.inputs)])
        targets = torch.cat([records.targets, added[1][None].to(records.targets)])
    else:
        kept = torch.arange(len(records)) != removed
        inputs, targets = records.inputs[kept], records.targets[kept]
    return replace(data, train=TensorRecords(inputs, targets))
