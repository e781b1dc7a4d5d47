"""One run with thousands of canaries, each in the data set or not by the flip of a coin; then the auditor guesses.

Those that are in are Poisson-sampled with q in every step. With x_t = ⟨e_j, release⟩/C, canary j's score is

    Σ_t log((1 − q) + q exp((x_t − ½)/σ²))

The auditor guesses "in" for the highest scores and "out" for the lowest. How many are wrong bounds ε from below: fewer
than the best guesser can have within the claim's plan refute it (`order_statistics`).
"""

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from adadpigu.audit import figures
from adadpigu.audit.canaries import DRAW, Canaries
from adadpigu.audit.estimators import (
    Trial,
    claim_curve,
    fewest,
    one_run_epsilon,
    one_run_refutes,
    one_run_refutes_curve,
)
from adadpigu.audit.order_statistics import best_guesser
from adadpigu.audit.outside import Answer, secret_rng
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject, scaled
from adadpigu.core.randomness import choose_randomness
from adadpigu.errors import require

_LEAST_NOISE, _MOST_NOISE, _HALVINGS = 1 / 16, 64.0, 12
"""how the noise is searched for at which a claim's plan would be refuted, as a multiple of the claim's"""


class InOrOut(Canaries):
    """Canaries that are in the data set or not, and their scores. They move from frozen coordinates to active ones."""

    def __init__(self, coordinates: int, count: int, *, sample_rate: float, noise_multiplier: float) -> None:
        super().__init__(coordinates, count)
        self._rate, self._sigma, self._share = sample_rate, noise_multiplier, 1.0
        self.looks = 0  # coordinates seen in all runs together
        self.enter(torch.zeros(count, dtype=torch.bool))

    def enter(self, present: Tensor) -> None:
        """Another run begins, with these canaries in the data set."""
        self.present = present
        self.ratio, self.total = torch.zeros(2, self.count, dtype=torch.float64)
        self.largest = torch.full_like(self.total, -math.inf)
        """x_t is what a canary's coordinate shows: log-likelihood ratio, sum and maximum of all x_t"""

    def choose(self, active: Tensor | None) -> Tensor:
        """Canaries that are in are tossed for as every record is; the others are never drawn."""
        return torch.where(self.present, torch.nan, 1.0)

    def places(self, active: Tensor | None) -> Tensor:
        """The first active coordinates; frozen ones for canaries that find none."""
        if active is None:
            return super().places(active)
        return torch.argsort((~active).byte(), stable=True)[: self.count]

    def on_draw(self, answer: Answer, stage: str) -> None:
        self._share = 1.0 if answer.gradient is None else answer.gradient.share
        super().on_draw(answer, stage)

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        place = self.loss.place.cpu()
        seen = torch.ones(self.count, dtype=torch.bool) if active is None else active[place]
        shown = value[place][seen]
        self.ratio[seen] += log_ratio(shown, self._rate, self._sigma**2 / self._share)
        self.total[seen] += shown
        self.largest[seen] = torch.maximum(self.largest[seen], shown)
        self.looks += len(shown)


def log_ratio(value: Tensor, sample_rate: float, variance: float) -> Tensor:
    """log of how much likelier a released coordinate is with a canary that is drawn with probability q than without.

    >>> log_ratio(torch.tensor([0.5, 3.0]).double(), 0.5, 1.0).round(decimals=4).tolist()
    [0.0, 1.8857]
    """
    drawn = (value - 0.5) / variance + float(np.log(sample_rate))
    missed = float(np.log1p(-sample_rate)) if sample_rate < 1 else -np.inf
    return torch.logaddexp(drawn, torch.full_like(drawn, missed))


