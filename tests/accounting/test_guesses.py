"""What a guess can gain is what the best test has: by closed forms, by quadrature, and by an attack that makes it."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from adadpigu.accounting import calibrate, draw_event, plan_for
from adadpigu.accounting.events import compose
from adadpigu.accounting.membership import membership_bounds


@pytest.mark.parametrize(("epsilon", "right"), [(2, 59.9), (4, 67.8), (8, 79.8)])
def test_one_gaussian_lets_guesses_be_right_as_often_as_published(epsilon: float, right: float) -> None:
    """δ = 1e-5; σ is calibrated to at most 0.01 below ε, which is worth less than 0.1 %."""
    plan = calibrate(plan_for(1.0, 1), epsilon=epsilon, delta=1e-5).plan
    assert 100 * membership_bounds(plan.event()).best_accuracy["0.5"] == pytest.approx(right, abs=0.1)


@pytest.mark.parametrize("mu", [0.05, 0.7, 1.666, 5.0])
def test_gaussians_have_their_closed_form(mu: float) -> None:
    found = membership_bounds(compose({draw_event(1.0, [2.0 / mu]): 4}))
    assert found.advantage == pytest.approx(2 * ndtr(mu / 2) - 1, rel=1e-9)
    for alpha, share in found.true_positive_rates.items():
        assert share == pytest.approx(ndtr(ndtri(float(alpha)) + mu), rel=1e-4)
        assert share >= ndtr(ndtri(float(alpha)) + mu) - 1e-12
    for prior, share in found.best_accuracy.items():
        p = float(prior)  # "in" above the threshold where both are as likely
        at = mu / 2 + math.log((1 - p) / p) / mu
        assert share == pytest.approx((1 - p) * ndtr(at) + p * ndtr(mu - at), abs=1e-9)


@pytest.mark.parametrize(("q", "sigma"), [(0.3, 1.0), (0.05, 0.5), (0.9, 2.0)])
def test_one_sampled_draw_has_the_worse_of_adding_and_removing(q: float, sigma: float) -> None:
    """The likelihood ratio grows with what is released, so a threshold on it is the best test, either way round."""

    def within(x: float) -> float:
        return (1 - q) * float(ndtr(x / sigma)) + q * float(ndtr((x - 1) / sigma))

    found = membership_bounds(draw_event(q, [sigma]))
    for alpha, share in found.true_positive_rates.items():
        removing = 1 - within(-sigma * float(ndtri(float(alpha))))
        low, high = -50.0, 50.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if within(middle) < float(alpha) else (low, middle)
        adding = float(ndtr(low / sigma))
        assert share == pytest.approx(max(removing, adding), rel=2e-3)
        assert share >= max(removing, adding) - 1e-12


def test_an_attack_with_all_that_is_released_gains_that_much_and_no_more() -> None:
    """Five standard deviations of 200,000 attacks either way: a false alarm in 1e-6."""
    q, sigma, steps, attacks = 0.1, 1.0, 30, 200_000
    rng, total = np.random.default_rng(7), np.zeros((2, attacks))
    for _ in range(steps):
        for world in (0, 1):
            x = sigma * rng.standard_normal(attacks) + world * (rng.random(attacks) < q)
            total[world] += np.log1p(q * np.expm1((x - 0.5) / sigma**2))
    out, seen = total
    found = membership_bounds(plan_for(q, steps)(sigma).event())
    for alpha, share in found.true_positive_rates.items():
        threshold = np.quantile(out, 1 - float(alpha))
        rate, wrong = float((seen > threshold).mean()), math.sqrt(float(alpha) / attacks)
        slope = share / float(alpha)  # the true-positive rate moves at most so fast with the threshold's own error
        assert rate == pytest.approx(share, abs=5 * (math.sqrt(share / attacks) + slope * wrong))
    edges = np.linspace(-10, 10, 201)
    gained = max(float((seen > edge).mean() - (out > edge).mean()) for edge in edges)
    assert gained == pytest.approx(found.advantage, abs=5 * math.sqrt(0.5 / attacks) + 0.003)


def test_precision_follows_from_the_rates_and_the_prior() -> None:
    found = membership_bounds(plan_for(0.02, 3000)(0.937).event())
    for rate, by_prior in found.precision.items():
        for prior, precision in by_prior.items():
            a, p, b = float(rate), float(prior), found.true_positive_rates[rate]
            assert precision == pytest.approx(p * b / (p * b + (1 - p) * a))


def test_no_noise_gives_all_away_and_no_draw_nothing() -> None:
    all_told, nothing = (
        membership_bounds(plan_for(0.5, 6)(0.0).event()),
        membership_bounds(plan_for(0.5, 0)(1.0).event()),
    )
    assert (all_told.advantage, *all_told.true_positive_rates.values()) == (1.0, 1.0, 1.0)
    assert (nothing.advantage, nothing.best_accuracy["0.5"]) == (0.0, 0.5)
    assert nothing.true_positive_rates == {"0.001": 0.001, "0.01": 0.01}
    assert nothing.precision["0.01"]["0.0001"] == pytest.approx(0.0001)


def test_more_steps_or_less_noise_never_gain_less() -> None:
    plans = [plan_for(0.05, steps)(sigma) for steps, sigma in ((10, 2.0), (40, 2.0), (40, 1.0), (40, 0.3))]
    flat = [list(_numbers(asdict(membership_bounds(plan.event())))) for plan in plans]
    assert all(a <= b + 1e-12 for low, high in itertools.pairwise(flat) for a, b in zip(low, high, strict=True))


def _numbers(tree: object) -> list[float]:
    return [n for part in tree.values() for n in _numbers(part)] if isinstance(tree, dict) else [tree]  # type: ignore[list-item]
