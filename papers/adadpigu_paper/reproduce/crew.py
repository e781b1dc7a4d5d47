"""Runs many jobs, in this process or in several on one machine, within a time. Every job gets a row."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from adadpigu.errors import first_line
from adadpigu_paper.reproduce.jobs import Job, Row, run_job

_FOREVER = float("inf")
_TRIES = 2  # of a job whose process dies


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
        """A process that dies is replaced, and its job tried once more: the next one may find the memory it lacked."""
        start, todo = time.time(), deque((job, 1) for job in jobs)
        crew = [_Worker.hired(self.device, start + self.begin_within) for _ in range(several)]
        try:
            while todo or any(worker.job for worker in crew):
                for worker in crew:
                    if todo and worker.job is None:
                        worker.take(*todo.popleft())
                for ready in wait([worker.line for worker in crew if worker.job], timeout=1):
                    place = next(place for place, worker in enumerate(crew) if worker.line is ready)
                    worker = crew[place]
                    job, tried, row = worker.answer()
                    if row is not None:
                        yield row
                        continue
                    crew[place] = _Worker.hired(self.device, start + self.begin_within)
                    if tried < _TRIES:
                        todo.appendleft((job, tried + 1))
                    else:
                        yield {**job.key(), "failed": f"its process died {tried} times, {worker.end()}"}
                if time.time() > start + self.stop_after:
                    break
        finally:
            for worker in crew:
                worker.process.kill()
        left = [worker.job for worker in crew if worker.job is not None] + [job for job, _ in todo]
        yield from ({**job.key(), "skipped": "no time left"} for job in left)


@dataclass
class _Worker:
    """A process that takes one job at a time, by a line of its own: what happens to one process hinders no other."""

    process: Any
    line: Connection
    job: Job | None = None
    tried: int = 0

    @classmethod
    def hired(cls, device: str, end: float) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, device, end), daemon=True)
        process.start()
        theirs.close()  # held by the process alone, so that its end is heard here
        return cls(process, ours)

    def take(self, job: Job, tried: int) -> None:
        self.job, self.tried = job, tried
        with suppress(OSError):  # a process that is gone answers so
            self.line.send(job)

    def answer(self) -> tuple[Job, int, Row | None]:
        """The job in hand, and its row; None for a process that died over it."""
        assert self.job is not None
        job, self.job = self.job, None
        try:
            row: Row | None = self.line.recv()
        except (EOFError, OSError):
            row = None
        return job, self.tried, row

    def end(self) -> str:
        self.process.join(timeout=5)
        code = self.process.exitcode
        return f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"


def _attempt(job: Job, device: str, end: float) -> Row:
    if time.time() > end:
        return {**job.key(), "skipped": "no time left"}
    try:
        return run_job(job, device)
    except Exception as error:
        return {**job.key(), "failed": f"{type(error).__name__}: {first_line(error)}"}


def _work(line: Connection, device: str, end: float) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        gc.collect()  # what a run left on the device
        try:
            job = line.recv()
        except EOFError:
            return
        line.send(_attempt(job, device, end))
