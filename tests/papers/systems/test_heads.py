"""Systems without steps on the command line: charged, written, usable; what does nothing is refused, free of charge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import adadpigu as ad
from adadpigu.accounting.journal import read_journal
from adadpigu.methods import all_methods, make_method
from adadpigu.methods.standalone import Standalone
from adadpigu_paper.reproduce.jobs import Job, run_job
from trials import prepare_small

NAMES = sorted(name for name, method in all_methods().items() if issubclass(method, Standalone))
FLAGS = {
    "fedsel": ("--select-epsilon", "4", "--value-epsilon", "4"),
    "objective-perturbation": ("--epsilon", "20", "--feature-norm", "3.5"),
    "output-perturbation": ("--epsilon", "20", "--feature-norm", "3.5", "--passes", "2", "--step-size", "0.05"),
}


def test_they_are_the_three_that_have_no_steps() -> None:
    assert FLAGS.keys() == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_leaves_a_charge_a_statement_and_a_model_that_evaluates_alike(name: str, call: Any) -> None:
    status, out, err = call("train", "--method", name, *FLAGS[name], "--out", "run", "--json")
    assert status == 0, err
    told = json.loads(out)
    assert told == json.loads(Path("run/summary.json").read_text())
    assert told["private"] is True
    assert (told["epsilon"] is None) == (name == "fedsel")
    header, charge = read_journal(Path("run/ledger.log")).bodies
    assert header["ledger"] == ("adadpigu-local-1" if name == "fedsel" else "adadpigu-one-shot-1")
    spent = charge["epsilon_a_report"] * charge["reports_a_user"] if name == "fedsel" else charge["epsilon"]
    assert spent == (8.0 if name == "fedsel" else 20.0)
    claimed = json.loads(Path("run/privacy.json").read_text())
    assert claimed["epsilon_a_user" if name == "fedsel" else "epsilon"] == spent
    assert Path("run/statement.txt").read_text().startswith(("LOCAL", name.split("-")[0]))
    status, out, err = call("evaluate", "run", "--json")
    assert status == 0, err
    assert json.loads(out)["test_accuracy"] == pytest.approx(told["test_accuracy"])
    for command in (["ledger", "show", "run"], ["train", "--resume", "run"]):
        status, _, err = call(*command)
        assert status == 2
        assert "is of a release without steps, which statement.txt tells of" in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("fedsel", ("--steps", "10"), "steps=10 does nothing: method 'fedsel' has no steps of training; allowed"),
        ("fedsel", ("--epsilon", "2"), "epsilon=2.0 does nothing"),
        ("fedsel", ("--log", "tensorboard"), r"log=['tensorboard'] does nothing"),
        ("output-perturbation", ("--noise-multiplier", "2"), "noise_multiplier=2.0 does nothing"),
        ("objective-perturbation", ("--model", "mlp"), "model=mlp: convexity is needed; allowed: nn.Linear alone"),
        ("objective-perturbation", ("--normalisation", "released"), "normalisation='released' is charged in steps"),
        ("objective-perturbation", ("--regularisation", "0.001"), "regularisation=0.001 is too little for epsilon"),
        ("output-perturbation", ("--step-size", "5"), "lr=5.0: above 0 and at most 2/smoothness = 4"),
    ],
)
def test_what_does_nothing_or_has_no_proof_is_one_line_and_leaves_nothing(
    name: str, flags: tuple[str, ...], said: str, call: Any
) -> None:
    status, out, err = call("train", "--method", name, *flags, "--out", "run")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err
    assert not Path("run").exists()


@pytest.mark.parametrize("name", NAMES)
def test_the_loop_refuses_them_with_the_command_that_runs_them(name: str) -> None:
    with pytest.raises(ad.InputError, match=f"has no steps of training; allowed: `adadpigu train --method {name}`"):
        prepare_small(make_method(name))


@pytest.mark.slow
def test_an_audit_refuses_them_in_one_line(call: Any) -> None:
    status, _, err = call("audit", "replay", "--method", "fedsel")
    assert (status, len(err.splitlines())) == (2, 1)
    assert "has no steps of training" in err


def test_the_layer_that_is_kept_is_the_one_that_was_released() -> None:
    method = make_method("output-perturbation", {"feature_norm": 2.0})
    weights = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x *= 1.9 / x.norm(dim=1, keepdim=True)  # within the bound, where nothing is clipped
    weight, bias = method._layer(weights)  # type: ignore[attr-defined]
    phi = torch.cat([x / 2, torch.ones(7, 1)], dim=1) / 2**0.5
    torch.testing.assert_close(x @ weight.T + bias, phi @ weights.T)


@pytest.mark.parametrize("score", ["test", "held-out"])
def test_a_job_runs_one_on_either_split(score: Any) -> None:
    config = {"dataset": "digits", "method": "fedsel", "model": "linear"}
    row = json.loads(json.dumps(run_job(Job("x", config, 0, score), "cpu")))
    assert (row["epsilon"], row["local_epsilon"]) == (None, 2.0)
    assert 0 <= row["accuracy"] <= 1
