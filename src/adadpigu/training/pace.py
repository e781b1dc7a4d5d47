"""How many steps are charged at once: one, unless writing to the ledger would then take over 2 % of a step's time.

Both times are taken without a private record: the ledger's from a scratch journal in the same folder, the step's from
synthetic records. A crash costs at most so many steps more than were drawn, never less.
"""

import math
import statistics
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from adadpigu.accounting.journal import Journal
from adadpigu.core.bounding import GradientSum
from adadpigu.core.randomness import SystemRandomness, isolated
from adadpigu.training.memory import Rehearsal, in_training, runs_out
from adadpigu.training.preparation import Preparation

SHARE = 0.02  # of a step's time that the ledger may take
_MOST = 128
_OF_THE_PLAN = 0.05  # the share of a run's steps that one crash may cost at most
_RECORDS = 256  # on which a step is rehearsed on a CPU; one of more records takes longer in proportion
_FEW = 8  # records that fit wherever the size is left to the machine
_FASTER = 64.0  # how much faster a GPU may be at a recorded step, and how much slower a record amid training


def steps_to_reserve(prepared: Preparation, folder: Path) -> int:
    """A power of two, so that it tells little about the machine."""
    needed = append_seconds(folder) / max(SHARE * step_seconds(prepared), 1e-9)
    most = max(1, min(_MOST, int(_OF_THE_PLAN * prepared.plan.steps)))
    return int(min(most, 2 ** max(0, math.ceil(math.log2(max(needed, 1.0))))))


def append_seconds(folder: Path) -> float:
    """What one record takes until it is on this disk."""
    taken = []
    with TemporaryDirectory(dir=folder, prefix=".") as place, closing(Journal(Path(place, "log"), new=True)) as journal:
        for number in range(5):
            start = time.perf_counter()
            journal.append({"charge": number, "stage": "training", "step": number, "draw": "gradient"})
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def step_seconds(prepared: Preparation) -> float:
    """About the least that a step takes, from the gradients of synthetic records."""
    batch, on_gpu = prepared.options.batch_size, prepared.device.type == "cuda"
    size = batch if on_gpu else min(batch, _RECORDS)
    if (at_once := prepared.options.physical_batch_size) is not None:
        size = min(size, at_once if isinstance(at_once, int) else _FEW)
    rehearsal, query = Rehearsal(prepared.data.train, prepared.view), GradientSum(clip_norm=1.0)

    def once() -> None:
        prepared.engine.clipped_sum(rehearsal.records(size), query)
        if on_gpu:
            torch.cuda.synchronize(prepared.device)

    taken: list[float] = []
    with in_training(prepared.model), isolated(SystemRandomness(), prepared.device):
        while len(taken) < (8 if on_gpu else 3):  # a GPU compiles and chooses kernels first
            start = time.perf_counter()
            if runs_out(once):
                return math.inf  # a step of many small parts is slow beside any disk
            taken.append(time.perf_counter() - start)
            if taken[-1] > 1.0 and not on_gpu:
                break
    return min(taken) * batch / size / (_FASTER if on_gpu else 1.0)
