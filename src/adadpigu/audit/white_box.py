"""White-box canaries: the tightest audit of one run, thousands of observations in seconds.

Half of the canaries, drawn afresh in every step, are in the batch; the others are not. Each released coordinate of the
dummy block is one observation of N(1, σ²) or N(0, σ²). A threshold of ½, fixed in advance, tells the worlds apart with
error rates that bound μ = 1/σ from below; σ̂ = 1/μ goes to the accountant with the claim's plan. With `directions` k
the observations are along random directions over k neighbours, so that noise which they share shows. A frozen
coordinate of the block has to be exactly 0 in every release and must not move. All is seen from outside (`outside`):
releases as the method gets them, and the weights, which have to move by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from adadpigu.audit.canaries import DRAW, Canaries, WithBlock
from adadpigu.audit.estimators import Errors, fewest_for_mu, gaussian_mu
from adadpigu.audit.outside import StepProgress, chance, plainly_prepared
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject, scaled, trained
from adadpigu.audit.watching import so_many_records
from adadpigu.core.gradients import Loss
from adadpigu.core.randomness import choose_randomness
from adadpigu.data.datasets import DataSet
from adadpigu.errors import require
from adadpigu.runs.run import Facts, Run
from adadpigu.training.configured import training_options
from adadpigu.training.preparation import Preparation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THRESHOLD = 0.5
_MOST_A_WORLD = 256
"""canaries in a batch"""
_MOST_MU = 40.0
_MOST_SPREAD = 64
_QUIET = 8
"""coordinates without a canary until the method has a mask: it shall find something of the block to freeze"""


class _HalfIn(Canaries):
    """Lets a random half of the canaries into every batch and keeps what is released on the block, run after run."""

    def __init__(self, a_world: int, spread: int = 1) -> None:
        room = (2 * a_world + 1) * spread - 1  # groups may begin anywhere
        super().__init__(room + _QUIET, None if spread == 1 else 2 * a_world, spread)
        self._chance = chance()
        self._weight = torch.zeros(0)
        self._masked = False
        self._present = torch.zeros(self.coordinates, dtype=torch.bool)
        self.within = self.without = torch.zeros(0, dtype=torch.float64)
        """⟨e_j, release⟩/C in both worlds, of all runs that have ended"""
        self.odd = 0
        """that were not finite"""
        self.frozen = self.disturbed = 0
        """looks at frozen coordinates, and those that found a value other than 0, or a weight that had moved"""
        self._within, self._without = [self.within], [self.without]
        self._block = torch.zeros(0)

    def attach(self, body: nn.Module, data: DataSet) -> tuple[WithBlock, DataSet, Loss]:
        model, data, loss = super().attach(body, data)
        self._weight = model.block.weight
        return model, data, loss

    def begin(self, facts: Facts) -> None:
        super().begin(facts)
        self._masked, self._active = False, None
        self._block = self._weight.detach().flatten().cpu().clone()

    def choose(self, active: Tensor | None) -> Tensor:
        """A half of those that are compared gets its canary, and a half of the frozen ones, which must not show it."""
        self._masked = self._masked or active is not None
        compared = self._compared(active)
        self._present = torch.zeros(self.coordinates, dtype=torch.bool)
        for group in (compared, ~compared) if active is not None else (compared,):
            places = self._chance.permutation(group.nonzero().flatten().numpy())
            self._present[places[: len(places) // 2]] = True
        return torch.where(self._present, 0.0, 1.0)

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        compared = self._compared(active)
        self._look_at_frozen(value, active)
        self._within.append(value[compared & self._present])
        self._without.append(value[compared & ~self._present])

    def _compared(self, active: Tensor | None) -> Tensor:
        compared = torch.ones(self.coordinates, dtype=torch.bool) if active is None else active.clone()
        if not self._masked:
            compared[-_QUIET:] = False
        return compared

    def _look_at_frozen(self, value: Tensor, active: Tensor | None) -> None:
        """No signal and no noise in this release; and its step has moved none of the weights that were frozen."""
        before, self._block = self._block, self._weight.detach().flatten().cpu().clone()
        if active is not None:
            frozen = ~active
            self.frozen += 2 * int(frozen.sum())
            self.disturbed += int((value[frozen] != 0).sum()) + int((self._block != before)[frozen].sum())

    def end(self, run: Run) -> None:
        """Numbers that are none tell of no world: they are counted apart."""
        super().end(run)
        seen = [torch.cat(values) for values in (self._within, self._without)]
        self.within, self.without = (values[values.isfinite()] for values in seen)
        self.odd = sum(map(len, seen)) - len(self.within) - len(self.without)

    @property
    def observed(self) -> int:
        """Observations in each world."""
        return min(len(self.within), len(self.without))

    def errors(self) -> Errors:
        """Of the test that was fixed in advance."""
        return Errors(
            false_alarms=int((self.without > THRESHOLD).sum()),
            without=len(self.without),
            misses=int((self.within <= THRESHOLD).sum()),
            within=len(self.within),
        )


class _Spread(_HalfIn):
    """Canaries along random directions: each over so many neighbouring coordinates, with signs drawn every step.

    Honest noise has one law along all of them. Noise that neighbours share, up to a sign too, is loud along some and
    still along others.
    """

    def __init__(self, a_world: int, spread: int) -> None:
        super().__init__(a_world, spread)
        self._loudness = self._amount.clone()
        self._place = torch.arange(len(self._amount))
        self._signs = torch.ones(self.count, spread)
        self._groups = 0

    def follow(self, ready: Preparation) -> None:
        super().follow(ready)
        self._place = self._place.to(ready.device)

    def places(self, active: Tensor | None) -> Tensor:
        return self._place

    def choose(self, active: Tensor | None) -> Tensor:
        """Groups begin anywhere, so that no way to pair coordinates stays between them."""
        self._masked = self._masked or active is not None
        free = self._compared(active).nonzero().flatten()
        free = free[int(self._chance.integers(self.spread)) :]
        self._groups = min(self.count, len(free) // self.spread)
        used = self._groups * self.spread
        self._place[:used].copy_(free[:used])
        self._signs = torch.from_numpy(self._chance.choice([-1.0, 1.0], self._signs.shape))
        self._amount.copy_(self._loudness * self._signs.flatten())
        self._present = torch.zeros(self.count, dtype=torch.bool)
        self._present[self._chance.permutation(self._groups)[: self._groups // 2]] = True
        return torch.where(self._present, 0.0, 1.0)

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        self._look_at_frozen(value, active)
        place = self._place.cpu().view(-1, self.spread)
        along = (value[place] * self._signs).sum(1) / self.spread**0.5
        compared = torch.arange(self.count) < self._groups
        if active is not None:  # where a step is replayed, the mask may have moved since
            compared &= active[place].all(1)
        self._within.append(along[compared & self._present])
        self._without.append(along[compared & ~self._present])


def audit_white_box(
    subject: Subject,
    *,
    observations: int = 48_000,
    directions: int = 1,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> AuditResult:
    """Trains the subject with canaries until there are so many observations a world, and bounds ε from below.

    `directions`: how many coordinates a canary's direction goes over.
    """
    check_confidence(confidence)
    require(1 <= directions <= _MOST_SPREAD, f"directions={directions} is not from 1 to {_MOST_SPREAD}")
    needed = fewest_for_mu(min(1 / subject.noise_multiplier, _MOST_MU), min(1 - confidence, REFUTING))
    require(
        observations >= needed,
        f"observations={observations} a world are too few: without a single error they could not refute the claim at "
        f"confidence {max(confidence, 1 - REFUTING):.15g}; allowed: at least {needed}",
    )
    seen = _observe(subject, observations, directions, progress)
    errors = seen.errors()

    def shown(significance: float, errors: Errors = errors) -> float:
        mu = gaussian_mu(errors, significance)
        return subject.cost(scaled(1 / (mu * subject.noise_multiplier), DRAW)) if mu > 0 else 0.0

    findings = list(seen.findings())
    if seen.odd:
        findings.append(f"{seen.odd} released coordinates of the block are not finite")
    if seen.disturbed:
        findings.append(
            f"{seen.disturbed} of {seen.frozen} looks at frozen coordinates found a signal, noise or a move"
        )
    return subject.result(
        "white-box",
        epsilon_lower=shown(1 - confidence),
        epsilon_certain=shown(REFUTING),
        confidence=confidence,
        observations=seen.observed,
        reach=shown(REFUTING, Errors.flawless(seen.observed)) if seen.observed else None,
        assumed=(
            "the adversary chooses a record's gradient in every step and sees every release",
            "noise is Gaussian and drawn afresh for every coordinate and step (`adadpigu audit noise` tests that)",
            "records are sampled as claimed (`adadpigu audit sampler` tests that; the canaries' own coins are the "
            "auditor's)",
            *seen.assumed(),
        ),
        findings=findings,
        details={
            "sample_rate": subject.sample_rate,
            "steps": subject.plan.steps,
            "noise_multiplier": subject.noise_multiplier,
            "false_alarms": errors.false_alarms,
            "misses": errors.misses,
            "mean_without": float(seen.without.mean()),
            "mean_within": float(seen.within.mean()),
            "stddev_without": float(seen.without.std()),
            "stddev_within": float(seen.within.std()),
            "frozen_looks": seen.frozen,
            "frozen_disturbed": seen.disturbed,
            **seen.details(),
        },
        draw=lambda figure: _draw(figure, seen, subject.noise_multiplier),
    )


def _observe(subject: Subject, wanted: int, spread: int, progress: Progress | None) -> _HalfIn:
    """Whole runs, until there is enough."""
    a_world, data = min(-(-wanted // subject.plan.steps), _MOST_A_WORLD), subject.data
    if training_options(subject.config, subject.data.records).torch_device().type == "cuda":
        a_world, data = _that_fit(subject, a_world)
    canaries = _HalfIn(a_world) if spread == 1 else _Spread(a_world, spread)
    while canaries.observed < wanted and not canaries.odd:
        before = canaries.observed
        told = StepProgress(progress, wanted, done=before, a_step=a_world)
        ready = plainly_prepared(subject, data=data, attach=canaries.attach)
        canaries.follow(ready)
        coins = canaries.coins(choose_randomness(subject.tier, ready.device))
        trained(ready, randomness=coins, watch=canaries, observers=[canaries, told])
        found = canaries.observed > before or canaries.odd
        require(found, f"{subject.label}: the method froze the whole dummy block, so there is nothing to observe")
    return canaries


def _that_fit(subject: Subject, a_world: int) -> tuple[int, DataSet]:
    """Canaries in a batch, and records beside them, that are no more than B together, as in every other run.

    A recorded step has room for few more, and a batch that does not fit is processed by no recorded step.
    """
    batch = subject.config.batch_size
    assert batch is not None
    a_world = max(1, min(a_world, batch // 2))
    return a_world, so_many_records(subject, round((batch - a_world) / subject.sample_rate))


def _draw(figure: Figure, seen: _HalfIn, sigma: float) -> None:
    axes = figure.subplots()
    edges = np.linspace(-4 * sigma, 1 + 4 * sigma, 120)
    bins = edges.tolist()
    middle = (edges[1:] + edges[:-1]) / 2
    for values, mean, colour, label in (
        (seen.without, 0.0, "#1b6ca8", "without the canary"),
        (seen.within, 1.0, "#c8553d", "with the canary"),
    ):
        axes.hist(values.numpy(), bins=bins, density=True, color=colour, alpha=0.35, label=label)
        law = np.exp(-((middle - mean) ** 2) / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))
        axes.plot(middle, law, color=colour, linewidth=1.2)
    axes.axvline(THRESHOLD, color="gray", linestyle="--", linewidth=0.8)
    axes.set_xlabel("released coordinate / C (lines: as claimed; dashed: the threshold)")
    axes.set_ylabel("density")
    axes.legend(frameon=False)
