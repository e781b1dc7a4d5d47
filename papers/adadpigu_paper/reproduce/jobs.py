"""One training run as a job, and its result as a row that tells by which code, on what and to which weights it came.

A job is a run config (the keys of a preset), a seed and what to score on: `held-out` (about 5,000 *training* records,
chosen by a hash of each, on which hyper-parameters are tuned) or `test` (for figures that are printed, never for
choosing). A row holds public values; what a `look` has seen under Diagnostics stands apart, under `seen`.
"""

from __future__ import annotations

import functools
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adadpigu.config import RunConfig, merge
from adadpigu.errors import InputError
from adadpigu.methods import make_method
from adadpigu.methods.standalone import Standalone

if TYPE_CHECKING:
    import torch

    from adadpigu.data import DataSet
    from adadpigu.runs.run import Metrics

HELD_OUT = 5_000
"""records on which settings are compared; of a small data set a fifth"""
Score = Literal["held-out", "test"]
Row = dict[str, Any]
"""one result, as it stands in a file of JSON lines"""


@dataclass(frozen=True)
class Job:
    """One training run."""

    name: str
    config: Mapping[str, Any]
    seed: int
    score: Score = "test"
    look: str | None = None
    """what is looked at of private records (`looks.LOOKS`); the config then has to open Diagnostics"""

    def key(self) -> Row:
        """What makes two jobs the same."""
        told = {"name": self.name, "seed": self.seed, "score": self.score, "config": dict(self.config)}
        return told if self.look is None else {**told, "look": self.look}


def key_of(row: Row) -> Row:
    """The key of the job that a row is the result of."""
    return {name: row[name] for name in ("name", "seed", "score", "config", "look") if name in row}


def run_job(job: Job, device: str) -> Row:
    """Trains one job and scores its last (or averaged) iterate; with `evaluate_every` its course is kept too."""
    from adadpigu.training import train_prepared
    from adadpigu.training.configured import configured
    from adadpigu_paper.reproduce.looks import looking

    settings = merge(job.config)
    for name in ("reproducible_noise", "randomness", "ledger"):
        if getattr(settings, name):
            raise InputError(f"{name}={getattr(settings, name)!r} in the config of a job; allowed: without it")
    settings = replace(settings, device=device)
    if isinstance(make_method(settings.method, settings.method_options), Standalone):
        return _run_alone(job, settings)
    settings = replace(settings, seed=job.seed, evaluate_every=settings.evaluate_every or 10**9)
    settings, data = _scored(settings, job.score)
    made_by, began = commit(), datetime.now(UTC).isoformat(timespec="seconds")  # as the code is now, not at the end
    start = time.perf_counter()
    prepared, look = looking(job.look, configured(settings, data))
    run = train_prepared(prepared, observers=[] if look is None else [look])
    if run.interrupted:  # asked to stop, it ended as it should; but it is no result, and no other job may follow
        raise KeyboardInterrupt
    row: Row = {
        **job.key(),
        "accuracy": run.accuracy,
        "epsilon": run.epsilon if run.privacy.private else None,
        "noise_multiplier": run.privacy.noise_multiplier,
        "steps": run.steps,
        "seconds": round(time.perf_counter() - start, 1),
        "training_seconds": round(run.seconds, 2),
        "at": began,
        **_made(run.model, prepared.device, made_by),
    }
    if job.config.get("evaluate_every"):
        row["curve"] = [_point(metrics) for metrics in run.metrics]
    if look is not None:
        row |= {"exposed": True, "seen": look.seen}
    return row


def _run_alone(job: Job, settings: RunConfig) -> Row:
    """The same of a system without steps; its seed fixes nothing, for its coins are drawn afresh."""
    from adadpigu.runs.loading import load_data
    from adadpigu.training.options import TrainingOptions

    whole, made_by, start = load_data(settings), commit(), time.perf_counter()
    data = whole if job.score == "test" else _kept(whole)
    method = make_method(settings.method, settings.method_options)
    assert isinstance(method, Standalone)
    run = method.run(settings, data=data)
    told = {} if run.epsilon is not None else {"local_epsilon": run.privacy.to_json()["epsilon_a_user"]}
    return {
        **job.key(),
        "accuracy": run.accuracy,
        "epsilon": run.epsilon,
        **told,
        "seconds": round(time.perf_counter() - start, 1),
        **_made(run.model, TrainingOptions(steps=1, device=settings.device).torch_device(), made_by),
    }


def _made(model: torch.nn.Module, device: torch.device, made_by: str | None) -> Row:
    """To which weights a run came, where and by which code."""
    from adadpigu.accounting import library_versions

    versions = library_versions()
    known = {"weights": fingerprint(model), "device": device_name(device), "commit": made_by}
    return {**known, "torch": versions["torch"], "versions": versions}


def _scored(settings: RunConfig, score: Score) -> tuple[RunConfig, DataSet]:
    """The data to train on, and the config for it: the same sampling rate, noise and steps as on all records."""
    from adadpigu.runs.loading import load_data

    data = load_data(settings)
    if score == "test":
        return settings, data
    whole, data = data, _kept(data)
    steps = settings.steps or round((settings.epochs or 0) * whole.records / (settings.batch_size or 1))
    scaled = round((settings.batch_size or 1) * data.records / whole.records)
    return replace(settings, batch_size=scaled, steps=steps, epochs=None), data


def _kept(data: DataSet) -> DataSet:
    """All but the records that are held out, which take the place of test records."""
    from adadpigu.data import training_split

    return training_split(data, min(HELD_OUT, data.records // 5))


def _point(metrics: Metrics) -> Row:
    return {
        "step": metrics.step,
        "epsilon": metrics.epsilon,
        "accuracy": metrics.test_accuracy,
        "active": metrics.active,
    }


def fingerprint(model: torch.nn.Module) -> str:
    """16 hex digits of a SHA-256 over all that a model keeps, names and types included."""
    from adadpigu.tensors import digest

    return digest(sorted(model.state_dict().items()))[:16]


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.processor() or platform.machine()})"


@functools.cache
def commit() -> str | None:
    """The commit of the code, followed by -dirty where code differs from it; None where the code is no checkout."""
    here = Path(__file__).resolve().parents[3]
    if not (here / "src" / "adadpigu").is_dir():  # installed: a repository around it would be another's
        return None
    try:
        head, changed = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "src", "papers", "experiments"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}-dirty" if changed else head
