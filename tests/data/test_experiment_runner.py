"""Results of experiments tell by which code, on what and to which weights they came."""

from __future__ import annotations

import copy
import importlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from adadpigu.config import merge
from adadpigu.models import make_model

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    found = importlib.import_module("runner")
    found.commit.cache_clear()
    yield found
    found.commit.cache_clear()


def test_a_result_holds_device_commit_version_and_weights(runner: Any) -> None:
    config = {"dataset": "digits", "method": "sgd", "model": "linear", "steps": 1, "batch_size": 64}
    assert merge(config).model == "linear"
    result = json.loads(json.dumps(runner.run_job(runner.Job("tiny", config, 0, "test"), "cpu")))
    assert re.fullmatch("[0-9a-f]{16}", result["weights"])
    assert result["torch"] == torch.__version__
    assert result["device"].startswith("cpu")
    assert result["commit"] == runner.commit()
    assert result["accuracy"] is not None


def test_fingerprints_are_equal_exactly_for_equal_models(runner: Any) -> None:
    model = make_model("digits-mlp", seed=0)
    same, other = copy.deepcopy(model), copy.deepcopy(model)
    assert runner.fingerprint(same) == runner.fingerprint(model)
    with torch.no_grad():
        weight = next(other.parameters()).view(-1)
        weight[-1] = torch.nextafter(weight[-1], torch.tensor(9.0))
    assert runner.fingerprint(other) != runner.fingerprint(model)
    counting = torch.nn.BatchNorm1d(3)  # its count has no dimension
    assert len(runner.fingerprint(counting)) == 16


def test_the_commit_says_where_the_code_differs_from_it(
    runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for name in ("src", "experiments", "results"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("1")

    def git(*words: str) -> str:
        named = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *named, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def told() -> Any:
        runner.commit.cache_clear()
        return runner.commit()

    monkeypatch.setattr(runner, "__file__", str(tmp_path / "experiments" / "runner.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert told() is None
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert told() == head
    (tmp_path / "results" / "file").write_text("2")
    assert told() == head
    (tmp_path / "src" / "file").write_text("2")
    assert told() == f"{head}-dirty"
    monkeypatch.setenv("PATH", "")
    assert told() is None
