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

import numpy as np
import torch

from adadpigu.randomness import Randomness

_one_at_a_time = threading.RLock()
_MT19937_WORDS = 624


@contextlib.contextmanager
def isolated(randomness: Randomness, device: torch.device) -> Iterator[None]:
    """Within, global generators (torch, the device's, numpy, Python) run on the privacy generator; after, as before."""
    cuda = device.type == "cuda"
    with _one_at_a_time, torch.random.fork_rng(devices=[device] if cuda else []):
        before = random.getstate(), np.random.get_state()
        try:
            _fill(randomness, device)
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _fill(randomness: Randomness, device: torch.device) -> None:
    words = randomness.words(_MT19937_WORDS)
    torch.default_generator.manual_seed(int(words[0]))
    state = torch.default_generator.get_state()
    # torch seeds its Mersenne Twister with 32 bits; behind three 8-byte fields lie its 624 words, filled here in full.
    state.view(torch.int64)[3 : 3 + _MT19937_WORDS] = words
    torch.default_generator.set_state(state)
    random.seed(bytes(randomness.words(16).to(torch.uint8).tolist()) + words[:16].numpy().tobytes())
    np.random.seed(randomness.words(_MT19937_WORDS).numpy())
    if device.type == "cuda":
        high, low = randomness.words(2).tolist()
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed((high << 31) ^ low)
