"""What observers are told of a run: public facts before it, metrics after its steps, the run at its end.

Metrics are functions of releases, of the plan and of test records; no sensitive value comes this way.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from adadpigu.accounting import Ledger, epsilon_curve
from adadpigu.accounting.accountants import quick_epsilon
from adadpigu.core.randomness import Randomness
from adadpigu.methods.base import MethodState
from adadpigu.runs.run import Facts, Metrics, Observer, Run
from adadpigu.training.preparation import Preparation


class ObserverHub:
    """Tells the observers of one run, and keeps what it has told."""

    def __init__(
        self,
        prepared: Preparation,
        ledger: Ledger,
        randomness: Randomness,
        method_state: MethodState,
        observers: Sequence[Observer],
    ) -> None:
        self._p = prepared
        self._ledger = ledger
        self._randomness = randomness
        self._method_state = method_state
        self.observers = observers
        self.resumed = len(ledger.sessions()) > 1
        self.looks: dict[int, float | None] = {}  # after which steps the test set is looked at, and the ε spent by then
        self.metrics: list[Metrics] = []

    def begin(self, done: int) -> None:
        """Facts before the first step of this process."""
        self.looks = self._planned_looks()
        p = self._p
        facts = Facts(
            dataset=p.data.name,
            method=p.method.name,
            parameters=p.engine.layout.size,
            steps=p.plan.steps,
            noise_multiplier=p.noise_multiplier,
            sample_rate=p.sample_rate,
            epsilon=p.epsilons["pld"] if p.method.private else None,
            delta=p.delta,
            engine=p.engine.reason,
            warnings=p.warnings,
            steps_done=done,
            steps_charged=sum(session.steps for session in self._ledger.sessions()),
            secret=self._randomness.private,
        )
        for observer in self.observers:
            observer.begin(facts)

    def step(self, done: int, stage: str, accuracy: Callable[[], float | None]) -> None:
        """Metrics after a step; at some steps the test set is looked at."""
        look = done in self.looks
        mean, variance = self._method_state.standardising if look else (None, None)
        active, shares = self._method_state.active, None
        if look:
            shares = torch.ones(self._p.engine.layout.size) if active is None else active
        metrics = Metrics(
            step=done,
            steps=self._p.plan.steps,
            stage=stage,
            epsilon=self._spent(done) if look else None,
            test_accuracy=accuracy() if look else None,
            active=self._method_state.active_share,
            mask=self._layer_means(shares),
            alpha=self._layer_means(mean, active),
            beta=self._layer_means(variance, active),
        )
        if look:
            self.metrics.append(metrics)
        for observer in self.observers:
            mask, alpha, beta = dict(metrics.mask), dict(metrics.alpha), dict(metrics.beta)
            observer.update(replace(metrics, mask=mask, alpha=alpha, beta=beta))  # its own, to do with as it likes

    def end(self, run: Run) -> None:
        """The run, finished or interrupted. An error of an observer is raised once all others, and the folder, know."""
        with contextlib.ExitStack() as every:
            for observer in reversed(self.observers):
                every.callback(observer.end, run)

    def _planned_looks(self) -> dict[int, float | None]:
        """After which steps the test set is looked at, and the ε spent by then."""
        steps = self._p.plan.steps
        every = self._p.options.evaluate_every or max(1, -(-steps // 20))
        at = sorted({*range(every, steps + 1, every), steps})
        if not (self._p.method.private and self._randomness.private):
            return dict.fromkeys(at)
        return dict(zip(at, epsilon_curve(self._p.plan, self._p.delta, at), strict=True))

    def _spent(self, done: int) -> float | None:
        """ε so far; of a run that was resumed, with what was charged for steps that were repeated."""
        planned = self.looks[done]
        if not self.resumed or planned is None:
            return planned
        return min(quick_epsilon(self._ledger.events(), self._p.delta), self._p.epsilons["pld"])

    def _layer_means(self, values: Tensor | None, counted: Tensor | None = None) -> dict[str, float]:
        """The mean over each layer's coordinates that are counted (None: all); a layer without any has none."""
        if values is None:
            return {}
        layout = self._p.engine.layout
        index = layout.layer_index()
        weights = torch.ones(len(index), dtype=torch.float64) if counted is None else counted.cpu().double()
        sums = torch.bincount(index, torch.where(weights > 0, values.detach().cpu().double(), 0.0))
        means = (sums / torch.bincount(index, weights)).tolist()
        return {
            layer or "model": mean for layer, mean in zip(layout.layers(), means, strict=True) if math.isfinite(mean)
        }
