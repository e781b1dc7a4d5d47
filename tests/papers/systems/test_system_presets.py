"""Presets of systems: each of the grid's own points, with DP-SGD's net and batches, chosen on held-out scores alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adadpigu.config import all_presets, merge, read_preset
from adadpigu.data import DataSet
from adadpigu.data.datasets import TensorRecords
from adadpigu.methods import make_method
from adadpigu.methods.standalone import Standalone
from adadpigu.training import train_prepared
from adadpigu.training.configured import configured
from adadpigu_paper.reproduce.keeping import append
from adadpigu_systems.catalogue import systems

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "experiments"))
choose_presets = pytest.importorskip("choose_presets")
CELLS = choose_presets.system_cells()
NAMES = [cell.preset for cell in CELLS]
OWN = {"lr", "method", "method_options", "public", "denoise", "perturbation", "optimizer", "momentum"}
"""what a system may have of its own; `batch_size` where it follows another at another rate"""


def test_every_system_names_a_preset_and_every_preset_has_a_cell() -> None:
    rows = {str(row["id"]): row for row in systems()}
    assert {name for name, row in rows.items() if row["preset"] is None} == {"pruning-as-noise"}
    assert {path.stem for path in choose_presets.FOLDER.glob("*.toml")} == set(NAMES)
    assert set(NAMES) <= all_presets().keys()


@pytest.mark.parametrize("cell", CELLS, ids=NAMES)
def test_a_preset_is_a_point_of_its_grid_on_dpsgds_net_and_batches(cell: Any) -> None:
    found = read_preset(cell.preset)
    assert found in cell.configs
    assert len(cell.configs) == len({json.dumps(config) for config in cell.configs}) == 10
    assert all_presets()[cell.preset].startswith(f"# {cell.about}\n")
    if cell.like:
        plain = read_preset(cell.like)
        for config in cell.configs:
            odd = {key for key in {*config, *plain} if config.get(key) != plain.get(key)}
            assert odd <= OWN | ({"batch_size"} if cell.follows else set())
            assert {"lr", "clip_norm"} <= config.keys() | config["method_options"].keys()
    config = merge(found)
    assert make_method(config.method, config.method_options).private


def rows_of(cell: Any, scores: list[float]) -> list[dict[str, Any]]:
    return [
        {"name": cell.preset, "score": "held-out", "accuracy": score, "config": dict(config)}
        for config, score in zip(cell.configs, scores, strict=False)
    ]


def test_the_best_of_a_whole_grid_is_chosen_and_carried_to_what_has_none() -> None:
    cell = next(cell for cell in CELLS if cell.preset == "mnist-dpis-eps4")
    scores = [0.5, 0.6, 0.9, *[0.7] * 7]
    for given, place in ((scores, 2), (scores[:9], 0), ([], 0)):
        made = choose_presets.presets(rows_of(cell, given))
        wanted = choose_presets.written(cell, place, "x").partition("\n")[2].partition("\n")[2]
        assert made["mnist-dpis-eps4"].endswith(wanted)
        assert ("the best of 10" in made["mnist-dpis-eps4"]) == (len(given) == 10)
        for other, told in (("mnist-dpis-eps2", "as mnist-dpis-eps4"), ("mnist-dpis-kept-eps4", "otherwise")):
            assert (told in made[other]) == (len(given) == 10)
    assert "not tuned" in made["fashion-dpis-eps4"]


def test_scores_on_test_records_choose_nothing() -> None:
    cell = CELLS[0]
    rows = [{**row, "score": "test"} for row in rows_of(cell, [0.1] * 9 + [0.9])]
    assert "not tuned" in choose_presets.presets(rows)[cell.preset]


@pytest.mark.slow
def test_the_script_says_what_it_would_write(tmp_path: Path) -> None:
    for row in rows_of(CELLS[0], [0.1] * 9 + [0.9]):
        append(tmp_path / "rows.jsonl", row)
    command = [sys.executable, "experiments/choose_presets.py", str(tmp_path / "rows.jsonl"), "--tell"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert told.keys() == set(NAMES)
    assert "the best of 10" in told[CELLS[0].preset]


def test_a_further_call_of_the_tuning_runs_what_is_missing(tmp_path: Path) -> None:
    import tune  # type: ignore[import-not-found]

    jobs = tune.cells(ROOT / "experiments/grids/systems.toml", ["mnist-gep-eps4"], 1)
    assert len(jobs) == 10
    append(tmp_path / "rows.jsonl", {**jobs[3].key(), "accuracy": 0.5})
    assert tune.missing(jobs, tmp_path / "rows.jsonl") == [*jobs[:3], *jobs[4:]]
    assert tune.missing(jobs, tmp_path / "none.jsonl") == jobs


def stand_in(shape: tuple[int, ...]) -> DataSet:
    rng = torch.Generator().manual_seed(0)
    train, test = (
        TensorRecords(torch.rand(count, *shape, generator=rng), torch.randint(10, (count,), generator=rng))
        for count in (300, 20)
    )
    return DataSet(name="stand-in", train=train, test=test, records=300, classes=10, shape=shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("mnist") and name.endswith("eps4")])
def test_a_preset_trains_and_ends_within_its_budget(name: str, tmp_path: Path) -> None:
    given = {**read_preset(name), "device": "cpu"}
    data = stand_in((1, 28, 28))
    method = make_method(str(given["method"]), given["method_options"])  # type: ignore[arg-type]
    if isinstance(method, Standalone):
        config = merge({**given, "features": "none", "normalisation": "none", "model": "linear"})
        run = method.run(config, data=data, ledger=tmp_path / "ledger.log")
        assert (run.epsilon, run.privacy.private) == (4.0, True)
        assert (tmp_path / "ledger.log").exists()
        return
    config = merge({**given, "steps": 4, "batch_size": 40, "evaluate_every": 4} | small(given))
    run_ = train_prepared(configured(config, data), out=tmp_path / "run")
    assert run_.steps_done == 4
    assert 3.98 < run_.epsilon <= 4
    assert (tmp_path / "run" / "ledger.log").exists()


def small(given: dict[str, Any]) -> dict[str, Any]:
    """As many process images as a small basis needs."""
    if "public" not in given:
        return {}
    return {"public": "processes:12", "method_options": {**given["method_options"], "rank": 6}}
