"""Runs many training jobs in worker processes on one machine, saves each result as it comes, and stops in time.

A job is a run config (the keys of a preset), a seed and what to score on: `held-out` (5,000 *training* records, chosen
by position, on which hyper-parameters are tuned) or `test` (for figures that are printed, never for choosing).
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

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
    start = time.perf_counter()
    run = train_prepared(configured(settings, data))
    return {
        "name": job.name,
        "seed": job.seed,
        "score": job.score,
        "accuracy": run.accuracy,
        "epsilon": run.epsilon,
        "noise_multiplier": run.privacy.noise_multiplier,
        "seconds": round(time.perf_counter() - start, 1),
        "config": job.config,
    }


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
