"""What observers are told of a run: public facts before it, metrics after its steps, the run at its end.

Metrics are functions of releases, of the plan and of test records; no sensitive value comes this way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from adadpigu.accounting import Ledger, epsilon_curve
from adadpigu.accounting.accountants import quick_epsilon
from adadpigu.methods.base import Running
from adadpigu.randomness import Randomness
from adadpigu.training.preparation import Preparation
from adadpigu.training.run import Facts, Metrics, Observer, Run


class Telling:
    """Tells the observers of one run, and keeps what it has told."""

    def __init__(
        self,
        prepared: Preparation,
        ledger: Ledger,
        randomness: Randomness,
        running: Running,
        observers: Sequence[Observer],
    ) -> None:
        self._p = prepared
        self._ledger = ledger
        self._randomness = randomness
        self._running = running
        self._observers = observers
        self._resumed = len(ledger.lives()) > 1
        self._looks: dict[int, float | None] = {}
        self.metrics: list[Metrics] = []

    def begin(self, done: int) -> None:
        """Facts before the first step of this process."""
        self._looks = self._planned_looks()
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
            steps_charged=sum(life.steps for life in self._ledger.lives()),
            secret=self._randomness.private,
        )
        for observer in self._observers:
            observer.begin(facts)

    def step(self, done: int, stage: str, accuracy: Callable[[], float | None]) -> None:
        """Metrics after a step; at some steps the test set is looked at."""
        look = done in self._looks
        mean, variance = self._running.standardising if look else (None, None)
        metrics = Metrics(
            step=done,
            steps=self._p.plan.steps,
            stage=stage,
            epsilon=self._spent(done) if look else None,
            test_accuracy=accuracy() if look else None,
            active=self._running.active_share,
            mask=self._mask_by_layer() if look else {},
            alpha=self._mean_by_layer(mean),
            beta=self._mean_by_layer(variance),
        )
        if look:
            self.metrics.append(metrics)
        for observer in self._observers:
            mask, alpha, beta = dict(metrics.mask), dict(metrics.alpha), dict(metrics.beta)
            observer.update(replace(metrics, mask=mask, alpha=alpha, beta=beta))  # its own, to do with as it likes

    def end(self, run: Run) -> None:
        """The run, finished or interrupted. The error of one observer is raised once all others were told.

        The run folder is an observer too: another's failure must not cost a run the model that it has paid for.
        """
        failed: list[Exception] = []
        for observer in self._observers:
            try:
                observer.end(run)
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]

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
        planned = self._looks[done]
        if not self._resumed or planned is None:
            return planned
        return min(quick_epsilon(self._ledger.events(), self._p.delta), self._p.epsilons["pld"])

    def _mean_by_layer(self, values: Tensor | None) -> dict[str, float]:
        """Means over each layer's active coordinates; a layer without any has none."""
        if values is None:
            return {}
        layout, active = self._p.engine.layout, self._running.active
        index, values = layout.layer_index(), values.detach().cpu().double()
        kept = torch.ones(len(index), dtype=torch.float64) if active is None else active.cpu().double()
        count = torch.bincount(index, kept)
        means = torch.bincount(index, torch.where(kept > 0, values, 0.0)) / count
        named = zip(layout.layers(), means, count, strict=True)
        return {layer or "model": float(mean) for layer, mean, of in named if of > 0 and bool(torch.isfinite(mean))}

    def _mask_by_layer(self) -> dict[str, float]:
        layout, active = self._p.engine.layout, self._running.active
        if active is None:
            return {layer or "model": 1.0 for layer in layout.layers()}
        index = layout.layer_index()
        kept = torch.bincount(index[active.cpu()], minlength=int(index.max()) + 1)
        shares = kept / torch.bincount(index)
        return {layer or "model": float(share) for layer, share in zip(layout.layers(), shares, strict=True)}
