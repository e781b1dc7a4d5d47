"""Jobs of a few gloo processes for tests: each runs one function, and what they return comes back by rank."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.methods import make_method

OPTIONS: dict[str, dict[str, object]] = {
    "adadpigu": {"importance_steps": 4},
    "dpsur": {"test_batch_size": 30},
}


def data(count: int = 96) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(0)
    return torch.randn(count, 6, generator=chance), torch.randint(3, (count,), generator=chance)


def net(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))


def train(method: str = "dpsgd", *, model: nn.Module | None = None, **options: Any) -> ad.Run:
    """A short run whose draws and noise are fixed by a seed."""
    chosen = make_method(method, OPTIONS.get(method, {}))
    asked: dict[str, Any] = {"randomness": ReproducibleRandomness(5), "steps": 12, "lr": 0.5, "seed": 3}
    if chosen.private:
        asked["noise_multiplier"] = 1.0
    source = options.pop("source", None) or data()
    return ad.train(model or net(), source, records=96, method=chosen, batch_size=40, **asked | options)


def weights(run: ad.Run) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in run.model.parameters()])


def job(size: int, work: Callable[..., Any], *args: Any, backend: str = "gloo") -> list[Any]:
    """Runs `work(*args)` in so many processes at once; an exception comes back as its text."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        pipes = [context.Pipe(duplex=False) for _ in range(size)]
        started = [
            context.Process(target=_member, args=(rank, size, meeting, backend, pipes[rank][1], work, args))
            for rank in range(size)
        ]
        for process in started:
            process.start()
        for _, there in pipes:
            there.close()
        found = [_received(here) for here, _ in pipes]
        for process in started:
            process.join(60)
    return found


def _received(pipe: Connection) -> Any:
    try:
        return pickle.loads(pipe.recv_bytes())
    except EOFError:
        return "gone"


def _member(
    rank: int,
    size: int,
    meeting: str,
    backend: str,
    pipe: Connection,
    work: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    try:
        found = work(*args)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        if not isinstance(error, ad.AdaDPIGUError):
            found += "\n" + traceback.format_exc()
    pipe.send_bytes(pickle.dumps(found))  # as bytes: a tensor would be left in memory of this process
    pipe.close()
