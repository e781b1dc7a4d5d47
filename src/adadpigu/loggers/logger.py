"""A logger: an observer that hands public numbers and words to a library, and never costs a run anything.

Training has paid for its releases by the time a library fails, so a logger that raises is switched off, with one
warning by name, and the run goes on to its model and its statement. The run folder keeps everything regardless.
"""

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from adadpigu.errors import first_line
from adadpigu.runs.run import Facts, Metrics, Run

_FACTS = ("dataset", "method", "parameters", "steps", "noise_multiplier", "sample_rate", "engine", "delta")


def logged_settings(facts: Facts) -> dict[str, Any]:
    """The settings of a run. A plan whose noise can be repeated has an ε that nobody may cite, so it is left out."""
    private = facts.epsilon is not None and facts.secret
    return {
        **{name: getattr(facts, name) for name in _FACTS},
        "steps_done_before": facts.steps_done,
        "private": private,
        **({"epsilon": facts.epsilon} if private else {}),
    }


def scalars(metrics: Metrics) -> Mapping[str, float]:
    """The numbers of a step at which the test set was looked at; none for any other step.

    >>> layers = {"mask": {"fc": 0.5}, "beta": {"fc": 2.0}}
    >>> dict(scalars(Metrics(step=2, steps=9, stage="train", epsilon=1.5, active=0.5, **layers)))
    {'epsilon': 1.5, 'active': 0.5, 'mask/fc': 0.5, 'beta/fc': 2.0}
    """
    if metrics.test_accuracy is None and not metrics.mask:
        return {}
    values = {"epsilon": metrics.epsilon, "test_accuracy": metrics.test_accuracy, "active": metrics.active}
    numbers = {name: value for name, value in values.items() if value is not None}
    layered = {"mask": metrics.mask, "alpha": metrics.alpha, "beta": metrics.beta}
    by_layer = {f"{name}/{layer}": value for name, layers in layered.items() for layer, value in layers.items()}
    return {**numbers, **by_layer}


def results_of(run: Run) -> dict[str, float]:
    privacy = run.privacy
    claims = {"epsilon": privacy.epsilon_pld, "epsilon_spent": privacy.epsilon_spent} if privacy.private else {}
    values = {"test_accuracy": run.accuracy, **claims, "steps_done": float(run.steps_done)}
    return {f"final/{name}": value for name, value in values.items() if value is not None and math.isfinite(value)}


class Logger(ABC):
    """What all loggers share; a subclass says how a library is called. One logger follows one run at a time."""

    name: ClassVar[str]

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._on, self._moment = False, 0.0

    def begin(self, facts: Facts) -> None:
        """Opens the log: the first thing that is written."""
        self._on, self._moment = True, time.time()
        self._try("at the beginning", lambda: self._begin(facts))

    def _begin(self, facts: Facts) -> None:
        if self.folder is not None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._start(facts, logged_settings(facts))

    def update(self, metrics: Metrics) -> None:
        """Writes the numbers of a step at which the test set was looked at."""
        numbers = scalars(metrics)
        if numbers:
            self._try(f"at step {metrics.step}", lambda: self._write(metrics.step, numbers))

    def end(self, run: Run) -> None:
        """Writes results and statement, and closes the log."""
        self._try("at the end", lambda: self._close(run, results_of(run)))
        self._on = False

    def _try(self, when: str, work: Callable[[], None]) -> None:
        if not self._on:
            return
        try:
            work()
        except Exception as error:
            self._on = False
            fault = f"the logger {self.name!r} failed {when} ({type(error).__name__}: {first_line(error)})"
            warnings.warn(f"{fault} and is switched off; the run goes on without it", stacklevel=4)

    @abstractmethod
    def _start(self, facts: Facts, settings: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def _write(self, step: int, numbers: Mapping[str, float]) -> None: ...

    @abstractmethod
    def _close(self, run: Run, results: Mapping[str, float]) -> None: ...
