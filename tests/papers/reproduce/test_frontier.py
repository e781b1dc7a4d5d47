"""The frontier's table is drawn from rows of presets as they are today, with what was tried and when it was seen."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadpigu.config import all_presets, merge, parse, read_preset
from adadpigu_paper.reproduce import ARTEFACTS
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.frontier import Cell, cells, draw, jobs, preset_of
from adadpigu_paper.reproduce.frontier_published import BEST, EPSILONS
from adadpigu_paper.reproduce.keeping import rows_of, write

ROOT = Path(__file__).parents[3]
PRESET = "cifar10-best-eps4"
SCORES = (0.801, 0.7985, 0.8032, 0.8004, 0.7991)
PART = {"name": "prior-large", "step": 900, "seconds": 60, "device": "a GPU", "images_per_second": 15_000}


def row(name: str, accuracy: float, seed: int = 0, score: str = "test", **changes: Any) -> dict[str, Any]:
    config = {**read_preset(PRESET), **changes}
    return {"name": name, "seed": seed, "score": score, "accuracy": accuracy, "epsilon": 3.99, "config": config}


def rows() -> list[dict[str, Any]]:
    tests = [
        {**row(PRESET, accuracy, seed), "at": f"2026-12-01T1{seed}:00:00+00:00", "seconds": 30.0}
        for seed, accuracy in enumerate(SCORES)
    ]
    tried = [
        {**row(f"{PRESET} lr={lr}", 0.8, 0, "held-out", lr=lr), "at": at, "seconds": 20.0}
        for lr, at in ((0.1, "2026-11-30T09:00:00+00:00"), (0.2, "2026-12-01T10:30:00+00:00"))
    ]
    return [*tests, *tried, row(PRESET, 0.99, 7, lr=123.0), row("cifar10-best-eps2", 0.5, lr=9.0), PART]


def cell() -> Cell:
    return next(cell for cell in cells(rows()) if cell.name == PRESET)


def test_ours_is_mean_and_deviation_of_the_runs_with_present_settings() -> None:
    mean, spread = 100 * statistics.mean(SCORES), 100 * statistics.stdev(SCORES)
    assert cell().ours == f"{mean:.1f} ± {spread:.1f}" == "80.0 ± 0.2"
    others = [other for other in cells(rows()) if other.name != PRESET]
    assert {other.ours for other in others} == {"not measured"}


def test_the_table_has_its_header_and_a_line_for_each_data_set_and_budget() -> None:
    lines = draw(rows()).markdown.splitlines()
    start = lines.index("| data set | ε | ours | best published | source |")
    table = lines[start + 2 : start + 2 + len(BEST)]
    assert "| CIFAR-10 | 4 | 80.0 ± 0.2 | 73.5 | WRN-40-4, De et al. 2022 |" in table
    assert len(table) == 12
    assert not lines[start + 14].startswith("|")


def test_the_protocol_counts_what_was_tried_and_what_came_after_the_first_look() -> None:
    told = cell().protocol()
    assert (told["settings_tried"], told["held_out_runs"], told["held_out_runs_after_it"]) == (2, 2, 1)
    assert told["first_test_figure"] == "2026-12-01T10:00:00+00:00"
    assert (told["tuning_seconds"], told["test_seconds"]) == (40.0, 150.0)
    untold = [{key: value for key, value in row.items() if key != "at"} for row in rows()]
    older = next(cell for cell in cells(untold) if cell.name == PRESET).protocol()
    assert (older["first_test_figure"], older["held_out_runs_after_it"]) == (None, None)
    text = draw(rows()).markdown
    assert "Pre-training `prior-large` on process images: 1 parts, 60 s on a GPU, up to step 900" in text


def test_json_and_entries_say_the_same_as_the_table(tmp_path: Path) -> None:
    written = write("frontier", draw(rows()), tmp_path)
    assert [path.name for path in written] == ["frontier.md", "frontier.json", "entries.md", "frontier.png"]
    told = json.loads((tmp_path / "paper" / "frontier.json").read_text())
    found = {(one["dataset"], one["epsilon"]): one for one in told["cells"]}
    assert found.keys() == BEST.keys()
    assert found["cifar10", 4]["ours"] == pytest.approx(100 * statistics.mean(SCORES), abs=1e-4)
    assert (found["cifar10", 4]["runs"], found["cifar10", 1]["ours"]) == (5, None)
    assert told["pre_training"] == [PART]
    entries = (tmp_path / "paper" / "entries.md").read_text()
    for asked in ("public_data", "model", "epsilon", "delta", "private_accuracy", "dp_accountant"):
        assert f"**{asked}:**" in entries
    assert "**private_accuracy:** 80.0 ± 0.2% (5 runs)" in entries
    assert "None is measured yet." in entries


def test_the_course_of_a_pre_training_is_drawn_part_by_part() -> None:
    """Loss rows whose seconds begin anew are another part; a probe has a point for each part that was scored."""
    losses = [
        {"step": step, "loss": 5.0 / step, "seconds": seconds} for step, seconds in ((1, 0.1), (51, 9.0), (101, 0.1))
    ]
    probes = [{"step": step, "probe": "cifar10", "ε = 1, averaged": 70.0 + step} for step in (51, 101)]
    figure = draw([*rows(), *losses, *probes]).figures["prior-curve"]
    loss, scores = figure.axes
    assert [np.asarray(line.get_xdata()).tolist() for line in loss.lines] == [[1, 51], [101]]
    assert [np.asarray(line.get_ydata()).tolist() for line in scores.lines] == [[121.0, 171.0], []]
    assert "prior-curve" not in draw(rows()).figures


def test_presets_are_chosen_by_the_highest_mean_and_of_equals_the_cheaper(tmp_path: Path) -> None:
    scores = {0.1: (0.80, 0.82), 0.2: (0.85, 0.70), 0.3: (0.99,), 0.4: (0.80, 0.82)}
    held = [
        row(f"{PRESET} lr={lr}", score, seed, "held-out", lr=lr, steps=600 if lr < 0.4 else 500)
        for lr, found in scores.items()
        for seed, score in enumerate(found)
    ]
    file = tmp_path / "scores.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in [*held, row(PRESET, 1.0, lr=9.0)]))
    script = [sys.executable, str(ROOT / "experiments" / "choose_best.py"), str(file), "--seeds", "2"]
    done = subprocess.run(
        [*script, "--seeds", "2", "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "no settings with 2 seeds: mnist-best-eps1" in done.stderr
    assert [path.name for path in tmp_path.glob("*.toml")] == [f"{PRESET}.toml"]
    made = parse((tmp_path / f"{PRESET}.toml").read_text(), "made")
    assert (made["lr"], made["steps"]) == (0.4, 500)
    assert merge(made) == merge({**read_preset(PRESET), "lr": 0.4, "steps": 500})


def test_every_place_on_the_frontier_has_a_preset_and_five_jobs() -> None:
    assert {preset_of(*place) for place in BEST} <= all_presets().keys()
    assert {epsilon for _, epsilon in BEST} == set(EPSILONS)
    made = jobs(Scale(quick=False))
    assert len(made) == 5 * len(BEST)
    assert {(job.seed, job.score) for job in made} == {(seed, "test") for seed in range(5)}
    assert len(jobs(Scale(quick=True))) == len(EPSILONS)


def test_the_tables_of_the_repository_are_drawn_from_its_rows(tmp_path: Path) -> None:
    artefact = ARTEFACTS["frontier"]
    for path in write("frontier", draw(rows_of(artefact, ROOT / "results")), tmp_path):
        if path.suffix != ".png":
            assert path.read_bytes() == (ROOT / "results" / "paper" / path.name).read_bytes()
