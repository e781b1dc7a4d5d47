"""The one source of privacy randomness: inclusion coins, noise, and what a forward pass draws while it sees records.

A user's seed never reaches it. `ReproducibleRandomness` exists for tests and for debugging; a run that used it says
"not private" in its statement.

    tier    on a CPU                                on a GPU, also within a recorded step
    secure  `SystemRandomness`: ChaCha20            `DeviceChaCha`: ChaCha20, by a kernel
    exact   `ExactRandomness`: and whole numbers    `DeviceExact` (both in `core.exact`)
    fast    `DeviceRandomness`: torch's own         the same
"""

import contextlib
import os
import random
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from randomgen import ChaCha
from torch import Tensor

from adadpigu.core.kernels import installed
from adadpigu.errors import check_known, require

Tier = Literal["secure", "fast", "exact"]  # that a user may choose; `reproducible` is not private, so not among them

MT19937_WORDS = 624  # what the state of torch's (and numpy's) generator on the CPU holds


def seed_generator(generator: torch.Generator, words: Tensor) -> None:
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
    def tier(self) -> Tier | Literal["reproducible"]: ...

    @property
    def private(self) -> bool:
        """Whether nobody outside the process can know the key."""

    def uniform(self, count: int) -> Tensor:
        """Independent uniform numbers in [0, 1)."""

    def normal(self, count: int) -> Tensor:
        """Independent standard normal numbers."""

    def words(self, count: int) -> Tensor:
        """Independent 32-bit words, to fill the generators that a forward pass draws from (dropout, augmentation)."""


class _Generated:
    """Float64 draws of numpy from a counter-based generator."""

    _generator: np.random.Generator

    def uniform(self, count: int) -> Tensor:
        return torch.from_numpy(self._generator.random(count))

    def normal(self, count: int) -> Tensor:
        return torch.from_numpy(self._generator.standard_normal(count))

    def words(self, count: int) -> Tensor:
        return torch.from_numpy(self._generator.integers(2**32, size=count))

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("the state of a privacy generator is never stored: noise is re-keyed, not restored")


class _SystemKeyed(_Generated):
    """ChaCha20 with a key from the operating system at construction, and another in every forked process."""

    private = True

    def __init__(self) -> None:
        self._rekey()
        _alive.add(self)

    def _rekey(self) -> None:
        # `key` is the cipher's key as it stands; `seed` would be hashed first.
        self._generator = np.random.Generator(ChaCha(key=int.from_bytes(os.urandom(32), "little"), rounds=20))


_alive: weakref.WeakSet[_SystemKeyed] = weakref.WeakSet()


def _rekey_all() -> None:
    for generator in _alive:
        try:
            generator._rekey()
        except Exception:  # a GPU refuses forked processes, say: better no numbers than the parent's again
            vars(generator).clear()


os.register_at_fork(after_in_child=_rekey_all)


class SystemRandomness(_SystemKeyed):
    """Numbers that nobody can tell from independent ones without the key, which never leaves the process.

    Not covered:
    - floating point: noise and sums are float64, not real numbers, and the last bits of a noisy sum can tell one sum
      from another (Mironov 2012; Haney et al. 2022). Tier `exact` covers that (`core.exact`);
    - memory: whoever reads this process's has the key, and with it every number drawn so far;
    - timing: how long a normal number takes depends a little on its value.
    """

    description = "ChaCha20, 256-bit key from the operating system, float64 (tier secure)"
    tier: Tier = "secure"


class OnDevice(_SystemKeyed):
    """Coins and noise are drawn on the device, so that a recorded step draws new ones at every replay.

    Coins and noise have keys of their own: a GPU tosses coins while the step before still draws its noise.
    """

    noise: torch.Generator | None = None
    coins: torch.Generator | None = None
    """generators of torch, which a recording has to know; None: numbers are counted by what is recorded"""


class DeviceChaCha(OnDevice):
    """The tier `secure` on a device: ChaCha20 by a kernel, under two 256-bit keys from the operating system.

    Formal guarantee: no block of a key is used twice, in replays, in resumed runs, in other processes or in forks: the
    count of blocks goes on with every call on the device, and every process has keys of its own. Not covered: as of
    `SystemRandomness`, and whoever reads the device's memory.
    """

    description = "ChaCha20 on the GPU, 256-bit keys from the operating system, float64 (tier secure)"
    tier: Tier = "secure"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        super().__init__()

    def _rekey(self) -> None:
        from adadpigu.core.kernels.chacha import Stream

        super()._rekey()
        self._tossed, self._drawn = (Stream(os.urandom(32), self._device) for _ in range(2))
        self._warm_up()

    def _warm_up(self) -> None:
        """Compiles and loads what is launched later, perhaps first in a recording, which may load nothing."""
        self.uniform(1), self.normal(1)

    def uniform(self, count: int) -> Tensor:
        return self._tossed.uniform(count)

    def normal(self, count: int) -> Tensor:
        return self._drawn.normal(count)


