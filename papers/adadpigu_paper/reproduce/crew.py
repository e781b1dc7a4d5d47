"""Runs many jobs, in this process or in several on one machine, within a time. Every job gets a row."""

from __future__ import annotations

import gc
import multiprocessing
import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adadpigu.errors import first_line
from adadpigu_paper.reproduce.jobs import Job, Row, run_job

_FOREVER = float("inf")


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Where jobs are run, by how many processes and how long."""

    device: str = "auto"
    workers: int = 1
    """1: in this process, with all its threads; else so many processes of one thread each"""
    begin_within: float = _FOREVER
    """seconds after which no job is begun; those that were are finished"""
    stop_after: float = _FOREVER
    """seconds after which processes are ended, whatever they do"""

    def run(self, jobs: Sequence[Job]) -> Iterator[Row]:
        """A row for each job, in the order in which they end; one that failed or had no time left says so.

        `at_once` in a row tells how many processes shared the machine: without it times say little.
        """
        several = min(self.workers, len(jobs))
        rows = self._here(jobs) if several <= 1 else self._in_processes(jobs, several)
        return ({**row, "at_once": several} for row in rows)

    def _here(self, jobs: Sequence[Job]) -> Iterator[Row]:
        end = time.time() + self.begin_within
        for job in jobs:
            yield _attempt(job, self.device, end)

    def _in_processes(self, jobs: Sequence[Job], several: int) -> Iterator[Row]:
        context = multiprocessing.get_context("spawn")
        todo: Any = context.Queue()
        done: Any = context.Queue()
        left = dict(enumerate(jobs))
        for numbered in left.items():
            todo.put(numbered)
        start = time.time()
        crew = [
            context.Process(target=_work, args=(todo, done, self.device, start + self.begin_within), daemon=True)
            for _ in range(several)
        ]
        for process in crew:
            process.start()
        lost = {"failed": "its process died"}
        try:
            while left:
                alive = any(process.is_alive() for process in crew)  # asked first: what it has sent is then still found
                try:
                    number, row = done.get(timeout=1)
                except queue.Empty:
                    if not alive:
                        break
                else:
                    del left[number]
                    yield row
                if time.time() > start + self.stop_after:
                    lost = {"skipped": "no time left"}
                    break
        finally:
            for process in crew:
                process.terminate()
        yield from ({**job.key(), **lost} for job in left.values())


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
            number, job = todo.get(timeout=1)
        except queue.Empty:
            return
        done.put((number, _attempt(job, device, end)))
