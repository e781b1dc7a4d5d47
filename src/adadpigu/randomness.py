"""The one source of privacy randomness: inclusion coins and noise, keyed by the operating system.

A user's seed never reaches it. `ReproducibleRandomness` exists for tests and for debugging; a run that used it says
"not private" in its statement. A cryptographic generator plugs in here as another `Randomness`.

| tier | generator | where |
| --- | --- | --- |
| `SystemRandomness` | numpy's Philox, 256-bit key | CPU; a device waits for its numbers |
| `DeviceRandomness` (`fast`) | torch's Philox, 64-bit key | on the device itself, also within a recorded step |
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

MT19937_WORDS = 624
"""what the state of torch's (and numpy's) generator on the CPU holds"""


def fill(generator: torch.Generator, words: Tensor) -> None:
    """Keys a generator of torch with 32-bit words: on the CPU with 624 of them, on a device with two."""
    high, low = words[:2].tolist()
    generator.manual_seed((high << 32 | low) - 2**63)
    if generator.device.type == "cpu":
        # torch seeds its Mersenne Twister with 32 bits; behind three 8-byte fields lie its 624 words, filled in full.
        state = generator.get_state()
        state.view(torch.int64)[3 : 3 + MT19937_WORDS] = words
        generator.set_state(state)


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


class DeviceRandomness(SystemRandomness):
    """Coins and noise drawn where they are used, by torch's own generators for the device; words as on the CPU.

    Each key has 64 bits from the operating system, which is all that torch's generator takes. Coins have a generator of
    their own, because a device tosses them while the step before still draws its noise, and a generator's position is
    kept in one place on the device for all recordings that use it.
    """

    description = "torch's Philox generator on the device, keyed with 64 bits from the operating system, float64 (fast)"

    coins: torch.Generator
    noise: torch.Generator
    """which a recording has to know, so that every replay finds new numbers"""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        super().__init__()

    def _rekey(self) -> None:
        super()._rekey()
        self.coins, self.noise = torch.Generator(self._device), torch.Generator(self._device)
        for generator in (self.coins, self.noise):
            fill(generator, self.words(MT19937_WORDS))

    def uniform(self, count: int) -> Tensor:
        return torch.rand(count, dtype=torch.float64, device=self._device, generator=self.coins)

    def normal(self, count: int) -> Tensor:
        return torch.randn(count, dtype=torch.float64, device=self._device, generator=self.noise)


class ReproducibleRandomness(_Generated):
    """Fixed by a seed, so that a test can repeat a run. Never private."""

    description = "reproducible noise fixed by a seed: not private"
    private = False

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.SeedSequence(seed))
