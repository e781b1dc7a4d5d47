"""`adadpigu tune`: what it needs, what it refuses, and that a kill neither draws again nor makes a run twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from adadpigu.accounting.journal import read_journal
from adadpigu.cli.tuning import _choices
from adadpigu.errors import InputError
from adadpigu.runs.verifying import verify

QUICK = ["--method", "dpsgd", "--steps", "3", "--batch-size", "64", "--epsilon", "4"]


@pytest.mark.slow
def test_a_search_prints_its_best_run(call: Any, tmp_path: Path) -> None:
    code, out, err = call(
        *["tune", *QUICK, "--choose", "lr=0.1,1", "--choose", "clip_norm=0.1,1", "--mean-runs", "2"],
        *["--out", "best", "--json"],
    )
    assert code == 0, err
    told = json.loads(out)
    assert told["candidates"] == 4
    assert told["repeats"] == {"law": "geometric", "mean": 2.0}
    assert 3.9 < told["epsilon"] <= 4
    assert "reserved for all runs" in err
    assert verify(tmp_path / "best").bound
    config = (tmp_path / "best" / "config.toml").read_text()
    assert "private_validation = 0.1" in config
    assert (tmp_path / "best" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--choose", "lr=1"], "epsilon=None: a search needs a budget"),
        ([*QUICK, "--choose", "lr"], "--choose 'lr' is not NAME=A,B"),
        ([*QUICK, "--choose", "lr=1,1"], "says something twice"),
        ([*QUICK, "--choose", "lr=1", "--lr", "2"], "lr=2.0 and --choose lr"),
        ([*QUICK, "--choose", "noise_multiplier=1"], "no choice that a score could make"),
        ([*QUICK, "--choose", "lrr=1"], "lrr"),
        ([*QUICK, "--choose", "lr=-"], "lr"),
        ([*QUICK, "--choose", "lr=1", "--mean-runs", "0"], "mean_runs=0.0"),
        ([*QUICK, "--choose", "lr=1", "--law", "uniform"], "unknown law 'uniform'"),
        ([*QUICK, "--choose", "lr=1", "--private-validation", "2"], "private_validation=2.0"),
        ([*QUICK, "--choose", "lr=1", "--resume"], "has not begun"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_drawn(
    call: Any, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = call("tune", *arguments, "--out", "best")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "best.tuning").exists()


def test_choices_are_all_combinations() -> None:
    assert len(_choices(["lr=1,2,3", "momentum=0,0.9"])) == 6
    assert _choices([]) == [{}]
    with pytest.raises(InputError, match="twice"):
        _choices(["lr=1", "lr=2"])


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_with_its_draw(tmp_path: Path) -> None:
    """Killed three times, somewhere: as many runs begin as were drawn, none twice, and the folder holds."""
    flags = [*QUICK, "--choose", "lr=0.1,1", "--mean-runs", "12", "--out", str(tmp_path / "best"), "--json"]
    command = [sys.executable, "-m", "adadpigu", "tune", *flags]
    work, turns = tmp_path / "best.tuning" / "tuning.log", None
    for patience in (0.3, 0.6, 0.1):
        again = ["--resume"] if work.is_file() else []
        started = subprocess.Popen([*command, *again], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while started.poll() is None and (not work.is_file() or len(read_journal(work).bodies) < 2):
            time.sleep(0.02)
        time.sleep(patience)
        if started.poll() is None:
            os.kill(started.pid, signal.SIGKILL)
        started.wait()
        header = read_journal(work).bodies[0]
        turns = turns or header["turns"]
        assert header["turns"] == turns
    if not (tmp_path / "best").exists():
        subprocess.run([*command, "--resume"], check=False, capture_output=True)
    begun = [line["begun"] for line in read_journal(work).bodies if "begun" in line]
    assert begun == list(range(len(turns or [])))
    if any(line.get("best") for line in read_journal(work).bodies):
        assert verify(tmp_path / "best").bound
    assert not list((tmp_path / "best.tuning").glob("best-*"))
