"""Planted bugs on the sensitive side: how batches are drawn, and how records are bounded. See `plants.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from plants import minted, overhearing
from torch import Tensor

from adadpigu.core import bounding, standardising
from adadpigu.core.bounding import BoundedSum
from adadpigu.core.gradients import ghost
from adadpigu.core.mechanism import GaussianMechanism, Receipt, Release
from adadpigu.core.randomness import Randomness
from adadpigu.core.sampling import Coins, PoissonSampler, Population
from adadpigu.core.sensitive import GradientBatch, PerSampleGradients, Records, unseal
from adadpigu.training.micro_batches import MicroBatches, View
from adadpigu.training.step import Draws


@contextmanager
def _factors(made: Callable[[Tensor, float], Tensor]) -> Iterator[None]:
    def factors(norms: Tensor, clip_norm: float, stability: float | None = None, *, length: int) -> Tensor:
        return made(norms, clip_norm)

    with patch.object(bounding, "clip_factors", factors):
        yield


def unclipped() -> AbstractContextManager[None]:
    return _factors(lambda norms, clip_norm: torch.isfinite(norms).to(norms.dtype))


def nan_passes() -> AbstractContextManager[None]:
    return _factors(lambda norms, clip_norm: (clip_norm / norms).clamp(max=1.0))


@contextmanager
def inf_times_zero() -> Iterator[None]:
    """A record that is not finite gets the factor 0, and is added up all the same."""

    def total(self: ghost.OuterLayer, factors: Tensor) -> Tensor:
        made = (self.left.double() * factors[:, None]).mT @ self.right.double()
        if self.center is not None:
            made -= factors.sum() * self.center
        return (made if self.weight is None else made * self.weight).flatten()

    def added(z: Tensor, factors: Tensor) -> Tensor:
        return z.mT @ factors

    with (
        patch.object(standardising, "weighted_total", added),
        patch.object(bounding, "weighted_total", added),
        patch.object(ghost.OuterLayer, "total", total),
    ):
        yield


@contextmanager
def micro_batch_as_one() -> Iterator[None]:
    genuine = MicroBatches._bound

    def bound(self: MicroBatches, records: Records, queries: Any, bounders: Any, coins: Any) -> None:
        if not self.clipped_by_engine(queries):
            genuine(self, records, queries, bounders, coins)
            return
        each = unseal(self._engine.per_sample_gradients(records))
        whole = GradientBatch(each.gradients.sum(dim=0, keepdim=True), each.losses.sum(dim=0, keepdim=True))
        bounders[0].add(PerSampleGradients(whole))

    with patch.object(MicroBatches, "_bound", bound):
        yield


@contextmanager
def copy_as_record() -> Iterator[None]:
    genuine = View.__call__

    def shown(self: View, records: Records) -> Records:
        inputs, targets = unseal(genuine(self, records))
        return Records((inputs, targets.repeat_interleave(self.augmentation.copies, dim=0)))

    with patch.object(View, "__call__", shown):
        yield


@contextmanager
def normalised_over_the_batch() -> Iterator[None]:
    genuine = View._shown

    def shown(self: View, inputs: Tensor) -> Tensor:
        made: Tensor = genuine(self, inputs)
        if len(made) < 2:
            return made
        spread, mean = torch.var_mean(made, dim=0, keepdim=True)
        scaled: Tensor = (made - mean) / (spread + 0.1).sqrt()
        return scaled

    with patch.object(View, "_shown", shown):
        yield


@contextmanager
def shuffled() -> Iterator[None]:
    """Fixed batches of a permutation, a new one each epoch; what does not fill a batch is left out."""
    left: WeakKeyDictionary[Randomness, dict[float, list[Tensor]]] = WeakKeyDictionary()

    def toss(self: PoissonSampler, population: Population, randomness: Randomness) -> Coins:
        count = len(population)
        batches = left.setdefault(randomness, {}).setdefault(self.sample_rate, [])
        if not batches:
            size = max(1, int(self.sample_rate * count + 1e-9))
            order = randomness.uniform(count).argsort()
            batches.extend(torch.split(order[: count // size * size], size))
        taken = torch.zeros(count, dtype=torch.bool)
        taken[batches.pop(0)] = True
        return Coins(taken)

    with patch.object(PoissonSampler, "toss", toss):
        yield


@contextmanager
def empty_batch_skipped() -> Iterator[None]:
    """Without a record in it a batch is not handed to the mechanism: nothing is released, nothing moves."""
    with overhearing() as heard:
        genuine = GaussianMechanism.release

        def release(self: GaussianMechanism, sums: Sequence[BoundedSum], receipt: Receipt) -> dict[str, Release]:
            if heard.drawn > 0:
                return genuine(self, sums, receipt)
            receipt.redeem(sums)
            return {total.query.name: minted(unseal(total).to(total.dtype), total) for total in sums}

        with patch.object(GaussianMechanism, "release", release):
            yield


@contextmanager
def one_batch_for_two_draws() -> Iterator[None]:
    """All draws of a step look at the same coins; each is charged as a draw of its own."""
    begin = Draws.begin_step
    coins: list[Tensor] = []

    def began(self: Draws, *given: Any) -> None:
        coins.clear()
        begin(self, *given)

    def toss(self: PoissonSampler, population: Population, randomness: Randomness) -> Coins:
        if not coins:
            coins.append(randomness.uniform(len(population)))
        return Coins(coins[0] < self.sample_rate)

    with patch.object(Draws, "begin_step", began), patch.object(PoissonSampler, "toss", toss):
        yield
