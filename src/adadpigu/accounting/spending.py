"""The normal form every accountant here works on: how often each sampled Gaussian occurs in an event.

Draws that take every record (q = 1) are merged exactly into one Gaussian, Σ n/σ²; draws that cost nothing (q = 0 or
σ = ∞) vanish. Two events with the same normal form have the same ε, which makes it the key of every memo.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adadpigu.accounting.events import leaves, sampled_gaussian

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Sampled Gaussians (q, σ, count) with 0 < q < 1, and one unsampled Gaussian of the given precision 1/σ²."""

    private: bool
    precision: float
    sampled: tuple[tuple[float, float, int], ...]

    @property
    def free(self) -> bool:
        """Whether nothing at all is spent."""
        return self.private and self.precision == 0 and not self.sampled

    @property
    def gaussian_multiplier(self) -> float:
        """σ of the one Gaussian that all unsampled draws amount to; infinite when there is none."""
        return math.inf if self.precision == 0 else self.precision**-0.5

    def mechanisms(self) -> tuple[tuple[float, float, int], ...]:
        """Every mechanism as (q, σ, count), the unsampled Gaussian included."""
        unsampled = ((1.0, self.gaussian_multiplier, 1),) if self.precision else ()
        return (*unsampled, *self.sampled)

    def sampled_below(self, sigma: float) -> Spending:
        """The sampled draws with less noise than that, alone."""
        return replace(self, precision=0.0, sampled=tuple(part for part in self.sampled if part[1] < sigma))

    def sampled_from(self, sigma: float) -> Spending:
        """All but the sampled draws with less noise than that."""
        return replace(self, sampled=tuple(part for part in self.sampled if part[1] >= sigma))

    def chance_of_being_drawn(self) -> float:
        """The probability that a given record takes part in any sampled draw."""
        return -math.expm1(math.fsum(count * math.log1p(-q) for q, _, count in self.sampled))


def spending_of(event: DpEvent) -> Spending:
    """The normal form of an event.

    >>> from adadpigu.accounting import draw_event
    >>> spending_of(draw_event(0.5, [2.0]))
    Spending(private=True, precision=0.0, sampled=((0.5, 2.0, 1),))
    """
    private, precisions = True, []
    sampled: Counter[tuple[float, float]] = Counter()
    for leaf, count in leaves(event).items():
        q, sigma = sampled_gaussian(leaf)
        if q == 0 or math.isinf(sigma):
            continue
        if sigma == 0:
            private = False
        elif q == 1:
            precisions.append(count / sigma**2)
        else:
            sampled[q, sigma] += count
    return Spending(
        private=private,
        precision=math.fsum(precisions),
        sampled=tuple(sorted((q, sigma, count) for (q, sigma), count in sampled.items())),
    )
