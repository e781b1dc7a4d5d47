"""Coverage: on mechanisms whose ε is known exactly, a lower bound exceeds it as rarely as it says.

1,000 audits at 95 %. Of a valid bound more than 85 exceed the truth with a probability below 1.5e-6; where a sum over
all counts is as cheap, coverage is computed exactly instead, at 1 − 1e-6 too. Seeds were chosen once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from guessing import ends, errors_of, surest, trial_of
from scipy.stats import binom, norm

from adadpigu.accounting import draw_event, plan_for
from adadpigu.accounting.closed_forms import gaussian_epsilon
from adadpigu.audit.estimators import (
    Trial,
    claim_curve,
    epsilon_from_errors,
    gaussian_curve,
    gaussian_mu,
    one_run_epsilon,
    one_run_mu,
    one_run_refutes,
    one_run_refutes_curve,
    profile_curve,
    rate_above,
)
from adadpigu.audit.order_statistics import BestGuesser, best_guesser

DELTA = 1e-5
AUDITS, ALLOWED = 1000, 85
CERTAIN = 1e-6

Generator = np.random.Generator


def too_many(exceeds: Callable[[Generator], bool], seed: int) -> bool:
    """Whether more audits than a valid 95 % bound allows show more than the truth."""
    generator = np.random.default_rng(seed)
    return sum(exceeds(generator) for _ in range(AUDITS)) > ALLOWED


# coverage, simulated


def test_the_check_itself_is_sized_for_its_false_alarms() -> None:
    assert 5e-7 < binom.sf(ALLOWED, AUDITS, 0.05) < 1.5e-6


@pytest.mark.parametrize(("mu", "count"), [(0.0, 400), (1.0, 50), (1.0, 5_000), (4.0, 300)])
def test_gaussian_mu_covers(mu: float, count: int) -> None:
    shown = cache(lambda alarms, misses: gaussian_mu(errors_of(alarms, misses, count), 0.05))
    rate = norm.cdf(-mu / 2)
    assert not too_many(lambda g: shown(*g.binomial(count, rate, 2).tolist()) > mu, seed=101)


@pytest.mark.parametrize(("true", "count"), [(0.0, 100), (1.0, 1000), (4.0, 200)])
def test_epsilon_from_errors_covers_randomised_response(true: float, count: int) -> None:
    shown = cache(lambda alarms, misses: epsilon_from_errors(errors_of(alarms, misses, count), 0.0, 0.05))
    rate = 1 / (1 + math.exp(true))
    assert not too_many(lambda g: shown(*g.binomial(count, rate, 2).tolist()) > true, seed=102)


def test_epsilon_from_errors_covers_a_gaussian_at_its_delta() -> None:
    mu, delta, count = 1.5, 0.05, 500
    true = gaussian_epsilon(1 / mu, delta)
    threshold = true / mu + mu / 2  # where the likelihood ratio is e^ε: the test that is tight at δ
    rates = [norm.sf(threshold), norm.cdf(threshold - mu)]
    shown = cache(lambda alarms, misses: epsilon_from_errors(errors_of(alarms, misses, count), delta, 0.05))
    assert not too_many(lambda g: shown(*g.binomial(count, rates).tolist()) > true, seed=103)


@pytest.mark.parametrize(
    ("true", "canaries", "delta"), [(0.0, 1000, 0.0), (0.5, 1000, 0.0), (2.0, 100, 0.0), (2.0, 200, 1e-4)]
)
def test_one_run_covers_randomised_response(true: float, canaries: int, delta: float) -> None:
    """Every canary is told truly with e^ε/(1 + e^ε), and given away with δ: tight at δ = 0."""
    chance = delta + (1 - delta) / (1 + math.exp(-true))
    shown = cache(lambda right: one_run_epsilon(trial_of(canaries, canaries, right), delta, 0.05))
    assert not too_many(lambda g: shown(int(g.binomial(canaries, chance))) > true, seed=104)


@pytest.mark.parametrize("true", [0.5, 2.0])
def test_one_run_by_a_curve_covers_randomised_response(true: float) -> None:
    """The curve of pure ε, for which the recursion is tight."""
    curve, canaries = profile_curve([true], [0.0]), 300
    refuted = cache(lambda right: one_run_refutes_curve(curve, trial_of(canaries, canaries, right), 0.05))
    assert not too_many(lambda g: refuted(int(g.binomial(canaries, 1 / (1 + math.exp(-true))))), seed=105)


@pytest.mark.parametrize(("mu", "canaries", "a_side"), [(0.5, 200, 100), (2.0, 200, 30), (0.0, 50, 25)])
def test_one_run_by_a_gaussian_curve_covers_independent_gaussians(mu: float, canaries: int, a_side: int) -> None:
    shown = cache(lambda trial: one_run_mu(trial, 0.05))

    def exceeds(generator: Generator) -> bool:
        present = generator.random(canaries) < 0.5
        return shown(ends(generator.normal(size=canaries) + mu * present, present, a_side)) > mu

    assert not too_many(exceeds, seed=106)


def test_one_run_by_the_claims_own_curve_covers_sampled_gaussians() -> None:
    """Canaries in a composed plan, scored by their exact likelihood ratio."""
    rate, sigma, steps, canaries, a_side = 0.2, 0.7, 12, 120, 20
    curve = claim_curve(plan_for(rate, steps)(sigma).event())
    refuted = cache(lambda trial: one_run_refutes_curve(curve, trial, 0.05))

    def exceeds(generator: Generator) -> bool:
        return refuted(ends(*scored(generator, canaries, rate, sigma, steps), a_side))

    assert not too_many(exceeds, seed=107)


def scored(generator: Generator, canaries: int, rate: float, sigma: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The exact likelihood ratio of each canary in a composed plan, and its coin."""
    present = generator.random(canaries) < 0.5
    drawn = (generator.random((canaries, steps)) < rate) & present[:, None]
    seen = drawn + sigma * generator.normal(size=(canaries, steps))
    return np.log1p(rate * np.expm1((seen - 0.5) / sigma**2)).sum(axis=1), present


