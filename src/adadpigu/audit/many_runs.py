"""Many whole runs, with one canary in the data and without it: how well does an auditor tell them apart?

In the world with it the canary is a record like any other, Poisson-sampled with q in every step; its gradient lies in
the dummy block. A run is scored by one of three figures of what was released, step by step, x_t = ⟨e_j, release⟩/C:

    Σ_t log((1 − q) + q exp((x_t − ½)/σ²)),      Σ_t x_t,      max_t x_t

the best if the noise is as claimed, and two that also see noise that is not. Pilot runs, which are not counted, choose
the figure and the threshold. How often it errs in either world bounds ε from below. Sampler, clip, noise, mask and
accounting are audited together, and nothing is assumed of them; the price is that n runs show about ln(n) − 2 at most.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from adadpigu.audit.canaries import Canaries
from adadpigu.audit.estimators import Errors, Scores, epsilon_from_errors, fewest_observations, gaussian_mu, mu_epsilon
from adadpigu.audit.one_run import log_ratio
from adadpigu.audit.outside import Answer, broken
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject, trained
from adadpigu.core.randomness import choose_randomness
from adadpigu.errors import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COORDINATES = 64
"""of the dummy block: a mask leaves the canary some to move to"""
_PILOTS = 10
"""runs in each world from which score and threshold are chosen; they are not counted"""
_SCORES = (
    "log-likelihood ratio of a run's releases",
    "sum of what the canary's coordinate shows",
    "most that the canary's coordinate shows",
)
_NEAREST = 0.1
"""of the way from one world to the other, which the threshold keeps from either, however little a world spreads"""
_MOST_REFUTED = 40.0
"""the ε above which nobody has the time to make the runs that refute it"""


class LoneCanary(Canaries):
    """One canary, in the data set or not, and what a run's releases tell about it.

    The mask is public: a canary whose coordinate is frozen moves to the first one that is active.
    """

    def __init__(self, *, sample_rate: float, noise_multiplier: float) -> None:
        super().__init__(_COORDINATES, 1)
        self._rate, self._sigma, self._share = sample_rate, noise_multiplier, 1.0
        self._present = False
        self.looks, self.broken = 0, 0
        """coordinates seen in all runs together; releases with numbers that are not finite"""
        self.enter(False)

    def enter(self, present: bool) -> None:
        """Another run, in one of the two worlds."""
        self._present = present
        self.ratio, self.total, self.largest = 0.0, 0.0, -math.inf
        """the three scores of the run"""

    def places(self, active: Tensor | None) -> Tensor:
        return super().places(active) if active is None else active.int().argmax().reshape(1)

    def choose(self, active: Tensor | None) -> Tensor:
        """In the world with it the canary keeps the coin that every record has; in the other it is never drawn."""
        return torch.tensor([torch.nan if self._present else 1.0])

    def heard(self, answer: Answer, stage: str) -> None:
        self.broken += broken(answer)
        self._share = 1.0 if answer.gradient is None else answer.gradient.share
        super().heard(answer, stage)

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        place = self.loss.place.cpu()
        if active is None or bool(active[place]):
            shown = float(value[place])
            self.ratio += float(log_ratio(value[place], self._rate, self._sigma**2 / self._share))
            self.total += shown
            self.largest = max(self.largest, shown)
            self.looks += 1


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """The scores of all runs, and the threshold above which "with" is said: fixed before these runs were made.

    A score that is no finite number (training has diverged) is an error in either world: it shows nothing.
    """

    within: Scores
    without: Scores
    threshold: float
    score: str = "score"
    """what it is, in words"""
    broken: int = 0
    """releases with numbers that are not finite"""

    def errors(self) -> Errors:
        """Of the test that was fixed in advance."""
        alarms = (self.without > self.threshold) | ~np.isfinite(self.without)
        hits = (self.within > self.threshold) & np.isfinite(self.within)
        return Errors(
            false_alarms=int(alarms.sum()),
            without=len(self.without),
            misses=int((~hits).sum()),
            within=len(self.within),
        )


def audit_many_runs(
    subject: Subject,
    *,
    runs: int = 200,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> AuditResult:
    """Trains the subject `runs` times with a canary and as often without, and bounds ε by how well they are told apart.

    Ten more pilot runs in each world choose the score and the threshold.
    """
    check_confidence(confidence)
    needed = fewest_observations(min(1 - confidence, REFUTING), delta=subject.delta)
    require(
        runs >= needed,
        f"runs={runs} a world are too few: without a single error they would show nothing at confidence "
        f"{max(confidence, 1 - REFUTING)}; allowed: at least {needed}",
    )
    worlds = _observe(subject, runs, progress)
    errors, significance = worlds.errors(), 1 - confidence
    return subject.result(
        "many-runs",
        epsilon_lower=epsilon_from_errors(errors, subject.delta, significance),
        epsilon_certain=epsilon_from_errors(errors, subject.delta, REFUTING),
        confidence=confidence,
        observations=runs,
        assumed=(
            "the adversary chooses a record's gradient in every step and sees every release",
            "epsilon_lower and the refutation assume nothing about the mechanism; epsilon_lower_gaussian assumes that "
            "the whole run is as hard to tell apart as two Gaussians",
        ),
        findings=_findings(worlds),
        details=_details(subject, worlds, significance),
        draw=lambda figure: _draw(figure, worlds),
    )


def _observe(subject: Subject, runs: int, progress: Progress | None) -> Worlds:
    """The worlds in turns, so that whatever drifts in the process drifts in both."""
    canary = LoneCanary(sample_rate=subject.sample_rate, noise_multiplier=subject.noise_multiplier)
    once = _runner(subject, canary)
    total = _PILOTS + runs
    within, without = np.empty((total, len(_SCORES))), np.empty((total, len(_SCORES)))
    for number in range(total):
        for world, present in ((within, True), (without, False)):
            world[number] = once(present)
            if progress is not None:
                progress(2 * number + 1 + (not present), 2 * total)
    require(canary.looks, f"{subject.label}: the method froze the whole dummy block, so there is nothing to observe")
    found = choose(within[:_PILOTS], without[:_PILOTS])
    require(
        found is not None or canary.broken,
        f"{subject.label}: the runs' scores are not finite, so there is nothing to compare; allowed: settings under "
        "which training does not diverge, such as a smaller lr",
    )
    best, threshold = found or (0, 0.0)
    return Worlds(
        within=within[_PILOTS:, best],
        without=without[_PILOTS:, best],
        threshold=threshold,
        score=_SCORES[best],
        broken=canary.broken,
    )


def choose(within: Scores, without: Scores) -> tuple[int, float] | None:
    """The score, a column of the pilots', that tells the worlds apart best, and a threshold as far from both.

    Far is told in standard deviations. None where no score has two finite pilots in each world.

    >>> choose(np.array([[3.0], [5.0]]), np.array([[0.0], [2.0]]))
    (0, 2.5)
    """
    best, found = -math.inf, None
    for column in range(within.shape[1]):
        high, low = (world[np.isfinite(world[:, column]), column] for world in (within, without))
        if min(len(high), len(low)) < 2:
            continue
        gap, above, below = float(high.mean() - low.mean()), float(high.std()), float(low.std())
        spread = above + below
        # without any spread a score tells all or nothing
        apart = gap / spread if spread > 0 else math.copysign(sys.float_info.max, gap) if gap else 0.0
        if apart > best:
            way = min(max(below / spread, _NEAREST), 1 - _NEAREST) if spread > 0 else 0.5
            best, found = apart, (column, float(low.mean()) + way * gap)
    return found


def _findings(worlds: Worlds) -> list[str]:
    if not worlds.broken:
        return []
    return [f"{worlds.broken} releases hold numbers that are not finite: no noise hides what was released"]


def _runner(subject: Subject, canary: LoneCanary) -> Callable[[bool], Sequence[float]]:
    """Runs the same preparation from the same weights again and again; each run gives its scores."""
    ready = subject.prepare(attach=canary.attach)
    canary.follow(ready)
    layout, randomness = ready.engine.layout, choose_randomness(subject.tier, ready.device)
    start = layout.read(ready.model)

    def once(present: bool) -> Sequence[float]:
        canary.enter(present)
        layout.write(ready.model, start)
        trained(ready, randomness=canary.coins(randomness), watch=canary, observers=[canary])
        return [canary.ratio, canary.total, canary.largest]

    return once


def _details(subject: Subject, worlds: Worlds, significance: float) -> dict[str, object]:
    errors, delta = worlds.errors(), subject.delta
    best, reachable = Errors.flawless(len(worlds.within)), subject.epsilon <= _MOST_REFUTED
    return {
        "sample_rate": subject.sample_rate,
        "steps": subject.plan.steps,
        "noise_multiplier": subject.noise_multiplier,
        "pilots": _PILOTS,
        "score": worlds.score,
        "threshold": worlds.threshold,
        "false_alarms": errors.false_alarms,
        "misses": errors.misses,
        "epsilon_lower_gaussian": mu_epsilon(gaussian_mu(errors, significance), delta),
        "reach": epsilon_from_errors(best, delta, significance),
        "reach_certain": epsilon_from_errors(best, delta, REFUTING),
        "runs_to_refute": fewest_observations(REFUTING, epsilon=subject.epsilon, delta=delta) if reachable else None,
        "mean_within": _mean(worlds.within),
        "mean_without": _mean(worlds.without),
        "releases_not_finite": worlds.broken,
    }


def _mean(scores: Scores) -> float | None:
    """Of those that are finite."""
    finite = scores[np.isfinite(scores)]
    return float(finite.mean()) if len(finite) else None


def _draw(figure: Figure, worlds: Worlds) -> None:
    axes, errors = figure.subplots(), worlds.errors()
    everyone = np.concatenate([worlds.within, worlds.without])
    everyone = everyone[np.isfinite(everyone)] if np.isfinite(everyone).any() else np.zeros(1)
    edges = np.linspace(everyone.min(), everyone.max(), min(40, max(10, len(everyone) // 10))).tolist()
    for values, colour, label in (
        (worlds.without, "#1b6ca8", f"runs without the canary, {errors.false_alarms} of {errors.without} above"),
        (worlds.within, "#c8553d", f"runs with the canary, {errors.misses} of {errors.within} not above"),
    ):
        axes.hist(values[np.isfinite(values)], bins=edges, color=colour, alpha=0.45, label=label)
    axes.axvline(worlds.threshold, color="gray", linestyle="--", linewidth=0.8, label="the threshold")
    axes.set_xlabel(worlds.score)
    axes.set_ylabel("runs")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.3)  # room for the legend
    axes.legend(frameon=False, fontsize=9)
