"""Files of a run folder that do not belong together are told by every command that reads one, by the file's name."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adadpigu as ad
from adadpigu.accounting.journal import head_path
from adadpigu.accounting.ledger_reading import LEDGER_FILE
from adadpigu.runs.loading import load_run
from adadpigu.runs.verifying import verify
from adadpigu.tensors import digest, read_tensors
from run_folders import changed, rebound, rewritten, trained

FLAGS = ("--method", "dpsgd", "--model", "linear", "--steps", "8")
COMMANDS = ("ledger verify", "report", "evaluate", "export", "predict")
MODEL = "model.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its twin by the same config, and one with far less noise."""
    path = tmp_path_factory.mktemp("made")
    for name, noise in (("run", "3"), ("twin", "3"), ("loud", "0.5")):
        trained(path / name, *FLAGS, "--noise-multiplier", noise)
    shape = json.loads((path / "run" / "data.json").read_text())["shape"]
    np.save(path / "new.npy", np.zeros((2, *shape), dtype=np.float32))
    return path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


def arguments(command: str, run: Path, made: Path) -> list[str]:
    more = {
        "report": ["--out", str(run.parent / "page.html")],
        "export": ["--to", "card", "--out", str(run.parent / "README.md")],
        "predict": [str(made / "new.npy")],
    }
    return [*command.split(), str(run), *more.get(command, [])]


def other_weights(run: Path, made: Path) -> None:
    """Those of the run with less noise; whatever summary.json says of weights is made to fit."""
    shutil.copy(made / "loud" / MODEL, run)
    changed(run, "summary.json", weights=digest(sorted(read_tensors(run / MODEL, "model").items())))


def other_weights_and_config(run: Path, made: Path) -> None:
    other_weights(run, made)
    shutil.copy(made / "loud" / "config.toml", run)


def lower_claim(run: Path, made: Path) -> None:
    changed(run, "privacy.json", epsilon_pld=0.01, epsilon_spent=0.01)


def shorter_statement(run: Path, made: Path) -> None:
    text = (run / "statement.txt").read_text()
    (run / "statement.txt").write_text(text.replace("Not covered", "Covered"))


def ledger_of_a_twin(run: Path, made: Path) -> None:
    for name in (LEDGER_FILE, head_path(run / LEDGER_FILE).name):
        shutil.copy(made / "twin" / name, run)


def without_its_last_record(run: Path, made: Path) -> None:
    rewritten(run, records=-1)


def cut(run: Path, made: Path) -> None:
    lines = (run / LEDGER_FILE).read_bytes().splitlines(keepends=True)
    (run / LEDGER_FILE).write_bytes(b"".join(lines[:-1]))


def edited_config(run: Path, made: Path) -> None:
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub(r"(?m)^lr = .*$", "lr = 0.125", text))


def better_score(run: Path, made: Path) -> None:
    changed(run, "summary.json", test_accuracy=1.0)


def other_facts(run: Path, made: Path) -> None:
    changed(run, "data.json", told="by another")


EDITS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "weights": (other_weights, MODEL),
    "weights and config": (other_weights_and_config, MODEL),
    "privacy.json": (lower_claim, "privacy.json"),
    "statement": (shorter_statement, "statement.txt"),
    "a twin's ledger": (ledger_of_a_twin, MODEL),
    "no closing record": (without_its_last_record, LEDGER_FILE),
    "a ledger that was cut": (cut, LEDGER_FILE),
    "config": (edited_config, "config.toml"),
    "score": (better_score, "summary.json"),
    "facts of the data": (other_facts, "data.json"),
}
OPEN = "no closing record"
"""looks like a run that was killed before its end: no alarm, but nothing is claimed"""


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_edited_folder_is_told_by_the_file_that_differs(
    command: str, edit: str, call: Any, made: Path, run: Path
) -> None:
    change, file = EDITS[edit]
    change(run, made)
    code, out, err = call(*arguments(command, run, made))
    told = err if command != "ledger verify" or edit != OPEN else out
    assert file in told, (out, err)
    assert LEDGER_FILE in told or command == "report"
    wanted = {"ledger verify": 0 if edit == OPEN else 1, "report": 1, "export": 2}
    assert code == wanted.get(command, 0)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("command", COMMANDS)
