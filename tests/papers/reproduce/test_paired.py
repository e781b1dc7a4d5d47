"""Paired comparisons against scipy's t-test, a worked example of Holm's correction, and simulated families of nulls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from adadpigu_paper.reproduce.paired import LEVEL, Paired, corrected, holm, paired, resolution, unpaired, verdict


def seeded(values: np.ndarray) -> dict[int, float]:
    return {seed: float(value) for seed, value in enumerate(values)}


@pytest.mark.parametrize("pairs", [2, 3, 5, 8, 40])
def test_p_and_interval_are_those_of_students_paired_t(pairs: int) -> None:
    chance = np.random.default_rng(pairs)
    ours, theirs = chance.normal(0.4, 1, pairs), chance.normal(0, 1, pairs)
    oracle = stats.ttest_rel(ours, theirs)
    interval = oracle.confidence_interval(0.95)
    found = paired(seeded(ours), seeded(theirs))
    assert found is not None
    assert found.pairs == pairs
    assert found.mean == pytest.approx(np.mean(ours - theirs), rel=1e-12)
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_pairs_are_made_by_seed_and_not_by_order() -> None:
    found = paired({2: 5.0, 0: 1.0, 7: 100.0}, {0: 0.0, 2: 2.0, 9: -100.0})
    assert found is not None
    assert (found.pairs, found.mean) == (2, 2.0)


def test_what_shares_no_seed_is_not_compared_and_one_pair_is_not_tested() -> None:
    assert paired({0: 1.0}, {1: 1.0}) is None
    one = paired({0: 3.0}, {0: 1.0})
    assert one == Paired(mean=2.0, pairs=1, low=None, high=None, p=None)
    assert verdict(one, None) == "not tested"
    assert verdict(None, None) == "not tested"


def test_equal_differences_leave_no_doubt() -> None:
    same, shifted = paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}), paired({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0})
    assert same is not None
    assert shifted is not None
    assert (same.p, shifted.p) == (1.0, 0.0)


def test_holm_on_a_worked_example() -> None:
    """Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04, and the last may not fall below 0.06."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02], rel=1e-12)
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_lies_between_no_correction_and_bonferronis_and_keeps_the_order(values: list[float]) -> None:
    adjusted = holm(values)
    for value, after in zip(values, adjusted, strict=True):
        assert value <= after <= min(1.0, len(values) * value)
    ordered = [after for _, after in sorted(zip(values, adjusted, strict=True))]
    assert ordered == sorted(ordered)


def test_correction_counts_only_what_could_be_tested() -> None:
    tested = Paired(mean=1.0, pairs=3, low=0.0, high=2.0, p=0.02)
    alone = Paired(mean=1.0, pairs=1, low=None, high=None, p=None)
    assert corrected({"a": tested, "b": alone, "c": None, "d": tested}) == {"a": 0.04, "b": None, "c": None, "d": 0.04}


@pytest.mark.parametrize(("pairs", "comparisons"), [(2, 1), (3, 4), (8, 18)])
def test_a_difference_at_the_resolution_is_at_bonferronis_level(pairs: int, comparisons: int) -> None:
    """Moved so that the mean is the resolution, p by scipy times the comparisons is the level."""
    values = np.random.default_rng(pairs).normal(0, 1, pairs)
    found = paired(seeded(values), seeded(np.zeros(pairs)))
    assert found is not None
    needed = resolution(found, comparisons)
    assert needed is not None
    moved = stats.ttest_1samp(values - values.mean() + needed, 0)
    assert comparisons * moved.pvalue == pytest.approx(LEVEL, rel=1e-9)
    assert resolution(Paired(mean=1.0, pairs=1, low=None, high=None, p=None), comparisons) is None


def test_a_verdict_needs_the_level_and_has_a_direction() -> None:
    up, down = (Paired(mean=mean, pairs=5, low=-3, high=3, p=0.01) for mean in (1.0, -1.0))
    assert (verdict(up, LEVEL / 2), verdict(down, LEVEL / 2)) == ("better", "worse")
    assert verdict(up, LEVEL) == "no difference shown"


def test_families_without_effects_are_rarely_told_to_have_one() -> None:
    """12 variants that all equal the yardstick, 5 seeds, 1500 families: verdicts in at most a share LEVEL of them.

    The start's worth is shared within a seed and the yardstick by all comparisons, as in the ablation. False-alarm rate
    at most 1e-6 (binomial tail).
    """
    families, variants, seeds = 1500, 12, 5
    chance = np.random.default_rng(0)
    alarms = 0
    for _ in range(families):
        start = chance.normal(0, 2, seeds)
        scores = [seeded(start + chance.normal(0, 1, seeds)) for _ in range(variants + 1)]
        found = {place: paired(one, scores[0]) for place, one in enumerate(scores[1:])}
        values = corrected(found)
        alarms += any(verdict(found[place], values[place]) in ("better", "worse") for place in found)
    assert alarms <= stats.binom.isf(1e-6, families, LEVEL)


def test_an_effect_of_several_deviations_is_found() -> None:
    """A shift of 4 standard deviations over 8 seeds, 18 variants: missed less often than 1e-6 (noncentral t)."""
    seeds, spread, shift = 8, 1.0, 8.0
    limit = stats.t.isf(LEVEL / 18 / 2, seeds - 1)
    assert stats.nct.cdf(limit, seeds - 1, shift / (spread * np.sqrt(2)) * np.sqrt(seeds)) < 1e-6
    chance = np.random.default_rng(1)
    base = chance.normal(0, spread, seeds)
    found = {place: paired(seeded(chance.normal(0, spread, seeds)), seeded(base)) for place in range(17)}
    found[17] = paired(seeded(chance.normal(shift, spread, seeds)), seeded(base))
    assert verdict(found[17], corrected(found)[17]) == "better"


@pytest.mark.parametrize("sizes", [(2, 2), (5, 8)])
def test_runs_that_share_nothing_are_compared_by_welchs_t(sizes: tuple[int, int]) -> None:
    chance = np.random.default_rng(0)
    ours, theirs = chance.normal(1, 2, sizes[0]).tolist(), chance.normal(0, 0.5, sizes[1]).tolist()
    found, wanted = unpaired(ours, theirs), stats.ttest_ind(ours, theirs, equal_var=False)
    interval = wanted.confidence_interval(0.95)
    assert found is not None
    assert (found.p, found.low, found.high) == pytest.approx((wanted.pvalue, interval.low, interval.high))
    assert unpaired(ours[:1], theirs) is None
