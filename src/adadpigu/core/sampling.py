"""Samplers: each draws a batch *and* names the event that the draw is charged as, so the two cannot disagree.

`PoissonSampler` takes every record independently with probability q. `OwnerSampler` takes every owner so, with all
records of theirs. Which records were drawn, how many, and whose they are is sensitive.
"""

import functools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol, cast
from uuid import UUID

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from adadpigu.accounting.events import DpEvent, draw_event
from adadpigu.core.processes import Processes
from adadpigu.core.randomness import Randomness
from adadpigu.core.sensitive import Presence, Records, Sensitive, unseal
from adadpigu.core.trees import Tree, count_rows
from adadpigu.errors import InputError, PrivacyLineError, check_range, require


class Population(Protocol):
    """Private records that can be gathered by position."""

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> tuple[Tree, Tree]: ...


class HeldRecords:
    """Records held as trees of tensors on one device, with one row a record."""

    inputs: Tree
    targets: Tree
    device: torch.device
    size: int

    def __len__(self) -> int:
        return self.size

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        where = indices.to(self.device)
        inputs, targets = tree_map(lambda rows: rows[where], (self.inputs, self.targets))
        return inputs, targets


class Drawn(Sensitive[Tensor]):
    """The positions of the records one draw has taken."""


class Coins(Sensitive[Tensor]):
    """For every record whether one draw has taken it, [n] of bool."""

    def drawn(self) -> Drawn:
        """The positions of those that were taken; a device waits for their number."""
        return Drawn(unseal(self).nonzero().flatten())

    def shared_by(self, processes: Processes) -> "Coins":
        """The first process's coins, as each of several sees them: for the records that live there."""
        return Coins(processes.share_coins(unseal(self)))


class Sampler(Protocol):
    """Draws batches of private records, and says what a draw costs."""

    @property
    def sample_rate(self) -> float:
        """q, the probability of a unit of privacy to be drawn."""

    @property
    def per_owner(self) -> int:
        """How many records of one unit of privacy a draw may hold."""

    def toss(self, population: Population, randomness: Randomness) -> Coins:
        """Which records one draw takes."""

    def event(self, noise_multipliers: list[float]) -> DpEvent:
        """What one draw costs, whatever number of noisy sums is released from it."""


@dataclass(frozen=True, kw_only=True)
class PoissonSampler:
    """Takes each record with probability `sample_rate` (q = B/N, from the *declared* record count N).

    The number of coins tossed is the number of records there are; q never depends on it.

    >>> PoissonSampler.expecting(batch_size=250, records=1000).sample_rate
    0.25
    """

    sample_rate: float

    @property
    def per_owner(self) -> int:
        return 1

    def __post_init__(self) -> None:
        check_range("sample_rate", self.sample_rate, "in (0, 1]")

    @classmethod
    def expecting(cls, *, batch_size: int, records: int) -> "PoissonSampler":
        """The sampler whose draws hold `batch_size` records on average."""
        if not 1 <= batch_size <= records:
            raise InputError(f"batch_size={batch_size} is not between 1 and the declared record count {records}")
        return cls(sample_rate=batch_size / records)

    def toss(self, population: Population, randomness: Randomness) -> Coins:
        """Tosses one coin a record, on the generator's device. A draw of no records is legal."""
        return Coins(randomness.uniform(len(population)) < self.sample_rate)

    def event(self, noise_multipliers: list[float]) -> DpEvent:
        """What one draw costs, whatever number of noisy sums is released from it."""
        return _event(self.sample_rate, tuple(noise_multipliers))


NO_NAME = frozenset(("", "nan", "NaN", "None", "NaT", "<NA>"))
"""texts that stand for a missing name: of them all, one owner would be made"""


