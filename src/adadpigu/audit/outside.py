"""Watches a run from the public side of the line: what was asked, what was answered, and where the weights went.

Python does not see a step that a GPU replays; its releases lie in the tensors that were handed out at recording. Runs
step by plain SGD where they can, so that after every step the weights have to be where the release takes them:

    θ ← θ − lr ĝ,     ĝ = m ⊙ ((release/B) ⊙ scale + centre)
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadpigu.audit.result import Progress
from adadpigu.audit.subject import Subject, trained
from adadpigu.core import mechanism
from adadpigu.core.bounding import GradientSum, Query
from adadpigu.core.mechanism import Release
from adadpigu.core.randomness import Randomness, Tier
from adadpigu.errors import InputError
from adadpigu.runs.run import Facts, Metrics, Run
from adadpigu.training.distributed import current
from adadpigu.training.preparation import Preparation

_PLAIN_SGD = dict[str, Any](optimizer="sgd", momentum=0.0, weight_decay=0.0, lr_schedule="constant", warmup=0.0)
"""settings under which a release can be read off the weights; what a run costs does not depend on them"""
_ROUNDINGS = 16  # of the weights' type, that a step by hand and one by an optimiser may be apart


@dataclass(frozen=True)
class Answer:
    """What was asked of one draw, and what was released."""

    draw: str
    queries: tuple[Query, ...]
    releases: dict[str, Release]

    @property
    def gradient(self) -> GradientSum | None:
        return gradient_of(self.queries)


def gradient_of(queries: Sequence[Query]) -> GradientSum | None:
    """The query that asks for a sum of gradients."""
    return next((query for query in queries if isinstance(query, GradientSum)), None)


class _Replayed:
    """An answer that a device has recorded; its numbers are those of the latest replay."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._before: list[Tensor] | None = None

    def changed(self) -> bool:
        """Whether it holds other numbers than when this was asked last."""
        before, self._before = self._before, [release.value for release in self.answer.releases.values()]
        return before is None or not all(map(torch.equal, before, self._before))


def plainly_prepared(subject: Subject, **given: Any) -> Preparation:
    """The subject's run, by plain SGD; as it is, where the method needs its own optimiser."""
    try:
        return subject.prepare(**given, **_PLAIN_SGD)
    except InputError:
        return subject.prepare(**given)


def secret_rng() -> np.random.Generator:
    """An auditor's own: in a job the same in all processes, which look on together and have to stay in step."""
    return np.random.default_rng(current().broadcast_object(secrets.randbits(128)))


