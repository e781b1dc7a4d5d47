"""How many CPU threads a run trains with: public facts of the plan and of the machine decide, never a record.

Small nets gain little from a second thread, and lose much where other work wants the cores.
"""

import contextlib
import os
from collections.abc import Iterator

import torch

SMALL = 50_000_000
"""B times d, records of a step times weights: a run below it has one thread (mnist-cnn at B = 1000: 26 million)"""
_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_FOUND = torch.get_num_threads()


def threads_for(device: torch.device, work: int) -> int | None:
    """The threads for steps of so much work; None leaves them as they are: on a GPU, or where the user has set them."""
    now = torch.get_num_threads()
    if device.type != "cpu" or now == 1 or now != _FOUND or any(name in os.environ for name in _SETTINGS):
        return None
    return 1 if work < SMALL else None


@contextlib.contextmanager
def using(threads: int | None) -> Iterator[None]:
    """Within, torch has so many CPU threads; None changes nothing."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)
