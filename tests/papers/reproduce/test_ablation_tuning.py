"""The ablation's first phase: rates are chosen on held-out rows, from whole grids, and written down."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ablation_rows import tuning_rows

from adadpigu.errors import InputError
from adadpigu_paper.reproduce import ablation_tuning
from adadpigu_paper.reproduce.ablation_variants import NETS, VARIANTS
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.jobs import key_of

FULL = Scale(quick=False)


def test_the_rates_that_come_with_the_package_are_of_the_grids() -> None:
    for net, variants in ablation_tuning.read_rates().items():
        for name, lr in variants.items():
            assert lr in [VARIANTS[name].lr(rate) for rate in NETS[net].rates]


def test_the_best_rate_is_chosen_the_smaller_of_equals_and_none_of_an_incomplete_grid() -> None:
    rows = tuning_rows({"alpha": 8.0, "half-bound": 16.0})
    rows = [row for row in rows if not (row["name"] == "26k/prune" and row["config"]["lr"] == 4.0)]
    chosen = ablation_tuning.choose(rows[::-1])
    assert (chosen["26k"]["alpha"], chosen["26k"]["half-bound"]) == (8.0, 16.0)
    assert chosen["26k"]["beta"] == min(NETS["26k"].rates)
    assert "prune" not in chosen["26k"]
    assert "prune" in chosen["550k"]
    assert tomllib.loads(ablation_tuning.written(chosen)) == chosen


def test_a_grid_that_was_widened_chooses_nothing_until_it_is_run_and_goes_on_where_it_was() -> None:
    first = [row for row in tuning_rows({}) if row["config"]["lr"] <= VARIANTS[row["name"].split("/")[1]].lr(8.0)]
    assert "26k" not in ablation_tuning.choose(first)
    left = [job for job in ablation_tuning.tuning_jobs(FULL) if job.key() not in [key_of(row) for row in first]]
    rates = {job.config["lr"] for job in left if job.name == "26k/dpsgd"}
    assert rates == {16.0, 32.0}
    page = ablation_tuning.draw(first).markdown
    assert "Whole grids: 0 of 29 variants; a grid that is not whole chooses no rate." in page
    assert (
        "| half-bound | half of C | 4: **50.00** | 8: 50.00 | 16: 50.00 | 32: not measured | 64: not measured |" in page
    )
    assert "Best at the upper edge of what was tried: 0 of 29; at the lower: 29." in page
    whole = ablation_tuning.draw(tuning_rows({name: VARIANTS[name].lr(8.0) for name in VARIANTS})).markdown
    assert (
        "Whole grids: 29 of 29 variants. Best at the upper edge of what was tried: 0 of 29; at the lower: 0." in whole
    )


def test_rates_are_not_chosen_by_test_rows() -> None:
    with pytest.raises(InputError, match="held-out rows only"):
        ablation_tuning.choose([{**row, "score": "test"} for row in tuning_rows({})])


def test_the_script_writes_what_was_chosen_and_tells_what_is_missing(tmp_path: Path) -> None:
    rows = [row for row in tuning_rows({"layers": 4.0}) if row["name"] != "wrn/layers"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    script = Path(__file__).parents[3] / "experiments" / "choose_rates.py"
    command = [sys.executable, str(script), str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "rates.toml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "no complete grid: wrn/layers\n")
    found = tomllib.loads((tmp_path / "rates.toml").read_text(encoding="utf-8"))
    assert found["550k"]["layers"] == 4.0
    assert set(found["26k"]) == set(VARIANTS)
