"""A process that torchrun has started: it joins its job, takes its own GPU, and knows whether it was started again.
Public: ranks, addresses and time limits only.

torchrun --nproc-per-node 2 -m adadpigu train --out runs/mine …
"""

import contextlib
import gc
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from torch import distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from adadpigu.accounting.ledger_reading import LEDGER_FILE
from adadpigu.core.processes import ALONE, Processes
from adadpigu.errors import InputError, first_line
from adadpigu.training.distributed.job import JobError, LostProcessError, current

T = TypeVar("T")
SILENCE = timedelta(minutes=10)  # after which a silent process counts as gone; one that has died is noticed at once
_SIZE = 2  # processes of a job that is started here


@contextlib.contextmanager
def joined(timeout: timedelta = SILENCE) -> Iterator[Processes]:
    """Within it this process is in the job that torchrun has started it for; alone where there is none."""
    if in_job():  # by the user, who also ends it
        yield current()
        return
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        yield ALONE
        return
    if torch.cuda.is_available():
        local, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= there:
            raise JobError(f"LOCAL_RANK={local}, but there are {there} GPUs; allowed: one process for each of them")
        torch.cuda.set_device(local)
    try:
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        fresh = PrefixStore(f"adadpigu/{attempt}", store)  # what a process left there before a restart is stale
        dist.init_process_group(store=fresh, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        told = f"WORLD_SIZE={os.environ['WORLD_SIZE']}: the processes of the job have not met"
        raise JobError(f"{told}: {first_line(error)}") from None
    try:
        yield current()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
            gc.collect()  # a group in a cycle keeps its threads, and a process that ends with them may abort


def in_job() -> bool:
    return dist.is_available() and dist.is_initialized()


def launched(work: Callable[[], T]) -> T:
    """Does the same in two processes on this machine, or in those of torchrun's job; returns what the first returns.

    They have a GPU each where there are enough, and share the CPU's cores otherwise.
    """
    if "RANK" in os.environ:
        with joined() as processes, only_first_prints(processes):
            return agreed(processes, work)
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=_SIZE,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=uuid.uuid4().hex,
        max_restarts=0,
    )
    found: T | InputError = elastic_launch(config, _member)(work, torch.cuda.device_count() >= _SIZE)[0]
    if isinstance(found, InputError):
        raise found
    return found


def _member(work: Callable[[], T], gpus: bool) -> T | InputError:
    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // _SIZE))
    try:
        with joined() as processes, only_first_prints(processes):
            return agreed(processes, work)
    except InputError as refusal:
        return refusal
    except SystemExit:  # of another process than the first, which says why
        return InputError("refused")


@contextlib.contextmanager
def only_first_prints(processes: Processes) -> Iterator[None]:
    """Within it the first process alone prints, and what it refuses is told once; who loses another process says so."""
    if processes.rank == 0:
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        before = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = nowhere
        try:
            yield
        except LostProcessError:
            raise
        except InputError:
            raise SystemExit(2) from None
        finally:
            sys.stdout, sys.stderr = before


def agreed(processes: Processes, work: Callable[[], T]) -> T:
    """Does the same in every process; what one of them refuses, all do."""
    made: T | None = None
    refusal: InputError | None = None
    try:
        made = work()
    except InputError as error:
        refusal = error
    every = processes.all_gather_object(None if refusal is None else str(refusal))
    if refusal is not None and (processes.rank == 0 or every[0] is None):
        raise refusal
    for rank, text in enumerate(every):
        if text is not None:
            raise JobError(f"rank {rank}: {text}")
    assert made is not None
    return made


def run_to_resume(out: Path | None) -> Path | None:
    """The run that a restarted job goes on with: the one in its folder, if it has begun; another would spend again."""
    most = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if most not in ("", "0") and out is None:
        told = f"max_restarts={most} without --out: a job that is started again must find its run"
        raise InputError(f"{told}; allowed: with --out")
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
    return out if again and out is not None and (out / LEDGER_FILE).is_file() else None
