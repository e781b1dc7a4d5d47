"""A logger that fails is named once and left out; the run, its ledger and its folder stay whole."""

from __future__ import annotations

import builtins
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from logged_runs import trained

import adadpigu as ad
from adadpigu.accounting.ledger_reading import LEDGER_FILE, read_ledger
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.loggers import LOGGERS, Facts, Logger, Metrics, Run, make_logger
from adadpigu.runs.run import check_observers


class Failing(Logger):
    """Fails at one of the three moments."""

    name = "failing"

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at
        self.heard: list[str] = []

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        if what == self.at:
            raise OSError("no space left on device\nand more")

    def _start(self, facts: Facts, settings: Mapping[str, Any]) -> None:
        self._hear("open")

    def _write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._hear(f"write {step}")

    def _close(self, run: Run, results: Mapping[str, float]) -> None:
        self._hear("close")


STEPS = [f"write {step}" for step in range(1, 7)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "heard", "when"),
    [
        ("open", ["open"], "at the beginning"),
        ("write 3", ["open", *STEPS[:3]], "at step 3"),
        ("close", ["open", *STEPS, "close"], "at the end"),
    ],
)
def test_a_failing_logger_is_named_once_and_the_run_goes_on_as_without_it(
    at: str, heard: list[str], when: str, tmp_path: Path
) -> None:
    logger = Failing(at)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = trained(logger, out=tmp_path / "run", randomness=ReproducibleRandomness(5))
    (words,) = [str(w.message) for w in told if "logger" in str(w.message)]
    assert words == (
        f"the logger 'failing' failed {when} (OSError: no space left on device) and is switched off; "
        "the run goes on without it"
    )
    assert logger.heard == heard
    alone = trained(out=tmp_path / "alone", randomness=ReproducibleRandomness(5))
    for mine, other in zip(run.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    kept = [read_ledger(tmp_path / name / LEDGER_FILE) for name in ("run", "alone")]
    assert kept[0].damage == ""
    assert [session.steps for session in kept[0].sessions()] == [session.steps for session in kept[1].sessions()] == [6]
    assert (tmp_path / "run" / "model.safetensors").exists()


class Raising:
    """An observer of the user's own, which nobody has promised to be harmless."""

    def __init__(self, at: str) -> None:
        self.at = at

    def begin(self, facts: Facts) -> None:
        return None

    def update(self, metrics: Metrics) -> None:
        if self.at == "update" and metrics.step == 3:
            raise RuntimeError("mine")

    def end(self, run: Run) -> None:
        if self.at == "end":
            raise RuntimeError("mine")


def test_an_observer_of_ones_own_that_raises_ends_the_run_with_the_ledger_right(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mine"):
        trained(Raising("update"), out=tmp_path / "run")
    record = read_ledger(tmp_path / "run" / LEDGER_FILE)
    assert record.damage == ""
    assert [(session.steps, session.end) for session in record.sessions()] == [(3, "failed")]
    assert not (tmp_path / "run" / "model.safetensors").exists()


class Half:
    """Cannot be told of the end."""

    def begin(self, facts: Facts) -> None:
        return None

    update = 3


@pytest.mark.parametrize(
    ("observers", "words"),
    [
        ([Raising("never"), Half()], r"observers\[1\]=Half: allowed: an instance with the methods begin"),
        ([print], r"observers\[0\]=builtin_function_or_method: allowed: an instance with the methods begin"),
        ([Raising], r"observers\[0\]=Raising: allowed: an instance with the methods begin"),
        (Raising("never"), "observers=Raising: allowed: a list of them"),
        ("tensorboard", r"observers\[0\]=str: allowed: an instance"),
    ],
)
def test_what_cannot_follow_a_run_is_refused_by_name(observers: Any, words: str) -> None:
    with pytest.raises(ad.InputError, match=words) as caught:
        check_observers(observers)
    assert len(str(caught.value).splitlines()) == 1
    check_observers([Raising("never"), Failing("never")])
    with pytest.raises(ad.InputError, match=words):  # before anything is drawn
        ad.train(
            torch.nn.Linear(3, 2),
            (torch.ones(9, 3), torch.ones(9).long()),
            records=9,
            steps=1,
            batch_size=3,
            method="dpsgd",
            noise_multiplier=1.0,
            observers=observers,
        )


def test_one_that_raises_at_the_end_does_not_cost_the_model(tmp_path: Path) -> None:
    """It was paid for by then; the error is still raised."""
    with pytest.raises(RuntimeError, match="mine"):
        trained(Raising("end"), out=tmp_path / "run")
    for name in ("model.safetensors", "summary.json", "privacy.json"):
        assert (tmp_path / "run" / name).exists()


MODULES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_package_is_told_with_the_command_that_brings_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__
    for module in [m for m in sys.modules if m.split(".")[0] == MODULES[name] or m.startswith("torch.utils.tensorb")]:
        monkeypatch.delitem(sys.modules, module)

    def gone(module: str, *rest: Any, **more: Any) -> Any:
        if module.split(".")[0] == MODULES[name]:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module.split(".")[0])
        return real(module, *rest, **more)

    monkeypatch.setitem(sys.modules, MODULES[name], None)
    monkeypatch.setattr(builtins, "__import__", gone)
    with pytest.raises(ad.InputError) as caught:
        make_logger(name, tmp_path)
    assert f"pip install 'adadpigu[{name}]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_logger_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ad.InputError, match="unknown logger 'tensorbord'; did you mean 'tensorboard'"):
        make_logger("tensorbord", tmp_path)
    with pytest.raises(ad.InputError, match="allowed: one of them"):
        LOGGERS["mlflow"](tmp_path).__class__()


@pytest.mark.slow
def test_the_command_line_logs_to_the_run_folder(call: Any, tmp_path: Path) -> None:
    short = ["--steps", "4", "--batch-size", "64", "--json"]
    code, _, err = call("train", "--out", "run", "--log", "tensorboard", "--log", "mlflow", *short)
    path = "per-record gradients: layer rules, as every trained parameter belongs to Linear, and they agree with"
    assert (code, " ".join(err.split())) == (0, f"{path} autograd on an example")
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))
    assert list((tmp_path / "run" / "mlruns").rglob("metrics/epsilon"))
    code, _, err = call("train", "--out", "other", "--log", "excel", *short)
    assert code == 2
    assert "unknown logger 'excel'" in err
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_importing_the_package_and_its_loggers_brings_no_logging_library() -> None:
    told = (
        "import adadpigu, adadpigu.loggers, adadpigu.export, sys; print({'mlflow', 'wandb', 'onnx'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