@pytest.mark.parametrize("guesses", [40, 120, 240])
def test_a_claims_own_plan_is_refuted_as_rarely_as_it_says_and_hardly_less(guesses: int) -> None:
    """Of 1,000 audits at 95 %; fewer than 15 would have a chance below 1e-8 for a test that is exact."""
    guesser, shape = best_guesser(plan_for(0.2, 12)(0.7).event()), (240, 0.2, 0.7, 12)
    chance = cache(guesser.p_value)
    generator = np.random.default_rng(211)
    refuted = sum(chance(surest(*scored(generator, *shape), guesses)) < 0.05 for _ in range(AUDITS))
    assert 15 <= refuted <= ALLOWED


def test_worse_scores_refute_no_more() -> None:
    guesser = best_guesser(plan_for(0.2, 12)(0.7).event())
    chance = cache(guesser.p_value)

    def exceeds(generator: Generator) -> bool:
        scores, present = scored(generator, 240, 0.2, 0.7, 12)
        return chance(surest(scores + generator.normal(size=240), present, 120)) < 0.05

    assert not too_many(exceeds, seed=212)


def test_canaries_that_are_given_away_together_are_what_it_assumes_not_to_be() -> None:
    """All bits at once with a chance of 12 %, else none: within its curve, refuted too often. The bound of pure ε and δ
    allows for that, and refutes nothing."""
    given_away, canaries = 0.12, 200
    losses = np.concatenate([np.zeros(1), np.geomspace(1e-3, 60, 100)])
    guesser = BestGuesser.of_profiles(losses, np.full(101, given_away), np.full(101, given_away))
    chance = cache(guesser.p_value)

    def right(generator: Generator) -> Trial:
        told = generator.random() < given_away
        return trial_of(canaries, 100, 100 if told else int(generator.binomial(100, 0.5)))

    assert too_many(lambda generator: chance(right(generator)) < 0.05, seed=213)
    assert not too_many(lambda generator: one_run_refutes(0.0, right(generator), given_away, 0.05), seed=213)


def test_wald_instead_of_clopper_pearson_is_caught() -> None:
    true, count = 4.0, 200
    rate = 1 / (1 + math.exp(true))

    def exceeds(generator: Generator) -> bool:
        wrong = generator.binomial(count, rate, 2) / count
        alarms, misses = wrong + norm.isf(0.025) * np.sqrt(wrong * (1 - wrong) / count)
        return min(alarms, misses) == 0 or math.log(max((1 - misses) / alarms, (1 - alarms) / misses)) > true

    assert too_many(exceeds, seed=102)


def test_a_threshold_chosen_on_the_scores_that_are_counted_is_caught() -> None:
    true, canaries = 1.0, 400
    shown = cache(lambda guesses, right: one_run_epsilon(trial_of(canaries, guesses, right), 0.0, 0.05))

    def exceeds(generator: Generator) -> bool:
        right = np.cumsum(generator.random(canaries) < 1 / (1 + math.exp(-true)))
        return any(shown(guesses, int(right[guesses - 1])) > true for guesses in range(10, canaries + 1, 10))

    assert too_many(exceeds, seed=109)


def test_the_same_choice_paid_for_by_bonferroni_covers() -> None:
    true, canaries = 1.0, 400
    pure = cache(lambda value, trial, level: one_run_refutes(value, trial, 0.0, level))

    def exceeds(generator: Generator) -> bool:
        right = np.cumsum(generator.random(canaries) < 1 / (1 + math.exp(-true)))
        trials = [trial_of(canaries, guesses, int(right[guesses - 1])) for guesses in range(10, canaries + 1, 10)]
        return any(pure(true, trial, 0.05 / len(trials)) for trial in trials)

    assert not too_many(exceeds, seed=109)


# coverage, exact


