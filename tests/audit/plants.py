"""Bugs planted into the package: each a context manager within which training really has that bug.

Every one replaces functions on the path that a real run takes, and leaves the rest as it is: the ledger charges and the
mechanism declares what they would without it. What they read is sensitive, so they stay in tests.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np
import torch
from randomgen import ChaCha
from torch import Tensor

from adadpigu.core import mechanism
from adadpigu.core.bounding import BoundedSum, GradientSum
from adadpigu.core.layout import Layout
from adadpigu.core.mechanism import GaussianMechanism, Receipt, Release
from adadpigu.core.randomness import Randomness, SystemRandomness
from adadpigu.core.sampling import Coins, PoissonSampler, Population
from adadpigu.core.sensitive import unseal
from adadpigu.core.standardising import Standardiser
from adadpigu.methods.importance import Importance
from adadpigu.methods.statistics import Statistics
from adadpigu.training import optimiser as optimising
from adadpigu.training.loop import Session
from adadpigu.training.optimiser import MaskedOptimiser
from adadpigu.training.preparation import Preparation
from adadpigu.training.step import Draws

Plant = Callable[[], AbstractContextManager[object]]


@dataclass
class Overheard:
    """What a careless hand finds on the un-noised side of the run that is going on."""

    batch_size: float = 0.0
    layout: Layout | None = None
    records: int = 0
    """len(dataset)"""
    drawn: int = 0
    """len(batch)"""
    sample_rate: float = 0.0
    watched: bool = False
    sums: list[BoundedSum] = field(default_factory=list)

    def unnoised(self, restored: Release) -> Release:
        """ĝ as it would be without noise, in the guise of a release."""
        total = next(total for total in self.sums if total.query.name == restored.name)
        assert isinstance(total.query, GradientSum)
        mean = total.query.restore(unseal(total), int(self.batch_size))
        return minted(mean.to(total.dtype), total)


def minted(value: Tensor, total: BoundedSum, noise_stddev: float | None = None) -> Release:
    """A release with the mechanism's own stamp."""
    return Release(
        value, name=total.query.name, noise_stddev=noise_stddev, active=total.query.active, mint=mechanism._MINT
    )


@contextmanager
def overhearing() -> Iterator[Overheard]:
    """Notes what passes through a run, and changes nothing."""
    heard = Overheard()
    begin, toss, release = Draws.__init__, PoissonSampler.toss, GaussianMechanism.release

    def began(self: Draws, prepared: Preparation, *given: Any, **named: Any) -> None:
        begin(self, prepared, *given, **named)
        heard.batch_size, heard.layout = prepared.options.batch_size, prepared.engine.layout
        heard.records, heard.watched = len(prepared.data.train), named.get("watch") is not None

    def tossed(self: PoissonSampler, population: Population, randomness: Randomness) -> Coins:
        coins = toss(self, population, randomness)
        heard.drawn, heard.sample_rate = int(unseal(coins).sum()), self.sample_rate
        return coins

    def released(self: GaussianMechanism, sums: Sequence[BoundedSum], receipt: Receipt) -> dict[str, Release]:
        heard.sums = list(sums)
        return release(self, sums, receipt)

    with (
        patch.object(Draws, "__init__", began),
        patch.object(PoissonSampler, "toss", tossed),
        patch.object(GaussianMechanism, "release", released),
    ):
        yield heard


# What is learned from the data


@contextmanager
def importance_from_unnoised() -> Iterator[None]:
    genuine = Importance.update
    with overhearing() as heard:

        def update(self: Importance, gradient: Release) -> None:
            genuine(self, heard.unnoised(gradient))

        with patch.object(Importance, "update", update):
            yield


@contextmanager
def statistics_from_unnoised() -> Iterator[None]:
    genuine = Statistics.update
    with overhearing() as heard:

        def update(self: Statistics, restored: Release, *, noise_variance: Tensor | None = None) -> None:
            genuine(self, heard.unnoised(restored), noise_variance=noise_variance)

        with patch.object(Statistics, "update", update):
            yield


