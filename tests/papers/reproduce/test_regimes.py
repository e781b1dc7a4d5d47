"""The regimes: equal effort, rates by held-out scores alone, paired tests that a planted difference and none pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from adadpigu.config import merge, read_preset
from adadpigu.methods import make_method
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.jobs import Job
from adadpigu_paper.reproduce.paired import holm
from adadpigu_paper.reproduce.regimes import (
    EPSILONS,
    RATES,
    SEEDS,
    VARIANTS,
    YARDSTICKS,
    best_of,
    comparisons,
    draw,
    final,
    tuning,
)

FULL = Scale(quick=False)


def row(job: Job, accuracy: float) -> dict[str, Any]:
    return {**job.key(), "accuracy": accuracy, "device": "somewhere", "epsilon": 3.99}


def rows(gain: float = 0.02) -> list[dict[str, Any]]:
    """Held-out scores that prefer the second rate, then test scores in which AdaDPIGU is ahead by `gain`."""
    scores = {RATES[0]: 0.70, RATES[1]: 0.75, RATES[2]: 0.75}
    tuned = [row(job, scores[job.config["lr"]]) for job in tuning(FULL)]
    chance = np.random.default_rng(0)
    start = chance.normal(0, 0.01, SEEDS)
    made = []
    for job in final(FULL, tuned):
        ahead = gain if VARIANTS[job.name.partition("/")[2]].of_adadpigu else 0.0
        made.append(row(job, 0.76 + ahead + start[job.seed] + chance.normal(0, 0.002)))
    return [*tuned, *made]


def test_every_variant_gets_the_same_rates_and_spends_the_same_budget() -> None:
    jobs = tuning(FULL)
    assert len(jobs) == len(EPSILONS) * len(RATES) * len(VARIANTS)
    assert {job.score for job in jobs} == {"held-out"}
    alike = ("dataset", "epsilon", "delta", "batch_size", "steps", "flip", "views", "copies", "ema", "momentum")
    for epsilon in EPSILONS:
        own = [merge(job.config) for job in jobs if job.config["epsilon"] == epsilon]
        assert len({tuple(getattr(config, key) for key in alike) for config in own}) == 1
    for job in jobs:
        make_method(job.config["method"], job.config["method_options"])


def test_test_runs_take_the_rate_of_the_highest_held_out_score_with_other_seeds() -> None:
    tuned = [r for r in rows() if r["score"] == "held-out"]
    chosen = final(FULL, tuned)
    assert len(chosen) == SEEDS * len(EPSILONS) * len(VARIANTS)
    assert {job.config["lr"] for job in chosen} == {RATES[1]}  # the smaller of equals
    assert not {job.seed for job in chosen} & {r["seed"] for r in tuned}
    assert best_of(tuned[1:])[tuned[0]["name"]] is None  # a grid that is not whole chooses nothing
    assert len(final(FULL, tuned[1:])) == len(chosen) - SEEDS


def test_differences_are_those_of_a_paired_test_with_holms_correction() -> None:
    given = rows()
    found = comparisons(given)
    assert len(found) == len(EPSILONS) * len(YARDSTICKS) * (len(VARIANTS) - len(YARDSTICKS))
    expected = []
    for one in found:
        ours, theirs = (
            [r["accuracy"] for r in given if r["score"] == "test" and r["name"] == f"eps{one.epsilon:g}/{name}"]
            for name in (one.variant, one.yardstick)
        )
        expected.append(float(ttest_rel(ours, theirs).pvalue))
        assert one.found.mean == pytest.approx(100 * (np.mean(ours) - np.mean(theirs)))
    assert [one.p for one in found] == pytest.approx(holm(expected))
    assert {one.verdict for one in found} == {"better"}
    assert "better by adadpigu at ε = 4" in draw(given).markdown


def test_without_a_difference_none_is_claimed() -> None:
    """Twelve comparisons of noise, corrected: a false claim has a chance of at most 5 %, and the seed is fixed."""
    found = comparisons(rows(gain=0.0))
    assert {one.verdict for one in found} == {"no difference shown"}
    assert "no difference in its favour is shown" in draw(rows(gain=0.0)).markdown


def test_rows_at_other_rates_do_not_count() -> None:
    given = rows()
    other = {**given[-1], "accuracy": 0.0, "config": {**given[-1]["config"], "lr": 99.0}}
    assert [one.found for one in comparisons([*given, other])] == [one.found for one in comparisons(given)]


def test_the_preset_is_a_job_of_the_regimes() -> None:
    preset = merge(read_preset("cifar10-adadpigu-prior-eps4"))
    job = VARIANTS["adadpigu"].job_config(4.0, RATES[1])
    assert preset == merge(job)