@pytest.mark.parametrize("significance", [0.05, CERTAIN])
@pytest.mark.parametrize(("mu", "canaries"), [(0.5, 60), (1.7, 400)])
def test_guesses_about_all_cover_exactly(mu: float, canaries: int, significance: float) -> None:
    guesser = best_guesser(draw_event(1.0, [1 / mu]))
    chances = np.array([guesser.p_value(trial_of(canaries, canaries, right)) for right in range(canaries + 1)])
    law = binom(canaries, norm.cdf(mu / 2)).pmf(np.arange(canaries + 1))
    assert law[chances < significance].sum() <= significance
    assert (chances < significance).any()


@pytest.mark.parametrize("significance", [0.05, CERTAIN])
@pytest.mark.parametrize("trials", [1, 7, 400])
def test_clopper_pearson_covers_every_rate_and_no_wider_than_it_must(trials: int, significance: float) -> None:
    bounds = np.array([rate_above(errors, trials, significance) for errors in range(trials + 1)])
    assert np.all(np.diff(bounds) > 0)
    for rate in np.concatenate([np.linspace(0, 1, 501), bounds * (1 + 1e-9), bounds * (1 - 1e-9)]).clip(0, 1):
        below = int((bounds < rate).sum())
        assert binom.cdf(below - 1, trials, rate) <= significance * (1 + 1e-6)
    inside = bounds[:-1]
    assert binom.cdf(np.arange(trials), trials, inside) == pytest.approx(significance, rel=1e-8)


@pytest.mark.parametrize("significance", [0.05, CERTAIN])
@pytest.mark.parametrize(("true", "guesses"), [(0.0, 1), (0.0, 60), (1.0, 60), (1.0, 1000), (4.0, 400)])
def test_one_run_on_randomised_response_is_the_binomial_test(true: float, guesses: int, significance: float) -> None:
    """Pure ε refutes from the first count on that is rarer than `significance`, the curve at most two counts later."""
    chance, counts = 1 / (1 + math.exp(-true)), np.arange(guesses + 1)
    rare = binom.sf(counts - 1, guesses, chance) < significance
    pure = [one_run_refutes(true, trial_of(guesses, guesses, right), 0.0, significance) for right in counts.tolist()]
    assert pure == rare.tolist()
    curve, first = profile_curve([true], [0.0]), guesses + 1 - int(rare.sum())
    by_curve = {
        right: one_run_refutes_curve(curve, trial_of(guesses, guesses, right), significance)
        for right in range(max(0, first - 3), min(guesses, first + 3) + 1)
    }
    assert not any(by_curve[right] for right in by_curve if right < first)
    assert all(by_curve[right] for right in by_curve if right >= min(guesses, first + 2) and right >= first)


@pytest.mark.parametrize("significance", [0.2, 0.05, CERTAIN])
@pytest.mark.parametrize("canaries", [1, 2, 5, 20, 200])
@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 3.0])
def test_one_run_by_a_gaussian_curve_never_refutes_what_is_no_rarer(
    mu: float, canaries: int, significance: float
) -> None:
    """Independent Gaussians, a guess about each: the number of right ones is binomial with Φ(μ/2)."""
    right = 0
    while binom.sf(right - 1, canaries, norm.cdf(mu / 2)) > significance * (1 + 1e-9) and right < canaries:
        assert not one_run_refutes_curve(gaussian_curve(mu), trial_of(canaries, canaries, right), significance)
        right += 1
    assert right > 0


def test_canaries_that_nobody_guessed_about_change_pure_epsilon_only_through_delta() -> None:
    assert one_run_epsilon(trial_of(100, 80, 70), 0.0, 0.05) == one_run_epsilon(trial_of(9000, 80, 70), 0.0, 0.05)
    few, many = (one_run_epsilon(trial_of(canaries, 80, 70), DELTA, 0.05) for canaries in (100, 9000))
    assert many < few < one_run_epsilon(trial_of(100, 80, 70), 0.0, 0.05)


def test_the_price_of_delta_is_the_formula() -> None:
    """Against the sum written out, on counts small enough for one."""
    trial, delta, true = trial_of(30, 12, 11), 1e-3, 0.7
    law = binom(12, 1 / (1 + math.exp(-true)))
    slack = max(sum(law.pmf(w) for w in range(11 - i, 11)) / i for i in range(1, 12))
    chance = law.sf(10) + 2 * 30 * delta * slack
    assert one_run_refutes(true, trial, delta, chance * (1 + 1e-9))
    assert not one_run_refutes(true, trial, delta, chance * (1 - 1e-9))


@pytest.mark.parametrize("delta", [CERTAIN, 1e-3])
def test_one_run_says_nothing_about_epsilon_where_delta_explains_it_all(delta: float) -> None:
    for guesses in (10, 1000):
        assert one_run_epsilon(Trial.without_errors(1000, guesses), delta, 2 * delta) == 0
    assert one_run_epsilon(Trial.without_errors(1000, 1000), delta, 10 * delta) > 0
