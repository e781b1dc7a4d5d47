"""What a step does to the weights: ĝ is asked for, the optimiser follows it, the method may reject it.

All of it is made of releases. The records are behind `Draws`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from adadpigu.beside import join
from adadpigu.mechanism import Release
from adadpigu.methods.base import Batches, Running
from adadpigu.training.learned import Learned
from adadpigu.training.preparation import Preparation


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step that may be taken now: the number of its stage, its own within it, and the steps before it in all."""

    stage: int
    index: int
    count: int


class Updates:
    """Moves what a run has learned, a step at a time."""

    def __init__(self, prepared: Preparation, batches: Batches, learned: Learned) -> None:
        self._p, self._batches = prepared, batches
        self._optimiser, self._running, self._average = learned.optimiser, learned.running, learned.average
        self._layout, self._parameters = prepared.engine.layout, learned.optimiser.weights

    def take(self, step: Step) -> None:
        """By the run's own optimiser."""
        direction = self._direction(step)
        with self._judged(step):
            self._optimiser.step(direction)
        self._follow(direction)

    @contextlib.contextmanager
    def shown(self, step: Step) -> Iterator[Release]:
        """For a loop of the user's own: ĝ in `p.grad` while it lasts, in which their optimiser makes its step."""
        if self._average is not None:
            self._average.begin_step()
        direction = self._direction(step)
        with self._judged(step):
            self._optimiser.expose(direction)
            yield direction
            self._optimiser.settle()
        self._follow(direction)

    def _follow(self, direction: Release) -> None:
        if self._average is not None:
            self._average.update(direction.map(lambda _: self._parameters))
        join(self._p.device)

    def _direction(self, step: Step) -> Release:
        """ĝ, asked for at the weights at which the model acts."""
        model, effective = self._p.model, self._running.effective(self._parameters)
        pruned = effective is not self._parameters
        if pruned:
            self._layout.write(model, effective)
        direction = self._running.step(self._batches, self._p.stages[step.stage], step.index)
        if pruned:
            self._layout.write(model, self._parameters)
        return direction

    @contextlib.contextmanager
    def _judged(self, step: Step) -> Iterator[None]:
        """Within, an update is made, which the method may reject once it was."""
        if type(self._running).accept is Running.accept:
            yield
            return
        before, state = self._parameters.clone(), self._optimiser.snapshot()
        yield
        if not self._running.accept(self._batches, self._p.stages[step.stage], before, self._parameters.clone()):
            self._layout.write(self._p.model, before)
            self._optimiser.undo(state)
            self._optimiser.refresh()
