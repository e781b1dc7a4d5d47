"""`adadpigu ledger`: what was spent, whether the record is whole, and the ledger that runs share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import adadpigu as ad
from adadpigu.accounting.journal import head_path
from adadpigu.cli.app import run as command
from adadpigu.methods import DPSGD
from adadpigu.tensors import read_tensors
from trials import SHORT, arrays, small_net


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps."""
    out = tmp_path_factory.mktemp("ledger") / "run"
    ad.train(small_net(), arrays(), records=240, method=DPSGD(), noise_multiplier=2.0, out=out, **SHORT)
    return out


Refused = Callable[..., list[str]]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that ends with exit code 2, in an empty folder; gives the lines of its complaint."""
    monkeypatch.chdir(tmp_path)

    def lines(*arguments: str) -> list[str]:
        assert command(list(arguments)) == 2
        return capsys.readouterr().err.splitlines()

    return lines


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, object]]:
    code = command(["ledger", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_verify_tells_that_it_is_whole_and_what_was_spent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, facts = told(capsys, "verify", folder)
    privacy = json.loads((folder / "privacy.json").read_text())
    assert (code, facts["ok"], facts["steps"]) == (0, True, 6)
    assert facts["epsilon"] == privacy["epsilon_spent"] == privacy["epsilon_pld"]
    assert facts["delta"] == 1e-5
    assert command(["ledger", "verify", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("whole: ε = ")


@pytest.mark.parametrize("damage", ["edit", "gap", "cut", "head"])
def test_verify_finds_an_edit_a_gap_and_a_truncation(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    path = tmp_path / "ledger.log"
    lines = (folder / "ledger.log").read_bytes().splitlines(keepends=True)
    if damage == "edit":
        lines[3] = lines[3].replace(b'"noise_multiplier":2.0', b'"noise_multiplier":9.0')
    elif damage == "gap":
        del lines[3]
    elif damage == "cut":
        del lines[-2:]
    path.write_bytes(b"".join(lines))
    if damage != "head":
        head_path(path).write_bytes(head_path(folder / "ledger.log").read_bytes())
    code, facts = told(capsys, "verify", tmp_path)
    assert (code, facts["ok"]) == (1, False)
    assert facts["damage"]
    _, whole = told(capsys, "verify", folder)
    assert isinstance(facts["epsilon"], float)
    assert isinstance(whole["epsilon"], float)
    assert facts["epsilon"] >= whole["epsilon"]
    assert command(["ledger", "verify", str(tmp_path)]) == 1
    assert "the ledger is damaged" in capsys.readouterr().err


def test_show_lists_every_process_and_every_charge(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["ledger", "show", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.count("charge ") >= 6
    assert "finished" in text
    assert "ChaCha20" in text
    _, facts = told(capsys, "show", folder)
    assert isinstance(facts["lines"], list)
    assert len(facts["lines"]) == 8


def test_a_shared_ledger_is_created_shown_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shared.log"
    arguments: list[str | Path] = ["create", file, "--epsilon", "6", "--dataset", "digits", "--records", "1437"]
    code, facts = told(capsys, *arguments)
    assert code == 0
    assert (facts["ok"], facts["epsilon"], facts["budget"], facts["runs"]) == (True, 0.0, 6.0, 0)
    steps = ["--steps", "4", "--batch-size", "40", "--noise-multiplier", "3", "--method", "dpsgd", "--json"]
    assert command(["train", *steps, "--out", str(tmp_path / "run"), "--ledger", str(file)]) == 0
    summary = json.loads(capsys.readouterr().out)
    code, facts = told(capsys, "verify", file)
    assert (code, facts["runs"]) == (0, 1)
    assert isinstance(facts["epsilon"], float)
    assert facts["epsilon"] >= summary["epsilon"]
    assert command(["ledger", "show", str(file)]) == 0
    assert "settled" in capsys.readouterr().out
    assert command(list(map(str, ["ledger", *arguments]))) == 2
    assert "stands there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "missing"], "has no ledger.log; allowed: a run folder"),
        (["show", "missing"], "has no ledger.log"),
        (["create", "new.log", "--epsilon", "-1", "--dataset", "d", "--records", "9"], "epsilon=-1"),
        (["create", "new.log", "--epsilon", "1", "--dataset", "d", "--records", "9", "--order", "1.5"], "order=1.5"),
        (["create", "no/new.log", "--epsilon", "1", "--dataset", "d", "--records", "9"], "No such file or directory"),
    ],
)
def test_bad_input_is_one_line(refused: Refused, arguments: list[str], message: str) -> None:
    (error,) = refused("ledger", *arguments)
    assert message in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ledger", "nowhere.log"], "does not exist; its total budget is fixed when it is created"),
        (["--randomness", "quick"], "unknown tier of randomness 'quick'"),
        (["--reproducible-noise"], "reproducible_noise without a seed"),
        (["--reproducible-noise", "--seed", "1", "--randomness", "secure"], "give one of them, not both"),
        (["--spare-steps", "-1"], "spare_steps=-1"),
        (["--checkpoint-every", "0"], "checkpoint_every=0"),
        (["--reserve", "0"], "reserve=0"),
    ],
)
def test_bad_flags_of_train_are_one_line_and_nothing_is_written(
    refused: Refused, tmp_path: Path, arguments: list[str], message: str
) -> None:
    lines = refused("train", "--method", "dpsgd", "--steps", "3", "--noise-multiplier", "3", "--out", "run", *arguments)
    (error,) = [line for line in lines if "error" in line]  # besides, a warning that no budget was set
    assert message in error
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_noise_that_can_be_repeated_repeats_and_is_not_private(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ["train", "--steps", "4", "--noise-multiplier", "3", "--method", "dpsgd", "--seed", "5", "--json"]
    for name in ("a", "b"):
        assert command([*steps, "--reproducible-noise", "--out", str(tmp_path / name)]) == 0
        assert json.loads(capsys.readouterr().out)["private"] is False
        assert (tmp_path / name / "statement.txt").read_text().startswith("NOT PRIVATE")
    models = [read_tensors(tmp_path / name / "model.safetensors", "model") for name in ("a", "b")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0] | models[1])
    assert command([*steps, "--out", str(tmp_path / "c")]) == 0  # the same seed, without it
    assert json.loads(capsys.readouterr().out)["private"] is True
    other = read_tensors(tmp_path / "c" / "model.safetensors", "model")
    assert not any(torch.equal(models[0][name], other[name]) for name in other)


@pytest.mark.parametrize(("tier", "name"), [("secure", "ChaCha20"), ("fast", "tier fast")])
def test_the_tier_is_in_the_statement(tmp_path: Path, tier: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        "train",
        "--method",
        "dpsgd",
        "--steps",
        "3",
        "--noise-multiplier",
        "3",
        "--json",
        "--out",
        str(tmp_path / "run"),
    ]
    assert command([*steps, "--randomness", tier]) == 0
    assert json.loads(capsys.readouterr().out)["private"] is True
    assert name in " ".join((tmp_path / "run" / "statement.txt").read_text().split())
