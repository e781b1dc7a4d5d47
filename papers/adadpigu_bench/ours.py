"""Our own steps, from the real training loop: Poisson draw, gather, gradients, clip, noise, optimiser, statistics.

The run's observer stands still between the steps that are ordered, because rounds of all contestants are interleaved;
the clock runs over whole steps only.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from torch import Tensor

from adadpigu.data.datasets import declare
from adadpigu.errors import InputError
from adadpigu.methods import Method, make_method
from adadpigu.training import Facts, Metrics, Preparation, Run, TrainingOptions, prepare, train_prepared
from adadpigu_bench.contestants import (
    CLIP_NORM,
    LEARNING_RATE,
    MOMENTUM,
    NOISE_MULTIPLIER,
    Contestant,
    Orders,
    Task,
    Trainer,
    Unavailable,
    flat,
    one_line,
    refuse_oversize,
    synchronise,
)
from adadpigu_bench.nets import CLASSES

_POOL = 4
"""records a batch is drawn from, in batches"""
_ADADPIGU: dict[str, object] = {
    "retention": 0.6,
    "schedule": "linear",
    "importance_steps": 1,
    "mean_decay": 0.9,
    "variance_decay": 0.9,
    "offset": 1e-3,
}
"""mask, mean and variance all move, so that no part of the step is left out"""
_OPTIONS: dict[str, tuple[str, dict[str, object]]] = {
    "dpsgd": ("dpsgd", {}),
    "adadpigu": ("adadpigu", _ADADPIGU),
    "adadpigu-top-k": ("adadpigu", {**_ADADPIGU, "top_k": 0.6}),
}
_COPIES = {"materialised": 1.2, "functional": 2.2}
"""how often an engine holds [B, d], about"""


def build(task: Task, contestant: Contestant) -> Trainer:
    """A run of ours that waits for its first step."""
    engine = contestant.engine or "auto"
    if engine in _COPIES:
        refuse_oversize(task, _COPIES[engine])
    run = prepared(task, method_of(contestant.method), engine)

    def train(orders: Orders) -> Tensor:
        with contextlib.suppress(_Enough):  # raised before the first step, it comes through
            train_prepared(run, observers=[_Clock(orders, str(run.device))])
        return flat(run.model)

    return train


def method_of(name: str) -> Method:
    """A method with the options of the bench."""
    method, options = _OPTIONS[name]
    return make_method(method, {"clip_norm": CLIP_NORM, **options})


def prepared(task: Task, method: Method, engine: str, public: str | None = None) -> Preparation:
    """A training run on random records, as a user would set it up; `public` for a method that learns from such."""
    count = _POOL * task.batch
    options = TrainingOptions(
        batch_size=task.batch,
        steps=max(2, task.steps),
        lr=LEARNING_RATE,
        momentum=MOMENTUM,
        noise_multiplier=NOISE_MULTIPLIER,
        device=task.device,
        evaluate_every=max(2, task.steps),
        engine=engine,
        public=public,
    )
    data = declare(task.card.records(count), records=count, name="random records")
    data = replace(data, classes=CLASSES)
    try:
        return prepare(task.model(), data, method=method, budget=None, delta=1e-5, options=options, seed=0)
    except InputError as error:
        raise Unavailable(one_line(error)) from None


class _Enough(KeyboardInterrupt):
    """Ends a run as Ctrl-C would: its weights stay, and what it spent is told."""


class _Clock:
    """The observer that waits for orders and times them."""

    def __init__(self, orders: Orders, device: str) -> None:
        self._orders, self._device = orders, device
        self._left, self._start = 0, 0.0

    def begin(self, facts: Facts) -> None:
        self._wait()

    def update(self, metrics: Metrics) -> None:
        self._left -= 1
        if self._left == 0:
            synchronise(self._device)
            self._orders.taken(time.perf_counter() - self._start)
            self._wait()

    def end(self, run: Run) -> None:
        return None

    def _wait(self) -> None:
        self._left = self._orders.wanted()
        if self._left == 0:
            raise _Enough
        self._start = time.perf_counter()
