"""Planted bugs that the audits once passed: in samplers, copies, long draws, growing masks, rounding, noise, ε.

See `plants.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from plants import Overheard, minted, noise_by
from torch import Tensor

from adadpigu.accounting import calibration, pld
from adadpigu.core import bounding
from adadpigu.core.bounding import BoundedSum, GradientSum
from adadpigu.core.gradients import engine
from adadpigu.core.gradients.engine import GradientEngine
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.randomness import Randomness
from adadpigu.core.sampling import Coins, PoissonSampler, Population
from adadpigu.core.sensitive import Presence, Records, unseal
from adadpigu.training import micro_batches
from adadpigu.training.micro_batches import MicroBatches
from adadpigu.training.preparation import Preparation

_POOL = 65_536
_NUMBERS = torch.special.ndtri((torch.arange(_POOL, dtype=torch.float64) + 0.5) / _POOL)
_FIRST_ROWS = 256


class _OneSize(PoissonSampler):
    """Takes q·n of n records, all of them alike, and calls that a Poisson draw."""

    def toss(self, population: Population, randomness: Randomness) -> Coins:
        coins = randomness.uniform(len(population))
        return Coins(coins.argsort().argsort() < round(self.sample_rate * len(population)))


@contextmanager
def sampler_of(kind: type[PoissonSampler]) -> Iterator[None]:
    """Runs draw by a sampler of another class; `PoissonSampler` itself is as it was."""
    genuine = Preparation.samplers

    def samplers(self: Preparation, stage: int) -> dict[str, tuple[PoissonSampler, float]]:
        own = genuine(self, stage)
        return {name: (kind(sample_rate=sampler.sample_rate), sigma) for name, (sampler, sigma) in own.items()}

    with patch.object(Preparation, "samplers", samplers):
        yield


def batches_of_one_size() -> AbstractContextManager[None]:
    """A sampler of a class of its own takes equally many records in every draw."""
    return sampler_of(_OneSize)


@contextmanager
def copies_clipped_apart() -> Iterator[None]:
    """The engine takes the copies of a record for records, each of which is clipped to C."""
    genuine = GradientEngine.clipped_sum

    def clipped_sum(self: GradientEngine, records: Records, query: GradientSum) -> BoundedSum:
        inputs, targets = unseal(records)
        present, copies = records.present, records.copies
        if present is not None:
            present = Presence(unseal(present).repeat_interleave(copies))
        apart = Records((inputs, targets.repeat_interleave(copies, dim=0)), present=present)
        return genuine(self, apart, query)

    with patch.object(GradientEngine, "clipped_sum", clipped_sum):
        yield


@contextmanager
def late_rows_unclipped() -> Iterator[None]:
    """Rows after the first 256 of a draw are clipped at 100 C."""
    process, factors, seen = MicroBatches._process, bounding.clip_factors, [0]

    def began(self: MicroBatches, *given: Any) -> Any:
        seen[0] = 0
        return process(self, *given)

    def made(norms: Tensor, clip_norm: float, stability: float | None = None, *, length: int) -> Tensor:
        late = torch.arange(seen[0], seen[0] + len(norms)) >= _FIRST_ROWS
        seen[0] += len(norms)
        loose = factors(norms, 100 * clip_norm, stability, length=length)
        return torch.where(late, loose, factors(norms, clip_norm, stability, length=length))

    with patch.object(MicroBatches, "_process", began), patch.object(bounding, "clip_factors", made):
        yield


@contextmanager
def newcomers_keep_their_noise() -> Iterator[None]:
    """A coordinate that joins the mask gets the noise of its first step in all later ones."""
    noisy = GaussianMechanism._noisy
    known: WeakKeyDictionary[GaussianMechanism, tuple[Tensor, Tensor]] = WeakKeyDictionary()

    def made(self: GaussianMechanism, total: BoundedSum, noise_multiplier: float) -> Release:
        release = noisy(self, total, noise_multiplier)
        if not isinstance(total.query, GradientSum) or (active := total.query.active) is None:
            return release
        content = unseal(total)
        first, kept = known.setdefault(self, (active.clone(), torch.full_like(content, torch.nan)))
        fresh = active & ~first & kept.isnan()
        kept[fresh] = (release.value - content)[fresh]
        value = torch.where(active & ~kept.isnan(), (content + kept).to(release.value), release.value)
        return minted(value, total, release.noise_stddev)

    with patch.object(GaussianMechanism, "_noisy", made):
        yield


def _of_a_pool(own: Randomness, count: int) -> Tensor:
    picked: Tensor = _NUMBERS[(torch.special.ndtr(own.normal(count)) * _POOL).long().clamp(max=_POOL - 1)]
    return picked


def _in_pairs(own: Randomness, count: int) -> Tensor:
    noise, pairs = own.normal(count), count // 2
    noise[1 : 2 * pairs : 2] = noise[0 : 2 * pairs : 2] * own.normal(pairs).sign()
    return noise


def noise_of_a_pool() -> AbstractContextManager[None]:
    """Every number is one of 65,536, which lie as those of N(0, 1) do."""
    return noise_by(lambda heard, own, count: _of_a_pool(own, count))


def pool_where_records_are_drawn() -> AbstractContextManager[None]:
    return noise_by(lambda heard, own, count: _of_a_pool(own, count) if heard.drawn else own.normal(count))


def pairs_up_to_a_sign() -> AbstractContextManager[None]:
    """Of every two neighbouring coordinates the second has the first one's noise, under a sign drawn afresh."""
    return noise_by(lambda heard, own, count: _in_pairs(own, count))


