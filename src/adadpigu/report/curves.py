"""The curves of a run over its steps, from `metrics.jsonl`: accuracy, ε, and by layer the mask, α and β.

All of them are public: functions of releases, of the plan and of test records. A file that grows while a run trains
may end amid a line, which is then left for the next look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from adadpigu.errors import InputError
from adadpigu.report.checking import Fields, fields_of
from adadpigu.report.embedding import MOST_LISTED, name
from adadpigu.report.loading import text_of
from adadpigu.report.series import Point, thinned, to_nearest, upwards

METRICS = "metrics.jsonl"
MOST_METRICS = 1 << 27
"""bytes of it"""
MOST_LAYERS = 512
"""whose curves are shown"""
SINGLE = {"accuracy": ("test_accuracy", 1.0), "epsilon": ("epsilon", 1e30), "active": ("active", 1.0)}
"""what is recorded once a line: as what, and at most"""
BY_LAYER = {"mask": (0.0, 1.0), "alpha": (-1e30, 1e30), "beta": (0.0, 1e30)}
"""what is recorded for each layer, and within which bounds"""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Lines of one run; each may be empty."""

    single: Mapping[str, list[Point]]
    """accuracy, epsilon, active"""
    layered: Mapping[str, Mapping[str, list[Point]]]
    """of what `BY_LAYER` names, a line for each layer"""
    stages: tuple[tuple[int, str], ...] = ()
    """each stage with the first step that was recorded in it"""
    last_step: int = 0
    planned: int | None = None

    @property
    def count(self) -> int:
        """How many lines there are."""
        return sum(map(bool, self.single.values())) + sum(len(lines) for lines in self.layered.values())

    def last(self, key: str) -> float | None:
        """Where a single line stands now."""
        points = self.single.get(key)
        return points[-1][1] if points else None

    def to_json(self, most: int) -> dict[str, object]:
        """At most so many points a line."""
        drawn: dict[str, object] = {
            key: thinned(points, most).to_json(_rounding(key)) for key, points in self.single.items() if points
        }
        for key, lines in self.layered.items():
            if lines:
                drawn[key] = [[name(to), thinned(at, most).to_json(to_nearest)] for to, at in lines.items()]
        stages = [[step, name(stage)] for step, stage in self.stages[:MOST_LISTED]]
        return {**drawn, "stages": stages, "more_stages": len(self.stages) - len(stages)}


def _rounding(key: str) -> Callable[[float], float]:
    return upwards if key == "epsilon" else to_nearest


@dataclass
class _Growing:
    """Curves while lines are read."""

    single: dict[str, list[Point]] = field(default_factory=lambda: {key: [] for key in SINGLE})
    layered: dict[str, dict[str, list[Point]]] = field(default_factory=lambda: {key: {} for key in BY_LAYER})
    stages: list[tuple[int, str]] = field(default_factory=list)
    step: int = -1
    planned: int | None = None

    def add(self, line: Fields) -> None:
        """One line of the file: all of it, or nothing where any of it is odd."""
        step, stage, planned = line.count("step"), line.text("stage"), line.count("steps")
        if step <= self.step:
            raise InputError(f"{line.where}: step is odd; allowed: more than in the line before")
        singles = {key: line.number(stored, 0, high) for key, (stored, high) in SINGLE.items()}
        layers = {key: line.shares(key, MOST_LAYERS, low, high) for key, (low, high) in BY_LAYER.items()}
        for key, shares in layers.items():
            if len(self.layered[key].keys() | shares.keys()) > MOST_LAYERS:
                raise InputError(f"{line.where}: {key} is odd; allowed: at most {MOST_LAYERS} names in all lines")
        self.step, self.planned = step, planned
        if not self.stages or self.stages[-1][1] != stage:
            self.stages.append((step, stage))
        for key, single in singles.items():
            if single is not None:
                self.single[key].append((step, single))
        for key, shares in layers.items():
            for layer, value in shares.items():
                self.layered[key].setdefault(layer, []).append((step, value))


def read_curves(folder: Path) -> tuple[Curves, str]:
    """The curves of a run folder, until the first line that cannot be read, and why that one cannot."""
    lines = text_of(folder, METRICS, MOST_METRICS).split("\n")
    found, odd = _Growing(), ""
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last line's end is not yet whole
        try:
            found.add(fields_of(line, f"run={str(folder)!r}: {METRICS}, line {number}"))
        except InputError as error:
            odd = f"{error} (curves end before it)"
            break
    curves = Curves(
        single=found.single,
        layered=found.layered,
        stages=tuple(found.stages),
        last_step=max(found.step, 0),
        planned=found.planned,
    )
    return curves, odd
