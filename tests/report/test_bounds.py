"""What a stranger's files could blow up, bury or slip in is bounded, told and kept out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from adadpigu.errors import InputError
from adadpigu.report import collecting
from adadpigu.report.collecting import Collection, collect
from adadpigu.report.curves import LEAST, round_up
from adadpigu.report.embedding import MOST_LISTED
from adadpigu.report.page import page
from adadpigu.report.results import MOST_ROWS, UNNOISED
from adadpigu.report.run_reading import read_run
from adadpigu.runs.reading import Fields
from run_folders import changed, rebound, trained

AUDIT: dict[str, Any] = {
    **{"audit": "one-run", "subject": "dpsgd", "epsilon_claimed": 4.0, "delta": 1e-5, "epsilon_lower": 0.5},
    **{"epsilon_lower_certain": 0.1, "epsilon_reach": 3.0, "confidence": 0.95, "observations": 500, "passed": True},
}
ROW = {"name": "first", "method": "dpsgd", "dataset": "mnist", "accuracy": 0.9, "epsilon": 2.0}
MANY = MOST_LISTED + 5


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("kept") / "run")


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "run"))


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def audited(folder: Path, **files: dict[str, Any]) -> None:
    (folder / "audits").mkdir(exist_ok=True)
    for name, audit in files.items():
        (folder / "audits" / f"{name}.json").write_text(json.dumps(audit))


@pytest.mark.slow
def test_every_list_is_as_long_as_somebody_reads_and_tells_how_much_longer_it_was(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    many = [lines[-1] | {"step": step, "stage": f"stage {step}"} for step in range(1, MANY + 1)]
    written(run / "metrics.jsonl", *many)
    changed(run, "privacy.json", warnings=["w"] * MANY, not_covered=[f"n{at}" for at in range(MANY)])
    rebound(run)
    audited(run, long={**AUDIT, "assumed": ["a"] * MANY, "findings": ["f"] * MANY, "passed": False})
    shown = json.loads(json.dumps(Collection(runs=[read_run(run)], left_out=["x"] * MANY).to_json()))
    (one,) = shown["runs"]
    assert shown["left_out"] == ["x"] * MOST_LISTED + ["and 5 more"]
    assert len(one["curves"]["stages"]) == MOST_LISTED
    assert one["curves"]["more_stages"] == 5
    assert len(one["warnings"]) == MOST_LISTED + 1
    assert one["audits"][0]["assumed"] == ["a"] * MOST_LISTED + ["and 5 more"]
    assert one["audits"][0]["findings"][-1] == "and 5 more"
    assert max(map(len, one["statement"])) == MOST_LISTED + 2


def test_own_cautions_stand_before_any_that_a_file_brings(run: Path) -> None:
    changed(run, "privacy.json", warnings=["w"] * MANY, diagnostics_exposed=True)
    rebound(run)
    warnings = read_run(run).to_json(9)["warnings"]
    assert isinstance(warnings, list)
    assert warnings[0].startswith("Diagnostics were on")


def test_records_in_a_folder_that_is_searched_stay_where_they_are(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "run")
    patient = {"patient": "Ann Example", "ill": True}
    written(tmp_path / "train.jsonl", patient)
    (tmp_path / "train.json").write_text(json.dumps({"records": [patient]}))
    written(tmp_path / "mixed.jsonl", ROW, patient)
    found = collect([tmp_path])
    assert "Ann Example" not in page(found)
    assert (len(found.runs), found.tables, found.passed_over) == (2, [], 2)
    (line,) = found.left_out
    assert "mixed.jsonl': 1 rows are no runs; name the file itself" in line
    named = collect([tmp_path / name for name in ("train.jsonl", "train.json", "mixed.jsonl")])
    assert [table["rows"] for table in named.tables] == [[["Ann Example", True]]] * 3


@pytest.mark.parametrize("key", sorted(UNNOISED))
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_any_one_value_of_diagnostics_is_enough_to_refuse_a_row(tmp_path: Path, key: str, suffix: str) -> None:
    row: dict[str, object] = {"step": 1, key: 2.34567}
    path = written(tmp_path / f"saved{suffix}", {"rows": [row]} if suffix == ".json" else row)
    with pytest.raises(InputError, match=f"{key}.*un-noised values"):
        collect([path])


def test_a_run_of_results_cannot_carry_values_of_diagnostics_in_its_settings(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", ROW, ROW | {"config": {"lr": 1.0, "loss_mean": 2.34567}})
    found = collect([path])
    assert len(found.runs) == 1
    assert "2.34567" not in page(found)


@pytest.mark.parametrize(("text", "cell"), [("1e999", "Infinity"), ("-1e999", "-Infinity"), ("[1e999]", "[Infinity]")])
def test_a_number_beyond_all_floats_becomes_words(tmp_path: Path, text: str, cell: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"x": {text}}}\n')
    found = collect([tmp_path / "a.jsonl"])
    assert found.tables[0]["rows"] == [[cell]]
    assert cell in page(found)


def test_settings_that_nest_without_end_cost_the_page_nothing(run: Path) -> None:
    (run / "config.toml").write_text(f"model{'.a' * 4000} = 1\n")
    (run / "summary.json").unlink()
    assert read_run(run).facts["model"] == "—"


def test_a_page_has_so_many_runs_also_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MOST_RUNS", 3)
    written(tmp_path / "a.jsonl", *[ROW] * 5)
    written(tmp_path / "b.jsonl", ROW)
    found = collect([tmp_path])
    assert len(found.runs) == 3
    assert "2 runs more than a page has room for" in found.left_out[0]
    assert "b.jsonl and what comes after it" in found.left_out[1]
    monkeypatch.setattr(collecting, "MOST_RUNS", 6)
    assert collect([tmp_path]).left_out == []


def test_a_long_table_is_cut_and_says_so(tmp_path: Path) -> None:
    (table,) = collect([written(tmp_path / "a.jsonl", *[{"x": 1}] * (MOST_ROWS + 1))]).tables
    assert len(table["rows"]) == MOST_ROWS
    assert table["name"] == "a (the first 5,000 of 5,001 rows)"


@pytest.mark.parametrize("within", ["row", "config"])
@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ({"reproducible_noise": True}, "NOT PRIVATE"),
        ({"randomness_private": False}, "NOT PRIVATE"),
        ({"private": False}, "NOT PRIVATE"),
        ({"diagnostics": True}, "Diagnostics were on"),
        ({"diagnostics_exposed": True}, "Diagnostics were on"),
        ({"exposed": True}, "Diagnostics were on"),
    ],
)
def test_a_flag_against_a_row_counts_wherever_it_stands(
    tmp_path: Path, within: str, flag: dict[str, bool], words: str
) -> None:
    (run,) = collect([written(tmp_path / "a.jsonl", ROW | (flag if within == "row" else {"config": flag}))]).runs
    assert run.warnings[0].startswith(words)
    assert (run.private is False) is (words == "NOT PRIVATE")


@pytest.mark.parametrize(
    ("certain", "delta", "above"), [(9.0, 1e-5, True), (9.0, 1e-4, True), (9.0, 1e-6, False), (0.1, 1e-5, False)]
)
def test_an_audit_above_the_runs_own_epsilon_is_a_caution_whatever_claim_it_was_given(
    run: Path, certain: float, delta: float, above: bool
) -> None:
    audit = AUDIT | {"epsilon_claimed": 1e20, "epsilon_lower": certain, "epsilon_lower_certain": certain}
    audited(run, a=audit | {"delta": delta})
    found = read_run(run)
    assert any("certain of more than the ε of this run: a.json" in line for line in found.warnings) is above
    assert ("audit above the claim" in found.marks) is above


def test_a_refuted_audit_is_told_behind_however_many_others_and_through_a_link(run: Path) -> None:
    refuted = AUDIT | {"epsilon_lower": 9.0, "epsilon_lower_certain": 9.0, "passed": False}
    audited(run, **{f"a{number}": AUDIT for number in range(MANY)}, z=refuted)
    found = read_run(run)
    assert len(found.audits) == MANY + 1
    assert any(line.startswith("An audit has REFUTED the claim: z.json") for line in found.warnings)
    (run / "audits").rename(run / "elsewhere")
    (run / "audits").symlink_to("elsewhere")
    assert [audit.file for audit in read_run(run).audits if not audit.result.passed] == ["z.json"]
    (run / "elsewhere").rename(run.parent / "elsewhere")
    (run / "audits").unlink()
    (run / "audits").symlink_to(run.parent / "elsewhere")
    found = read_run(run)
    assert found.audits == ()
    assert any("link out of the folder" in line for line in found.missing)
    assert "incomplete" in found.marks


@pytest.mark.parametrize("value", [-1, 2**53, 1.0, True, "1", None])
def test_a_count_is_a_whole_number_that_a_page_can_hold(value: object) -> None:
    with pytest.raises(InputError, match="step is invalid; allowed: a whole number"):
        Fields({"step": value}, "here").count("step")
    assert Fields({"step": 2**53 - 1}, "here").count("step") == 2**53 - 1
    assert Fields({"step": 0}, "here").count("step") == 0


def test_an_epsilon_is_never_rounded_below_itself() -> None:
    for value in (1e-300, LEAST, 1e-5, 0.1, 0.99999, 0.999991, 1.0, 1.000001, 3.99995, 9.99999, 123456.7, 1e29):
        assert value * (1 - 1e-12) <= round_up(value) <= max(value, LEAST) * 1.0002
    assert round_up(1e-300) == LEAST
    assert round_up(0.0) == 0.0


def test_code_that_a_strangers_settings_name_is_in_no_command_and_told_in_words(run: Path) -> None:
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('model = "mlp"', 'model = "planted:net"'))
    assert "planted:net" in (run / "config.toml").read_text()
    rerun = read_run(run).rerun
    assert not any("trust" in command for command, _ in rerun)
    assert rerun[0][0] == ""
    assert "Its model is code" in rerun[0][1]