def test_json_names_the_file_too(command: str, edit: str, call: Any, made: Path, run: Path) -> None:
    change, file = EDITS[edit]
    change(run, made)
    code, out, err = call(*arguments(command, run, made), "--json")
    if command == "export":
        assert (code, out) == (2, "")
        assert file in err
        return
    told = json.loads(out)
    if command == "report":
        assert any(file in line for line in told["left_out"])
    else:
        assert (told["bound"], told["differs"]) == (False, file)
        assert file in told["why"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_as_the_run_left_it_is_bound(command: str, call: Any, made: Path, run: Path) -> None:
    code, out, _ = call(*arguments(command, run, made), "--json")
    assert code == 0
    assert json.loads(out).get("bound", True) is True


def saved_again(run: Path) -> None:
    """By an editor, or by a version control system with other line ends."""
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text("# the run of Monday\n\n" + config.replace(" = ", "="))
    for name in ("privacy.json", "summary.json", "data.json"):
        (run / name).write_text(json.dumps(json.loads((run / name).read_text()), sort_keys=True))
    (run / "statement.txt").write_bytes((run / "statement.txt").read_bytes().rstrip().replace(b"\n", b"\r\n"))


@pytest.mark.parametrize("change", [saved_again, rebound])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_whose_files_say_the_same_stays_bound(
    change: Callable[[Path], None], command: str, call: Any, made: Path, run: Path
) -> None:
    """Comments and layout are no claim, and the digests of older ledgers are of bytes."""
    change(run)
    code, out, _ = call(*arguments(command, run, made), "--json")
    assert (code, json.loads(out).get("bound", True)) == (0, True)


@pytest.mark.slow
def test_importance_of_another_run_is_told(made: Path, tmp_path: Path) -> None:
    """AdaDPIGU stores its scores and mask beside the weights."""
    for name in ("run", "twin"):
        trained(tmp_path / name, "--method", "adadpigu", "--model", "linear", "--noise-multiplier", "3")
    assert verify(tmp_path / "run").bound
    shutil.copy(tmp_path / "twin" / "importance.safetensors", tmp_path / "run")
    assert verify(tmp_path / "run").file == "importance.safetensors"
    (tmp_path / "run" / "importance.safetensors").unlink()
    assert verify(tmp_path / "run").bound, "a file that is gone claims nothing"


def test_files_that_are_gone_are_named_as_missing_and_not_as_the_run_left_them(call: Any, run: Path) -> None:
    (run / "summary.json").unlink()
    code, out, _ = call("ledger", "verify", str(run))
    kept, missing = out.split("as the run left them:")[1].split("missing, so not compared:")
    assert (code, missing.split()) == (0, ["summary.json"])
    assert MODEL in kept
    assert "summary.json" not in kept
    assert json.loads(call("ledger", "verify", str(run), "--json")[1])["missing"] == ["summary.json"]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on files of the user's own, whose descriptions scale the records: arrays, and a table with test records."""
    path = tmp_path_factory.mktemp("described")
    inputs = np.random.default_rng(0).integers(0, 256, (80, 1, 4, 4)).astype(np.float32)
    np.savez(path / "images.npz", x=inputs, y=np.arange(80) % 2)
    np.save(path / "new.npy", inputs[:3])
    for name, rows in (("table", inputs[:60]), ("test", inputs[60:])):
        table = "".join(f"{row.mean():.6f},{number % 2}\n" for number, row in enumerate(rows))
        (path / f"{name}.csv").write_text("age,ill\n" + table)
    (path / "images.toml").write_text('records = 80\nclasses = ["a", "b"]\nrange = [0, 256]\n')
    facts = 'records = 60\nlabel = "ill"\nclasses = ["0", "1"]\ntest = "test.csv"\n[columns.age]\nrange = [0, 256]\n'
    (path / "table.toml").write_text(facts)
    for name, file in (("images", "images.npz"), ("table", "table.csv")):
        data = ("--dataset", str(path / file), "--describe", str(path / f"{name}.toml"))
        trained(path / name, *FLAGS, *data, "--batch-size", "20", "--noise-multiplier", "1")
    return path


@pytest.mark.parametrize("name", ["description.toml", "data.json"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_predictions_depend_on_is_missed_by_every_command(
    command: str, name: str, call: Any, described: Path, tmp_path: Path
) -> None:
    """Without its description a model takes records as they come, unscaled, and answers with other classes."""
    made = described / ("table" if command == "evaluate" else "images")
    run = Path(shutil.copytree(made, tmp_path / "run"))
    assert call(*arguments(command, run, described))[0] == 0
    (run.parent / "README.md").unlink(missing_ok=True)
    (run / name).unlink()
    code, _, err = call(*arguments(command, run, described))
    assert f"has no {name}" in err
    shown = name == "description.toml" and command in ("evaluate", "predict")
    assert code == (0 if shown else 1 if command in ("ledger verify", "report") else 2)


def test_a_comment_in_the_description_of_ones_own_data_changes_nothing(
    call: Any, described: Path, tmp_path: Path
) -> None:
    before = (described / "table.toml").read_text()
    try:
        (described / "table.toml").write_text("# the clinic's\n" + before)
        assert call("evaluate", str(described / "table"))[0] == 0
        (described / "table.toml").write_text(before.replace("256", "255"))
        code, _, err = call("evaluate", str(described / "table"))
        assert (code, "description of its data has changed since training" in err) == (2, True)
    finally:
        (described / "table.toml").write_text(before)


def test_the_ledger_file_of_a_folder_is_compared_with_the_files_beside_it(
    call: Any, made: Path, run: Path, tmp_path: Path
) -> None:
    shutil.copy(made / "loud" / MODEL, run)
    code, out, err = call("ledger", "verify", str(run / LEDGER_FILE))
    assert (code, MODEL in err, out) == (1, True, "")
    (tmp_path / "kept").mkdir()
    for name in (LEDGER_FILE, head_path(run / LEDGER_FILE).name):
        shutil.copy(run / name, tmp_path / "kept")
    code, out, _ = call("ledger", "verify", str(tmp_path / "kept" / LEDGER_FILE))
    assert (code, "files beside it were not compared" in out) == (0, True)


def test_a_file_that_was_added_is_told_because_it_changes_what_is_predicted(call: Any, made: Path, run: Path) -> None:
    """A description scales the records; the run was of a named data set and left none."""
    (run / "description.toml").write_text(f"records = 9\nclasses = {[*'abcdefghij']}\nrange = [0, 9]\n")
    code, out, _ = call(*arguments("predict", run, made), "--json")
    assert (code, json.loads(out)["bound"], json.loads(out)["differs"]) == (0, False, "description.toml")
    code, _, err = call("ledger", "verify", str(run))
    assert (code, "description.toml is not the run's" in err) == (1, True)
    assert verify(run).state == "partly"


def test_python_loads_weights_of_another_run_with_a_warning(made: Path, run: Path) -> None:
    model = load_run(run).model
    with warnings.catch_warnings(action="error"):
        ad.load(run, model)
    shutil.copy(made / "loud" / MODEL, run)
    with pytest.warns(UserWarning, match=f"{MODEL} is of run .*no ε holds for this model") as caught:
        ad.load(run, model)
    assert len(caught) == 1