class RunObserver:
    """A watch and an observer; `on_draw` is called once a draw, after its step."""

    def __init__(self, after: Callable[[int], object] = lambda step: None) -> None:
        """`after` is called with the number of every step."""
        self._after = after
        self._answers: list[Answer] = []
        self._recorded: list[_Replayed] = []
        self._latest: _Replayed | None = None
        self._ready: Preparation | None = None
        self._before = torch.zeros(0)
        self.replayed = 0  # steps that were replays
        self.unchanged = 0  # of them, those that left every released number as it was
        self.followed = self.astray = 0
        """steps after which weights and `p.grad` were looked at, and those whose release was not what made them"""
        self.broken = 0  # releases with a number that is not finite
        self.execution = ""  # how the latest run says that it was run

    def follow(self, ready: Preparation) -> None:
        """This run is about to begin; where it steps by plain SGD, its weights are looked at after every step."""
        self._ready = ready

    def train(self, ready: Preparation, randomness: Randomness | Tier | None) -> None:
        self.follow(ready)
        trained(ready, randomness=randomness, watch=self, observers=[self])

    def tell(self, progress: Progress | None, total: int, *, done: int = 0, a_step: int = 1) -> None:
        """Tells the progress after each step: of `total`, `done` before this run, so many `a_step`."""
        if progress is not None:
            self._after = lambda step: progress(min(done + a_step * step, total), total)

    def before_draw(self, draw: str, queries: Sequence[Query]) -> None:
        return None

    def after_draw(self, draw: str, queries: Sequence[Query], releases: dict[str, Release]) -> None:
        answer = Answer(draw, tuple(queries), releases)
        if mechanism.capturing():
            self._recorded.append(_Replayed(answer))
        else:
            self._answers.append(answer)

    def on_draw(self, answer: Answer, stage: str) -> None:
        """What one draw of a stage was answered. Overridden by an audit."""
        self.broken += sum(not bool(release.value.isfinite().all()) for release in answer.releases.values())

    def begin(self, facts: Facts) -> None:
        self._answers, self._recorded, self._latest = [], [], None
        self._before = self._weights()

    def update(self, metrics: Metrics) -> None:
        answers, self._answers = self._answers or list(self._replay()), []
        for recorded in self._recorded:  # of a draw that did not fit, what was recorded holds nothing
            recorded.changed()
        for answer in answers:
            self.on_draw(answer, metrics.stage)
        self._look_where_weights_are(answers)
        self._after(metrics.step)

    def end(self, run: Run) -> None:
        self.execution = run.execution

    def findings(self) -> Iterator[str]:
        """What needs no test to be wrong."""
        if self.broken:
            yield f"{self.broken} releases hold numbers that are not finite: no noise hides what was released"
        if self.astray:
            yield f"in {self.astray} of {self.followed} steps the weights or p.grad were not made by what was released"
        if self.unchanged:
            yield f"{self.unchanged} of {self.replayed} replayed steps released the very numbers of an earlier one"

    def assumed(self) -> Iterator[str]:
        if not self.followed:
            yield "weights move by what is released, and by nothing else (the method does more than plain SGD would)"

    def details(self) -> dict[str, object]:
        return {"execution": self.execution, "replayed_steps": self.replayed, "steps_followed": self.followed}

    def _replay(self) -> Iterator[Answer]:
        """What a replayed step has released: the one recording whose numbers are others than before."""
        if not self._recorded:
            return
        self.replayed += 1
        changed = [recorded for recorded in self._recorded if recorded.changed()]
        if not changed:
            self.unchanged += 1
        self._latest = changed[-1] if changed else self._latest or self._recorded[-1]
        yield self._latest.answer

    def _weights(self) -> Tensor:
        return torch.zeros(0) if self._ready is None else self._ready.engine.layout.read(self._ready.model)

    def _look_where_weights_are(self, answers: Sequence[Answer]) -> None:
        before, self._before = self._before, self._weights()
        asked = [(query, answer) for answer in answers if (query := answer.gradient) is not None]
        if self._ready is None or len(asked) != 1 or not follows(self._ready):
            return
        ((query, answer),) = asked
        options, after = self._ready.options, self._before.double()
        moved, rounding = _step(query, answer.releases[query.name].value, options.lr, options.batch_size)
        off = (after - before.double() + moved).abs()
        last = torch.finfo(before.dtype).eps * (before.abs() + after.abs() + rounding)
        undone = len(answers) > 1 and torch.equal(before, self._before)  # a later draw may reject an update
        self.followed += 1
        self.astray += not (undone or bool((off <= _ROUNDINGS * last).all())) or grad_differs(self._ready, moved, last)


def _step(query: GradientSum, value: Tensor, lr: float, batch_size: float) -> tuple[Tensor, Tensor]:
    """lr ĝ, and the size of what it is the difference of."""
    mean = value.double() / batch_size
    if query.scale is not None:
        mean = mean * query.scale.double()
    centre = torch.zeros_like(mean) if query.center is None else query.center.double()
    active = torch.ones_like(mean) if query.active is None else query.active.double()
    return lr * (mean + centre) * active, lr * (mean.abs() + centre.abs())


def grad_differs(ready: Preparation, moved: Tensor, last: Tensor) -> bool:
    """Whether `p.grad`, where a step has left any, is another than that step's: `moved` is lr ĝ, `last` its digit."""
    layout, lr = ready.engine.layout, ready.options.lr
    parts = zip(layout.parameters(ready.model), layout.split(moved), layout.split(_ROUNDINGS * last), strict=True)
    return any(not ((p.grad * lr - part).abs() <= off).all() for p, (_, part), (_, off) in parts if p.grad is not None)


def follows(ready: Preparation) -> bool:
    """Whether it steps by plain SGD along what is released, as all methods of the package do and others need not."""
    plain = all(getattr(ready.options, name) == value for name, value in _PLAIN_SGD.items())
    return plain and type(ready.method).__module__.startswith("adadpigu.")
