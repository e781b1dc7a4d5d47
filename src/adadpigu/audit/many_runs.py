"""Many whole runs, with one canary in the data and without it: how well does an auditor tell them apart?

With x_t = ⟨e_j, release⟩/C, a run is scored by its log-likelihood ratio (`one_run`), by Σ_t x_t or by max_t x_t. Pilot
runs, which are not counted, choose the score and the threshold. How often that errs in either world bounds ε from
below. Nothing is assumed of sampler, clip, noise and mask; the price is that n runs show about ln(n) − 2 at most.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from adadpigu.audit import figures
from adadpigu.audit.estimators import Errors, Scores, epsilon_from_errors, fewest, gaussian_mu, mu_epsilon
from adadpigu.audit.one_run import InOrOut
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject
from adadpigu.core.randomness import choose_randomness
from adadpigu.errors import require

_COORDINATES = 64  # of the dummy block: a mask leaves the canary some to move to
_PILOTS = 10  # runs in each world from which score and threshold are chosen; they are not counted
_SCORES = (
    "log-likelihood ratio of a run's releases",
    "sum of what the canary's coordinate shows",
    "most that the canary's coordinate shows",
)
_NEAREST = 0.1
"""of the way from one world to the other, which the threshold keeps from either, however little a world spreads"""
_MOST_REFUTED = 40.0  # the ε above which nobody has the time to make the runs that refute it


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """The scores of all runs, and the threshold above which "with" is said: fixed before these runs were made."""

    within: Scores
    without: Scores
    threshold: float
    score: str = "score"  # what it is, in words

    @property
    def errors(self) -> Errors:
        return Errors.of(self.within, self.without, self.threshold)


def audit_many_runs(
    subject: Subject, *, runs: int = 200, confidence: float = 0.95, progress: Progress | None = None
) -> AuditResult:
    """Trains the subject `runs` times with a canary and as often without, after ten pilot runs in each world."""
    check_confidence(confidence)
    significance = min(1 - confidence, REFUTING)
    needed = fewest(lambda count: epsilon_from_errors(Errors.without_errors(count), subject.delta, significance) > 0)
    few = f"runs={runs} a world are too few at confidence {max(confidence, 1 - REFUTING)}; allowed: at least {needed}"
    require(runs >= needed, few)
    canary = InOrOut(_COORDINATES, 1, sample_rate=subject.sample_rate, noise_multiplier=subject.noise_multiplier)
    worlds = _observe(subject, canary, runs, progress)
    errors, significance = worlds.errors, 1 - confidence
    within, without = (scores[np.isfinite(scores)] for scores in (worlds.within, worlds.without))
    everyone = np.concatenate([within, without, [worlds.threshold]])
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
        findings=canary.findings(),
        details={
            **_details(subject, worlds, significance),
            "mean_within": float(within.mean()) if len(within) else None,
            "mean_without": float(without.mean()) if len(without) else None,
            "releases_not_finite": canary.broken,
        },
        draw=partial(
            figures.worlds,
            without=without,
            within=within,
            bins=np.linspace(everyone.min(), everyone.max(), min(40, max(10, len(everyone) // 10))),
            labels=(
                f"runs without the canary, {errors.false_alarms} of {errors.without} above",
                f"runs with the canary, {errors.misses} of {errors.within} not above",
            ),
            limits=[worlds.threshold],
            about=(f"{worlds.score} (dashed: the threshold)", "runs"),
        ),
    )


def _observe(subject: Subject, canary: InOrOut, runs: int, progress: Progress | None) -> Worlds:
    """The worlds in turns, so that whatever drifts in the process drifts in both."""
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
    diverged = f"{subject.label}: the runs' scores are not finite; allowed: other settings, such as a smaller lr"
    require(found is not None or canary.broken, diverged)
    best, threshold = found or (0, 0.0)
    within, without = within[_PILOTS:, best], without[_PILOTS:, best]
    return Worlds(within=within, without=without, threshold=threshold, score=_SCORES[best])


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


def _runner(subject: Subject, canary: InOrOut) -> Callable[[bool], Sequence[float]]:
    """Runs the same preparation from the same weights again and again; each run gives its scores."""
    ready = subject.prepare(attach=canary.attach)
    layout, randomness = ready.engine.layout, choose_randomness(subject.tier, ready.device)
    start = layout.read(ready.model)

    def once(present: bool) -> Sequence[float]:
        canary.enter(torch.tensor([present]))
        layout.write(ready.model, start)
        canary.train(ready, canary.coins(randomness))
        return [float(score) for score in (canary.ratio, canary.total, canary.largest)]

    return once


def _details(subject: Subject, worlds: Worlds, significance: float) -> dict[str, object]:
    errors, delta = worlds.errors, subject.delta
    best = Errors.without_errors(len(worlds.within))

    def refutes(count: int) -> bool:
        return epsilon_from_errors(Errors.without_errors(count), delta, REFUTING) > subject.epsilon

    return {
        **subject.terms,
        "pilots": _PILOTS,
        "score": worlds.score,
        "threshold": worlds.threshold,
        "false_alarms": errors.false_alarms,
        "misses": errors.misses,
        "epsilon_lower_gaussian": mu_epsilon(gaussian_mu(errors, significance), delta),
        "reach": epsilon_from_errors(best, delta, significance),
        "reach_certain": epsilon_from_errors(best, delta, REFUTING),
        "runs_to_refute": fewest(refutes) if subject.epsilon <= _MOST_REFUTED else None,
    }
