"""How many steps are charged at once: one, unless writing to the ledger would then take over 2 % of a step's time.

Both times are taken without a private record: the ledger's from a scratch journal in the same folder, the step's from
synthetic records. A crash costs at most so many steps more than were drawn, never less.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path

import torch

from adadpigu.accounting.journal import Journal, head_path
from adadpigu.bounding import GradientSum
from adadpigu.isolation import isolated
from adadpigu.randomness import SystemRandomness
from adadpigu.training.memory import Rehearsal, runs_out
from adadpigu.training.preparation import Preparation

SHARE = 0.02
"""of a step's time that the ledger may take"""
_MOST = 256
_RECORDS = 256
"""on which a step is rehearsed at most"""
_FASTER = 10.0
"""how much faster a GPU may be at a recorded step than at an eager one"""


def steps_to_reserve(prepared: Preparation, folder: Path) -> int:
    """A power of two, so that it tells little about the machine."""
    limit = SHARE * step_seconds(prepared)
    needed = append_seconds(folder) / max(limit, 1e-9)
    return int(min(_MOST, 2 ** max(0, math.ceil(math.log2(max(needed, 1.0))))))


def append_seconds(folder: Path, times: int = 5) -> float:
    """What one record takes until it is on this disk."""
    path, taken = folder / ".pace.log", []
    journal = Journal(path, new=True)
    try:
        for number in range(times):
            start = time.perf_counter()
            journal.append({"charge": number, "stage": "training", "step": number, "draw": "gradient"})
            taken.append(time.perf_counter() - start)
    finally:
        journal.close()
        path.unlink(missing_ok=True)
        head_path(path).unlink(missing_ok=True)
    return statistics.median(taken)


def step_seconds(prepared: Preparation) -> float:
    """About the least that a step's gradients take, from synthetic records."""
    batch, model = prepared.options.batch_size, prepared.model
    size = min(batch, _RECORDS)
    rehearsal, query = Rehearsal(prepared.data.train, prepared.view), GradientSum(clip_norm=1.0)
    taken = math.inf

    def once() -> None:
        prepared.engine.clipped_sum(rehearsal.records(size), query)
        if prepared.device.type == "cuda":
            torch.cuda.synchronize(prepared.device)

    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        with isolated(SystemRandomness(), prepared.device):
            for _ in range(3):
                start = time.perf_counter()
                if runs_out(once):
                    return math.inf  # a step of many small parts is slow beside any disk
                taken = min(taken, time.perf_counter() - start)
                if taken > 1.0:
                    break
    finally:
        for module, mode in modes.items():
            module.training = mode
    return taken * batch / size / (_FASTER if prepared.device.type == "cuda" else 1.0)
