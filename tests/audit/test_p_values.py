"""P-values against enumeration, direct sums and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, kstest, norm

from adadpigu.audit.p_values import (
    Check,
    Distribution,
    dispersion_p,
    distance_p,
    extreme_p,
    hypergeometric,
    most_alike,
    neighbours_p,
    overlaps_p,
    product_p,
    product_reach,
    refuted,
    repeats,
    sum_p,
)


def test_the_law_of_a_sum_is_that_of_its_outcomes_one_by_one() -> None:
    """Two loaded dice and a coin with numbers of its own, every outcome enumerated."""
    die, coin = (
        Distribution(1, np.array([0.1, 0.2, 0.3, 0.15, 0.15, 0.1])),
        Distribution(-3, np.array([0.25, 0.0, 0.75])),
    )
    chances: dict[int, float] = {}
    for a, b, c in itertools.product(range(6), range(6), range(3)):
        total = (1 + a) + (1 + b) + (-3 + c)
        chances[total] = chances.get(total, 0.0) + float(die.chances[a] * die.chances[b] * coin.chances[c])
    for seen in range(-2, 13):
        below = sum(p for total, p in chances.items() if total <= seen)
        above = sum(p for total, p in chances.items() if total >= seen)
        assert sum_p(seen, [(die, 2), (coin, 1)]) == pytest.approx(min(1.0, 2 * min(below, above)), abs=1e-12)


def test_a_sum_of_many_is_exact_far_out() -> None:
    """5,000 coins are one binomial, whose tail is known."""
    coin = Distribution(0, np.array([0.98, 0.02]))
    for seen in (60, 100, 160):
        tail = 2 * min(binom.cdf(seen, 5000, 0.02), binom.sf(seen - 1, 5000, 0.02))
        assert sum_p(seen, [(coin, 5000)]) == pytest.approx(min(1.0, tail), abs=1e-12)
    assert sum_p(5000, [(coin, 5000)]) == 0.0


@pytest.mark.parametrize("size", range(8))
def test_neighbours_are_counted_over_all_choices_of_a_row(size: int) -> None:
    records = 7
    seen = [sum(b - a == 1 for a, b in itertools.pairwise(c)) for c in itertools.combinations(range(records), size)]
    law = hypergeometric(
        records, min(records, records - size + 1), size
    )  # of runs, of which there are m less the pairs
    for value in range(records):
        place = size - value - law.start
        found = law.chances[place] if 0 <= place < len(law.chances) else 0.0
        assert found == pytest.approx(seen.count(value) / len(seen), abs=1e-12)


def test_common_records_are_those_of_a_hypergeometric_law() -> None:
    for records, one, other in ((9, 4, 3), (9, 7, 5), (9, 0, 4), (9, 9, 4)):
        law = hypergeometric(records, one, other)
        seen = [sum(record < one for record in c) for c in itertools.combinations(range(records), other)]
        expected = [seen.count(value) / len(seen) for value in range(law.start, law.start + len(law.chances))]
        np.testing.assert_allclose(law.chances, expected, atol=1e-12)
        assert law.chances.sum() == pytest.approx(1.0)


def test_tests_of_independent_draws_are_fair_and_those_of_others_not() -> None:
    """150 trials each; a level of 1 % is passed by more than 13 with a probability below 1e-8 where it holds."""
    generator, alarms = np.random.default_rng(0), np.zeros(6, dtype=int)
    for _ in range(150):
        taken = generator.random((40, 60)) < 0.1
        sizes, by_record = taken.sum(axis=1), taken.sum(axis=0)
        common = (taken[1:] & taken[:-1]).sum(axis=1)
        pairs = (taken[:, 1:] & taken[:, :-1]).sum(axis=1)
        found = (
            dispersion_p(sizes, 60, 0.1),
            dispersion_p(by_record, 40, 0.1),
            extreme_p(by_record, 40, 0.1),
            overlaps_p(common, 60, sizes[1:], sizes[:-1]),
            neighbours_p(pairs, 60, sizes),
            most_alike(taken)[0],
        )
        alarms += np.array(found) < 0.01
    assert alarms.max() <= 13
    assert dispersion_p(np.full(40, 6), 60, 0.1) < 1e-12
    assert dispersion_p(generator.integers(0, 13, 40), 60, 0.1) < 1e-4
    taken[17] = taken[4]
    assert most_alike(taken)[1:] == (4, 17)


def test_products_of_independent_numbers_stay_within_the_bound() -> None:
    """20,000 sums of 30 products: a bound of 1 % may be passed 200 times, 280 with a probability below 1e-7."""
    z = np.random.default_rng(1).standard_normal((20_000, 31))
    totals = (z[:, 1:] * z[:, :-1]).sum(axis=1)
    chances = product_p(totals, (z[:, :-1] ** 2).sum(axis=1))
    assert (chances < 0.01).sum() <= 280
    assert product_reach(np.array([30.0]), 0.01)[0] < 3 * norm.isf(0.005) * math.sqrt(30)  # and it is of some use


def test_repetition_is_seen_at_its_lag_and_counted_where_numbers_are_missing() -> None:
    generator = np.random.default_rng(2)
    drawn = generator.random(300) < 0.6
    z = np.where(drawn, generator.standard_normal(300), 0.0)
    products, variances = repeats(z, drawn)
    for lag in (1, 7, 150, 299):
        assert products[lag - 1] == pytest.approx(z[lag:] @ z[:-lag], abs=1e-9)
        assert variances[lag - 1] == pytest.approx((z[:-lag] ** 2)[drawn[lag:]].sum(), abs=1e-9)
    again = np.concatenate([z, z])
    products, variances = repeats(again, np.concatenate([drawn, drawn]))
    assert int(np.argmin(product_p(products, variances))) + 1 == 300


def test_the_distance_is_that_of_kolmogorov_and_its_chance_no_lower() -> None:
    z = np.sort(np.random.default_rng(3).standard_normal(500) * 1.1)
    known = kstest(z, "norm")
    p, distance = distance_p(z)
    assert distance == pytest.approx(known.statistic, abs=1e-12)
    assert p >= known.pvalue


def test_what_is_refuted_is_told_with_its_chance_and_all_tests_share_the_significance() -> None:
    checks = [Check(name=str(p), p=p, finding=f"at {p}") for p in (1e-9, 4e-8, 6e-8, 0.5)] + [
        Check(name="x", p=1.0, finding="never")
    ] * 6
    assert refuted(checks, 5e-7) == ("at 1e-09 (p = 1e-09)", "at 4e-08 (p = 4e-08)")
