"""What a forward pass or a data set draws at random, taken out of the user's hands while private records are processed.

Dropout and augmentation draw from global generators. If a user's seed reached them, one record could shift what every
later record draws in a way that others can repeat; and their position afterwards would tell how many records there
were. So they are filled from the privacy generator for the duration of a draw, and put back. One draw at a time in a
process.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from adadpigu.randomness import MT19937_WORDS, Randomness, fill

_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def isolated(randomness: Randomness, device: torch.device, *, host: bool = True) -> Iterator[None]:
    """Within, global generators (torch, the device's, numpy, Python) run on the privacy generator; after, as before.

    Without `host` the device's alone, for work that was recorded and runs nothing on the CPU.
    """
    cuda = device.type == "cuda"
    if not host:
        generator = default_generator(device)
        with _one_at_a_time:
            seed, offset = generator.initial_seed(), generator.get_offset()
            fill(generator, randomness.words(2))
            try:
                yield
            finally:
                generator.manual_seed(seed)
                generator.set_offset(offset)
        return
    with _one_at_a_time, torch.random.fork_rng(devices=[device] if cuda else []):
        before = random.getstate(), np.random.get_state()
        try:
            _fill(randomness, device)
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def host_state() -> tuple[object, ...]:
    """Where the global generators of the CPU stand, to compare."""
    legacy: Any = np.random.get_state()
    return random.getstate(), legacy[1].tobytes(), legacy[2:], torch.default_generator.get_state().numpy().tobytes()


def _fill(randomness: Randomness, device: torch.device) -> None:
    words = randomness.words(MT19937_WORDS)
    fill(torch.default_generator, words)
    random.seed(bytes(randomness.words(16).to(torch.uint8).tolist()) + words[:16].numpy().tobytes())
    np.random.seed(randomness.words(MT19937_WORDS).numpy())
    if device.type == "cuda":
        fill(default_generator(device), randomness.words(2))


def default_generator(device: torch.device) -> torch.Generator:
    """The global generator of a GPU."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator
