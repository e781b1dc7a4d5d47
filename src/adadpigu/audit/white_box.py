"""White-box canaries: the tightest audit of one run, thousands of observations in seconds.

Half of the canaries, drawn afresh in every step, are in the batch. Each released coordinate of the dummy block (or
direction over k of them) is one observation of N(1, σ²) or N(0, σ²). A threshold of ½, fixed in advance, tells the
worlds apart with error rates that bound μ = 1/σ from below; σ̂ = 1/μ goes to the accountant with the claim's plan.
A frozen coordinate of the block has to be exactly 0 in every release and must not move.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from adadpigu.audit import figures
from adadpigu.audit.canaries import DRAW, Canaries
from adadpigu.audit.estimators import Errors, fewest, gaussian_mu
from adadpigu.audit.outside import plainly_prepared, secret_rng
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject, scaled
from adadpigu.core.randomness import choose_randomness
from adadpigu.errors import require
from adadpigu.runs.run import Facts, Run
from adadpigu.training.configured import training_options
from adadpigu.training.preparation import Preparation

THRESHOLD = 0.5
_MOST_A_WORLD = 256  # canaries in a batch
_MOST_MU = 40.0
_MOST_SPREAD = 64
_QUIET = 8  # coordinates without a canary until the method has a mask: it shall find something of the block to freeze


class _HalfIn(Canaries):
    """Lets a random half of the canaries into every batch and keeps what is released along them, run after run.

    Each lies along a direction over `spread` neighbouring coordinates, with signs drawn every step: noise that
    neighbours share, even up to a sign, is loud along some directions and missing along others.
    """

    def __init__(self, a_world: int, spread: int) -> None:
        room = (2 * a_world + 1) * spread - 1 + _QUIET  # groups may begin anywhere
        super().__init__(room, room // spread, spread)
        self._rng = secret_rng()
        self._loudness = self._amount.clone()
        self._place = torch.arange(len(self._amount))
        self._signs = torch.ones(self.count, spread, dtype=torch.float64)
        self._present = torch.zeros(self.count, dtype=torch.bool)
        self._compared = torch.zeros(self.count, dtype=torch.bool)
        self._masked = False
        self._weight = self._block = torch.zeros(0)
        self.within = self.without = torch.zeros(0, dtype=torch.float64)
        """⟨e_j, release⟩/C in both worlds, of all runs that have ended"""
        self._within, self._without = [self.within], [self.without]
        self.odd = 0  # that were not finite
        self.frozen = self.disturbed = 0
        """looks at frozen coordinates, and those that found a value other than 0, or a weight that had moved"""

    def follow(self, ready: Preparation) -> None:
        super().follow(ready)
        self._place = self._place.to(ready.device)
        self._weight = ready.model.get_parameter("block.weight")

    def begin(self, facts: Facts) -> None:
        super().begin(facts)
        self._masked, self._active = False, None
        self._block = self._weight.detach().flatten().cpu().clone()

    def places(self, active: Tensor | None) -> Tensor:
        return self._place

    def choose(self, active: Tensor | None) -> Tensor:
        """A half of those that are compared is drawn, and a half of those on frozen coordinates, which must not show.

        Groups begin anywhere, so that no way to pair coordinates stays between them.
        """
        self._masked = self._masked or active is not None
        free = torch.ones(self.coordinates, dtype=torch.bool) if active is None else active.clone()
        if not self._masked:
            free[-_QUIET:] = False
        offset = int(self._rng.integers(self.spread))
        kinds = [free.nonzero().flatten()[offset:], *([] if active is None else [(~active).nonzero().flatten()])]
        groups = [places[: len(places) // self.spread * self.spread] for places in kinds]
        self._place[: sum(map(len, groups))].copy_(torch.cat(groups))
        self._signs = torch.from_numpy(self._rng.choice([-1.0, 1.0], self._signs.shape))
        self._amount.copy_(self._loudness * self._signs.flatten())
        self._present, first = torch.zeros(self.count, dtype=torch.bool), 0
        for count in (len(places) // self.spread for places in groups):
            self._present[first + self._rng.permutation(count)[: count // 2]] = True
            first += count
        self._compared = torch.arange(self.count) < len(groups[0]) // self.spread
        return torch.where(self._present, 0.0, 1.0)

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        self._look_at_frozen(value, active)
        place = self._place.cpu().view(-1, self.spread)
        along = (value[place] * self._signs).sum(1) / self.spread**0.5
        compared = self._compared  # where a step is replayed, the mask may have moved since
        compared = compared if active is None else compared & active[place].all(1)
        self._within.append(along[compared & self._present])
        self._without.append(along[compared & ~self._present])

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

    def findings(self) -> Iterator[str]:
        yield from super().findings()
        if self.odd:
            yield f"{self.odd} released coordinates of the block are not finite"
        if self.disturbed:
            yield f"{self.disturbed} of {self.frozen} looks at frozen coordinates found a signal, noise or a move"

    def details(self) -> dict[str, object]:
        return {
            "mean_without": float(self.without.mean()),
            "mean_within": float(self.within.mean()),
            "stddev_without": float(self.without.std()),
            "stddev_within": float(self.within.std()),
            "frozen_looks": self.frozen,
            "frozen_disturbed": self.disturbed,
            **super().details(),
        }

    @property
    def observed(self) -> int:
        return min(len(self.within), len(self.without))


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
    mu, significance = min(1 / subject.noise_multiplier, _MOST_MU), min(1 - confidence, REFUTING)
    needed = fewest(lambda count: gaussian_mu(Errors.without_errors(count), significance) > mu)
    sure = max(confidence, 1 - REFUTING)
    few = f"observations={observations} a world are too few at confidence {sure:.15g}; allowed: at least {needed}"
    require(observations >= needed, few)
    seen = _observe(subject, observations, directions, progress)
    errors = Errors.of(seen.within.numpy(), seen.without.numpy(), THRESHOLD)

    def shown(significance: float, errors: Errors = errors) -> float:
        mu = gaussian_mu(errors, significance)
        return subject.cost(scaled(1 / (mu * subject.noise_multiplier), DRAW)) if mu > 0 else 0.0

    return subject.result(
        "white-box",
        epsilon_lower=shown(1 - confidence),
        epsilon_certain=shown(REFUTING),
        confidence=confidence,
        observations=seen.observed,
        reach=shown(REFUTING, Errors.without_errors(seen.observed)) if seen.observed else None,
        assumed=(
            "the adversary chooses a record's gradient in every step and sees every release",
            "noise is Gaussian and drawn afresh for every coordinate and step (`adadpigu audit noise` tests that)",
            "records are sampled as claimed (`adadpigu audit sampler` tests that; the canaries' own coins are the "
            "auditor's)",
            *seen.assumed(),
        ),
        findings=seen.findings(),
        details={**subject.terms, "false_alarms": errors.false_alarms, "misses": errors.misses, **seen.details()},
        draw=partial(
            figures.worlds,
            without=seen.without.numpy(),
            within=seen.within.numpy(),
            bins=np.linspace(-4 * subject.noise_multiplier, 1 + 4 * subject.noise_multiplier, 120),
            labels=("without the canary", "with the canary"),
            limits=[THRESHOLD],
            about=("released coordinate / C (lines: as claimed; dashed: the threshold)", "density"),
            sigma=subject.noise_multiplier,
        ),
    )


def _observe(subject: Subject, wanted: int, spread: int, progress: Progress | None) -> _HalfIn:
    """Whole runs, until there is enough."""
    a_world, data = min(-(-wanted // subject.plan.steps), _MOST_A_WORLD), subject.data
    if training_options(subject.config, subject.data.records).torch_device().type == "cuda":
        # With the records beside them no more than B, as in every other run: a recorded step has room for few more.
        batch = round(subject.sample_rate * subject.data.records)
        each = 1 if data.owners is None else data.owners.cap
        a_world = max(1, min(a_world, batch // (2 * each)))
        data = subject.first(max(1, round((batch - a_world * each) / subject.sample_rate)))
    canaries = _HalfIn(a_world, spread)
    while canaries.observed < wanted and not canaries.odd:
        before = canaries.observed
        canaries.tell(progress, wanted, done=before, a_step=a_world)
        ready = plainly_prepared(subject, data=data, attach=canaries.attach)
        canaries.train(ready, canaries.coins(choose_randomness(subject.tier, ready.device)))
        found = canaries.observed > before or canaries.odd
        require(found, f"{subject.label}: the method froze the whole dummy block, so there is nothing to observe")
    return canaries