def pairs_where_records_are_drawn() -> AbstractContextManager[None]:
    return noise_by(lambda heard, own, count: _in_pairs(own, count) if heard.drawn else own.normal(count))


def pairs_far_apart() -> AbstractContextManager[None]:
    """Coordinates are paired at random, once; the second has the first one's noise but for its sign and 0.1 %."""

    def made(heard: Overheard, own: Randomness, count: int) -> Tensor:
        noise, pairs = own.normal(count), count // 2
        first, second = torch.randperm(count, generator=torch.Generator().manual_seed(5))[: 2 * pairs].view(2, pairs)
        noise[second] = noise[first] * own.normal(pairs).sign() * (1 + 1e-3 * own.normal(pairs))
        return noise

    return noise_by(made)


def halved_without_a_watch() -> AbstractContextManager[None]:
    """Half of the noise in every run that has no watch: in those of users."""
    return noise_by(lambda heard, own, count: own.normal(count) * (1.0 if heard.watched else 0.5))


def halved_without_a_watch_unless_empty() -> AbstractContextManager[None]:
    """Half of the noise in every draw of a user that has taken a record."""
    return noise_by(lambda heard, own, count: own.normal(count) * (0.5 if heard.drawn and not heard.watched else 1.0))


def low_on_one_tensor_without_a_watch() -> AbstractContextManager[None]:
    """A tenth of the noise on the model's last bias, in every run that has no watch."""

    def made(heard: Overheard, own: Randomness, count: int) -> Tensor:
        assert heard.layout is not None
        noise, last = own.normal(count), [slot for slot in heard.layout.slots if slot.name.endswith("bias")][-1]
        if count == heard.layout.size and not heard.watched:
            noise[last.start : last.stop] *= 0.1
        return noise

    return noise_by(made)


@contextmanager
def rows_rounded_by_their_company() -> Iterator[None]:
    """Slices are as long as what was drawn, and rows lie where they come: a CPU rounds the last ones otherwise."""
    with (
        patch.object(micro_batches, "padded", lambda records, size: records),
        patch.object(engine, "aligned", lambda *given, **named: nullcontext()),
        patch.object(MicroBatches, "_places_matter", lambda self, size: False),
    ):
        yield


@contextmanager
def one_step_too_few() -> Iterator[None]:
    """The accountant composes T − 1 steps where T are asked for."""
    genuine = pld._composed

    def composed(q: float, sigma: float, count: int, interval: float) -> Any:
        return genuine(q, sigma, max(1, count - 1), interval)

    def forget() -> None:
        pld.pld_epsilon.cache_clear()
        for cached in vars(calibration).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()

    forget()
    try:
        with patch.object(pld, "_composed", composed):
            yield
    finally:
        forget()
