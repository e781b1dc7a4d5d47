"""What a guess about who was in the data can gain at most, from a plan's privacy profile. Sees public numbers only.

A guess that says "was in" of a share α of those who were not says it of at most a share β of those who were:

    β(α) = min over ε ≥ 0 of  e^ε α + δ(ε)  and  1 − e^−ε (1 − δ(ε) − α)

δ(ε) is the worse of adding and of removing a record, so the same holds for guesses that somebody was *not* in.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from adadpigu.accounting.events import DpEvent, is_repeated, leaves, spending_of
from adadpigu.accounting.pld import coarse_interval, privacy_profile
from adadpigu.accounting.repeating import repeated_profile

FALSE_POSITIVE_RATES = (0.001, 0.01)
PRIORS = (0.5, 0.01, 0.0001)  # 1 in 2, in 100 and in 10,000
_LOSSES = (0.0, *np.geomspace(1e-4, 20, 1000).tolist())  # ε where the bounds are sharp for those rates and priors


@dataclass(frozen=True, kw_only=True)
class MembershipBounds:
    """Bounds on every attack that guesses whether a record (or owner) was in the data.

    A prior is the share of those guessed about who were in, as a guesser knows it beforehand. Keys are decimal numbers.
    """

    advantage: float
    """the most by which the rate of true positives exceeds that of false ones: 0 tells nothing, 1 everything"""
    best_accuracy: Mapping[str, float]  # by prior: the share of right guesses; without the model the larger of both
    true_positive_rates: Mapping[str, float]  # by rate of false positives
    precision: Mapping[str, Mapping[str, float]]  # by rate of false positives, then by prior: right among "was in"

    def gains(self) -> list[tuple[str, float, float]]:
        """For a figure: which guesses, how many of them are right without the model, and at most with it."""
        toss = ("any guess: 1 in 2 used", 0.5, self.best_accuracy["0.5"])
        named = self.precision["0.001"]
        return [toss, *((f"named*: 1 in {1 / p:,.0f} used", p, named[f"{p:g}"]) for p in PRIORS)]


def _profile(event: DpEvent, epsilons: list[float]) -> list[float]:
    if any(map(is_repeated, leaves(event))):
        return repeated_profile(event, epsilons)
    spending = spending_of(event)
    return privacy_profile(spending, epsilons, coarse_interval(spending))


def membership_bounds(event: DpEvent) -> MembershipBounds:
    """What studying all releases of an event can tell about one record's presence.

    Formal guarantee: no test does better, whatever it knows besides. The accountant's coarse grid is rounded up, by
    about 0.1 % of what is spent.

    >>> from adadpigu.accounting import draw_event
    >>> found = membership_bounds(draw_event(1.0, [1.0]))
    >>> round(found.advantage, 4), round(found.true_positive_rates["0.01"], 4)
    (0.3829, 0.0924)
    """
    beyond = [math.log((1 - prior) / prior) for prior in PRIORS]
    epsilons = sorted({*_LOSSES, *beyond})
    profile = dict(zip(epsilons, _profile(event, epsilons), strict=True))
    losses, deltas = np.array([*profile]), np.array([*profile.values()])

    def true_positives(alpha: float) -> float:
        gentle, steep = np.exp(losses) * alpha + deltas, 1 - np.exp(-losses) * (1 - deltas - alpha)
        return float(min(1.0, gentle.min(), steep.min()))

    rates = {alpha: true_positives(alpha) for alpha in FALSE_POSITIVE_RATES}
    return MembershipBounds(
        advantage=profile[0.0],
        best_accuracy={
            f"{prior:g}": 1 - prior + prior * profile[loss] for prior, loss in zip(PRIORS, beyond, strict=True)
        },
        true_positive_rates={f"{alpha:g}": rate for alpha, rate in rates.items()},
        precision={
            f"{alpha:g}": {f"{prior:g}": prior * rate / (prior * rate + (1 - prior) * alpha) for prior in PRIORS}
            for alpha, rate in rates.items()
        },
    )
