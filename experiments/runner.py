"""Runs many training jobs in worker processes on one machine, saves each result as it comes, and stops in time.

A job is a run config (the keys of a preset), a seed and what to score on: `held-out` (about 5,000 *training* records,
chosen by a hash of each, on which hyper-parameters are tuned) or `test` (for figures that are printed, never for
choosing). With each result stand the device, the code and a hash of the weights: equal accuracies need not be equal
models.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import json
import multiprocessing
import os
import platform
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

HELD_OUT = 5_000
Score = Literal["held-out", "test"]


@dataclass(frozen=True)
class Job:
    """One training run."""

    name: str
    config: dict[str, Any]
    seed: int
    score: Score


def run_job(job: Job, device: str) -> dict[str, Any]:
    """Trains one job and scores its last (or averaged) iterate."""
    import torch

    from adadpigu.config import merge
    from adadpigu.data import training_split
    from adadpigu.training import train_prepared
    from adadpigu.training.configured import configured, load_data

    settings = replace(merge(job.config), device=device, seed=job.seed, evaluate_every=10**9)
    data = load_data(settings)
    if job.score == "held-out":
        whole, data = data, training_split(data, HELD_OUT)
        # the same sampling rate as on all records, hence the same noise and the same number of steps
        steps = settings.steps or round((settings.epochs or 0) * whole.records / (settings.batch_size or 1))
        scaled = round((settings.batch_size or 1) * data.records / whole.records)
        settings = replace(settings, batch_size=scaled, steps=steps, epochs=None)
    made_by = commit()  # as the code is now, not when the job ends
    start = time.perf_counter()
    prepared = configured(settings, data)
    run = train_prepared(prepared)
    return {
        "name": job.name,
        "seed": job.seed,
        "score": job.score,
        "accuracy": run.accuracy,
        "epsilon": run.epsilon,
        "noise_multiplier": run.privacy.noise_multiplier,
        "seconds": round(time.perf_counter() - start, 1),
        "weights": fingerprint(run.model),
        "device": device_name(prepared.device),
        "commit": made_by,
        "torch": torch.__version__,
        "config": job.config,
    }


def fingerprint(model: torch.nn.Module) -> str:
    """16 hex digits of a SHA-256 over all that a model keeps, names and types included."""
    import torch

    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.processor() or platform.machine()})"


@functools.cache
def commit() -> str | None:
    """The commit of the code, followed by -dirty where code differs from it; None where git does not know."""
    here = Path(__file__).resolve().parents[1]
    try:
        head, changed = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "src", "experiments"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}-dirty" if changed else head


def _work(
    jobs: multiprocessing.Queue[Job], results: multiprocessing.Queue[dict[str, Any]], device: str, end: float
) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        gc.collect()  # what a run left on the device
        try:
            job = jobs.get(timeout=1)
        except queue.Empty:
            return
        if time.time() > end:
            results.put({"name": job.name, "seed": job.seed, "skipped": "no time left"})
            continue
        try:
            results.put(run_job(job, device))
        except Exception as error:
            results.put({"name": job.name, "seed": job.seed, "failed": f"{type(error).__name__}: {error}"})


def run_all(
    jobs: list[Job], *, out: Path, device: str, workers: int, seconds: float, grace: float
) -> Iterator[dict[str, Any]]:
    """Yields results as they come and appends them to `out`; no job is begun `grace` seconds before the end."""
    context = multiprocessing.get_context("spawn")
    todo: Any = context.Queue()
    done: Any = context.Queue()
    for job in jobs:
        todo.put(job)
    limit = time.time() + seconds
    crew = [context.Process(target=_work, args=(todo, done, device, limit - grace)) for _ in range(workers)]
    for process in crew:
        process.start()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        left = len(jobs)
        while left and time.time() < limit:
            try:
                result = done.get(timeout=1)
            except queue.Empty:
                if not any(process.is_alive() for process in crew):
                    break
                continue
            left -= 1
            file.write(json.dumps(result) + "\n")
            file.flush()
            os.fsync(file.fileno())
            yield result
    for process in crew:
        process.terminate()


def flags(parser: argparse.ArgumentParser, *, seeds: int) -> argparse.Namespace:
    """The arguments of a script that runs jobs: its own, and those all of them share."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--grace", type=float, default=60, help="begin no job so long before the end")
    return parser.parse_args()


def tell(result: dict[str, Any]) -> None:
    """One line about a result."""
    if "accuracy" in result:
        found = f"{100 * result['accuracy']:.2f} % at ε {result['epsilon']:.3f}, {result['seconds']} s"
    else:
        found = str(result.get("failed") or result.get("skipped"))
    sys.stderr.write(f"{result['name']} seed {result['seed']}: {found}\n")
    sys.stderr.flush()
