"""One run with thousands of canaries, each in the data set or not by the flip of a coin; then the auditor guesses.

Canaries are records like any other: those that are in are Poisson-sampled with q in every step. The auditor sees the
releases of the dummy block and scores canary j by its likelihood ratio, step by step,

    Σ_t log((1 − q) + q exp((x_tj − ½)/σ²)),      x_tj = ⟨e_j, release⟩/C

and guesses "in" for the highest scores and "out" for the lowest, so many of each as was fixed in advance. How many
guesses were right bounds ε from below (Steinke, Nasr, Jagielski 2023; Mahloujifar, Melis, Chaudhuri 2024).
"""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from adadpigu.audit.canaries import DRAW, Canaries
from adadpigu.audit.estimators import (
    Trial,
    claim_curve,
    fewest_guesses,
    mu_epsilon,
    one_run_epsilon,
    one_run_mu,
    one_run_refutes_curve,
)
from adadpigu.audit.outside import StepProgress
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject, scaled, trained
from adadpigu.core.randomness import choose_randomness
from adadpigu.errors import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST_NOISE, _MOST_NOISE, _HALVINGS = 1 / 16, 64.0, 12
"""how the noise is searched for at which a claim's plan would be refuted, as a multiple of the claim's"""


class CoinFlipped(Canaries):
    """Canaries that are in the data set by the flip of a coin, and what the releases tell about each.

    The block is larger than their number. An auditor knows the mask, which is public, and moves canaries from frozen
    coordinates to active ones.
    """

    def __init__(self, count: int, *, sample_rate: float, noise_multiplier: float) -> None:
        super().__init__(2 * count, count)
        bits = np.frombuffer(secrets.token_bytes(count), dtype=np.uint8) & 1
        self.present = torch.from_numpy(bits.astype(bool))
        self.scores = torch.zeros(count, dtype=torch.float64)
        self.odd = 0
        """released coordinates that were not finite: they tell nothing"""
        self._rate, self._variance = sample_rate, noise_multiplier**2

    def choose(self, active: Tensor | None) -> Tensor:
        """Those that are in keep the coin that every record has."""
        return torch.where(self.present, torch.nan, 1.0)

    def places(self, active: Tensor | None) -> Tensor:
        """The first active coordinates; frozen ones for canaries that find none."""
        if active is None:
            return super().places(active)
        return torch.argsort((~active).byte(), stable=True)[: self.count]

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        sound = value.isfinite()
        self.odd += int((~sound).sum())
        ratio = torch.where(sound, log_ratio(value, self._rate, self._variance), 0.0)
        shown = ratio if active is None else torch.where(active, ratio, 0.0)
        self.scores += shown[self.loss.place.cpu()]


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
    guesses: int = 250,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> AuditResult:
    """Trains once with coin-flipped canaries and guesses the coins of `guesses` of them on either side."""
    check_confidence(confidence)
    require(canaries >= 2, f"canaries={canaries} is not at least 2")
    most, needed = canaries // 2, fewest_guesses(min(1 - confidence, REFUTING))
    require(1 <= guesses <= most, f"guesses={guesses} a side is not from 1 to {most}, half of the canaries")
    require(
        2 * guesses >= needed,
        f"guesses={guesses} a side are too few: were all of them right, they would show nothing at confidence "
        f"{max(confidence, 1 - REFUTING):g}; allowed: at least {-(-needed // 2)}",
    )
    flipped = _train(subject, canaries, progress)
    trial = guessed(flipped.scores, flipped.present, guesses)
    return subject.result(
        "one-run",
        epsilon_lower=mu_epsilon(one_run_mu(trial, 1 - confidence), subject.delta),
        epsilon_certain=epsilon_of_plan(subject, trial, REFUTING),
        confidence=confidence,
        observations=2 * guesses,
        reach=_reach(trial, subject.delta),
        assumed=(
            "the adversary puts records into the data and sees every release",
            "epsilon_lower: the run's trade-off curve is that of a Gaussian mechanism (f-DP); the refutation: that of "
            "the claim's plan at some noise, exactly; epsilon_lower_any: nothing",
        ),
        findings=[f"{flipped.odd} released coordinates are not finite"] if flipped.odd else (),
        details={
            "sample_rate": subject.sample_rate,
            "steps": subject.plan.steps,
            "noise_multiplier": subject.noise_multiplier,
            "canaries": canaries,
            "guesses_a_side": guesses,
            "right": trial.right,
            "epsilon_lower_any": one_run_epsilon(trial, subject.delta, 1 - confidence),
        },
        draw=lambda figure: _draw(figure, flipped, guesses),
    )


def guessed(scores: Tensor, present: Tensor, a_side: int) -> Trial:
    """ "in" for the highest scores, "out" for the lowest; which of equal scores come first is left to chance.

    >>> guessed(torch.tensor([3.0, -1.0, 2.0, -5.0]), torch.tensor([True, True, True, False]), 1)
    Trial(canaries=4, guesses=2, right=2)
    """
    mixed = torch.randperm(len(scores))
    order = mixed[torch.argsort(scores[mixed], descending=True)]
    right = int(present[order[:a_side]].sum()) + int((~present[order[-a_side:]]).sum())
    return Trial(canaries=len(scores), guesses=2 * a_side, right=right)


def _reach(trial: Trial, delta: float) -> float:
    """The ε that as many guesses could have shown at confidence 1 − 1e-6, had all been right: an audit's limit."""
    return mu_epsilon(one_run_mu(Trial.flawless(trial.canaries, trial.guesses), REFUTING), delta)


def epsilon_of_plan(subject: Subject, trial: Trial, significance: float) -> float:
    """The ε of the claim's own plan at the least noise whose exact trade-off curve the guesses refute."""

    def refuted(noise: float) -> bool:
        return one_run_refutes_curve(claim_curve(subject.event(scaled(noise, DRAW))), trial, significance)

    if not refuted(_MOST_NOISE):
        return 0.0
    low, high = _LEAST_NOISE, _MOST_NOISE
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return subject.cost(scaled(high, DRAW))


def _train(subject: Subject, count: int, progress: Progress | None) -> CoinFlipped:
    flipped = CoinFlipped(count, sample_rate=subject.sample_rate, noise_multiplier=subject.noise_multiplier)
    ready = subject.prepare(attach=flipped.attach)
    flipped.follow(ready)
    coins = flipped.coins(choose_randomness(subject.tier, ready.device))
    trained(ready, randomness=coins, watch=flipped, observers=[flipped, StepProgress(progress, subject.plan.steps)])
    return flipped


def _draw(figure: Figure, flipped: CoinFlipped, guesses: int) -> None:
    axes = figure.subplots()
    scores, present = flipped.scores.numpy(), flipped.present.numpy()
    edges = np.histogram_bin_edges(scores, bins=80).tolist()
    for chosen, colour, label in ((~present, "#1b6ca8", "canary not in the data"), (present, "#c8553d", "in the data")):
        axes.hist(scores[chosen], bins=edges, color=colour, alpha=0.45, label=label)
    ordered = np.sort(scores)
    for place in (guesses, len(scores) - guesses):
        axes.axvline(ordered[min(place, len(ordered) - 1)], color="gray", linestyle="--", linewidth=0.8)
    axes.set_xlabel("log-likelihood ratio of a canary (dashed: beyond, the auditor guesses)")
    axes.set_ylabel("canaries")
    axes.legend(frameon=False)
