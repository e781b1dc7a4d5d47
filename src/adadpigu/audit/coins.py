"""Randomness for record and replay: common records meet the same chance on D and on its neighbour. Never private.

A run on D keeps its inclusion coins and the words that key dropout and augmentation; a neighbour's run gets the same
ones. The record that differs is the last of every batch, and `PerRecordRng` keys every random operation by itself, so
that one row more shifts nobody else's numbers.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from adadpigu.core.randomness import Randomness
from adadpigu.errors import AdaDPIGUError

_NEVER = math.nextafter(1.0, 0.0)  # a coin under which a record is drawn at q = 1 alone


class ReplayError(AdaDPIGUError):
    """The neighbour's run asks for something else than was recorded: state depends on un-noised data."""


class PerRecordRng(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keys every random operation by the draw's words, its position k in the draw, and the row.

    So a record at the end changes no other record's dropout or augmentation. That takes one pass over a batch, and
    operations whose first dimension is the records: those of all layers but stacked recurrent ones.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._key, self._calls = 0, 0
        self.used = False  # whether anything was drawn at all

    def rekey(self, words: Tensor) -> None:
        """Another draw begins."""
        self._key, self._calls = int(words[0]), 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        self.used, self._calls = True, self._calls + 1
        if func is aten.native_dropout.default:
            return self._dropout(*args)
        if func not in _LAWS:
            torch.manual_seed(hash((self._key, self._calls)))
            return func(*args, **(kwargs or {}))
        first, *others = args
        into = _empty(first, **(kwargs or {})) if not func._schema.is_mutable else first
        return into.copy_(_LAWS[func](self._uniform(into), *others))

    def _dropout(self, values: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
        kept = self._uniform(values) >= (p if train else 0.0)
        return torch.where(kept, values / (1 - p) if train and p < 1 else values, 0.0), kept

    def _uniform(self, like: Tensor) -> Tensor:
        """Numbers between 0 and 1, of which those of the first rows are the same however many there are."""
        made = np.random.Generator(np.random.Philox(key=[self._key, self._calls])).random(tuple(like.shape))
        rounded = torch.finfo(like.dtype).eps if like.is_floating_point() else 0.0
        return torch.from_numpy(made).clamp(1e-300, 1 - rounded).to(like.device)


def _empty(like: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """As a tensor is, or of a shape."""
    if isinstance(like, Tensor):
        return torch.empty_like(like, dtype=dtype, device=device)
    return torch.empty(tuple(like), dtype=dtype, device=device)


aten = torch.ops.aten
_LAWS: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((aten.bernoulli_.float, aten.bernoulli.p), lambda u, p=0.5: u < p),
    **dict.fromkeys((aten.uniform_.default, aten.rand.default), lambda u, low=0.0, high=1.0: low + (high - low) * u),
    **dict.fromkeys(
        (aten.normal_.default, aten.randn.default, aten.randn_like.default),
        lambda u, mean=0.0, std=1.0: mean + std * torch.special.ndtri(u),
    ),
}
"""the random operations of models and augmentation, as functions of uniform numbers"""


class _Coins:
    """Neither private nor named apart: a run's report has the name, and a neighbour's has to be the same."""

    description = "recorded coins: not private"
    tier: Literal["reproducible"] = "reproducible"
    private = False

    def __init__(self) -> None:
        self.chance = PerRecordRng()


class RecordedCoins(_Coins):
    """Randomness whose inclusion coins and words are kept, for the run on D.

    The record at `always` is in every batch. With `share` each of the others is in a batch with that probability,
    whatever q is: an auditor may choose who is drawn. In the draws of `empty` nobody is, in those of `full` everybody.
    """

    def __init__(
        self,
        inner: Randomness,
        always: int | None = None,
        *,
        share: float | None = None,
        empty: frozenset[int] = frozenset(),
        full: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self._inner, self._always, self._share = inner, always, share
        self._empty, self._full = empty, full
        self.coins: list[Tensor] = []
        self.filled: list[Tensor] = []

    def uniform(self, count: int) -> Tensor:
        coins = self._inner.uniform(count)
        if self._share is not None:
            coins = torch.where(coins < self._share, 0.0, _NEVER)
        if self._always is not None:
            coins[self._always] = 0.0
        if len(self.coins) in self._empty:
            coins = torch.full_like(coins, _NEVER)
        if len(self.coins) in self._full:
            coins = torch.zeros_like(coins)
        self.coins.append(coins)
        return coins

    def normal(self, count: int) -> Tensor:
        return self._inner.normal(count)

    def words(self, count: int) -> Tensor:
        self.filled.append(self._inner.words(count))
        self.chance.rekey(self.filled[-1])
        return self.filled[-1]


class NeighbourCoins(_Coins):
    """The same coins for the common records; the one extra record, or owner, is in every batch it could be in.

    `removed` is the coin that D has and D′ has not; None means that D′ has one more, at `added` (None: at its end).
    Each has `records`: of an owner's coins, one a record, the first counts.
    """

    def __init__(
        self, recorded: RecordedCoins, removed: int | None, *, added: int | None = None, records: int = 1
    ) -> None:
        super().__init__()
        self._coins, self._filled = iter(recorded.coins), iter(recorded.filled)
        self._removed, self._added, self._records = removed, added, records

    def uniform(self, count: int) -> Tensor:
        coins = next(self._coins)
        if self._removed is None:
            place = len(coins) if self._added is None else self._added
            coins = torch.cat([coins[:place], coins.new_zeros(self._records), coins[place:]])
        else:
            coins = torch.cat([coins[: self._removed], coins[self._removed + self._records :]])
        if len(coins) != count:
            raise ReplayError(f"{count} coins are tossed, not one a record: {len(coins)}")
        return coins

    def normal(self, count: int) -> Tensor:
        raise ReplayError("noise was drawn in a replay: a release did not pass the tape")

    def words(self, count: int) -> Tensor:
        words = next(self._filled, None)
        if words is None or len(words) != count:
            raise ReplayError("the neighbour keys its forward passes in another order than was recorded")
        self.chance.rekey(words)
        return words
