"""Thinned lines keep what a reader looks for: the first point, the last, the highest, the lowest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadpigu.report.curves import LEAST, Point, downsample, line_json, round_to_nearest, round_up

lines = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300).map(
    lambda values: [(3 * at + 1, value) for at, value in enumerate(values)]
)


@given(lines, st.integers(4, 60))
def test_a_thinned_line_keeps_its_first_last_highest_and_lowest_points(line: list[Point], most: int) -> None:
    kept = downsample(line, most)
    assert len(kept) <= most
    assert kept[0] == line[0]
    assert kept[-1] == line[-1]
    values = [value for _, value in line]
    assert {min(values), max(values)} <= {value for _, value in kept}


@given(lines, st.integers(4, 60))
def test_a_thinned_line_is_a_part_of_the_line_in_its_order(line: list[Point], most: int) -> None:
    kept = downsample(line, most)
    assert set(kept) <= set(line)
    assert list(kept) == sorted(kept)
    assert len(set(kept)) == len(kept)


@given(lines, st.integers(8, 60))
def test_every_stretch_keeps_its_own_extremes(line: list[Point], most: int) -> None:
    """The oracle: no point lies beyond the highest and lowest of the kept points of its own stretch."""
    kept = dict(downsample(line, most))
    stretches = (most - 2) // 2
    inner = line[1:-1]
    if len(line) <= most:
        assert kept == dict(line)
        return
    for number in range(stretches):
        part = inner[number * len(inner) // stretches : (number + 1) * len(inner) // stretches]
        there = [kept[step] for step, _ in part if step in kept]
        assert max(there) == max(value for _, value in part)
        assert min(there) == min(value for _, value in part)


def test_a_line_that_is_short_enough_stays_as_it_is() -> None:
    line = [(1, 0.5), (2, 0.25), (9, 1.0)]
    assert downsample(line, 4) == line
    assert downsample([], 4) == []


def test_steps_are_stored_as_differences_that_add_up_again() -> None:
    stored = line_json([(3, 0.1), (4, 0.2), (90, 0.30000001)], 9, round_to_nearest)
    assert stored == {"n": 3, "x": [3, 1, 86], "y": [0.1, 0.2, 0.3]}
    assert line_json([(step, 0.5) for step in range(1, 100)], 4, round_to_nearest)["n"] == 99


@given(st.floats(0, 1e12))
def test_an_epsilon_is_never_rounded_down(value: float) -> None:
    assert round_up(value) >= value * (1 - 1e-12)
    assert round_up(value) <= max(value * 1.0002, LEAST)


@pytest.mark.parametrize(("value", "shown"), [(3.99412345, 3.9942), (3.9942, 3.9942), (1e-9, 1e-9)])
def test_an_epsilon_has_five_digits(value: float, shown: float) -> None:
    assert round_up(value) == pytest.approx(shown, rel=1e-12)
