"""One run's surest guesses against the best that a claim allows (Xiang et al. 2025), exactly. No record is read.

A canary's bit is told by a pair of distributions, P where it is in and Q where it is not, whose trade-off is the
claim's. The best guesser says "in" where the privacy loss ln P/Q is positive and is the surer the larger its size. Of
n canaries told independently, the r surest have losses beyond the (r + 1)-th largest, drawn independently there: with
S the share of all losses beyond it, and E(S) the share of all that are beyond it and wrong,

    S ~ Beta(r + 1, n − r),     wrong guesses ~ Binomial(r, E(S)/S)

Formal guarantee: whoever guesses, by whatever scores, r wrong guesses or fewer are never likelier than that, where
canaries are told independently and each within the claim. Fewer points of the profile, or larger ones, refute less.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adadpigu.accounting.events import DpEvent, spending_of
from adadpigu.accounting.pld import coarse_interval, privacy_profiles
from adadpigu.audit.estimators import Trial

Numbers = NDArray[np.float64]

_LOSSES = np.concatenate([np.zeros(1), np.geomspace(1e-3, 60, 3000)])
_LEVELS = np.unique(np.concatenate([np.geomspace(1e-14, 1e-2, 500), np.linspace(1e-2, 1, 1500)]))
"""where the distribution of S is cut, finely where it hardly ever lies"""


@dataclass(frozen=True)
class BestGuesser:
    """E as a function of S: both grow from 0 along with the guesses that are made, surest first."""

    shares: Numbers
    wrong: Numbers

    @classmethod
    def of_profiles(cls, losses: Numbers, removing: Numbers, adding: Numbers) -> "BestGuesser":
        """Of the pair whose profiles are these at the losses from 0 on, and chords of them (in e^loss) in between."""
        removing, adding = removing.copy(), adding.copy()
        removing[0] = adding[0] = max(removing[0], adding[0])  # the same distance, either way round
        positive, negative = (_atoms(losses, profile) for profile in (removing, adding))
        likely, unlikely = (one + other for one, other in zip(positive, negative, strict=True))
        rest = 2.0 - float(likely.sum() + unlikely.sum())  # of both distributions where the loss is 0: a coin toss
        shares = np.append((likely + unlikely) / 2, max(0.0, rest) / 2)
        wrong = np.append(unlikely / 2, max(0.0, rest) / 4)
        return cls(np.append(0.0, np.cumsum(shares)), np.append(0.0, np.cumsum(wrong)))

    def wrong_share(self, shares: Numbers) -> Numbers:
        """E(S)/S, which grows with S."""
        found: Numbers = np.interp(shares, self.shares, self.wrong) / shares
        return np.minimum(found, 0.5)

    def p_value(self, trial: Trial) -> float:
        """An upper bound on the chance of so few wrong guesses or fewer, within a few per cent of it."""
        from scipy.special import bdtr, betaincinv

        errors, guesses, rest = trial.guesses - trial.right, trial.guesses, trial.canaries - trial.guesses
        if rest == 0:
            return float(bdtr(errors, guesses, self.wrong_share(np.ones(1)))[0])
        lower_ends = betaincinv(guesses + 1, rest, np.append(0.0, _LEVELS[:-1]))
        chances = bdtr(errors, guesses, self.wrong_share(np.maximum(lower_ends, 1e-200)))
        return float(np.diff(_LEVELS, prepend=0.0) @ chances)


def _atoms(losses: Numbers, profile: Numbers) -> tuple[Numbers, Numbers]:
    """The masses of a loss that is above 0, infinity first and then from the largest on: likely and unlikely world."""
    odds = np.exp(losses)
    slopes = np.append(-np.diff(profile) / np.diff(odds), 0.0)  # what of the unlikely world lies beyond each loss
    unlikely = np.maximum(-np.diff(slopes), 0.0)
    return np.append(profile[-1], (odds[1:] * unlikely)[::-1]), np.append(0.0, unlikely[::-1])


def best_guesser(event: DpEvent) -> BestGuesser:
    """The best guesser that a plan allows, by 3,000 points of its two privacy profiles."""
    spending = spending_of(event)
    removing, adding = privacy_profiles(spending, _LOSSES.tolist(), coarse_interval(spending))
    return BestGuesser.of_profiles(_LOSSES, np.array(removing), np.array(adding))