class DeviceRandomness(OnDevice):
    """Coins and noise drawn on the device by torch's own generators; words by ChaCha20.

    Philox on a GPU takes a key of 64 bits; the Mersenne Twister on a CPU has its whole state filled. Neither withstands
    an attacker.
    """

    tier: Tier = "fast"

    coins: torch.Generator
    noise: torch.Generator

    def __init__(self, device: torch.device) -> None:
        self._device = device
        generator = "Mersenne Twister, whole state" if device.type == "cpu" else "Philox, 64-bit key"
        self.description = (
            f"torch's {generator} from the operating system, float64 (tier fast: no protection against someone who "
            "can guess or recover a generator's state)"
        )
        super().__init__()

    def _rekey(self) -> None:
        super()._rekey()
        self.coins, self.noise = torch.Generator(self._device), torch.Generator(self._device)
        for generator in (self.coins, self.noise):
            seed_generator(generator, self.words(MT19937_WORDS))

    def uniform(self, count: int) -> Tensor:
        return torch.rand(count, dtype=torch.float64, device=self._device, generator=self.coins)

    def normal(self, count: int) -> Tensor:
        return torch.randn(count, dtype=torch.float64, device=self._device, generator=self.noise)


class ReproducibleRandomness(_Generated):
    """Fixed by a seed, so that a test can repeat a run. Never private."""

    description = "reproducible noise fixed by a seed: not private"
    tier: Literal["reproducible"] = "reproducible"
    private = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def rekey(generator: torch.Generator) -> None:
    """A failed capture may leave a generator waiting for its end; it goes on with another state and another key."""
    fresh = torch.Generator(generator.device)
    seed_generator(fresh, SystemRandomness().words(2))
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def choose_randomness(tier: Tier | None, device: torch.device) -> Randomness:
    """The generator of a tier, on the device where that has one; unless another is asked for, `secure`.

    >>> choose_randomness(None, torch.device("cpu")).description
    'ChaCha20, 256-bit key from the operating system, float64 (tier secure)'
    """
    tier = tier or "secure"
    check_known("tier of randomness", tier, get_args(Tier))
    if tier == "fast":
        return DeviceRandomness(device)
    there = device.type == "cuda" and installed()
    if tier == "exact":
        from adadpigu.core.exact import DeviceExact, ExactRandomness

        lacking = f"randomness='exact' on {device.type} without Triton: allowed there: secure, fast"
        require(there or device.type == "cpu", lacking)
        return DeviceExact(device) if there else ExactRandomness()
    return DeviceChaCha(device) if there else SystemRandomness()


_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def isolated(randomness: Randomness, device: torch.device, *, host: bool = True) -> Iterator[None]:
    """Within, global generators (torch, the device's, numpy, Python) run on the privacy generator; after, as before.

    Dropout and augmentation draw from them. Under a user's seed, others could repeat how one record shifts what later
    ones draw, and the position afterwards would tell how many records there were. Without `host` only the device's
    generator is replaced, for recorded work that runs nothing on the CPU.
    """
    if not host:
        generator = default_generator(device)
        with _one_at_a_time:
            seed, offset = generator.initial_seed(), generator.get_offset()
            seed_generator(generator, randomness.words(2))
            try:
                yield
            finally:
                generator.manual_seed(seed)
                generator.set_offset(offset)
        return
    with _one_at_a_time, preserve_rng_state(device):
        words = randomness.words(MT19937_WORDS)
        seed_generator(torch.default_generator, words)
        random.seed(bytes(randomness.words(16).to(torch.uint8).tolist()) + words[:16].numpy().tobytes())
        np.random.seed(randomness.words(MT19937_WORDS).numpy())
        if device.type == "cuda":
            seed_generator(default_generator(device), randomness.words(2))
        yield


@contextlib.contextmanager
def preserve_rng_state(device: torch.device) -> Iterator[None]:
    """Global generators are afterwards where they were, so that a second attempt at a draw sees the same numbers."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def seed_cpu_rng(number: int) -> None:
    """Seeds the global generators of the CPU, to see what depends on them; the caller puts them back."""
    random.seed(number)
    np.random.seed(number)
    torch.default_generator.manual_seed(number)


def cpu_rng_state() -> tuple[object, ...]:
    """Where the global generators of the CPU stand, to compare."""
    legacy: Any = np.random.get_state()
    return random.getstate(), legacy[1].tobytes(), legacy[2:], torch.default_generator.get_state().numpy().tobytes()


def default_generator(device: torch.device) -> torch.Generator:
    """The global generator of a GPU."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator
