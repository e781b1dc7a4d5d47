"""`adadpigu train --resume`: signals, disks that fail, and everything that is refused in one line."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adadpigu.accounting import read_ledger
from adadpigu.runs.run import Metrics, RunFolder
from adadpigu.training.checkpoints import Checkpoints

STEPS = 12
TRAIN = (
    *("train", "--model", "linear", "--batch-size", "64", "--noise-multiplier", "1.5", "--device", "cpu"),
    *("--seed", "1", "--json"),
)
SHORT = (*TRAIN, "--steps", str(STEPS), "--evaluate-every", str(STEPS), "--reserve", "1")


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """The program ignores Ctrl-C once it was interrupted, which this process outlives."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def stopped_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where copies of stopped runs are kept for the next test."""
    return tmp_path_factory.mktemp("stopped")


@pytest.fixture
def stopped(call: Any, monkeypatch: pytest.MonkeyPatch, stopped_before: Path) -> Callable[..., Path]:
    """Gives a run folder whose run was stopped by SIGTERM after a step: each name is a run of its own, trained once."""

    def made(name: str = "run", *flags: str, after: int = 5) -> Path:
        kept = stopped_before / "-".join((name, str(after), *flags))
        if not kept.exists():
            shutil.copytree(trained(name, *flags, after=after), kept)
        return shutil.copytree(kept, Path(name), dirs_exist_ok=True)

    def trained(name: str, *flags: str, after: int) -> Path:
        genuine = RunFolder.update

        def update(self: RunFolder, metrics: Metrics) -> None:
            genuine(self, metrics)
            if metrics.step == after:
                signal.raise_signal(signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "update", update)
            code, out, err = call(*SHORT, *flags, "--out", name)
        assert code == 130, err
        assert json.loads(out)["steps_done"] == after
        return Path(name)

    return made


def refused(call: Any, *arguments: str) -> str:
    """What a command line is refused with: one line, exit code 2, nothing on standard output."""
    code, out, err = call(*arguments)
    assert (code, out) == (2, ""), err
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("adadpigu: error: ")
    return str(err)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_says_so(call: Any, stopped: Callable[..., Path]) -> None:
    run = stopped("run", "--method", "dpsgd")
    code, out, err = call("train", "--resume", str(run), "--json")
    assert code == 0, err
    assert json.loads(out)["preset"] == "digits-dpsgd"
    found = json.loads(out)
    assert (found["steps_done"], found["steps"], found["interrupted"]) == (STEPS, STEPS, False)
    assert call("ledger", "verify", str(run), "--json")[0] == 0
    statement = " ".join((run / "statement.txt").read_text().split())
    assert "2 processes worked on this run" in statement
    assert call("evaluate", str(run))[0] == 0


CHANGED = {
    "lr": ("--lr", "0.5"),
    "method": ("--method", "dpsgd"),
    "epsilon": ("--epsilon", "9"),
    "batch_size": ("--batch-size", "32"),
    "clip_norm": ("--set", "clip_norm=0.7"),
    "retention": ("--retention", "0.5"),
    "steps": ("--steps", "13"),
    "noise_multiplier": ("--noise-multiplier", "3"),
    "delta": ("--delta", "1e-6"),
    "model": ("--model", "mlp"),
    "dataset": ("--dataset", "mnist"),
    "seed": ("--seed", "2"),
    "ema": ("--ema", "0.8"),
    "spare_steps": ("--spare-steps", "3"),
    "normalisation": ("--normalisation", "record"),
    "optimizer": ("--optimizer", "adam"),
}


@pytest.mark.slow
def test_a_changed_setting_is_refused_by_its_name(call: Any, stopped: Callable[..., Path]) -> None:
    run = stopped()
    before = files(run)
    for key, flags in CHANGED.items():
        told = refused(call, "train", "--resume", str(run), *flags)
        assert f"error: {key}=" in told
        assert "is not what the run began with; allowed: " in told
        assert files(run) == before


@pytest.mark.slow
def test_settings_that_are_the_same_or_change_nothing_are_taken(call: Any, stopped: Callable[..., Path]) -> None:
    same = ("--lr", "0.25", "--set", "clip_norm=0.5", "--batch-size", "64", "--noise-multiplier", "1.5")
    run = stopped()
    free = ("--physical-batch-size", "16", "--evaluate-every", "3", "--checkpoint-every", "2", "--engine", "loop")
    code, out, err = call("train", "--resume", str(run), *same, *free, "--randomness", "fast", "--json")
    assert code == 0, err
    assert json.loads(out)["steps_done"] == STEPS
    assert [session.randomness[:8] for session in read_ledger(run / "ledger.log").sessions()] == [
        "ChaCha20",
        "torch's ",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("lr = 0.25", "lr = 0.5", "lr"),
        ("batch_size = 64", "batch_size = 32", "batch_size"),
        ("delta = 1e-05", "delta = 1e-04", "delta"),
        ("clip_norm = 0.5", "clip_norm = 2.0", "method.clip_norm"),
        ("steps = 12", "steps = 13", "steps"),
        ('optimizer = "sgd"', 'optimizer = "adam"', "optimizer"),
    ],
)
def test_a_config_that_was_edited_by_hand_is_refused_by_the_key(
    call: Any, stopped: Callable[..., Path], old: str, new: str, key: str
) -> None:
    run = stopped()
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))
    code, out, err = call("train", "--resume", str(run), "--json")
    assert (code, out) == (2, "")
    assert f"error: {key}=" in err.splitlines()[-1]
    assert "is not what the run began with" in err


@pytest.mark.slow
def test_a_budget_below_what_is_spent_is_refused(call: Any, stopped: Callable[..., Path]) -> None:
    run = stopped("run", after=STEPS - 1)
    told = refused(call, "train", "--resume", str(run), "--epsilon", "0.1")
    assert "epsilon=0.1 is lower than what the run has spent already (" in told


def test_a_run_goes_on_in_its_own_folder_as_it_began(call: Any, stopped: Callable[..., Path]) -> None:
    run = stopped()
    for flag, value in (("--out", "other"), ("--preset", "digits-adadpigu"), ("--config", "run/config.toml")):
        assert f"{flag[2:]}={value!r} with --resume" in refused(call, "train", "--resume", str(run), flag, value)


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder", "other files", "no ledger"])
def test_what_is_no_run_is_refused(call: Any, stopped: Callable[..., Path], what: str) -> None:
    run = Path("run")
    if what == "a file":
        run.write_text("text")
    elif what != "nothing":
        run.mkdir()
    if what == "other files":
        (run / "notes.txt").write_text("text")
    if what == "no ledger":
        run.rmdir()
        stopped()
        (run / "ledger.log").unlink()
    assert "'run" in refused(call, "train", "--resume", "run")


def test_a_finished_run_is_refused(call: Any) -> None:
    assert call(*SHORT, "--out", "run")[0] == 0
    before = files(Path("run"))
    told = refused(call, "train", "--resume", "run")
    assert told == "adadpigu: error: resume='run': it is finished; allowed: a run that was stopped or crashed\n"
    assert files(Path("run")) == before


@pytest.mark.slow
def test_the_ledger_of_another_run_is_refused(call: Any, stopped: Callable[..., Path]) -> None:
    run, other, third = (stopped(name) for name in ("first", "other", "third"))
    for name in ("ledger.log", "ledger.head"):
        shutil.copy(other / name, run / name)
    code, out, err = call("train", "--resume", str(run))
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].endswith("the ledger belongs to another run than the checkpoint")
    (run / "ledger.head").write_bytes(files(third)["ledger.head"])
    assert "its head belongs to another record" in refused(call, "train", "--resume", str(run))


@pytest.mark.slow
def test_a_ledger_that_is_older_than_its_checkpoint_is_refused(call: Any, stopped: Callable[..., Path]) -> None:
    run = stopped()
    older = {name: (run / name).read_bytes() for name in ("ledger.log", "ledger.head")}
    code, _, err = call("train", "--resume", str(run), "--json")
    assert code == 0, err
    for name, content in older.items():
        (run / name).write_bytes(content)
    code, out, err = call("train", "--resume", str(run))
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].endswith("the ledger is older than the checkpoint, or another copy of it")


