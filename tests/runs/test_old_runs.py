"""Run folders of earlier versions, as those wrote them: read, gone on with, or refused with the version's name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadpigu.methods import AdaDPIGU
from run_folders import changed, rewritten

OLD = Path(__file__).parent / "old"
METHODS = ("dpsgd", "adadpigu")
BEGUN = "adadpigu '0.1.0', on '2026-11-19'"


@pytest.fixture
def old(tmp_path: Path) -> Callable[[str], str]:
    """Gives a copy of an old run's folder."""
    return lambda name: shutil.copytree(OLD / name, tmp_path / name).name


@pytest.mark.parametrize("method", METHODS)
def test_an_old_run_is_evaluated_and_predicts(call: Any, old: Callable[[str], str], method: str) -> None:
    run = old(f"{method}-finished")
    code, out, err = call("evaluate", run, "--json")
    assert code == 0, err
    told = json.loads((OLD / run / "summary.json").read_text())["test_accuracy"]
    assert json.loads(out)["test_accuracy"] == pytest.approx(told)
    np.save("new.npy", np.zeros((2, 1, 8, 8), dtype=np.float32))
    assert call("predict", run, "new.npy", "--json")[0] == 0


@pytest.mark.parametrize("name", [path.name for path in sorted(OLD.glob("*-*"))])
def test_the_ledger_of_an_old_run_is_whole_and_shown(call: Any, old: Callable[[str], str], name: str) -> None:
    run = old(name)
    for command in ("verify", "show"):
        code, _, err = call("ledger", command, run, "--json")
        assert code == 0, err


def test_what_the_report_leaves_out_of_an_old_run_is_its_claim(call: Any, old: Callable[[str], str]) -> None:
    assert call("report", old("dpsgd-finished"))[0] == 0
    code, out, err = call("report", old("adadpigu-finished"))
    assert (code, "1 run;" in out) == (1, True)
    assert err.startswith("left out: the claim of run='adadpigu-finished': ")


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_old_run_goes_on_to_its_end(call: Any, old: Callable[[str], str], method: str) -> None:
    run = old(f"{method}-interrupted")
    code, out, err = call("train", "--resume", run, "--json")
    assert code == 0, err
    assert json.loads(out)["steps_done"] == 12
    assert call("evaluate", run)[0] == 0
    assert call("ledger", "verify", run)[0] == 0


def test_an_old_run_does_not_go_on_with_a_newer_option_switched_on(call: Any, old: Callable[[str], str]) -> None:
    run = old("dpsgd-interrupted")
    config = Path(run, "config.toml")
    config.write_text('denoise = "soft"\n' + config.read_text())
    code, out, err = call("train", "--resume", run, "--json")
    assert (code, out) == (2, "")
    assert "denoise='soft' is not what the run began with; allowed: 'none'" in err


def test_an_option_that_is_gone_is_refused_with_the_version_that_had_it(call: Any, old: Callable[[str], str]) -> None:
    run = old("dpsgd-interrupted")
    rewritten(Path(run), lambda header: header["facts"]["settings"].update({"method.sharpness": 3}))
    shutil.rmtree(Path(run, "checkpoints"))  # the ledger that it names is another now
    code, out, err = call("train", "--resume", run, "--json")
    assert (code, out) == (2, "")
    assert "method.sharpness=None is not what the run began with; allowed: 3" in err
    assert BEGUN in err


def test_another_plan_for_the_same_settings_is_refused_with_the_version_of_the_old_one(
    call: Any, old: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdaDPIGU, "_importance_steps", lambda *_: 3)
    code, out, err = call("train", "--resume", old("adadpigu-interrupted"), "--json")
    assert (code, out) == (2, "")
    assert "the plan is not the one that the run began with" in err
    assert BEGUN in err


@pytest.mark.parametrize("kind", ["noise", "white-box"])
def test_an_audit_of_an_old_run_whose_config_means_another_plan_today_names_the_version(
    call: Any, old: Callable[[str], str], kind: str
) -> None:
    """Stage 1 of 40 steps took 2 of them, and takes 3: the default has changed, and both keep the claim."""
    code, out, err = call("audit", kind, old("adadpigu-finished"), "--json")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert BEGUN in err
    assert "--config adadpigu-finished/config.toml" in err


@pytest.mark.parametrize(("steps", "claimed", "finding"), [(38, 2.0, "costs epsilon="), (20, 2.1, "is not the one")])
def test_a_claim_below_the_plan_of_ledger_or_config_stays_refuted(
    call: Any, old: Callable[[str], str], steps: int, claimed: float, finding: str
) -> None:
    """The config's 40 steps cost 2.22; a ledger that plans fewer of them does not make a lower claim true."""
    run = old("adadpigu-finished")
    rewritten(Path(run), lambda header: header["plan"]["stages"][1].update(steps=steps), records=1)
    changed(Path(run), "privacy.json", epsilon_pld=claimed)
    code, out, _ = call("audit", "sampler", run, "--draws", "40", "--json")
    assert code == 1
    assert f"the plan on the ledger {finding}" in json.loads(out)["findings"][0]


def test_an_audit_of_an_old_run_whose_plan_is_the_same_looks_at_it(call: Any, old: Callable[[str], str]) -> None:
    code, out, err = call("audit", "sampler", old("dpsgd-finished"), "--draws", "40", "--json")
    assert code == 0, err
    assert json.loads(out)["findings"] == []