def audit_one_run(
    subject: Subject,
    *,
    canaries: int = 5000,
    guesses: int | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> AuditResult:
    """Trains once with coin-flipped canaries and makes so many guesses about their coins, half as many unless told."""
    check_confidence(confidence)
    require(canaries >= 2, f"canaries={canaries} is not at least 2")
    guesses, significance = canaries // 2 if guesses is None else guesses, min(1 - confidence, REFUTING)
    needed = fewest(lambda count: one_run_refutes(0.0, Trial.without_errors(count, count), 0.0, significance))
    require(1 <= guesses <= canaries, f"guesses={guesses} is not from 1 to {canaries}, the number of canaries")
    sure = max(confidence, 1 - REFUTING)
    few = f"guesses={guesses} are too few at confidence {sure:g}; allowed: at least {needed}"
    require(guesses >= needed, few)
    flipped = _train(subject, canaries, progress)
    scores = torch.nan_to_num(flipped.ratio, 0.0, 0.0, 0.0).numpy()
    trial, surest = (guessed(torch.from_numpy(scores), flipped.present, count) for count in (guesses, -(-guesses // 5)))
    plan_at = cache(lambda noise: subject.event(scaled(noise, DRAW)))
    guesser_at = cache(lambda noise: best_guesser(plan_at(noise)))

    def shown(trial: Trial, level: float) -> float:
        return epsilon_of_plan(subject, lambda noise: guesser_at(noise).p_value(trial) < level)

    def refuted_by_f_dp(noise: float) -> bool:
        return one_run_refutes_curve(claim_curve(plan_at(noise)), surest, 1 - confidence)

    return subject.result(
        "one-run",
        epsilon_lower=shown(trial, 1 - confidence),
        epsilon_certain=shown(trial, REFUTING),
        confidence=confidence,
        observations=guesses,
        reach=shown(Trial.without_errors(canaries, guesses), REFUTING),
        assumed=(
            "the adversary puts records into the data and sees every release",
            "the claim's plan at some noise tells each canary, independently of others: each has coins, coordinate and "
            "noise of its own (`noise` tests it); epsilon_lower_f_dp needs no independence, epsilon_lower_any no plan",
        ),
        findings=flipped.findings(),
        details={
            **subject.terms,
            "canaries": canaries,
            "guesses": guesses,
            "right": trial.right,
            "surest_guesses": surest.guesses,
            "surest_right": surest.right,
            "epsilon_lower_f_dp": epsilon_of_plan(subject, refuted_by_f_dp),
            "epsilon_lower_any": one_run_epsilon(surest, subject.delta, 1 - confidence),
        },
        draw=partial(
            figures.worlds,
            without=scores[~flipped.present.numpy()],
            within=scores[flipped.present.numpy()],
            bins=np.histogram_bin_edges(scores, bins=80),
            labels=("canary not in the data", "in the data"),
            limits=[np.sort(scores)[place] for place in (guesses // 2, canaries - 1 - (guesses - 1) // 2)],
            about=("log-likelihood ratio of a canary (dashed: beyond, the auditor guesses)", "canaries"),
        ),
    )


def guessed(scores: Tensor, present: Tensor, count: int) -> Trial:
    """ "In" for the highest scores, "out" for the lowest, half each; which of equal ones come first is left to chance.

    Where noise is not as claimed, likelihood ratios have another middle than 0: the order of scores is still right.

    >>> guessed(torch.tensor([3.0, -1.0, 2.0, -5.0]), torch.tensor([True, True, True, False]), 2)
    Trial(canaries=4, guesses=2, right=2)
    """
    mixed = torch.randperm(len(scores))
    order = mixed[torch.argsort(scores[mixed], descending=True)]
    high, low = order[: count - count // 2], order[len(order) - count // 2 :]
    return Trial(canaries=len(scores), guesses=count, right=int(present[high].sum()) + int((~present[low]).sum()))


def epsilon_of_plan(subject: Subject, refuted: Callable[[float], bool]) -> float:
    """The ε of the claim's own plan at the least noise, as a multiple of the claim's, that is refuted."""
    if not refuted(_MOST_NOISE):
        return 0.0
    low, high = _LEAST_NOISE, _MOST_NOISE
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return subject.cost(scaled(high, DRAW))


def _train(subject: Subject, count: int, progress: Progress | None) -> InOrOut:
    flipped = InOrOut(2 * count, count, sample_rate=subject.sample_rate, noise_multiplier=subject.noise_multiplier)
    flipped.enter(torch.from_numpy(secret_rng().random(count) < 0.5))
    flipped.tell(progress, subject.plan.steps)
    ready = subject.prepare(attach=flipped.attach)
    flipped.train(ready, flipped.coins(choose_randomness(subject.tier, ready.device)))
    return flipped
