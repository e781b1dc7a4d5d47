"""Learning-rate schedules: a factor for each step, fixed before training. Public: only the step number is looked at."""

from __future__ import annotations

import math
from typing import Literal

LearningRateSchedule = Literal["constant", "linear", "cosine"]


def lr_factor(kind: LearningRateSchedule, step: int, steps: int, warmup: float = 0.0) -> float:
    """The share of the learning rate used in a step (counted from 0 of `steps`).

    It rises linearly over the first `warmup` share of the steps, then stays (`constant`) or falls towards 0.

    >>> [lr_factor("linear", step, 4) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> [round(lr_factor("cosine", step, 10, warmup=0.2), 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.04]
    """
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    if kind == "linear":
        return 1.0 - done
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    return 1.0
