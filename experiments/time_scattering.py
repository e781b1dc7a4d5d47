"""Times the scattering transform on random 28×28 images, and kymatio's beside it where that is installed.

    python experiments/time_scattering.py --images 6000 --threads 2 [--device cuda] [--chunk 2000]

The best chunk counts, since other work on the machine only ever slows one down.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

from adadpigu.features.scattering import Scattering


def best(transform: Callable[[Tensor], Tensor], images: Tensor, chunk: int) -> float:
    """Seconds an image, in the fastest chunk."""
    transform(images[:chunk])
    times = []
    for part in images.split(chunk):
        _wait(images)
        start = time.perf_counter()
        transform(part)
        _wait(images)
        times.append((time.perf_counter() - start) / len(part))
    return min(times)


def _wait(images: Tensor) -> None:
    if images.is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--chunk", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    images = torch.rand(given.images, 1, 28, 28, device=given.device)
    ours = best(Scattering((1, 28, 28)).to(given.device), images, given.chunk)
    found = {"device": given.device, "images": given.images, "chunk": given.chunk, "seconds_for_60000": 60_000 * ours}
    try:
        from kymatio.torch import Scattering2D
    except ImportError:
        found["kymatio"] = None
    else:
        theirs = best(Scattering2D(J=2, L=8, shape=(28, 28)).to(given.device), images, given.chunk)
        found |= {"kymatio_seconds_for_60000": 60_000 * theirs, "times_faster": theirs / ours}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
