"""Who is timed: a method, an engine and a maker (ours, plain torch, or a peer), and what each must be able to do.

A contestant is a name that travels to other processes; `build` makes the thing that takes steps. What cannot be built
raises `Unavailable` with its reason, and is reported, never left out.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from adadpigu.training.memory import free_memory
from adadpigu_bench.nets import BenchNet, find_net, size

CLIP_NORM = 0.5
"""C of every private contestant"""
NOISE_MULTIPLIER = 4.0
"""σ of every private contestant; a step's time does not depend on it, the time of the accounting before it does"""
LEARNING_RATE, MOMENTUM = 0.1, 0.9

METHODS = ("dpsgd", "adadpigu", "adadpigu-top-k")
PEERS = ("opacus", "backpack", "jax", "fastdp")
EAGER, CHANNELS_LAST, CUDA_GRAPH = "torch eager", "torch eager channels-last", "torch cuda graph"
_MODES = {
    "opacus": ("hooks", "functorch", "ew", "ghost"),
    "backpack": ("batch-grad",),
    "jax": ("jit+vmap",),
    "fastdp": ("MixOpt",),
}


class Unavailable(Exception):  # noqa: N818 - it is a state of affairs, not a mistake
    """Why a contestant cannot run here, in one line."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What every contestant of one comparison has to do."""

    net: str
    batch: int
    """B"""
    device: str
    steps: int
    """how many steps may be asked for at most; what a schedule of ours is planned over"""

    @property
    def card(self) -> BenchNet:
        """The net, with its shapes."""
        return find_net(self.net)

    def batch_on_device(self) -> tuple[Tensor, Tensor]:
        """One fixed batch of B records, ready where the net is."""
        inputs, targets = self.card.records(self.batch)
        return inputs.to(self.device), targets.to(self.device)

    def model(self) -> nn.Module:
        """The net at its start, ready to train."""
        return self.card.model().to(self.device).train()


class Orders(Protocol):
    """Where a trainer learns how many steps are wanted next, and tells how long they took."""

    def wanted(self) -> int:
        """Waits for an order; 0 is the last one."""
        ...

    def taken(self, seconds: float) -> None:
        """Answers the order."""
        ...


Trainer = Callable[[Orders], Tensor]
"""Takes the steps that are ordered, in this thread, and times each order to the end of the device's work. Returns the
weights in the end, flat."""


def repeated(step: Callable[[], object], model: nn.Module, device: str) -> Trainer:
    """A trainer that calls one function a step."""

    def train(orders: Orders) -> Tensor:
        while steps := orders.wanted():
            synchronise(device)
            start = time.perf_counter()
            for _ in range(steps):
                step()
            synchronise(device)
            orders.taken(time.perf_counter() - start)
        return flat(model)

    return train


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One row of the table."""

    method: str
    engine: str | None
    peer: str | None
    """None for ours"""

    @property
    def label(self) -> str:
        """What a person calls it.

        >>> Contestant(method="dpsgd", engine="ghost", peer="opacus").label
        'opacus ghost'
        """
        return " ".join(word for word in (self.peer or f"ours {self.method}", self.engine) if word)

    def build(self, task: Task) -> Trainer:
        """What takes the steps; `Unavailable` where there is none."""
        maker = "ours" if self.peer is None else "jax_peer" if self.peer == "jax" else "torch_peers"
        made: Trainer = importlib.import_module(f"adadpigu_bench.{maker}").build(task, self)
        return made


BASELINE = Contestant(method="sgd", engine=None, peer=EAGER)


def contestants(methods: Sequence[str], engines: Sequence[str], peers: Sequence[str], device: str) -> list[Contestant]:
    """The baseline first, then other ordinary training, then ours, then the peers, which all run DP-SGD."""
    ordinary = (CHANNELS_LAST, CUDA_GRAPH) if device.startswith("cuda") else (CHANNELS_LAST,)
    plain = [Contestant(method="sgd", engine=None, peer=peer) for peer in ordinary]
    ours = [Contestant(method=method, engine=engine, peer=None) for method in methods for engine in engines]
    others = [Contestant(method="dpsgd", engine=mode, peer=peer) for peer in peers for mode in _MODES[peer]]
    return [BASELINE, *plain, *ours, *others]


def required(module: str, install: str) -> Any:
    """A peer's module; `Unavailable` says how to get it, or why it does not import."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == module.split(".")[0]
        raise Unavailable(f"not installed ({install})" if missing else f"does not import: {one_line(error)}") from None


def refuse_oversize(task: Task, copies: float) -> None:
    """`Unavailable` where per-sample gradients, B·d numbers held `copies` times, would not fit into free memory."""
    needed = copies * 4 * task.batch * size(task.card.model())
    free = free_memory(torch.device(task.device))
    if needed > 0.8 * free:
        gib = 2**30
        raise Unavailable(f"per-sample gradients need about {needed / gib:.1f} GiB; {free / gib:.1f} GiB are free")


def sgd(model: nn.Module) -> torch.optim.SGD:
    """The optimiser that all torch contestants share."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def synchronise(device: str) -> None:
    """Waits until a GPU has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(torch.device(device))


def flat(model: nn.Module) -> Tensor:
    """A copy of all weights, end to end."""
    return torch.cat([parameter.detach().reshape(-1).cpu() for parameter in model.parameters()])


def one_line(error: BaseException) -> str:
    """An error in one line of reasonable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text if len(text) <= 160 else text[:157] + '...'}"
