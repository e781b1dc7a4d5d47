"""A logger: an observer that hands public numbers and words to a library, and never costs a run anything.

Training has paid for its releases by the time a library fails, so a logger that raises is switched off, with one
warning by name, and the run goes on to its model and its statement. The run folder keeps everything regardless.
"""

from __future__ import annotations

import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from adadpigu.errors import first_line
from adadpigu.runs.run import Facts, Metrics, Run

Setting = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Before the first step: what the run is, and how many of its steps other processes have made."""

    title: str
    settings: Mapping[str, Setting]
    steps_done: int


@dataclass(frozen=True, kw_only=True)
class Ending:
    """After the last step: results, and what the run gives away."""

    step: int
    results: Mapping[str, float]
    headline: str
    """the statement's first line: PRIVATE with its ε, or NOT PRIVATE"""
    statement: str
    privacy: str
    """the privacy report as JSON"""


def beginning(facts: Facts) -> Beginning:
    """The settings of a run. A plan whose noise can be repeated has an ε that nobody may cite, so it is left out."""
    private = facts.epsilon is not None and facts.secret
    settings: dict[str, Setting] = {
        "dataset": facts.dataset,
        "method": facts.method,
        "parameters": facts.parameters,
        "steps": facts.steps,
        "noise_multiplier": facts.noise_multiplier,
        "sample_rate": facts.sample_rate,
        "engine": facts.engine,
        "delta": facts.delta,
        "steps_done_before": facts.steps_done,
        "private": private,
    }
    if private and facts.epsilon is not None:
        settings["epsilon"] = facts.epsilon
    return Beginning(
        title=f"{facts.method} on {facts.dataset}", settings=MappingProxyType(settings), steps_done=facts.steps_done
    )


def scalars(metrics: Metrics) -> Mapping[str, float]:
    """The numbers of a step at which the test set was looked at; none for any other step.

    >>> layers = {"mask": {"fc": 0.5}, "beta": {"fc": 2.0}}
    >>> dict(scalars(Metrics(step=2, steps=9, stage="train", epsilon=1.5, active=0.5, **layers)))
    {'epsilon': 1.5, 'active': 0.5, 'mask/fc': 0.5, 'beta/fc': 2.0}
    """
    if metrics.test_accuracy is None and not metrics.mask:
        return MappingProxyType({})
    values = {"epsilon": metrics.epsilon, "test_accuracy": metrics.test_accuracy, "active": metrics.active}
    numbers = {name: value for name, value in values.items() if value is not None}
    layered = {"mask": metrics.mask, "alpha": metrics.alpha, "beta": metrics.beta}
    by_layer = {f"{name}/{layer}": value for name, layers in layered.items() for layer, value in layers.items()}
    return MappingProxyType({**numbers, **by_layer})


def ending(run: Run) -> Ending:
    """The results of a run and its statement."""
    privacy, statement = run.privacy, run.privacy.statement()
    claims = {"epsilon": privacy.epsilon_pld, "epsilon_spent": privacy.epsilon_spent} if privacy.private else {}
    values = {"test_accuracy": run.accuracy, **claims, "steps_done": float(run.steps_done)}
    results = {f"final/{name}": value for name, value in values.items() if value is not None and math.isfinite(value)}
    return Ending(
        step=run.steps_done,
        results=MappingProxyType(results),
        headline=statement.splitlines()[0],
        statement=statement,
        privacy=json.dumps(privacy.to_json(), indent=2, allow_nan=False),
    )


class Logger(ABC):
    """What all loggers share. A subclass says how a library is told of a beginning, of numbers, and of an ending.

    One logger follows one run at a time.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self._on = False

    def begin(self, facts: Facts) -> None:
        """Opens the log: the first thing that is written."""
        self._on = True
        self._try("at the beginning", lambda: self._start(beginning(facts)))

    def update(self, metrics: Metrics) -> None:
        """Writes the numbers of a step at which the test set was looked at."""
        numbers = scalars(metrics)
        if numbers:
            self._try(f"at step {metrics.step}", lambda: self._write(metrics.step, numbers))

    def end(self, run: Run) -> None:
        """Writes results and statement, and closes the log."""
        self._try("at the end", lambda: self._close(ending(run)))
        self._on = False

    def _try(self, when: str, work: Callable[[], None]) -> None:
        if not self._on:
            return
        try:
            work()
        except Exception as error:
            self._on = False
            warnings.warn(
                f"the logger {self.name!r} failed {when} ({type(error).__name__}: {first_line(error)}) and is switched "
                "off; the run goes on without it",
                stacklevel=4,
            )

    @abstractmethod
    def _start(self, start: Beginning) -> None: ...

    @abstractmethod
    def _write(self, step: int, numbers: Mapping[str, float]) -> None: ...

    @abstractmethod
    def _close(self, end: Ending) -> None: ...
