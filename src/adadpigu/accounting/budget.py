"""The budget (ε, δ) a user grants, checked once, at the edge."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adadpigu.errors import InputError


def check_epsilon(value: float) -> None:
    """Refuse a privacy budget that is no positive number."""
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"epsilon={value}: must be a finite number above 0")


def check_delta(value: float) -> None:
    """Refuse a failure probability outside the open interval (0, 1)."""
    if not 0 < value < 1:
        raise InputError(f"delta={value}: must lie strictly between 0 and 1 (usual: 1e-5, and below 1/records)")


@dataclass(frozen=True)
class Budget:
    """How much a run may leak about any one record, under adding or removing that record.

    >>> Budget(epsilon=4)
    Budget(epsilon=4, delta=1e-05)
    >>> Budget(epsilon=-1)
    Traceback (most recent call last):
        ...
    adadpigu.errors.InputError: epsilon=-1: must be a finite number above 0
    """

    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
