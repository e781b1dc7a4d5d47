"""A logger: an observer that hands public numbers and words to a library, and never costs a run anything.

Training has paid for its releases by the time a library fails, so a logger that raises is switched off, with one
warning by name, and the run goes on to its model and its statement. The run folder keeps everything regardless.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from adadpigu.errors import first_line
from adadpigu.loggers.values import Beginning, Ending, beginning, ending, scalars
from adadpigu.training.run import Facts, Metrics, Run


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
