"""Rows tell by which code, on what and to which weights they came; records are seen under Diagnostics alone."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from adadpigu.errors import InputError
from adadpigu.models import make_model
from adadpigu.training.configured import configured
from adadpigu.training.loop import Session
from adadpigu.training.observers import ObserverHub
from adadpigu_paper.reproduce import jobs
from adadpigu_paper.reproduce.crew import Crew
from adadpigu_paper.reproduce.jobs import Job, key_of, run_job
from adadpigu_paper.reproduce.looks import TrainingAccuracy, looking

TINY = {"dataset": "digits", "method": "sgd", "model": "linear", "steps": 2, "batch_size": 64, "lr": 0.1}
PRIVATE = {**TINY, "method": "dpsgd", "epsilon": 8.0}


@pytest.fixture(autouse=True)
def _fresh_commit() -> Iterator[None]:
    jobs.commit.cache_clear()
    yield
    jobs.commit.cache_clear()


def test_a_row_holds_device_commit_versions_and_weights() -> None:
    row = json.loads(json.dumps(run_job(Job("tiny", TINY, 0), "cpu")))
    assert re.fullmatch("[0-9a-f]{16}", row["weights"])
    assert row["versions"]["torch"] == torch.__version__ == row["torch"]
    assert row["device"].startswith("cpu")
    assert row["commit"] == jobs.commit()
    assert 0 < row["accuracy"] <= 1
    assert row["epsilon"] is None  # SGD promises nothing
    assert "curve" not in row
    assert "seen" not in row
    assert key_of(row) == Job("tiny", TINY, 0).key()


def test_a_course_is_kept_where_it_is_asked_for() -> None:
    row = run_job(Job("tiny", {**PRIVATE, "steps": 4, "evaluate_every": 2}, 0), "cpu")
    assert [point["step"] for point in row["curve"]] == [2, 4]
    spent = [point["epsilon"] for point in row["curve"]]
    assert 0 < spent[0] < spent[1] <= row["epsilon"] + 1e-9
    assert row["curve"][-1]["accuracy"] == row["accuracy"]


def test_held_out_scores_come_from_training_records_at_the_same_sampling_rate() -> None:
    test, held_out = (run_job(Job("tiny", PRIVATE, 0, score), "cpu") for score in ("test", "held-out"))
    assert test["noise_multiplier"] == pytest.approx(held_out["noise_multiplier"], rel=0.01)
    assert test["steps"] == held_out["steps"]


def test_records_are_looked_at_under_diagnostics_alone() -> None:
    from adadpigu.config import merge

    closed = configured(merge({**PRIVATE, "seed": 0}))
    with pytest.raises(InputError, match="TrainingAccuracy looks at private records; allowed: with diagnostics=True"):
        looking("training-accuracy", closed)
    assert looking(None, closed) == (closed, None)
    with pytest.raises(InputError, match="unknown look 'lossess'"):
        looking("lossess", closed)


def test_training_accuracy_is_that_of_the_last_weights_on_training_records() -> None:
    from adadpigu.config import merge
    from adadpigu.training import train_prepared

    settings = merge({**PRIVATE, "steps": 3, "evaluate_every": 3, "diagnostics": True, "seed": 0})
    prepared, look = looking("training-accuracy", configured(settings))
    assert isinstance(look, TrainingAccuracy)
    run = train_prepared(prepared, observers=[look])
    inputs, targets = prepared.data.train.take(torch.arange(len(prepared.data.train)))
    with torch.no_grad():
        right = (run.model(inputs).argmax(1) == targets).float().mean()
    assert look.seen == [{"step": 3, "training_accuracy": pytest.approx(float(right))}]
    assert run.privacy.diagnostics_exposed


def test_an_interrupted_run_is_no_result_and_no_job_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, genuine = [], Session.after_step

    def after_step(self: Session, stage: int) -> None:
        genuine(self, stage)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ObserverHub, "begin", lambda _, done: begun.append(done))
    monkeypatch.setattr(Session, "after_step", after_step)
    with pytest.raises(KeyboardInterrupt):
        list(Crew(device="cpu").run([Job("a", {**TINY, "steps": 5}, 0), Job("a", TINY, 1)]))
    assert len(begun) == 1


def test_a_crew_gives_every_job_a_row_and_tells_what_failed() -> None:
    broken = Job("broken", {**TINY, "model": "no-such-model"}, 0)
    todo = [Job("a", TINY, 0), broken, Job("a", TINY, 1)]
    alone = list(Crew(device="cpu").run(todo))
    assert [row["name"] for row in alone] == ["a", "broken", "a"]
    assert "no-such-model" in alone[1]["failed"]
    several = list(Crew(device="cpu", workers=2).run(todo))
    assert sorted(row["name"] for row in several) == ["a", "a", "broken"]
    seen = {row["seed"]: row["accuracy"] for row in several if row["name"] == "a"}
    assert set(seen) == {0, 1}
    assert {row["at_once"] for row in several} == {2}


@pytest.mark.parametrize("workers", [1, 2])
def test_no_job_is_begun_when_the_time_is_over_and_each_says_so(workers: int) -> None:
    late = list(Crew(device="cpu", workers=workers, begin_within=-1).run([Job("a", TINY, seed) for seed in range(3)]))
    assert [row["skipped"] for row in late] == ["no time left"] * 3
    assert sorted(row["seed"] for row in late) == [0, 1, 2]


def test_jobs_that_are_stopped_or_whose_process_dies_are_told() -> None:
    long = Job("long", {**TINY, "steps": 10**6, "batch_size": 8}, 0)
    stopped = list(Crew(device="cpu", workers=2, stop_after=3).run([long, Job("long", long.config, 1)]))
    assert [(row["name"], row["skipped"]) for row in stopped] == [("long", "no time left")] * 2
    killed = Job("killed", {**TINY, "model": f"{__name__}:kill_this_process"}, 0)
    rows = list(Crew(device="cpu", workers=2).run([killed, Job("a", TINY, 0)]))
    told = {row["name"]: row.get("failed") for row in rows}
    assert told == {"a": None, "killed": "its process died 2 times, by signal 9"}


def test_a_job_whose_process_dies_once_is_done_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIED_BEFORE", str(tmp_path / "died"))
    once = [Job("once", {**TINY, "model": f"{__name__}:kill_this_process_once"}, seed) for seed in (0, 1)]
    rows = list(Crew(device="cpu", workers=2).run(once))
    assert (tmp_path / "died").exists()
    assert sorted(row["seed"] for row in rows if "accuracy" in row) == [0, 1]


def kill_this_process_once() -> torch.nn.Module:
    mark = Path(os.environ["DIED_BEFORE"])
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def kill_this_process() -> torch.nn.Module:
    """A model whose making the system ends, as it ends what takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return torch.nn.Identity()


