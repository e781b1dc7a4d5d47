"""Runs that are stopped and go on: coins and noise by the step alone, so that resumed and undisturbed runs agree."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.methods import Method
from adadpigu.training import Facts, Metrics, Run, train_prepared
from adadpigu.training.checkpoints import Checkpoint, Checkpoints
from adadpigu.training.step import Draws
from trials import prepare_small, small_digits

STEPS = 6
RECORDS = 300


class ByStep(ReproducibleRandomness):
    """Coins and noise that are a function of the step."""

    def __init__(self) -> None:
        super().__init__(0)

    def begin_step(self, step: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([7, step])))


def coins_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on each step of a run with `ByStep` has coins and noise of its own."""
    genuine = Draws.begin_step

    def begin_step(self: Draws, stage: str, step: int, planned: Any) -> None:
        if isinstance(self._randomness, ByStep):
            self._randomness.begin_step(step)
        genuine(self, stage, step, planned)

    monkeypatch.setattr(Draws, "begin_step", begin_step)


class After:
    """Does something after a step, once: an observer."""

    def __init__(self, step: int | None, what: Callable[[], object]) -> None:
        self._step, self._what = step, what

    def begin(self, facts: Facts) -> None: ...

    def end(self, run: Run) -> None: ...

    def update(self, metrics: Metrics) -> None:
        if metrics.step == self._step:
            self._what()


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def interrupt() -> None:
    raise KeyboardInterrupt


def live(
    method: Method, folder: Path, *, stop: int | None = None, by: Callable[[], object] = terminate, **options: Any
) -> Run:
    """One process's work on a run, begun or gone on with; stopped after a step where one is named."""
    randomness = options.pop("randomness", ByStep())
    chosen = {"steps": STEPS, "momentum": 0.9, "weight_decay": 0.1, "evaluate_every": 1, "reserve": 1} | options
    return train_prepared(
        prepare_small(method, small_digits(RECORDS), **chosen),
        out=folder,
        randomness=randomness,
        observers=[After(stop, by)],
        resuming=folder.exists(),
    )


def in_lives(method: Method, folder: Path, stops: Iterator[int] | range | list[int], **options: Any) -> Run:
    """A run that is stopped after each of these steps, and goes on."""
    for stop in stops:
        run = live(method, folder, stop=stop, **options)
        assert run.interrupted
        assert run.steps_done == stop
    return live(method, folder, **options)


def kept(folder: Path) -> Checkpoint:
    found, problems = Checkpoints(folder).newest()
    assert found is not None
    assert problems == ()
    return found


def assert_same(run: Run, other: Run) -> None:
    """Equal to the last bit: the model that is kept, all that was learned, the metrics but for ε, which is no lower."""
    assert run.folder is not None
    assert other.folder is not None
    ours, theirs = run.model.state_dict(), other.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    state, wanted = kept(run.folder).state, kept(other.folder).state
    assert state.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(state[key], value), key
        assert state[key].dtype == value.dtype, key
    assert run.accuracy == other.accuracy
    for one, two in zip(run.metrics, other.metrics, strict=True):
        assert {**vars(one), "epsilon": 0} == {**vars(two), "epsilon": 0}
        if two.epsilon is not None:  # the plan's at the last step: with steps to spare more than was spent
            assert (one.epsilon or 0) >= min(two.epsilon, run.privacy.epsilon_spent) * (1 - 1e-6)
    lines = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (run.folder, other.folder)]
    assert [json.loads(line)["step"] for line in lines[0]] == [json.loads(line)["step"] for line in lines[1]]
