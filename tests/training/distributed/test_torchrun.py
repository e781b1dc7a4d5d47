"""`torchrun -m adadpigu train`: one voice, a killed worker, a job that goes on, elastic restarts that keep charging."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adadpigu.accounting.ledger_reading import LEDGER_FILE, read_ledger

MORTAL = '''
import os, pathlib, signal, torch
from torch import nn

calls = [0]

class Mortal(nn.Module):
    """Kills its process in the middle of a step, once, on rank 1."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        calls[0] += self.training and len(x) > 8  # a draw, not an example that is probed
        marker = pathlib.Path(os.environ["MARKER"])
        if calls[0] == 45 and os.environ.get("RANK") == "1" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(x.flatten(1))

def net():
    return Mortal()
'''


def python_path(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def launched(folder: Path, *arguments: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "mortal.py").write_text(MORTAL)
    launcher = ["--nproc-per-node", "2", "--standalone", "--max-restarts", str(restarts), "-m", "adadpigu"]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *launcher, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": python_path(folder),
            "MARKER": str(folder / "died"),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )


TRAINING = ("train", "--method", "dpsgd", "--model", "mortal:net", "--steps", "40", "--spare-steps", "40")
OFTEN = ("--checkpoint-every", "5", "--reserve", "1", "--out", "run")


def test_a_killed_worker_ends_the_job_with_the_ledger_right_and_another_number_of_processes_goes_on(
    tmp_path: Path,
) -> None:
    ended = launched(tmp_path, *TRAINING, *OFTEN)
    assert (tmp_path / "died").exists()
    assert ended.returncode != 0
    told = [line for line in ended.stderr.splitlines() if line.startswith("adadpigu: error:")]
    assert len(told) <= 1  # torchrun may end the other process before it speaks
    assert all("has lost another process" in line for line in told)
    before = read_ledger(tmp_path / "run" / LEDGER_FILE)
    drawn = sum(before.spent().values())
    assert 10 < drawn < 40
    assert not before.damage

    going_on = ["train", "--resume", "run", "--trust-model-code", "--json"]
    again = subprocess.run(
        [sys.executable, "-m", "adadpigu", *going_on],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": python_path(tmp_path), "MARKER": str(tmp_path / "died")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert again.returncode == 0, again.stderr
    summary = json.loads(again.stdout)
    assert summary["steps_done"] == 40
    assert any("goes on with 1 process(es), after 2" in warning for warning in summary["warnings"])
    after = read_ledger(tmp_path / "run" / LEDGER_FILE)
    checkpoint = next(int(line["step"]) for line in after.lines if line.get("note") == "resumed")
    assert sum(after.spent().values()) == drawn + 40 - checkpoint


def test_a_job_that_torchrun_restarts_goes_on_and_keeps_charging(tmp_path: Path) -> None:
    ended = launched(tmp_path, *TRAINING, *OFTEN, "--json", restarts=1)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "died").exists()
    assert json.loads(ended.stdout)["steps_done"] == 40  # one object, from one process
    ledger = read_ledger(tmp_path / "run" / LEDGER_FILE)
    assert len(ledger.sessions()) == 2
    assert sum(session.steps for session in ledger.sessions()) == sum(ledger.spent().values()) > 40


def test_bad_input_is_told_once(tmp_path: Path) -> None:
    ended = launched(tmp_path, "train", "--steps", "5", "--batch-size", "0")
    assert ended.returncode != 0
    lines = [line for line in ended.stderr.splitlines() if line.startswith("adadpigu: error:")]
    assert len(lines) == 1
    assert "batch_size=0" in lines[0]


def test_a_job_that_may_be_restarted_must_say_where_its_run_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import adadpigu as ad
    from adadpigu.training.distributed.launching import run_to_resume

    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    with pytest.raises(ad.InputError, match="max_restarts=1 without --out"):
        run_to_resume(None)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run_to_resume(tmp_path) is None  # nothing was charged before
    (tmp_path / LEDGER_FILE).touch()
    assert run_to_resume(tmp_path) == tmp_path


def test_processes_that_were_not_made_a_job_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import adadpigu as ad
    from adadpigu.training.distributed import alone, current

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ad.InputError, match=r"WORLD_SIZE=2.*init_process_group"):
        current()
    with alone():
        assert current().size == 1