def test_fingerprints_are_equal_exactly_for_equal_models() -> None:
    model = make_model("digits-mlp", seed=0)
    same, other = copy.deepcopy(model), copy.deepcopy(model)
    assert jobs.fingerprint(same) == jobs.fingerprint(model)
    with torch.no_grad():
        weight = next(other.parameters()).view(-1)
        weight[-1] = torch.nextafter(weight[-1], torch.tensor(9.0))
    assert jobs.fingerprint(other) != jobs.fingerprint(model)
    counting = torch.nn.BatchNorm1d(3)  # its count has no dimension
    assert len(jobs.fingerprint(counting)) == 16


def test_the_commit_says_where_the_code_differs_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    code, core = tmp_path / "papers" / "adadpigu_paper" / "reproduce", tmp_path / "src" / "adadpigu"
    for folder in (code, core, tmp_path / "experiments", tmp_path / "results"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("1")

    def git(*words: str) -> str:
        named = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *named, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def told() -> str | None:
        jobs.commit.cache_clear()
        return jobs.commit()

    monkeypatch.setattr(jobs, "__file__", str(code / "jobs.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert told() is None
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert told() == head
    (tmp_path / "results" / "file").write_text("2")
    assert told() == head
    for folder in (code, core, tmp_path / "experiments"):
        (folder / "file").write_text("2")
        assert told() == f"{head}-dirty"
        (folder / "file").write_text("1")
    assert told() == head
    installed = tmp_path / ".venv" / "lib" / "python" / "site-packages" / "adadpigu_paper" / "reproduce" / "jobs.py"
    monkeypatch.setattr(jobs, "__file__", str(installed))
    assert told() is None  # another's repository around it says nothing of this code
    monkeypatch.setattr(jobs, "__file__", str(code / "jobs.py"))
    monkeypatch.setenv("PATH", "")
    assert told() is None


def test_a_job_that_asks_for_what_it_would_not_get_is_refused() -> None:
    with pytest.raises(InputError, match="reproducible_noise=True in the config of a job"):
        run_job(Job("tiny", {**PRIVATE, "reproducible_noise": True}, 0), "cpu")