def test_a_folder_on_a_read_only_disk_is_refused(
    call: Any, stopped: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the disk's answer is given here."""
    run, code = stopped(), errno.EROFS
    before, genuine = files(run), os.open

    def read_only(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT) and "run" in Path(os.fspath(path)).parts:
            raise OSError(code, os.strerror(code))
        return genuine(path, flags, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        exit_code, out, err = call("train", "--resume", str(run))
        assert (exit_code, out) == (2, "")
        assert err.splitlines()[-1].endswith(f"cannot be written: {os.strerror(code)}")
        assert "Traceback" not in err
    assert files(run) == before


def test_a_new_run_below_a_file_is_refused(call: Any) -> None:
    Path("file").write_text("text")
    code, out, err = call(*SHORT, "--out", "file/run")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == "adadpigu: error: out='file/run' cannot be written: Not a directory"


def fail_in_checkpoint(patch: pytest.MonkeyPatch, function: str, code: int, nth: int) -> None:
    """The nth call to a function of `os` fails, of those that are made while a checkpoint is written."""
    genuine, save, calls = getattr(os, function), Checkpoints.save, [-1]

    def failing(*arguments: Any, **options: Any) -> Any:
        if calls[0] >= 0:
            calls[0] += 1
            if calls[0] == nth:
                raise OSError(code, os.strerror(code))
        return genuine(*arguments, **options)

    def saving(self: Checkpoints, checkpoint: Any) -> None:
        calls[0] = 0
        try:
            save(self, checkpoint)
        finally:
            calls[0] = -1

    patch.setattr(os, function, failing)
    patch.setattr(Checkpoints, "save", saving)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "nth", "code"),
    [
        ("mkdir", 2, errno.ENOSPC),
        ("fsync", 1, errno.EIO),
        ("fsync", 3, errno.ENOSPC),
        ("replace", 1, errno.EIO),
        ("replace", 2, errno.ENOSPC),
        ("rename", 1, errno.EIO),
    ],
)
def test_a_disk_that_fails_at_a_checkpoint_ends_the_run_in_one_line_and_it_can_go_on(
    call: Any, monkeypatch: pytest.MonkeyPatch, function: str, nth: int, code: int
) -> None:
    with monkeypatch.context() as patch:
        fail_in_checkpoint(patch, function, code, nth)
        exit_code, out, err = call(*SHORT, "--checkpoint-every", "4", "--spare-steps", "4", "--out", "run")
    assert (exit_code, out) == (2, ""), err
    told = ("warning:", "epsilon=", "per-record gradients:", "  and they agree")
    errors = [line for line in err.splitlines() if not line.startswith(told)]
    assert len(errors) == 1, err
    assert os.strerror(code).lower() in errors[0].lower()
    privacy = json.loads(Path("run/privacy.json").read_text())
    assert (privacy["steps_charged"], privacy["interrupted"]) == (4, True)
    assert read_ledger(Path("run/ledger.log")).sessions()[-1].end == "failed"
    assert not list(Path("run/checkpoints").glob(".*"))
    exit_code, out, err = call("train", "--resume", "run", "--json")
    assert exit_code == 0, err
    assert json.loads(out)["steps_done"] == STEPS
    assert json.loads(Path("run/privacy.json").read_text())["steps_charged"] == STEPS + 4


@pytest.mark.slow
@pytest.mark.parametrize("when", [3, 7, STEPS])
def test_a_disk_that_takes_nothing_more_ends_the_run_in_one_line_and_the_ledger_holds(
    call: Any, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    """From a step on every write fails, to whatever file."""
    genuine = RunFolder.update

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:

        def update(self: RunFolder, metrics: Metrics) -> None:
            genuine(self, metrics)
            if metrics.step == when:
                for function in ("pwrite", "write", "fsync", "fdatasync", "replace", "rename", "mkdir"):
                    patch.setattr(os, function, full)
                patch.setattr(Path, "write_text", full)

        patch.setattr(RunFolder, "update", update)
        exit_code, out, err = call(*SHORT, "--checkpoint-every", "4", "--spare-steps", "4", "--out", "run")
    assert (exit_code, out) == (2, ""), err
    assert "Traceback" not in err
    assert "no space left on device" in err.splitlines()[-1].lower()
    verified, out, _ = call("ledger", "verify", "run", "--json")
    assert verified == 0
    assert json.loads(out)["steps"] >= when
    exit_code, out, err = call("train", "--resume", "run", "--json")
    assert exit_code == 0, err
    assert json.loads(out)["steps_done"] == STEPS


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "adadpigu", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever ran here before has left
    )


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Until something is on disk, while the process works."""
    until = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.005)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "reserve"), [(signal.SIGTERM, 1), (signal.SIGINT, 8)])
def test_a_signal_ends_a_run_with_a_checkpoint_and_no_step_is_charged_twice(
    call: Any, number: signal.Signals, reserve: int
) -> None:
    """While it trains, a second process that would resume it is refused at once."""
    steps, run = 600, Path("run").absolute()
    arguments = [*TRAIN, "--steps", str(steps), "--evaluate-every", str(steps), "--reserve", str(reserve)]
    process = start(*arguments, "--method", "dpsgd", "--out", str(run))
    try:
        wait_for(process, lambda: size_of(run / "ledger.log") > 8000)
        assert "is in use by another process" in refused(call, "train", "--resume", str(run))
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, err
    stopped = json.loads(out)
    done = stopped["steps_done"]
    assert stopped["interrupted"]
    assert 0 < done < steps
    assert "Traceback" not in err
    assert (run / "checkpoints" / f"step-{done:08d}").is_dir()
    statement = " ".join((run / "statement.txt").read_text().split())
    assert "interrupted" in statement.lower()
    code, out, err = call("train", "--resume", str(run), "--json")
    assert code == 0, err
    assert json.loads(out)["steps_done"] == steps
    privacy = json.loads((run / "privacy.json").read_text())
    assert privacy["steps_charged"] == steps
    sessions = [(session["first_step"], session["steps"], session["end"]) for session in privacy["lives"]]
    assert sessions == [(0, done, "interrupted"), (done, steps - done, "finished")]
    statement = " ".join((run / "statement.txt").read_text().split())
    assert statement.index("interrupted") < statement.index("finished")
