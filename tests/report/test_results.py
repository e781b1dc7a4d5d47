"""Rows of results and stored audits are shown as they stand; what contradicts itself is refused in one line."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from adadpigu.config import merge, parse
from adadpigu.errors import InputError
from adadpigu.report.collecting import DEEPEST, collect

ROOT = Path(__file__).parents[2]
ROW: dict[str, Any] = {"name": "first", "seed": 3, "accuracy": 0.9, "epsilon": 3.999951, "noise_multiplier": 1.5} | {
    "config": {"method": "dpsgd", "method_options": {"clip_norm": 0.5}, "dataset": "mnist", "steps": 40, "delta": 1e-5}
}
AUDIT: dict[str, Any] = {
    **{"audit": "one-run", "subject": "dpsgd", "epsilon_claimed": 4.0, "delta": 1e-5, "epsilon_lower": 2.0},
    **{"epsilon_lower_certain": 1.0, "epsilon_reach": 3.0, "confidence": 0.95, "observations": 500, "passed": True},
}


def written(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_row_with_a_method_and_an_accuracy_is_a_run(tmp_path: Path) -> None:
    curve = [{"step": 20, "accuracy": 0.5, "epsilon": 2.0}, {"step": 40, "accuracy": 0.9, "epsilon": 4.0}]
    (run,) = collect([written(tmp_path / "a.jsonl", ROW | {"curve": curve})]).runs
    assert (run.name, run.method, run.dataset, run.steps, run.seed) == ("first", "dpsgd", "mnist", 40, 3)
    assert (run.accuracy, run.private, run.delta, run.state) == (0.9, True, 1e-5, "result")
    assert run.epsilon == 4.0  # rounded up
    assert run.curves.single["accuracy"] == [(20, 0.5), (40, 0.9)]


def test_its_settings_are_shown_as_a_file_that_train_takes(tmp_path: Path) -> None:
    (run,) = collect([written(tmp_path / "a.jsonl", ROW)]).runs
    assert tomllib.loads(run.config)["method"] == {"name": "dpsgd", "clip_norm": 0.5}
    config = merge(parse(run.config, "shown"))
    assert (config.dataset, config.steps, config.method) == ("mnist", 40, "dpsgd")


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": None},
        {"private": False},
        {"config": ROW["config"] | {"method": "sgd"}},
        {"config": ROW["config"] | {"reproducible_noise": True}},
    ],
)
def test_a_row_without_a_guarantee_is_called_not_private(tmp_path: Path, change: dict[str, Any]) -> None:
    (run,) = collect([written(tmp_path / "a.jsonl", ROW | change)]).runs
    assert run.private is False
    assert run.epsilon is None
    assert run.warnings[0].startswith("NOT PRIVATE")


def test_a_row_that_was_made_with_diagnostics_carries_the_warning(tmp_path: Path) -> None:
    for change in ({"exposed": True}, {"config": ROW["config"] | {"diagnostics": True}}):
        (run,) = collect([written(tmp_path / "a.jsonl", ROW | change)]).runs
        assert any(line.startswith("Diagnostics were on") for line in run.warnings)


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": 1.5},
        {"accuracy": "0.9"},
        {"epsilon": -1},
        {"name": 3},
        {"curve": 3},
        {"curve": [{"step": 2}, {"step": 1}]},
        {"config": {"a\nlr": 3, "dataset": "x"}},
    ],
)
def test_a_row_that_is_odd_is_left_out_in_one_line_and_the_others_stay(tmp_path: Path, change: dict[str, Any]) -> None:
    found = collect([written(tmp_path / "a.jsonl", ROW, ROW | change)])
    assert len(found.runs) == 1
    (line,) = found.left_out
    assert "line 2" in line
    assert len(line.splitlines()) == 1


def test_other_rows_make_a_table_named_after_their_file(tmp_path: Path) -> None:
    rows = [{"x": 1, "y": [1, 2]}, {"x": None, "z": "word"}]
    (table,) = collect([written(tmp_path / "sigma.jsonl", *rows)]).tables
    assert table["name"] == "sigma"
    assert table["columns"] == ["x", "y", "z"]
    assert table["rows"] == [[1, "[1, 2]", None], [None, None, "word"]]


def test_an_audit_tells_claimed_and_shown_and_a_verdict_that_follows(tmp_path: Path) -> None:
    (audit,) = collect([written(tmp_path / "audit.json", AUDIT)]).audits
    stored = audit.to_json()
    assert (stored["epsilon_claimed"], stored["epsilon_lower"], stored["epsilon_lower_certain"]) == (4.0, 2.0, 1.0)
    assert stored["passed"] is True
    bad = AUDIT | {"epsilon_lower": 5.0, "epsilon_lower_certain": 4.5, "passed": False}
    (refuted,) = collect([written(tmp_path / "audit.json", bad)]).audits
    assert refuted.to_json()["verdict"] == "REFUTED"


@pytest.mark.parametrize("change", [{"passed": False}, {"epsilon_lower_certain": 4.5}, {"delta": None}])
def test_an_audit_whose_verdict_does_not_follow_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="audit"):
        collect([written(tmp_path / "audit.json", AUDIT | change)])


def test_an_infinite_claim_is_stored_as_null_and_shown_as_infinite(tmp_path: Path) -> None:
    (audit,) = collect([written(tmp_path / "audit.json", AUDIT | {"epsilon_claimed": None, "passed": False})]).audits
    assert audit.result.epsilon_claimed == math.inf
    assert audit.to_json()["epsilon_claimed"] is None


def test_folders_are_searched_so_deep_and_links_are_not_followed(tmp_path: Path) -> None:
    within = tmp_path / "searched"
    deep = within.joinpath(*"abcdefgh"[:DEEPEST])
    written(deep / "seen.jsonl", ROW | {"name": "seen"})
    written(deep / "more" / "unseen.jsonl", ROW | {"name": "too deep"})
    written(within / ".hidden" / "unseen.jsonl", ROW | {"name": "hidden"})
    written(tmp_path / "elsewhere" / "unseen.jsonl", ROW | {"name": "linked"})
    (within / "link").symlink_to(tmp_path / "elsewhere")
    assert [run.name for run in collect([within]).runs] == ["seen"]


def test_what_is_named_twice_is_shown_once(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", ROW)
    assert len(collect([path, tmp_path, path]).runs) == 1


@pytest.mark.slow
def test_everything_in_the_repositorys_results_can_be_shown() -> None:
    found = collect([ROOT / "results"])
    assert found.left_out == []
    rows = (ROOT / "results" / "presets.jsonl").read_text().splitlines()
    assert len([run for run in found.runs if "presets.jsonl" in run.where]) == len(rows)
    assert all(run.private is not None for run in found.runs)
