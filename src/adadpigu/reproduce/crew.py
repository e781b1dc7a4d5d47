"""Runs many jobs, in this process or in several on one machine, and stops in time. Rows are yielded as they come."""

from __future__ import annotations

import gc
import multiprocessing
import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adadpigu.errors import first_line
from adadpigu.reproduce.jobs import Job, Row, run_job


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Where jobs are run, by how many processes and how long."""

    device: str = "auto"
    workers: int = 1
    """1: in this process, with all its threads; else so many processes of one thread each"""
    seconds: float = float("inf")
    grace: float = 60.0
    """no job is begun so long before the end"""

    def run(self, jobs: Sequence[Job]) -> Iterator[Row]:
        """A row for each job, in the order in which they end; one that failed or had no time left says so.

        `at_once` in a row tells how many processes shared the machine: without it times say little.
        """
        several = min(self.workers, len(jobs))
        rows = self._here(jobs) if several <= 1 else self._in_processes(jobs, several)
        return ({**row, "at_once": several} for row in rows)

    def _here(self, jobs: Sequence[Job]) -> Iterator[Row]:
        end = time.time() + self.seconds - self.grace
        for job in jobs:
            yield _attempt(job, self.device, end)

    def _in_processes(self, jobs: Sequence[Job], several: int) -> Iterator[Row]:
        context = multiprocessing.get_context("spawn")
        todo: Any = context.Queue()
        done: Any = context.Queue()
        for job in jobs:
            todo.put(job)
        limit = time.time() + self.seconds
        crew = [
            context.Process(target=_work, args=(todo, done, self.device, limit - self.grace), daemon=True)
            for _ in range(several)
        ]
        for process in crew:
            process.start()
        left = len(jobs)
        try:
            while left and time.time() < limit:
                try:
                    row = done.get(timeout=1)
                except queue.Empty:
                    if not any(process.is_alive() for process in crew):
                        break
                    continue
                left -= 1
                yield row
        finally:
            for process in crew:
                process.terminate()


def _attempt(job: Job, device: str, end: float) -> Row:
    if time.time() > end:
        return {**job.key(), "skipped": "no time left"}
    try:
        return run_job(job, device)
    except Exception as error:
        return {**job.key(), "failed": f"{type(error).__name__}: {first_line(error)}"}


def _work(todo: Any, done: Any, device: str, end: float) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        gc.collect()  # what a run left on the device
        try:
            job = todo.get(timeout=1)
        except queue.Empty:
            return
        done.put(_attempt(job, device, end))
