"""Attacks on three faults that other libraries had, re-created in our own training loop (`plants.py`).

| fault | the attack looks at | ε from |
| --- | --- | --- |
| divisor from the data | how far weights move that no record touches | errors of a test: n or n + 1 records |
| noise for a sum added to a mean | the canaries' released coordinates | guesses about one run's canaries |
| adaptive clipping under-charged | the count of records within the bound, which is released too | errors step by step |
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from leak_attacks import CONFIDENCE, Flipped, guessed, leak_subject, trained
from torch import Tensor, nn

from adadpigu.audit.canaries import LOUD, Canaries, CanaryLoss, WithBlock
from adadpigu.audit.estimators import Errors, epsilon_from_errors, gaussian_mu
from adadpigu.audit.many_runs import Worlds, choose
from adadpigu.audit.outside import Answer
from adadpigu.audit.result import REFUTING, AuditResult
from adadpigu.audit.subject import Subject, held, scaled
from adadpigu.core.gradients import Loss
from adadpigu.core.randomness import choose_randomness
from adadpigu.data import DataSet, TensorRecords
from adadpigu.training import train_prepared

_PILOTS = 10


def divisor_attack(*, runs: int = 300, epsilon: float = 1.0, coordinates: int = 60_000) -> AuditResult:
    """Noise on a mean is noise on a sum over the divisor: who knows the one knows how many records there are."""
    options: dict[str, object] = {"retention": 1.0, "importance_steps": 0}
    subject = leak_subject(65, batch_size=32, epsilon=epsilon, steps=1, options=options)
    worlds = [_spread_of(subject, records, coordinates) for records in (65, 64)]
    scores = np.array([[once() for once in worlds] for _ in range(_PILOTS + runs)])
    found = choose(scores[:_PILOTS, :1], scores[:_PILOTS, 1:])
    assert found is not None
    seen = Worlds(within=scores[_PILOTS:, 0], without=scores[_PILOTS:, 1], threshold=found[1])
    return _told(
        "divisor",
        subject,
        seen.errors,
        lambda significance: epsilon_from_errors(seen.errors, subject.delta, significance),
        "the adversary knows all records but one and sees the weights at the end",
    )


def _spread_of(subject: Subject, records: int, coordinates: int) -> Callable[[], float]:
    """Runs on the first so many records; each gives the inverse of how far weights move that none of them touches."""
    train = held(subject.data)
    data = replace(subject.data, train=TensorRecords(train.inputs[:records], train.targets[:records], name=train.name))

    def attach(body: nn.Module, data: DataSet) -> tuple[WithBlock, DataSet, Loss]:
        assert data.classes is not None
        return WithBlock(body, coordinates), replace(data, classes=None), CanaryLoss(data.classes, coordinates, 0)

    ready = subject.prepare(data=data, attach=attach)
    layout, randomness = ready.engine.layout, choose_randomness(None, ready.device)
    start = layout.read(ready.model)

    def once() -> float:
        layout.write(ready.model, start)
        train_prepared(ready, randomness=randomness)
        return 1 / float((layout.read(ready.model) - start)[-coordinates:].std())

    return once


class _Summed(Flipped):
    """Scores a canary by all that its coordinate shows."""

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        self.scores += value


def mean_noise_attack(*, canaries: int = 4000, epsilon: float = 1.0) -> AuditResult:
    """With B times the noise there is nothing to see."""
    options: dict[str, object] = {"retention": 1.0, "importance_steps": 0}
    subject = leak_subject(64, batch_size=32, epsilon=epsilon, steps=5, options=options)
    attacker = _Summed(canaries)
    trained(subject, attacker)
    return guessed("mean noise", subject, attacker.trial(canaries // 4), "every release")


class _ZeroLoss(CanaryLoss):
    """All records but the canary have the gradient 0, which is within every bound; the canary's never is."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = super().__call__(outputs, targets)
        return torch.where(targets < self.classes, 0 * losses, losses)


class _Counted(Canaries):
    """One canary, in every other draw by a coin of the auditor's; half a record too few are then within the bound."""

    def __init__(self) -> None:
        super().__init__(1)
        self._amount.fill_(LOUD)
        self._here = False
        self._others = 0
        self.within: list[float] = []
        self.without: list[float] = []

    def attach(self, body: nn.Module, data: DataSet) -> tuple[WithBlock, DataSet, Loss]:
        model, attached, _ = super().attach(body, data)
        self._others = len(held(data))
        self.loss = _ZeroLoss(self.loss.classes, self.coordinates, self.count)
        return model, attached, self.loss

    def choose(self, active: Tensor | None) -> Tensor:
        self._here = secrets.randbits(1) == 1
        return torch.full((1,), 0.0 if self._here else 1.0)

    def on_draw(self, answer: Answer, stage: str) -> None:
        super().on_draw(answer, stage)
        missing = self._others - 2 * float(answer.releases["within"].value)
        (self.within if self._here else self.without).append(missing)


def count_attack(*, steps: int = 4000, epsilon: float = 1.0, records: int = 16) -> AuditResult:
    """The claim is for five steps of which every record is in each; the run holds many, each of them one trial.

    Every record but the canary is known to be within the bound, so that the count tells of the canary alone.
    """
    options: dict[str, object] = {"count_noise": 20.0}  # enough for the honest method to share the event
    plan: dict[str, object] = {"method": "quantile", "batch_size": records, "steps": 5, "epsilon": epsilon}
    subject = leak_subject(records, options=options, **plan)
    attacker = _Counted()
    trained(subject, attacker, steps=steps)
    within, without = np.array(attacker.within), np.array(attacker.without)
    errors = Errors.of(within, without, 0.5)

    def shown(significance: float) -> float:
        mu = gaussian_mu(errors, significance)
        return subject.cost(scaled(1 / (mu * subject.noise_multiplier))) if mu > 0 else 0.0

    return _told("count", subject, errors, shown, "the adversary chooses all records' gradients and sees every release")


def _told(attack: str, subject: Subject, errors: Errors, shown: Callable[[float], float], assumed: str) -> AuditResult:
    return AuditResult(
        audit=attack,
        subject=subject.label,
        epsilon_claimed=subject.epsilon,
        delta=subject.delta,
        epsilon_lower=shown(1 - CONFIDENCE),
        epsilon_certain=shown(REFUTING),
        confidence=CONFIDENCE,
        observations=errors.within,
        assumed=(assumed,),
        details={"false_alarms": errors.false_alarms, "without": errors.without, "misses": errors.misses},
    )
