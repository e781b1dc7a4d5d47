"""Randomness for record and replay: common records meet the same chance on D and on its neighbour. Never private.

A run on D keeps its inclusion coins and the words that key dropout and augmentation; a neighbour's run is given the
same ones. The one record that differs is the last of every batch, so that it shifts nobody else's numbers; and where a
forward draws several times, `FrozenChance` keys every operation anew, since one row more moves a generator on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from adadpigu.core.randomness import Randomness
from adadpigu.errors import AdaDPIGUError

_NEVER = math.nextafter(1.0, 0.0)
"""a coin under which a record is drawn at q = 1 alone"""

aten = torch.ops.aten


class ReplayError(AdaDPIGUError):
    """The neighbour's run asks for something else than was recorded: state depends on un-noised data."""


class FrozenChance(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, what the k-th random operation of a draw gives a row depends on the draw's words, on k and on the row.

    So a record at the end changes no other record's dropout or augmentation, on any device. That takes operations whose
    first dimension is the records, as those of all layers but stacked recurrent ones are, and one pass over a batch.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._key, self._calls = 0, 0
        self.used = False
        """whether anything was drawn at all"""

    def rekey(self, words: Tensor) -> None:
        """Another draw begins."""
        self._key, self._calls = int(words[0]), 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        self.used, self._calls = True, self._calls + 1
        if func in _FROZEN:
            return _FROZEN[func](self._uniform, *args, **(kwargs or {}))
        torch.manual_seed(self._key << 16 | self._calls)
        return func(*args, **(kwargs or {}))

    def _uniform(self, shape: Any, device: torch.device) -> Tensor:
        generator = np.random.Generator(np.random.Philox(key=[self._key, self._calls]))
        return torch.from_numpy(generator.random(tuple(shape))).to(device)


Uniform = Callable[[Any, torch.device], Tensor]


def _bernoulli_(uniform: Uniform, into: Tensor, p: float = 0.5, **_: Any) -> Tensor:
    return into.copy_(uniform(into.shape, into.device) < p)


def _bernoulli(uniform: Uniform, like: Tensor, p: float, **_: Any) -> Tensor:
    return (uniform(like.shape, like.device) < p).to(like.dtype)


def _native_dropout(uniform: Uniform, values: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if not train or p == 0:
        return values.clone(), torch.ones_like(values, dtype=torch.bool)
    kept = uniform(values.shape, values.device) >= p
    return torch.where(kept, values / (1 - p) if p < 1 else 0.0, 0.0), kept


def _rand(uniform: Uniform, shape: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    made = uniform(shape, torch.device(device or "cpu")).to(dtype or torch.get_default_dtype())
    return made.clamp(max=1 - torch.finfo(made.dtype).eps)


def _uniform_(uniform: Uniform, into: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return into.copy_(low + (high - low) * uniform(into.shape, into.device))


def _gaussian_(uniform: Uniform, into: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return into.copy_(mean + std * torch.special.ndtri(uniform(into.shape, into.device).clamp(min=1e-300)))


def _randn(uniform: Uniform, shape: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return _gaussian_(uniform, torch.empty(tuple(shape), dtype=dtype, device=device))


def _randn_like(uniform: Uniform, like: Tensor, **_: Any) -> Tensor:
    return _gaussian_(uniform, torch.empty_like(like))


_FROZEN: dict[Any, Callable[..., Any]] = {
    aten.bernoulli_.float: _bernoulli_,
    aten.bernoulli.p: _bernoulli,
    aten.native_dropout.default: _native_dropout,
    aten.rand.default: _rand,
    aten.uniform_.default: _uniform_,
    aten.normal_.default: _gaussian_,
    aten.randn.default: _randn,
    aten.randn_like.default: _randn_like,
}
"""of the operations that models and augmentation use, what they give from uniform numbers"""


class RecordedCoins:
    """Randomness whose inclusion coins and words are kept, for the run on D.

    The record at `always` is in every batch. With `share` each of the others is in a batch with that probability,
    whatever q is: an auditor may choose who is drawn. In the draws of `empty` nobody is, in those of `full` everybody.
    """

    description = "recorded coins: not private"
    tier: Literal["reproducible"] = "reproducible"
    private = False

    def __init__(
        self,
        inner: Randomness,
        always: int | None = None,
        *,
        share: float | None = None,
        empty: frozenset[int] = frozenset(),
        full: frozenset[int] = frozenset(),
    ) -> None:
        self._inner = inner
        self._always = always
        self._share = share
        self._empty, self._full = empty, full
        self.coins: list[Tensor] = []
        self.filled: list[Tensor] = []
        self.chance = FrozenChance()

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


class NeighbourCoins:
    """The same coins for the common records; the one extra record is in every batch it could be in.

    `removed` is the position that D has and D′ has not; None means that D′ has one more record, at its end.
    """

    description = "recorded coins: not private"  # a run's report names it, and must be the neighbour's too
    tier: Literal["reproducible"] = "reproducible"
    private = False

    def __init__(self, recorded: RecordedCoins, removed: int | None) -> None:
        self._coins = iter(recorded.coins)
        self._filled = iter(recorded.filled)
        self._removed = removed
        self.chance = FrozenChance()

    def uniform(self, count: int) -> Tensor:
        coins = next(self._coins)
        if self._removed is None:
            coins = torch.cat([coins, coins.new_zeros(1)])
        else:
            coins = torch.cat([coins[: self._removed], coins[self._removed + 1 :]])
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
