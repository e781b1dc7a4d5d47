"""Times all contestants of one net in turn, round by round, because single rounds swing by half.

In every round each contestant takes the same few steps, in an order that moves on; its figure is the median over the
rounds of the milliseconds a step.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from adadpigu.bench.contestants import Contestant, Unavailable
from adadpigu.bench.processes import Lap

LEAST_ROUNDS = 3
Tell = Callable[[str], None]
"""told what is going on"""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How long is timed."""

    count: int
    steps: int
    """of each contestant in a round"""
    seconds: float = math.inf
    """after which no further round begins, once there are three"""


class Runner(Protocol):
    """Whoever takes steps when told to."""

    def run(self, steps: int) -> Lap: ...


def steps_for(seconds_a_step: float, *, wanted: float = 0.15, most: int = 100) -> int:
    """So many steps that the baseline's part of a round takes about the wanted seconds.

    >>> steps_for(0.075), steps_for(10.0), steps_for(0.0005)
    (2, 1, 100)
    """
    return min(most, max(1, round(wanted / max(seconds_a_step, 1e-9))))


def interleaved(
    runners: Mapping[Contestant, Runner], rounds: Rounds, tell: Tell
) -> tuple[dict[Contestant, list[float]], dict[Contestant, str]]:
    """Milliseconds a step of each contestant in each round; a contestant that fails drops out, with the reason."""
    found: dict[Contestant, list[float]] = {contestant: [] for contestant in runners}
    failed: dict[Contestant, str] = {}
    names = list(runners)
    start = time.monotonic()
    for number in range(rounds.count):
        if number >= LEAST_ROUNDS and time.monotonic() - start > rounds.seconds:
            break
        shift = number % len(names)
        for contestant in names[shift:] + names[:shift]:
            if contestant in failed:
                continue
            tell(f"round {number + 1} of {rounds.count}: {contestant.label}")
            try:
                found[contestant].append(1000 * runners[contestant].run(rounds.steps).seconds / rounds.steps)
            except Unavailable as refusal:
                failed[contestant] = str(refusal)
                found.pop(contestant)
    return found, failed


def middle(values: list[float]) -> float:
    """The median."""
    return statistics.median(values)
