"""The program as a user meets it: exit codes, one-line errors, JSON that is JSON and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadpigu.accounting import plan_for
from adadpigu.accounting.membership import membership_bounds

QUICK = ["--steps", "6", "--batch-size", "64"]


def npz(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_train_writes_a_run_that_can_be_evaluated_used_and_run_again(call: Any, tmp_path: Path) -> None:
    code, out, err = call("train", "--json", "--out", "run", "--seed", "3", *QUICK)
    assert code == 0, err
    told = json.loads(out)
    assert err.startswith("per-record gradients: layer rules")
    needed = {"run", "method", "dataset", "test_accuracy", "epsilon", "epsilon_rdp", "delta", "noise_multiplier"}
    assert needed | {"steps", "seconds"} <= told.keys()
    assert (told["method"], told["preset"]) == ("adadpigu", "digits-adadpigu")
    assert 3.99 < told["epsilon"] <= 4 < told["epsilon_rdp"]
    files = {p.relative_to(tmp_path / "run").as_posix() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert {"config.toml", "metrics.jsonl", "privacy.json", "ledger.log", "model.safetensors"} <= files
    assert {"statement.txt", "figures/progress.png", "figures/mask.png", "figures/guesses.png"} <= files

    code, out, _ = call("evaluate", "run", "--json")
    assert code == 0
    assert json.loads(out)["test_accuracy"] == pytest.approx(told["test_accuracy"])

    np.save(tmp_path / "some.npy", np.random.default_rng(0).random((5, 1, 8, 8)))
    code, out, _ = call("predict", "run", "some.npy", "--json")
    assert code == 0
    assert len(json.loads(out)["predictions"]) == 5

    code, out, err = call("train", "--config", "run/config.toml", "--out", "again", "--json")
    assert code == 0, err
    again = json.loads(out)
    assert again["steps"] == told["steps"] == 6
    assert again["noise_multiplier"] == told["noise_multiplier"]
    begins, _, settings = (tmp_path / "run" / "config.toml").read_text().partition("\n\n")
    told = "# settings of the preset digits-adadpigu, where neither file nor flag said otherwise"
    stages = "# steps of its stages: importance 1, training 5"
    assert begins == f"{told}\n{stages}"
    assert again["preset"] is None
    assert (tmp_path / "again" / "config.toml").read_text() == f"{stages}\n\n{settings}"
    assert told in (tmp_path / "run" / "report.html").read_text()


def test_train_for_people_shows_progress_a_table_and_where_to_look(call: Any) -> None:
    code, out, err = call("train", "--out", "run", *QUICK)
    assert code == 0
    assert err.startswith("per-record gradients: layer rules")
    assert "test accuracy" in out
    assert "statement.txt" in out
    assert "step 6/6" in err
    assert "ε" in err


@pytest.mark.slow
def test_flags_win_over_a_config_file_and_a_config_over_the_preset(call: Any, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('steps = 4\nbatch_size = 32\n[method]\nname = "dpsgd"\nclip_norm = 0.2\n')
    code, _, err = call("train", "--config", "c.toml", "--steps", "3", "--out", "r", "--json")
    assert code == 0, err
    text = (tmp_path / "r" / "config.toml").read_text()
    assert "steps = 3" in text
    assert "batch_size = 32" in text
    assert 'name = "dpsgd"' in text
    assert "clip_norm = 0.2" in text


def test_non_private_sgd_says_so(call: Any) -> None:
    code, out, _ = call("train", "--method", "sgd", "--json", "--out", "r", *QUICK)
    told = json.loads(out)
    assert code == 0
    assert told["private"] is False
    assert told["epsilon"] is None


@pytest.mark.slow
def test_own_data_trains_with_declared_facts(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(250, 5))
    y = (x[:, 0] > 0).astype(int)
    file = npz(tmp_path / "mine.npz", x=x[:200], y=y[:200], x_test=x[200:], y_test=y[200:])
    code, out, err = call(
        "train", "--dataset", file, "--records", "200", "--classes", "2", "--out", "r", "--json", *QUICK
    )
    assert code == 0, err
    assert json.loads(out)["dataset"] == "mine"
    code, _, err = call("train", "--dataset", "mine.npz", "--records", "200", "--classes", "2", "--epochs", "1")
    assert code == 0, err
    monkeypatch.chdir("/")
    code, out, err = call("evaluate", str(tmp_path / "r"), "--json")
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["methods", "models", "presets"])
def test_catalogues_speak_json_and_text(call: Any, command: str) -> None:
    code, out, _ = call(command, "--json")
    assert code == 0
    assert json.loads(out)[command]
    code, out, _ = call(command)
    assert code == 0
    assert len(out.splitlines()) > 2


def test_methods_tell_of_the_presets_that_are_models(call: Any) -> None:
    _, out, _ = call("methods", "--json")
    told = json.loads(out)
    assert [recipe["name"] for recipe in told["recipes"]] == ["dpsgd-ts", "dpsgd-hf"]
    assert all(row["source"] and row["adds"] and row["costs"] for row in told["methods"] + told["recipes"])
    _, out, _ = call("methods")
    assert "models rather than optimisers" in out


def test_account_matches_the_golden_row(call: Any) -> None:
    code, out, _ = call(
        *["account", "--noise-multiplier", "1.3", "--steps", "3516", "--delta", "1e-5", "--json", "--sample-rate"],
        str(256 / 60000),
    )
    told = json.loads(out)
    assert code == 0
    assert told["pld"] == pytest.approx(0.864589, abs=1e-3)
    assert told["rdp"] == pytest.approx(0.954564, abs=1e-3)
    assert told["rdp_classic"] == pytest.approx(1.192264, abs=1e-3)
    found = membership_bounds(plan_for(256 / 60000, 3516)(1.3).event())
    assert (told["advantage"], told["true_positive_rates"]) == (found.advantage, found.true_positive_rates)
    assert told["precision"].keys() == {"0.001", "0.01"}
    assert told["best_accuracy"].keys() == {"0.5", "0.01", "0.0001"}


def test_infinite_noise_costs_nothing_and_is_null_in_json(call: Any) -> None:
    code, out, _ = call("account", "-s", "inf", "-q", "0.1", "-T", "5", "--json")
    told = json.loads(out)
    assert (code, told["pld"], told["noise_multiplier"]) == (0, 0.0, None)


@pytest.mark.slow
def test_calibrate_stays_just_under_the_target(call: Any) -> None:
    code, out, _ = call(
        *["calibrate", "--epsilon", "3", "--delta", "1e-5", "--sample-rate", "0.02", "--steps", "500", "--json"]
    )
    told = json.loads(out)
    assert code == 0
    assert 2.99 < told["epsilon"] <= 3
    assert told["noise_multiplier"] > 0
    assert told["closed_form"] == pytest.approx(2 * 0.02 * (500 * np.log(1e5)) ** 0.5 / 3)


BAD: dict[str, tuple[list[str], str]] = {
    "epsilon 0": (["train", "--epsilon", "0"], "epsilon=0"),
    "epsilon negative": (["calibrate", "--epsilon", "-1", "--sample-rate", "0.1", "--steps", "3"], "epsilon=-1"),
    "epsilon word": (["train", "--epsilon", "four"], "'four'"),
    "delta 1": (["train", "--delta", "1"], "delta=1"),
    "delta 0": (["account", "-s", "1", "-q", "0.1", "-T", "5", "--delta", "0"], "delta=0"),
    "retention": (["train", "--retention", "1.5"], "retention=1.5"),
    "retention 0": (["train", "--retention", "0"], "retention=0"),
    "method": (["train", "--method", "adadpgu"], "did you mean 'adadpigu'"),
    "model": (["train", "--model", "digits-cn"], "did you mean 'digits-cnn'"),
    "dataset": (["train", "--dataset", "digit"], "did you mean 'digits'"),
    "preset": (["train", "--preset", "digits-dpsg"], "did you mean 'digits-dpsgd'"),
    "zero steps": (["train", "--steps", "0"], "steps=0"),
    "both": (["train", "--steps", "3", "--epochs", "2"], "give one of them"),
    "budget": (["train", "--epsilon", "1", "--noise-multiplier", "0.5"], "too small for steps"),
    "option": (["train", "--set", "clip_nrm=1"], "did you mean 'clip_norm'"),
    "option form": (["train", "--set", "clip_norm"], "NAME=VALUE"),
    "command": (["trian"], "did you mean 'train'"),
    "flag": (["train", "--epsilonn", "3"], "--epsilonn"),
    "flag of train": (["train", "--epsillon", "3"], "did you mean '--epsilon' or '--value-epsilon'? ("),
    "flag of another": (["calibrate", "--epsillon", "3"], "did you mean '--epsilon'? ("),
    "flag of other libraries": (["train", "--learning-rate", "3"], "did you mean '--lr'? ("),
    "short flag": (["calibrate", "--eps", "3"], "did you mean '--epsilon'? ("),
    "strange flag": (["train", "--gpus", "3"], "are known); see `adadpigu train --help`"),
    "flag of none": (["--epsillon", "3"], "after it, as in `adadpigu train --epsillon …`"),
    "shape": (["train", "--model", "mnist-cnn"], "(1, 28, 28)"),
    "import": (["train", "--model", "nowhere:net"], "nowhere:net"),
    "config missing": (["train", "--config", "none.toml"], "none.toml"),
    "run missing": (["evaluate", "nothing"], "nothing"),
    "file missing": (["predict", "nothing", "x.npy"], "nothing"),
    "rate": (["account", "-s", "1", "-q", "1.5", "-T", "5"], "1.5"),
    "optimizer": (["train", "--optimizer", "lbfgs"], "unknown optimizer 'lbfgs'"),
    "optimizer for matrices": (["train", "--optimizer", "muon"], "cannot be made for this model"),
    "unwritable": (["train", "--out", "/proc/nowhere/run"], "/proc/nowhere/run"),
    "other device": (["train", "--device", "mps"], "device='mps'"),
    "raising model": (["train", "--model", "operator:add"], "raised TypeError"),
    "seed": (["train", "--seed", "-3"], "seed=-3"),
    "device": (["train", "--device", "cuda:99"], "device='cuda:99'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_exit_2_and_writes_nothing(call: Any, tmp_path: Path, case: str) -> None:
    arguments, words = BAD[case]
    code, out, err = call(*arguments)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("adadpigu: error: ")
    assert words in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps = 3\nlr = = 2\n", "line 2"),
        ("steps = 3\n\nlearning = 0.1\n", "line 3"),
        ('steps = 3\nlr = "fast"\n', "line 2: lr='fast'"),
        ("[method]\nname = 3\n", "line 2"),
        ("steps = true\n", "steps=True"),
    ],
)
def test_an_unreadable_config_is_refused_with_line_and_key(call: Any, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    code, out, err = call("train", "--config", "c.toml")
    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_own_data_errors_say_what_to_do(call: Any, tmp_path: Path) -> None:
    x, y = np.ones((20, 3)), np.zeros(20, dtype=int)
    good = npz(tmp_path / "good.npz", x=x, y=y)
    nan = npz(tmp_path / "nan.npz", x=np.where(np.arange(20)[:, None] == 4, np.nan, x), y=y)
    label = npz(tmp_path / "label.npz", x=x, y=y + 9)
    flags = ["--records", "20", "--classes", "2", "--steps", "2", "--batch-size", "5"]
    for arguments, words in (
        ([good], "--records N"),
        ([good, "--records", "20"], "--classes K"),
        ([nan, *flags], "record 4 has a NaN"),
        ([label, *flags], "record 0 has label 9"),
        ([good, *flags[:4], "--steps", "2", "--batch-size", "50"], "batch_size=50"),
        ([str(tmp_path / "none.npz"), *flags], "none.npz"),
    ):
        code, out, err = call("train", "--dataset", *arguments)
        assert code == 2
        assert words in err
        assert out == ""
        assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_model_of_ones_own_is_used_and_refused_with_its_module_path(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mynet.py").write_text(
        "from torch import nn\n"
        "def good(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
        "def bad(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))\n"
        "def few(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, err = call("train", "--model", "mynet:good", "--out", "r", "--json", *QUICK)
    assert code == 0, err
    code, _, err = call("train", "--model", "mynet:bad", "--out", "s", *QUICK)
    assert code == 2
    assert "'2'" in err or " 2 " in err
    assert "GroupNorm" in err
    code, _, err = call("train", "--model", "mynet:few", "--out", "s", *QUICK)
    assert code == 2
    assert "3 outputs" in err
    assert not (tmp_path / "s").exists()


def test_a_folder_that_holds_a_run_is_refused(call: Any, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "model.safetensors").write_text("x")
    code, _, err = call("train", "--out", "full", *QUICK)
    assert code == 2
    assert "already holds" in err
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["model.safetensors"]


@pytest.mark.slow
def test_delta_above_one_over_n_warns_and_stands_in_the_statement(call: Any, tmp_path: Path) -> None:
    code, _, err = call("train", "--delta", "0.01", "--out", "r", *QUICK)
    assert code == 0
    assert "warning" in err
    assert "0.01" in (tmp_path / "r" / "statement.txt").read_text()


@pytest.mark.slow
def test_the_seed_fixes_the_initialisation_and_never_the_noise(call: Any) -> None:
    from safetensors.numpy import load_file

    for name in ("a", "b"):
        code, _, err = call("train", "--seed", "5", "--out", name, "--json", *QUICK)
        assert code == 0, err
    first, second = (load_file(f"{name}/model.safetensors") for name in ("a", "b"))
    assert all((first[key] != second[key]).any() for key in first)


@pytest.mark.slow
def test_python_m_is_the_same_program_and_ctrl_c_reports_what_was_spent(tmp_path: Path) -> None:
    plan = ["--steps", "20000", "--noise-multiplier", "50", "--batch-size", "300", "--reserve", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "adadpigu", "train", *plan, "--out", "run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job inherits it as ignored
    )
    ledger = tmp_path / "run" / "ledger.log"
    for _ in range(6000):  # five minutes: the machine may be busy
        if ledger.exists() and len(ledger.read_text().splitlines()) > 10:
            break
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "INTERRUPTED" in out
    stored = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert 0 < stored["epsilon_spent"] < stored["epsilon_pld"]
    assert "Traceback" not in err


@pytest.mark.slow
def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, adadpigu; "
        "print([m for m in ('scipy','sklearn','matplotlib','dp_accounting','typer','rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
