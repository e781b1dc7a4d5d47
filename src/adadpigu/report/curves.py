"""The curves of a run over its steps, from `metrics.jsonl`: accuracy, ε, and by layer the mask, α and β.

All of them are public: functions of releases, of the plan and of test records. A file that grows while a run trains
may end amid a line, which is then left for the next look.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from adadpigu.accounting.wording import rounded_up
from adadpigu.errors import InputError
from adadpigu.report.embedding import MOST_LISTED, name
from adadpigu.runs.reading import Fields, fields_of, file_of, text_of
from adadpigu.runs.run import MODEL
from adadpigu.tensors import read_tensors

METRICS = "metrics.jsonl"
MOST_METRICS = 1 << 27  # bytes of it
MOST_LAYERS = 512  # whose curves are shown
SINGLE = {"accuracy": ("test_accuracy", 1.0), "epsilon": ("epsilon", 1e30), "active": ("active", 1.0)}
"""what is recorded once a line: as what, and at most"""
BY_LAYER = {"mask": (0.0, 1.0), "alpha": (-1e30, 1e30), "beta": (0.0, 1e30)}  # recorded of each layer, with bounds
DIGITS = 5  # significant ones of a value that is drawn
LEAST = 1e-12  # to which a smaller ε above 0 is rounded up
Point = tuple[int, float]


def line_json(points: Sequence[Point], most: int, rounded: Callable[[float], float]) -> dict[str, object]:
    """At most so many points of a line, and how many were recorded; steps as differences, which are short."""
    kept = downsample(points, most)
    differences = [step - before for before, step in itertools.pairwise([0, *(step for step, _ in kept)])]
    return {"n": len(points), "x": differences, "y": [rounded(value) for _, value in kept]}


def downsample(points: Sequence[Point], most: int) -> Sequence[Point]:
    """At most `most` points (at least four): the first, the last, and of each stretch the lowest and the highest.

    >>> [step for step, _ in downsample([(i, float(i == 7)) for i in range(100)], 6)]
    [0, 1, 7, 50, 99]
    """
    if len(points) <= max(most, 4):
        return points
    inner, stretches = points[1:-1], max(1, (most - 2) // 2)
    kept: list[Point] = [points[0]]
    for place in range(stretches):
        part = inner[place * len(inner) // stretches : (place + 1) * len(inner) // stretches]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return [*kept, points[-1]]


def round_to_nearest(value: float) -> float:
    """A value with the digits that are drawn.

    >>> round_to_nearest(0.123456789)
    0.12346
    """
    return float(f"{value:.{DIGITS}g}")


def round_up(value: float) -> float:
    """An ε with the digits that are drawn, never below what was spent.

    >>> round_up(1.000001), round_up(0.0), round_up(2.5)
    (1.0001, 0.0, 2.5)
    """
    return float(rounded_up(max(value, LEAST), DIGITS)) if value > 0 else 0.0


@dataclass(kw_only=True)
class Curves:
    single: dict[str, list[Point]] = field(default_factory=lambda: {key: [] for key in SINGLE})
    """accuracy, epsilon, active"""
    layered: dict[str, dict[str, list[Point]]] = field(default_factory=lambda: {key: {} for key in BY_LAYER})
    """of what `BY_LAYER` names, a line for each layer"""
    layer_names: Mapping[str, str] = field(default_factory=dict)  # layer -> how people call it
    stages: list[tuple[int, str]] = field(default_factory=list)  # each stage with its first recorded step
    step: int = -1  # the last that was recorded
    planned: int | None = None

    @property
    def last_step(self) -> int:
        return max(self.step, 0)

    @property
    def count(self) -> int:
        return sum(map(bool, self.single.values())) + sum(len(lines) for lines in self.layered.values())

    def last(self, key: str) -> float | None:
        points = self.single.get(key)
        return points[-1][1] if points else None

    def to_json(self, most: int) -> dict[str, object]:
        drawn: dict[str, object] = {
            key: line_json(points, most, round_up if key == "epsilon" else round_to_nearest)
            for key, points in self.single.items()
            if points
        }
        for key, lines in self.layered.items():
            if lines:
                drawn[key] = [
                    [name(self.layer_names.get(layer, layer)), line_json(points, most, round_to_nearest)]
                    for layer, points in lines.items()
                ]
        stages = [[step, name(stage)] for step, stage in self.stages[:MOST_LISTED]]
        return {**drawn, "stages": stages, "more_stages": len(self.stages) - len(stages)}

    def add(self, line: Fields) -> None:
        """One line of `metrics.jsonl`: all of it, or nothing where any of it is odd."""
        stage, planned = line.text("stage"), line.count("steps")
        layers = {key: line.numbers(key, MOST_LAYERS, low, high) for key, (low, high) in BY_LAYER.items()}
        step = self.add_single(line, {key: stored for key, (stored, _) in SINGLE.items()})
        self.planned = planned
        if not self.stages or self.stages[-1][1] != stage:
            self.stages.append((step, stage))
        for key, shares in layers.items():
            for layer, value in shares.items():
                self.layered[key].setdefault(layer, []).append((step, value))

    def add_single(self, line: Fields, stored: Mapping[str, str]) -> int:
        """The values of a line that are recorded once, each under its `stored` key; returns their step."""
        step = line.count("step")
        line.check(step > self.step, "step", "more than in the line before")
        found = {key: line.number(stored[key], 0, high) for key, (_, high) in SINGLE.items()}
        for key, value in found.items():
            if value is not None:
                self.single[key].append((step, value))
        self.step = step
        return step


def read_curves(folder: Path) -> tuple[Curves, str]:
    """The curves of a run folder, until the first line that cannot be read, and why that one cannot."""
    lines = text_of(folder, METRICS, MOST_METRICS).split("\n")
    found, odd = Curves(), ""
    for count, line in enumerate(lines[:-1], start=1):  # what follows the last line's end is not yet whole
        try:
            found.add(fields_of(line, f"run={str(folder)!r}: {METRICS}, line {count}"))
        except InputError as error:
            odd = f"{error} (curves end before it)"
            break
    try:
        stored = read_tensors(file_of(folder, MODEL), "model")
    except InputError:  # a run under way; what is odd about a finished one's file is said where it is loaded
        stored = {}
    shapes = {key: tuple(tensor.shape) for key, tensor in stored.items()}
    found.layer_names = {layer: layer_name(layer, shapes) for lines in found.layered.values() for layer in lines}
    return found, odd


def layer_name(layer: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """A layer by its path and by the shape of its largest parameter.

    >>> layer_name("2", {"2.weight": (64, 32), "2.bias": (64,)}), layer_name("encoder.fc", {}), layer_name("4", {})
    ('layer 2 (64×32)', 'encoder.fc', 'layer 4')
    """
    called = f"layer {layer}" if layer.isdecimal() else layer
    largest = max((shape for key, shape in shapes.items() if key.rpartition(".")[0] == layer), key=prod, default=())
    return f"{called} ({'×'.join(map(str, largest))})" if largest else called