@contextmanager
def _divided_by(divisor: Callable[[Overheard], float]) -> Iterator[None]:
    genuine = GradientSum.restore
    with overhearing() as heard:

        def restore(self: GradientSum, total: Tensor, batch_size: int) -> Tensor:
            return genuine(self, total, divisor(heard))  # type: ignore[arg-type]

        with patch.object(GradientSum, "restore", restore):
            yield


def drawn_divisor() -> AbstractContextManager[None]:
    return _divided_by(lambda heard: max(heard.drawn, 1))


def length_divisor() -> AbstractContextManager[None]:
    return _divided_by(lambda heard: heard.sample_rate * heard.records)


# The noise


class _Altered:
    """The run's randomness, except for its normal numbers."""

    def __init__(self, inner: Randomness, normal: Callable[[int], Tensor]) -> None:
        self._inner, self.normal = inner, normal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def noise_by(made: Callable[[Overheard, Randomness, int], Tensor]) -> Iterator[None]:
    """The mechanism draws other normal numbers, and declares what it always does."""
    genuine = GaussianMechanism._noisy
    with overhearing() as heard:

        def noisy(self: GaussianMechanism, total: BoundedSum, noise_multiplier: float) -> Release:
            own = self._randomness
            self._randomness = _Altered(own, lambda count: made(heard, own, count))
            try:
                return genuine(self, total, noise_multiplier)
            finally:
                self._randomness = own

        with patch.object(GaussianMechanism, "_noisy", noisy):
            yield


def mean_noise_of_a_sum() -> AbstractContextManager[None]:
    return noise_by(lambda heard, own, count: own.normal(count) * heard.batch_size)


def sum_noise_of_a_mean() -> AbstractContextManager[None]:
    return noise_by(lambda heard, own, count: own.normal(count) / heard.batch_size)


def low_sigma() -> AbstractContextManager[None]:
    return noise_by(lambda heard, own, count: own.normal(count) * 0.95)


@contextmanager
def halved_out_of_sight() -> Iterator[None]:
    """Half of the noise wherever no auditor's mechanism is in the place of the run's own."""
    genuine = GaussianMechanism._noisy

    def noisy(self: GaussianMechanism, total: BoundedSum, noise_multiplier: float) -> Release:
        return genuine(self, total, noise_multiplier / (2 if type(self) is GaussianMechanism else 1))

    with patch.object(GaussianMechanism, "_noisy", noisy):
        yield


def halved_unless_empty() -> AbstractContextManager[None]:
    return noise_by(lambda heard, own, count: own.normal(count) * (0.5 if heard.drawn else 1.0))


def low_on_one_tensor() -> AbstractContextManager[None]:
    """A tenth of the noise on the last tensor, which is a bias."""

    def made(heard: Overheard, own: Randomness, count: int) -> Tensor:
        assert heard.layout is not None
        noise, last = own.normal(count), heard.layout.slots[-1]
        if count == heard.layout.size:
            noise[last.start : last.stop] *= 0.1
        return noise

    return noise_by(made)


def one_key_for_all_tensors() -> AbstractContextManager[None]:
    def made(heard: Overheard, own: Randomness, count: int) -> Tensor:
        assert heard.layout is not None
        if count != heard.layout.size:
            return own.normal(count)
        lengths = [slot.stop - slot.start for slot in heard.layout.slots]
        stream = own.normal(max(lengths))
        return torch.cat([stream[:length] for length in lengths])

    return noise_by(made)


def one_key_for_all_steps() -> AbstractContextManager[None]:
    first: WeakKeyDictionary[Randomness, dict[int, Tensor]] = WeakKeyDictionary()

    def made(heard: Overheard, own: Randomness, count: int) -> Tensor:
        kept = first.setdefault(own, {})
        if count not in kept:
            kept[count] = own.normal(count)
        return kept[count].clone()

    return noise_by(made)


