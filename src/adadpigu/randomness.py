"""The one source of privacy randomness: inclusion coins and noise, keyed by the operating system.

A user's seed never reaches it. `ReproducibleRandomness` exists for tests and for debugging; a run that used it says
"not private" in its statement. A cryptographic generator plugs in here as another `Randomness`.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Randomness(Protocol):
    """Draws the coins of the sampler and the noise of the mechanism, always in float64."""

    @property
    def description(self) -> str: ...

    @property
    def private(self) -> bool:
        """Whether nobody outside the process can know the key."""
        ...

    def uniform(self, count: int) -> Tensor:
        """Independent uniform numbers in [0, 1)."""
        ...

    def normal(self, count: int) -> Tensor:
        """Independent standard normal numbers."""
        ...

    def words(self, count: int) -> Tensor:
        """Independent 32-bit words, to fill the generators that a forward pass draws from (dropout, augmentation)."""
        ...


class _Generated:
    """Float64 draws from a counter-based generator (Philox)."""

    def __init__(self, key: np.random.SeedSequence) -> None:
        self._generator = np.random.Generator(np.random.Philox(key))

    def uniform(self, count: int) -> Tensor:
        return torch.from_numpy(self._generator.random(count))

    def normal(self, count: int) -> Tensor:
        return torch.from_numpy(self._generator.standard_normal(count))

    def words(self, count: int) -> Tensor:
        return torch.from_numpy(self._generator.integers(2**32, size=count))

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("the state of a privacy generator is never stored: noise is re-keyed, not restored")


class SystemRandomness(_Generated):
    """Keyed with 256 bits from the operating system at construction, and again in every forked process.

    The generator is statistical (Philox), not cryptographic: its key cannot be guessed, but no security proof covers an
    observer of long raw noise output.
    """

    description = "Philox generator keyed with 256 bits from the operating system, float64"
    private = True

    def __init__(self) -> None:
        self._rekey()
        _alive.add(self)

    def _rekey(self) -> None:
        super().__init__(np.random.SeedSequence(int.from_bytes(os.urandom(32), "little")))


_alive: weakref.WeakSet[SystemRandomness] = weakref.WeakSet()


def _rekey_all() -> None:
    for generator in _alive:
        generator._rekey()


os.register_at_fork(after_in_child=_rekey_all)


class ReproducibleRandomness(_Generated):
    """Fixed by a seed, so that a test can repeat a run. Never private."""

    description = "reproducible noise fixed by a seed: not private"
    private = False

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.SeedSequence(seed))
