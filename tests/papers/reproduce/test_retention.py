"""Accuracy and time against r: what is run, and that differences, ratios and words follow from the rows."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from scipy import stats

from adadpigu.config import merge, read_preset
from adadpigu.errors import InputError
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.jobs import Row
from adadpigu_paper.reproduce.retention import RETENTION
from adadpigu_paper.reproduce.retention_runs import PRESET, RETENTIONS, accuracies, jobs
from adadpigu_paper.reproduce.retention_time import RETENTION_TIME, Pace, cost, timed, times

FULL = Scale(quick=False)


def runs(effects: dict[float, float], seeds: int = 5) -> list[Row]:
    """Rows of the full jobs: what a seed is worth to all alike, an effect of r, a little noise."""
    chance = np.random.default_rng(3)
    found = []
    for job in jobs(Scale(quick=False, seeds=seeds)):
        r = job.config["method_options"]["retention"]
        accuracy = 0.9 + 0.01 * job.seed + effects.get(r, 0.0) + chance.normal(0, 1e-4)
        found.append({**job.key(), "accuracy": accuracy, "epsilon": 1.99, "device": "a device"})
    return found


def clocked(ms: dict[float | None, list[float]]) -> list[Row]:
    facts = {"net": "mnist-cnn", "batch": 2048, "steps": 300, "device": "a device"}
    return [
        {"retention": r, "round": number, "ms": value, **facts}
        for r, values in ms.items()
        for number, value in enumerate(values)
    ]


def test_the_runs_are_those_of_the_preset_but_for_r() -> None:
    full = jobs(FULL)
    assert len(full) == 5 * len(RETENTIONS) == 50
    for job in full:
        ours, preset = merge(job.config), merge(read_preset(PRESET))
        assert ours.method == "adadpigu"
        assert {**ours.method_options, "retention": None} == {**preset.method_options, "retention": None}
        assert {**vars(ours), "method_options": None} == {**vars(preset), "method_options": None}
    assert [job.config["method_options"]["retention"] for job in full[:10]] == list(RETENTIONS)
    assert {job.seed for job in full[:10]} == {0}


def test_differences_from_no_mask_are_paired_by_seed_and_corrected() -> None:
    rows = runs({0.1: -0.004, 0.6: 0.003})
    found = {row["retention"]: row for row in accuracies(rows)}
    score = {
        r: [100 * row["accuracy"] for row in rows if row["config"]["method_options"]["retention"] == r]
        for r in RETENTIONS
    }
    plain = {r: float(stats.ttest_rel(score[r], score[1.0]).pvalue) for r in RETENTIONS if r != 1}
    least = min(plain, key=plain.__getitem__)
    assert found[least]["p_holm"] == pytest.approx(9 * plain[least], rel=1e-6)
    assert found[0.1]["difference"] == pytest.approx(np.mean(score[0.1]) - np.mean(score[1.0]), rel=1e-9)
    assert found[0.1]["std"] == pytest.approx(np.std(score[0.1], ddof=1), rel=1e-9)
    assert (found[0.1]["verdict"], found[0.6]["verdict"], found[0.3]["verdict"]) == (
        "worse",
        "better",
        "no difference shown",
    )
    assert (found[1.0]["difference"], found[1.0]["verdict"]) == (None, "not tested")
    page = RETENTION.draw(rows).markdown
    assert f"Shown to be better than no mask: r = 0.6 ({found[0.6]['difference']:+.2f}); " in page
    assert f"shown to be worse: r = 0.1 ({found[0.1]['difference']:+.2f})." in page


def test_a_ratio_is_taken_within_a_round_and_the_median_over_rounds() -> None:
    """The machine is twice as slow in the second round: no ratio notices."""
    ms: dict[float | None, list[float]] = {1.0: [2.0, 4.0, 2.0], 0.5: [1.8, 3.0, 1.0], None: [1.0, 2.0, 1.2]}
    found = {row["retention"]: row for row in times(clocked(ms))}
    assert found[0.5]["ratio"] == pytest.approx(median([0.9, 0.75, 0.5]))
    assert (found[0.5]["least"], found[0.5]["most"]) == pytest.approx((0.5, 0.9))
    assert found[0.5]["ms"] == pytest.approx(1.8)
    assert found[1.0]["ratio"] == 1
    assert found[None]["ratio"] == pytest.approx(0.5)
    assert [row["retention"] for row in times(clocked(ms))] == [None, 0.5, 1.0]


@pytest.mark.parametrize(
    ("half", "fifth", "words"),
    [
        ([0.9, 0.8, 0.85], [0.7, 0.6, 0.65], "reduces cost is borne out (paired"),
        ([0.9, 1.1, 1.0], [0.7, 0.6, 0.65], "reduces cost is borne out for r = 0.2 alone (paired"),
        ([1.2, 1.1, 1.15], [0.99, 0.98, 0.9], "reduces cost is not borne out (paired"),
        ([1.2, 1.1, 1.15], [0.5], "reduces cost is not borne out (paired"),
    ],
    ids=["all", "one", "none: faster in every round by chance", "one round tests nothing"],
)
def test_the_claim_about_cost_is_tested_over_the_rounds(half: list[float], fifth: list[float], words: str) -> None:
    rows = clocked({None: [0.5, 0.5, 0.5], 0.2: fifth, 0.5: half, 1.0: [1.0, 1.0, 1.0]})
    found = times(rows)
    told = cost(found)
    assert words in told
    assert f"At best, at r = 0.2, a step takes {np.median(fifth):.2f}" in told
    assert "A step of DP-SGD takes 0.50" in told
    assert told in RETENTION_TIME.draw(rows).markdown
    assert told in RETENTION.draw([*runs({}), *rows]).markdown
    plain = [float(stats.ttest_1samp(np.log(ratios), 0).pvalue) for ratios in (fifth, half) if len(ratios) > 1]
    least = min(row["p_holm"] for row in found if row["p_holm"] is not None)
    assert least == pytest.approx(len(plain) * min(plain), rel=1e-6)


def test_what_was_not_measured_is_said() -> None:
    assert "Nothing was measured" in RETENTION_TIME.draw([]).markdown
    empty = RETENTION.draw([])
    assert "is not measured" in empty.markdown
    assert len(empty.figures["retention"].axes) == 2
    some = [row for row in runs({}, seeds=1) if row["config"]["method_options"]["retention"] in (0.1, 1.0)]
    alone = RETENTION.draw(some)
    assert "Whether a mask reduces the cost of a step is not measured." in alone.markdown
    assert "Accuracy is not measured at r = 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9." in alone.markdown
    assert "1 of 5 planned an r" in alone.markdown
    assert "| not measured | not measured |" in alone.markdown
    only_times = RETENTION.draw(clocked({0.5: [1.0], 1.0: [2.0]}))
    assert "| 0.5 | not measured |" in only_times.markdown
    assert len(only_times.figures["retention"].axes) == 2
    with pytest.raises(InputError, match=r"retention-0\.1, seed 0 is there twice"):
        RETENTION.draw([*some, some[0]])


def test_steps_are_timed_in_turn_after_the_first_ones() -> None:
    pace = Pace(retentions=(0.5, 1.0), batch=8, rounds=2, warm_up=2, steps=1)
    rows = timed(pace, "cpu")
    assert [(row["round"], row["retention"]) for row in rows] == [
        (0, None),
        (0, 0.5),
        (0, 1.0),
        (1, 0.5),
        (1, 1.0),
        (1, None),
    ]
    assert all(row["ms"] > 0 for row in rows)