@contextmanager
def noise_restored_on_resume() -> Iterator[None]:
    """Coins come from a new key after a resume; the noise goes on from where the checkpoint was."""
    streams: WeakKeyDictionary[SystemRandomness, np.random.Generator] = WeakKeyDictionary()
    states: dict[Path, Any] = {}
    save, begin = Session.save, Session.begin

    def stream(randomness: Any) -> np.random.Generator:
        while not isinstance(randomness, SystemRandomness):
            randomness = randomness._inner
        if randomness not in streams:
            key = int.from_bytes(os.urandom(32), "little")
            streams[randomness] = np.random.Generator(ChaCha(key=key, rounds=20))
        return streams[randomness]

    def normal(self: SystemRandomness, count: int) -> Tensor:
        return torch.from_numpy(stream(self).standard_normal(count))

    def saved(self: Session) -> None:
        before = self._saved_step
        save(self)
        if self._saved_step != before:
            assert self._store is not None
            states[self._store.path] = copy.deepcopy(stream(self._randomness).bit_generator.state)

    def begun(self: Session) -> None:
        begin(self)
        if self.done:
            assert self._store is not None
            stream(self._randomness).bit_generator.state = states[self._store.path]

    with (
        patch.object(SystemRandomness, "normal", normal),
        patch.object(Session, "save", saved),
        patch.object(Session, "begin", begun),
    ):
        yield


@contextmanager
def count_under_charged() -> Iterator[None]:
    """The count of quantile clipping gets noise of B/20, as it is recommended; the charge is for the gradient alone."""
    genuine = GaussianMechanism._noisy
    with overhearing() as heard:

        def noisy(self: GaussianMechanism, total: BoundedSum, noise_multiplier: float) -> Release:
            count = heard.batch_size / 20 / total.sensitivity
            return genuine(self, total, count if total.query.name == "within" else noise_multiplier)

        with patch.object(GaussianMechanism, "_noisy", noisy):
            yield


# The mask


@contextmanager
def frozen_without_noise() -> Iterator[None]:
    """Frozen coordinates keep their sum, get no noise, and are updated."""
    noisy, begin, restore = GaussianMechanism._noisy, Standardiser.__init__, GradientSum.restore

    def everywhere(query: GradientSum) -> GradientSum:
        return replace(query, active=None)

    def began(self: Standardiser, query: GradientSum, *given: Any, **named: Any) -> None:
        begin(self, everywhere(query), *given, **named)

    def made(self: GaussianMechanism, total: BoundedSum, noise_multiplier: float) -> Release:
        release, active = noisy(self, total, noise_multiplier), total.query.active
        if active is None:
            return release
        value = torch.where(active, release.value, unseal(total).to(total.dtype))
        return minted(value, total, release.noise_stddev)

    with (
        patch.object(Standardiser, "__init__", began),
        patch.object(GaussianMechanism, "_noisy", made),
        patch.object(
            GradientSum, "restore", lambda self, total, batch_size: restore(everywhere(self), total, batch_size)
        ),
        patch.object(optimising, "look", lambda release: (mechanism.look(release)[0], None)),
    ):
        yield


@contextmanager
def mask_moved_after_noise() -> Iterator[None]:
    """Noise lies on the coordinates that were active in the draw before; the sum is of those that are active now."""
    noisy = GaussianMechanism._noisy
    before: WeakKeyDictionary[GaussianMechanism, Tensor] = WeakKeyDictionary()

    def made(self: GaussianMechanism, total: BoundedSum, noise_multiplier: float) -> Release:
        release, active = noisy(self, total, noise_multiplier), total.query.active
        if not isinstance(total.query, GradientSum):
            return release
        now = torch.ones(total.size, dtype=torch.bool) if active is None else active
        newcomers = now & ~before.get(self, now)
        before[self] = now.clone()
        value = torch.where(newcomers, unseal(total).to(total.dtype), release.value)
        return minted(value, total, release.noise_stddev)

    with patch.object(GaussianMechanism, "_noisy", made):
        yield


# What is left behind


@contextmanager
def gradient_left_behind() -> Iterator[None]:
    genuine = MaskedOptimiser.step
    with overhearing() as heard:

        def step(self: MaskedOptimiser, direction: Release) -> None:
            genuine(self, direction)
            total = next(total for total in heard.sums if total.query.name == direction.name)
            for parameter, (_, part) in zip(self._parameters, self._layout.split(unseal(total)), strict=True):
                parameter.grad = part.to(parameter)

        with patch.object(MaskedOptimiser, "step", step):
            yield
