"""Scores, ranking and schedules against their formulas."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadpigu.core.mechanism import Release
from adadpigu.errors import InputError
from adadpigu.methods.importance import Importance, Score, chosen, rank
from adadpigu.methods.mask import MaskSchedule, Schedule

ROWS = torch.tensor([[1.0, -2.0, 0.5], [1.0, 2.0, -0.5], [-3.0, 2.0, 0.0]])


@pytest.mark.parametrize(
    ("score", "expected"),
    [("absolute", ROWS.abs().mean(0)), ("signed", ROWS.sum(0).abs() / 3), ("energy", ROWS.square().mean(0))],
)
def test_scores_are_the_stated_means_of_releases(
    score: Score, expected: torch.Tensor, release: Callable[..., Release]
) -> None:
    importance = Importance(3, score)
    for row in ROWS:
        importance.update(release(row[None]))
    torch.testing.assert_close(importance.scores, expected.double())
    assert importance.ranking().tolist() == rank(expected).tolist()


def test_random_scores_are_drawn_before_training_and_no_release_moves_them(release: Callable[..., Release]) -> None:
    one, same, other = (Importance(50, "random", public_rng=np.random.default_rng(seed)) for seed in (1, 1, 2))
    before = one.ranking().tolist()
    one.update(release(torch.arange(50.0)[None]))
    assert one.ranking().tolist() == before == same.ranking().tolist()
    assert before != other.ranking().tolist()
    assert sorted(before) == list(range(50))


def test_ties_are_broken_by_index() -> None:
    assert rank(torch.tensor([2.0, 1.0, 2.0, 1.0, 3.0])).tolist() == [4, 0, 2, 1, 3]


@given(
    kind=st.sampled_from(["constant", "linear", "cosine", "steps"]),
    retention=st.floats(0.05, 1.0),
    by=st.floats(0.1, 1.0),
    steps=st.integers(2, 60),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_every_schedule_starts_at_r_never_shrinks_and_growing_ones_end_at_one(
    kind: Schedule, retention: float, by: float, steps: int
) -> None:
    schedule = MaskSchedule(retention=retention, kind=kind, unfreeze_by=by)
    ratios = [schedule.ratio(t, steps) for t in range(steps)]
    assert ratios[0] == pytest.approx(retention)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(ratios))
    assert ratios[-1] == pytest.approx(retention if kind == "constant" else 1.0)
    ranking = torch.randperm(97, generator=torch.Generator().manual_seed(steps))
    masks = [set(chosen(ranking, schedule.count(97, t, steps)).nonzero().flatten().tolist()) for t in range(steps)]
    assert all(a <= b for a, b in itertools.pairwise(masks))
    assert masks[0] == set(ranking[: int(retention * 97 + 1e-9)].tolist())


def test_steps_schedule_climbs_in_equal_stairs() -> None:
    schedule = MaskSchedule(retention=0.2, kind="steps", stairs=4)
    levels = sorted({round(schedule.ratio(t, 101), 6) for t in range(101)})
    assert levels == [0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize("retention", [0.0, -0.1, 1.01, float("nan")])
def test_a_retention_outside_its_range_is_refused(retention: float) -> None:
    with pytest.raises(InputError, match="retention"):
        MaskSchedule(retention=retention)


def test_a_mask_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="keeps none of 5"):
        MaskSchedule(retention=0.1).count(5, 0, 10)
