"""A long series thinned for a chart: in each stretch of steps its lowest and its highest point stay, and so do the
first and the last of all. Public values only; how many there were is told beside what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DIGITS = 5
"""significant ones of a value that is drawn"""

LEAST = 1e-12
"""to which a smaller ε above 0 is rounded up"""

Point = tuple[int, float]


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one line, in the order of their steps, and how many there were before any was left out."""

    points: tuple[Point, ...]
    recorded: int

    def to_json(self, rounded: Callable[[float], float]) -> dict[str, object]:
        """Steps as differences, which are short; values as `rounded` says."""
        steps = [step for step, _ in self.points]
        differences = [step - before for before, step in zip([0, *steps], steps, strict=False)]
        return {"n": self.recorded, "x": differences, "y": [rounded(value) for _, value in self.points]}


def thinned(points: Sequence[Point], most: int) -> Series:
    """At most `most` points (at least four): the first, the last, and of each stretch the lowest and the highest.

    >>> [step for step, _ in thinned([(i, float(i == 7)) for i in range(100)], 6).points]
    [0, 1, 7, 50, 99]
    """
    if len(points) <= max(most, 4):
        return Series(points=tuple(points), recorded=len(points))
    inner, stretches = points[1:-1], max(1, (most - 2) // 2)
    kept: list[Point] = [points[0]]
    for number in range(stretches):
        part = inner[number * len(inner) // stretches : (number + 1) * len(inner) // stretches]
        lowest = min(part, key=lambda point: point[1])
        highest = max(part, key=lambda point: point[1])
        kept += sorted({lowest, highest})
    return Series(points=(*kept, points[-1]), recorded=len(points))


def to_nearest(value: float) -> float:
    """A value with the digits that are drawn.

    >>> to_nearest(0.123456789)
    0.12346
    """
    return float(f"{value:.{DIGITS}g}")


def upwards(value: float) -> float:
    """An ε with the digits that are drawn, never below what was spent.

    >>> upwards(1.000001), upwards(0.0), upwards(2.5)
    (1.0001, 0.0, 2.5)
    """
    if value <= 0:
        return 0.0
    value = max(value, LEAST)
    unit = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.{DIGITS}g}")
