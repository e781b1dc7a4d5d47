"""`get_noise_multiplier`, where scripts for Opacus import it from."""

from __future__ import annotations

from adadpigu.accounting import calibrate, plan_for
from adadpigu.errors import require
from adadpigu.integrations.opacus.accountants import Accountant


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: int | None = None,
    steps: int | None = None,
    accountant: str = "prv",
) -> float:
    """σ for which so many epochs (of 1/q steps) or steps cost at most the target, by the tight accountant."""
    Accountant(accountant)
    require((steps is None) != (epochs is None), f"epochs={epochs} and steps={steps}: give one of them")
    count = steps if steps is not None else int((epochs or 0) / sample_rate)
    require(count >= 1, f"epochs={epochs} and steps={steps} make {count} steps; allowed: at least 1")
    return calibrate(plan_for(sample_rate, count), epsilon=target_epsilon, delta=target_delta).noise_multiplier
