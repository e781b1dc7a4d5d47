"""The accuracy table is a function of rows of presets as they are today, with the claim and a verdict beside."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_1samp

from adadpigu.config import read_preset
from adadpigu_paper.reproduce import ARTEFACTS
from adadpigu_paper.reproduce.accuracy_table import Cell, cells, claim, draw, half_width, jobs, verdict
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.keeping import rows_of
from adadpigu_paper.reproduce.tuned import settings_of, tuned

ROOT = Path(__file__).parents[3]


def row(name: str, accuracy: float, seed: int = 0, score: str = "test", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "seed": seed,
        "score": score,
        "accuracy": accuracy,
        "config": {**read_preset(name), **changes},
    }


def cell_of(rows: list[dict[str, Any]], dataset: str, method: str, epsilon: int | None) -> Cell:
    wanted = (dataset, method, epsilon)
    return next(cell for cell in cells(rows) if (cell.dataset, cell.method, cell.epsilon) == wanted)


def test_only_runs_with_a_presets_present_settings_count() -> None:
    rows = [
        row("mnist-dpsgd-eps4", 0.98, seed=0),
        row("mnist-dpsgd-eps4", 0.97, seed=1, engine="ghost"),  # how it is computed changes no figure
        row("mnist-dpsgd-eps4", 0.50, seed=2, lr=123.0),
        {**row("mnist-dpsgd-eps4", 0.60, seed=5), "source": "printed log"},
        row("mnist-dpsgd-eps4", 0.40, seed=3, score="held-out"),
        row("mnist-dpsgd-eps2", 0.30, seed=4),
    ]
    found = cell_of(rows, "mnist", "dpsgd", 4)
    assert found.found == (97.0, 98.0)
    assert (found.seeds, found.earlier, found.tuned.grid) == (2, 2, 1)
    assert cell_of(rows, "mnist", "dpsgd", 2).found == (30.0,)
    assert cell_of(rows, "cifar10", "dpsgd", 2).found == ()


def test_seeds_are_counted_once_and_runs_each() -> None:
    rows = [row("fashion-hf-eps2", 0.8, seed=0), row("fashion-hf-eps2", 0.9, seed=0)]
    made = cell_of(rows, "fashion-mnist", "hf", 2).row()
    assert (made["seeds"], made["runs"]) == (1, 2)
    assert made["mean"] == pytest.approx(85.0)
    assert made["std"] == pytest.approx(statistics.stdev([80.0, 90.0]), abs=1e-4)


def test_how_a_preset_was_chosen_is_told_by_its_marks() -> None:
    name, held_out = "mnist-ts-eps4", "held-out"
    best = tuned(name, settings_of(read_preset(name)), [row(name, 0.9, score=held_out)])
    assert (best.grid, best.scored, best.best, best.marks()) == (1, True, True, "")
    rows = [row(name, 0.9, score=held_out), row(name, 0.8, 1, held_out), row(name, 0.86, score=held_out, lr=9.0)]
    beaten = tuned(name, settings_of(read_preset(name)), rows)  # 0.85 in the mean of two seeds
    assert (beaten.grid, beaten.best, beaten.marks()) == (2, False, "†")
    carried = tuned(name, settings_of(read_preset(name)), [{**rows[2], "source": "printed log"}])
    assert (carried.grid, carried.scored, carried.marks()) == (1, False, "‡§")
    elsewhere = tuned(name, settings_of(read_preset(name)), [{**rows[0], "name": "another-cell lr=3"}])
    assert elsewhere.best
    assert tuned(name, None, []).marks() == ""


def test_the_claim_beside_the_best_recipe_is_the_highest_printed() -> None:
    assert [claim(name, "best", eps) for name in ("mnist", "fashion-mnist", "cifar10") for eps in (2, 4)] == [
        98.70,
        98.99,
        89.34,
        90.18,
        70.90,
        73.21,
    ]
    assert claim("cifar10", "ts", 4) == 60.96
    assert claim("cifar10", "adadpigu-as-coded", 4) == 73.21
    assert [claim("mnist", method, 8) for method in ("adadpigu", "adadpigu-as-written", "dpsgd")] == [
        99.12,
        99.12,
        None,
    ]
    assert claim("mnist", "layers", 4) is None
    assert claim("cifar10", "sgd", None) == 71.12


def test_a_verdict_agrees_with_students_test() -> None:
    draws = random.Random(0)
    for _ in range(200):
        found = tuple(draws.gauss(90, 1) for _ in range(draws.choice((3, 5, 8))))
        made = Cell(dataset="mnist", method="ts", epsilon=2, claim=90.0, found=found)
        certain = ttest_1samp(found, 90.0).pvalue < 0.05
        expected = "at" if not certain else ("above" if statistics.mean(found) > 90 else "below")
        assert verdict(made).split()[0] == expected
    assert half_width((1.0, 3.0)) == pytest.approx(12.7062047)  # t(0.975, 1 degree) = 12.706


def test_json_rows_are_what_the_table_promises() -> None:
    drawn = draw([row("cifar10-ts-eps2", 0.5, seed=seed) for seed in range(5)])
    assert len(drawn.rows) == 3 * 34
    assert {made["dataset"] for made in drawn.rows} == {"mnist", "fashion-mnist", "cifar10"}
    assert {made["epsilon"] for made in drawn.rows} == {2, 4, 8, None}
    for made in drawn.rows:
        assert {"dataset", "method", "epsilon", "mean", "std", "seeds", "claim"} <= made.keys()
    measured = [made for made in drawn.rows if made["mean"] is not None]
    assert [(made["method"], made["mean"], made["seeds"]) for made in measured] == [("ts", 50.0, 5)]
    assert "below the claim" not in drawn.markdown.replace("| below the claim [1] |", "")
    json.dumps(drawn.rows, allow_nan=False)


def test_the_full_table_runs_every_preset_with_five_seeds() -> None:
    todo = jobs(Scale(quick=False))
    assert len(todo) == 5 * 102
    assert {job.score for job in todo} == {"test"}
    assert [job.seed for job in todo] == sorted(job.seed for job in todo)  # whole tables first


def five(name: str, *accuracies: float) -> list[dict[str, Any]]:
    return [row(name, accuracy, seed) for seed, accuracy in enumerate(accuracies)]


def test_that_the_whole_method_beats_dpsgd_is_said_just_where_the_comparison_shows_it() -> None:
    low, high = (0.60, 0.601, 0.602, 0.603, 0.604), (0.62, 0.621, 0.622, 0.623, 0.624)
    for yardstick, ours, shown in ((low, high, True), (high, low, False)):
        rows = [*five("cifar10-dpsgd-eps2", *yardstick), *five("cifar10-adadpigu-eps2", *ours)]
        text = draw(rows).markdown
        assert ("The whole method was better than DP-SGD on CIFAR-10 at ε = 2 (below)." in text) == shown
        assert ("| better |" in text) == shown
        assert "CIFAR-10 at ε = 4 (below)" not in text
        assert "[how they were tuned](../../docs/results.md#does-adadpigu-beat-dp-sgd)" in text


@pytest.mark.parametrize("name", ["mnist-adadpigu-as-written-eps4", "fashion-adadpigu-as-coded-eps2"])
def test_rows_without_a_grid_are_not_explained_by_a_small_one(name: str) -> None:
    text = draw(five(name, 0.5, 0.501, 0.502, 0.503, 0.504)).markdown
    reason = next(line for line in text.splitlines() if line.startswith("1. "))
    assert "| – | below the claim [1] |" in text
    assert "nothing was tuned" in reason
    assert "grid" not in reason


def test_the_committed_table_is_redrawn_byte_for_byte() -> None:
    artefact = ARTEFACTS["accuracy-table"]
    rows = rows_of(artefact, ROOT / "results")
    committed = (ROOT / "results" / "paper" / "accuracy-table.md").read_text(encoding="utf-8")
    assert artefact.draw(rows).markdown == committed
    shuffled = random.Random(1).sample(rows, len(rows))
    assert artefact.draw(shuffled).markdown == committed
