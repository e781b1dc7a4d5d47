"""`adadpigu reproduce`: what is missing is measured, what is there is drawn, bad input is refused in one line."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import adadpigu_paper.command as reproduce
from adadpigu.cli.app import run
from adadpigu_paper.reproduce import ARTEFACTS
from adadpigu_paper.reproduce.artefact import STAMP, Artefact, Drawn, Scale
from adadpigu_paper.reproduce.jobs import Job, Row

TINY = {"dataset": "digits", "method": "sgd", "model": "linear", "steps": 1, "batch_size": 64}
NAMES = (
    "noise-table",
    "accuracy-table",
    "pruning-curves",
    "budget-curve",
    "pruning-sweep",
    "batch-tradeoff",
    "gradient-histogram",
    "energy",
)


def _jobs(scale: Scale) -> list[Job]:
    return [Job("tiny", TINY, seed) for seed in scale.runs(3)]


def _draw(rows: Sequence[Row]) -> Drawn:
    from matplotlib.figure import Figure

    kept = [{"seed": seed} for seed in sorted(row["seed"] for row in rows)]
    return Drawn(markdown=f"# {len(rows)} runs", rows=kept, figures={"tiny": Figure()}, exposed=True)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Artefact(name="tiny", about="a test", rows="paper/tiny.jsonl", draw=_draw, jobs=_jobs)
    monkeypatch.setitem(ARTEFACTS, "tiny", made)


def test_every_table_and_figure_of_the_paper_has_a_name() -> None:
    assert set(NAMES) <= set(ARTEFACTS)
    assert all(artefact.name == name for name, artefact in ARTEFACTS.items())
    told = str(inspect.signature(reproduce.reproduce).parameters["names"].annotation)
    assert all(name in told for name in ARTEFACTS)  # `--help` knows them
    assert all((artefact.jobs is None) != (artefact.compute is None) for artefact in ARTEFACTS.values())


@pytest.mark.usefixtures("tiny")
def test_a_further_call_measures_only_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "tiny", "--out", str(tmp_path), "--device", "cpu", "--workers", "1", "--json"]
    assert run([*command, "--seeds", "2"]) == 0
    first = (tmp_path / "paper" / "tiny.jsonl").read_text().splitlines()
    assert json.loads(capsys.readouterr().out)["rows"] == [{"seed": 0}, {"seed": 1}]
    assert run(command) == 0
    after = (tmp_path / "paper" / "tiny.jsonl").read_text().splitlines()
    assert after[:2] == first
    assert [json.loads(line)["seed"] for line in after] == [0, 1, 2]
    told = json.loads(capsys.readouterr().out)
    assert told["diagnostics"] is True
    assert [Path(name).name for name in told["files"]] == ["tiny.md", "tiny.png"]
    assert (tmp_path / "paper" / "tiny.md").read_text() == f"**{STAMP}.**\n\n# 3 runs\n"
    assert (tmp_path / "paper" / "tiny.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("tiny")
def test_drawing_trains_nothing_and_may_write_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "results", tmp_path / "drawn"
    (source / "paper").mkdir(parents=True)
    (source / "paper" / "tiny.jsonl").write_text('{"seed": 4}\n{"seed": 5, "failed": "it broke"}\n')
    assert run(["reproduce", "tiny", "--from", str(source), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [{"seed": 4}]
    assert sorted(path.name for path in source.rglob("*.*")) == ["tiny.jsonl"]
    assert (out / "paper" / "tiny.md").exists()


@pytest.mark.usefixtures("tiny")
def test_runs_that_fail_are_told_and_cost_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TINY, "lr", -1.0)
    command = ["reproduce", "tiny", "--out", str(tmp_path), "--device", "cpu", "--workers", "1", "--seeds", "1"]
    assert run(command) == 1
    assert "1 runs failed; the first, tiny: InputError: lr=-1.0" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nosie-table"], "nosie-table"),
        (["noise-table", "--from", "/no/such/folder"], "is not a folder of results"),
        (["noise-table", "--from", ".", "--quick"], "nothing is measured"),
        (["noise-table", "--from", ".", "--seeds", "3"], "nothing is measured"),
        (["noise-table", "--from", "tests"], "cannot be read"),
        (["noise-table", "--seeds", "0"], "seeds=0 is not from 1 to 1000"),
        (["noise-table", "--workers", "-1"], "workers=-1 is not from 1 to 64"),
        (["noise-table", "--seconds", "nan"], "seconds=nan"),
        (["pruning-curves", "--device", "tpu"], "device='tpu'"),
    ],
)
def test_bad_input_is_one_line_that_names_it(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    assert run(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1


def test_a_damaged_file_of_rows_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "paper").mkdir()
    for text, told in (('{"dataset": "mnist"\n', "line 1 is no JSON"), ("[1]\n", "line 1 is list")):
        (tmp_path / "paper" / "noise-table.jsonl").write_text(text)
        assert run(["reproduce", "noise-table", "--from", str(tmp_path)]) == 2
        assert told in capsys.readouterr().err
