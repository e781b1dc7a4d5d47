"""White-box canaries: the tightest audit of one run, thousands of observations in seconds.

Half of the canaries, drawn afresh in every step, are in the batch; the others are not. Each released coordinate of the
dummy block is one observation of N(1, σ²) or N(0, σ²). A threshold of ½, fixed in advance, tells the worlds apart with
error rates that bound μ = 1/σ from below; σ̂ = 1/μ goes to the accountant with the claim's plan. A frozen coordinate of
the block has to be exactly 0 in every release and must not move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from adadpigu.audit.canaries import Canaries
from adadpigu.audit.estimators import Errors, gaussian_mu
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject
from adadpigu.data.datasets import DataSet
from adadpigu.errors import InputError
from adadpigu.gradients import Loss
from adadpigu.randomness import choose_randomness
from adadpigu.training import train_prepared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THRESHOLD = 0.5
_MOST_A_WORLD = 256
"""canaries in the batch at a time"""
_SPARE = 8
"""coordinates that get no canary in a method's first stage, so that a mask has something of the block to freeze"""


class _Observed(Canaries):
    """Keeps what is released on the block, and whether frozen coordinates stay what they were."""

    def __init__(self, a_world: int, wanted: int, progress: Progress | None) -> None:
        super().__init__(2 * a_world + _SPARE)
        self._a_world, self._wanted, self._progress = a_world, wanted, progress
        self._generator = np.random.default_rng()
        self._present = torch.zeros(self.coordinates, dtype=torch.bool)
        self.within: list[Tensor] = []
        self.without: list[Tensor] = []
        self.frozen = 0
        """observations of frozen coordinates"""
        self.disturbed = 0
        """of them, those that were not exactly 0, or whose weight moved"""
        self._masked = False
        self._weight: Tensor | None = None
        self._last: tuple[Tensor, Tensor] | None = None

    def attach(self, body: nn.Module, data: DataSet) -> tuple[nn.Module, DataSet, Loss]:
        model, data, loss = super().attach(body, data)
        self._weight = model.block.weight  # type: ignore[union-attr, assignment]
        return model, data, loss

    def drawn(self, coins: Tensor, active: Tensor | None) -> Tensor:
        """A random half of the active coordinates and of the frozen ones get their canary."""
        everyone = torch.ones(self.coordinates, dtype=torch.bool) if active is None else active
        self._masked = self._masked or not bool(everyone.all())
        if not self._masked:
            everyone[-_SPARE:] = False
        self._present = torch.zeros(self.coordinates, dtype=torch.bool)
        for group in (everyone, ~everyone) if self._masked else (everyone,):
            places = group.nonzero().flatten().numpy()
            self._present[self._generator.permutation(places)[: len(places) // 2]] = True
        self._compared = everyone
        return torch.where(self._present, 0.0, 1.0)

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        self._check_last()
        if active is not None:
            frozen = ~active
            self.frozen += int(frozen.sum())
            self.disturbed += int((value[frozen] != 0).sum())
            assert self._weight is not None
            self._last = frozen, self._weight.detach().flatten().cpu().clone()
        seen = self._compared if active is None else self._compared & active
        self.within.append(value[seen & self._present])
        self.without.append(value[seen & ~self._present])
        if self._progress is not None:
            self._progress(sum(map(len, self.within)), self._wanted)

    def _check_last(self) -> None:
        """Whether the step before has left frozen weights alone."""
        if self._last is not None and self._weight is not None:
            frozen, before = self._last
            moved = self._weight.detach().flatten().cpu() != before
            self.disturbed += int((moved & frozen).sum())
            self._last = None


@dataclass(frozen=True, kw_only=True)
class Observations:
    """⟨e_j, release⟩/C in both worlds."""

    within: Tensor
    without: Tensor
    frozen: int
    disturbed: int

    def errors(self) -> Errors:
        """Of the test that was fixed in advance."""
        return Errors(
            false_alarms=int((self.without > THRESHOLD).sum()),
            without=len(self.without),
            misses=int((self.within <= THRESHOLD).sum()),
            within=len(self.within),
        )


def audit_white_box(
    subject: Subject, *, observations: int = 48_000, confidence: float = 0.95, progress: Progress | None = None
) -> AuditResult:
    """Trains the subject with canaries until there are so many observations a world, and bounds ε from below."""
    check_confidence(confidence)
    _check_enough(observations, 1 - confidence)
    seen = _observe(subject, observations, progress)
    errors = seen.errors()

    def shown(significance: float) -> float:
        mu = gaussian_mu(errors, significance)
        return subject.cost(1 / (mu * subject.noise_multiplier)) if mu > 0 else 0.0

    findings = list(subject.findings)
    if seen.disturbed:
        findings.append(f"{seen.disturbed} of {seen.frozen} looks at frozen coordinates found signal, noise or an update")
    return AuditResult(
        audit="white-box",
        subject=subject.label,
        epsilon_claimed=subject.epsilon,
        delta=subject.delta,
        epsilon_lower=shown(1 - confidence),
        epsilon_certain=shown(REFUTING),
        confidence=confidence,
        observations=min(len(seen.within), len(seen.without)),
        assumed=(
            "the adversary chooses a record's gradient in every step and sees every release",
            "records are sampled as claimed (`adadpigu audit sampler` tests that)",
        ),
        findings=tuple(findings),
        details={
            "sample_rate": subject.sample_rate,
            "steps": subject.plan.steps,
            "noise_multiplier": subject.noise_multiplier,
            "false_alarms": errors.false_alarms,
            "misses": errors.misses,
            "mean_within": float(seen.within.mean()),
            "mean_without": float(seen.without.mean()),
            "frozen_looks": seen.frozen,
            "frozen_disturbed": seen.disturbed,
        },
        draw=lambda figure: _draw(figure, seen, subject.noise_multiplier),
    )


def _observe(subject: Subject, wanted: int, progress: Progress | None) -> Observations:
    """Whole runs, until there is enough."""
    a_world = min(-(-wanted // subject.plan.steps), _MOST_A_WORLD)
    within, without, frozen, disturbed = list[Tensor](), list[Tensor](), 0, 0
    while (count := min(sum(map(len, within)), sum(map(len, without)))) < wanted:
        canaries = _Observed(a_world, wanted - count, progress)
        ready = subject.prepare(attach=canaries.attach)
        train_prepared(ready, randomness=canaries.coins(choose_randomness(None, ready.device)), tape=canaries)
        within += canaries.within
        without += canaries.without
        frozen, disturbed = frozen + canaries.frozen, disturbed + canaries.disturbed
        if min(sum(map(len, within)), sum(map(len, without))) == count:
            raise InputError(f"{subject.label}: every coordinate of the dummy block is frozen, nothing can be observed")
    return Observations(within=torch.cat(within), without=torch.cat(without), frozen=frozen, disturbed=disturbed)