class Owners(Sensitive[Tensor]):
    """Whose each record is: the owner's number, [n], and −1 for records beyond the declared `cap` of their owner.

    An owner keeps the first `cap` records in the order of the data; no other owner decides about it.

    >>> unseal(Owners.of(["ann", "bob", "ann", "ann"], cap=2)).tolist()
    [0, 1, 0, -1]
    """

    __slots__ = ("cap",)

    def __init__(self, numbers: Tensor, cap: int) -> None:
        """`cap` is public: how many records of one owner may be trained on."""
        self._content, self.cap = numbers, cap

    @classmethod
    def of(cls, names: Iterable[Hashable] | Tensor, *, cap: int) -> "Owners":
        """From one name or number a record."""
        check_range("owner_cap", cap, "at least 1")
        held_as: Any = names.to_numpy() if hasattr(names, "to_numpy") else names  # a column's type counts
        known: dict[Hashable, int] = {}
        held: Counter[Hashable] = Counter()
        numbers = []
        if isinstance(names, Tensor):
            held_as = names.cpu() if names.is_floating_point() else names.tolist()
        for name in map(owner_name, held_as):
            held[name] += 1
            numbers.append(known.setdefault(name, len(known)) if held[name] <= cap else -1)
        return cls(torch.tensor(numbers, dtype=torch.long), cap)

    def followed_by(self, sizes: Iterable[int]) -> "Owners":
        """These, and behind them others, each of so many records.

        >>> unseal(Owners.of(["ann", "ann"], cap=2).followed_by([1, 3])).tolist()
        [0, 0, 1, 2, 2, -1]
        """
        names = [owner for owner, size in enumerate(sizes) for _ in range(size)]
        numbers = self._content.tolist()
        others = unseal(Owners.of(names, cap=self.cap)).tolist()
        start = 1 + max(numbers, default=-1)
        return Owners(torch.tensor(numbers + [n + start if n >= 0 else n for n in others]), self.cap)

    @staticmethod
    def declared(cap: int) -> str:
        """What is public of them, for the statement."""
        return f"at most {cap} records of one owner are trained on"

    def check(self, records: int) -> None:
        held = len(self._content)
        require(held == records, f"owners: {held} of them for {records} records; allowed: one owner a record")

    def to(self, device: torch.device) -> "Owners":
        return Owners(self._content.to(device), self.cap)


@dataclass(frozen=True, kw_only=True)
class OwnerSampler(PoissonSampler):
    """Takes each *owner* with probability `sample_rate`, with all of the records that they keep.

    Formal guarantee: one owner more or less adds or removes at most `cap` records, each of which moves a sum by at most
    C, so by at most cap·C in all; and that owner takes part with probability q. So a draw is the event of a Poisson
    sample with noise σ·cap·C, under adding or removing one owner.
    """

    owners: Owners

    @property
    def per_owner(self) -> int:
        return self.owners.cap

    def toss(self, population: Population, randomness: Randomness) -> Coins:
        """A coin an owner, of as many as there are records; the owner's number is the coin's."""
        coins = randomness.uniform(len(population)) < self.sample_rate
        numbers = unseal(self.owners).to(coins.device)
        return Coins(coins[numbers] & (numbers >= 0))


def owner_name(given: Any) -> Hashable:
    """An owner's name by its value: tensors hash by identity, and a rounded number may be two persons'."""
    if type(given) is int:  # most are
        return int(given)
    if isinstance(given, tuple):
        return tuple(map(owner_name, given))
    held = isinstance(given, Tensor | np.ndarray | np.generic)
    name = given.item() if held and given.ndim == 0 else given
    missing = name is None or type(name).__name__ in ("NAType", "NaTType") or (isinstance(name, float) and name != name)
    told = f", or {name!r} for it" if isinstance(name, str) and name in NO_NAME else ""
    allowed = "allowed: a name or a number for each record (where it is not known, a new one)"
    require(not (missing or told), f"owners: a record has none{told}; {allowed}")
    kind = type(name).__name__ + (f" of {name.ndim} dimensions" if held and given.ndim else "")
    allowed = "allowed: str, bytes, int, float, bool, date, datetime, UUID, and tuples of these"
    require(isinstance(name, str | bytes | int | float | date | UUID), f"owners: a name is a {kind}; {allowed}")
    if isinstance(name, float):
        dtype: Any = given.dtype if held else torch.float64
        exact = 2 / (torch.finfo(dtype) if isinstance(dtype, torch.dtype) else np.finfo(dtype)).eps
        told = f"owners: {str(dtype).removeprefix('torch.')} cannot tell such numbers apart"
        allowed = f"allowed: whole ones below {exact:,.0f}, integers, or text"
        require(name.is_integer() and abs(name) < exact, f"{told}; {allowed}")
    return cast(Hashable, name)


_event = functools.lru_cache(maxsize=64)(draw_event)


def gather(population: Population, drawn: Drawn, present: Presence | None = None) -> Records:
    """The drawn records themselves: one row a record, or a record could be clipped as several."""
    positions = unseal(drawn)
    inputs, targets = population.take(positions)
    rows = len(inputs) if isinstance(inputs, Tensor) else count_rows(inputs)
    if not rows == len(targets) == len(positions):
        raise PrivacyLineError(f"{type(population).__name__}.take must return one input and one target a record")
    return Records((inputs, targets), present=present)


def bytes_of(rows: Tree) -> Iterator[bytes]:
    """The bytes of each record, of any type: records are told apart by them in memory.

    >>> [*bytes_of(torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16))]
    [b'\\x00\\x00\\x80?']
    """
    if not isinstance(rows, Tensor):
        return map(b"".join, zip(*map(bytes_of, tree_leaves(rows)), strict=True))
    plain = rows.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return (row.tobytes() for row in plain.reshape(len(rows), -1 if len(rows) else 0))
