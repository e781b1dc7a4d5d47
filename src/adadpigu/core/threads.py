"""CPU work that torch does not share out over its threads by itself."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


def in_threads(work: Callable[[Sequence[S]], T], items: Sequence[S]) -> list[T]:
    """`work` on as many shares of the items as torch has threads, in order; each has one thread, for torch too.

    Torch's own threads wait in a busy loop: beside work that is not torch's they would take its cores.
    """
    threads = max(1, min(torch.get_num_threads(), len(items)))
    if threads == 1:
        return [work(items)]
    bounds = [len(items) * number // threads for number in range(threads + 1)]

    def alone(number: int) -> T:
        torch.set_num_threads(1)
        with torch.no_grad():
            return work(items[bounds[number] : bounds[number + 1]])

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(alone, range(threads)))
    finally:
        torch.set_num_threads(before)
