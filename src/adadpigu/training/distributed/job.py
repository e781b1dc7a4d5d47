"""The processes of a `torch.distributed` job: its default group, gloo between CPUs and NCCL between GPUs.

A record lives on rank (position mod W), and is drawn, read and clipped there. The first process tosses all coins and
the others are told on which side of q they fell; they wait for that, so nobody looks at a draw before it is charged. A
sum before its noise passes between the ranks in a reduction to the owners of its coordinates, and nowhere else.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from adadpigu.core.processes import ALONE, Processes
from adadpigu.errors import AdaDPIGUError, InputError, ModelError, first_line
from adadpigu.tensors import digest

T = TypeVar("T")
_single_process: ContextVar[bool] = ContextVar("_single_process", default=False)
# torch 2.13 has other names for these and deprecates the old ones
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor", None)
_all_gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)


class JobError(InputError):
    """The processes of a job do not train together: one has gone, or sees something else."""


class LostProcessError(JobError):
    """Another process of the job has gone, or has said nothing for too long."""


def current() -> Processes:
    """The processes among which this one is: the default group of torch.distributed where there is one, else alone."""
    if _single_process.get():
        return ALONE
    if dist.is_available() and dist.is_initialized():
        return ALONE if dist.get_world_size() == 1 else Job()
    size, rank = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK")
    if rank is not None and size not in ("", "1"):
        told = f"WORLD_SIZE={size}: torchrun has started several processes, and each would train and charge on its own"
        allowed = "torch.distributed.init_process_group() first, or adadpigu.training.distributed.alone() around it"
        raise JobError(f"{told}; allowed: {allowed}")
    return ALONE


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Within it a run is this process's own, whatever others do: another run each, with a ledger each."""
    before = _single_process.set(True)
    try:
        yield
    finally:
        _single_process.reset(before)


def refuse_wrapped(model: nn.Module) -> None:
    """A model in torch's own wrappers would send gradients to other processes before their noise."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        told = "the model is wrapped in DistributedDataParallel, which adds up gradients without noise; allowed"
        raise ModelError(f"{told}: the module inside (model.module), whose clipped sums a job adds up by itself")
    if "torch.distributed.fsdp" in sys.modules and isinstance(model, sys.modules["torch.distributed.fsdp"].FSDPModule):
        told = "the model is sharded by fully_shard already; allowed: the model before that"
        raise ModelError(f"{told}, for adadpigu.training.distributed.sharded_training.train_sharded, which shards it")


class Job(Processes):
    """All processes of the default group."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        backends = str(dist.get_backend_config())
        if "cpu:gloo" not in backends:
            told = f"backend={backends!r} cannot carry what is on the CPU; allowed"
            raise JobError(f"{told}: init_process_group() without a backend, or with 'gloo' or 'cpu:gloo,cuda:nccl'")

    def share_coins(self, taken: Tensor) -> Tensor:
        bits = torch.from_numpy(np.packbits(taken.cpu().numpy()))
        self.broadcast(bits)
        shared = torch.from_numpy(np.unpackbits(bits.numpy(), count=len(taken))).to(taken)
        return shared & (torch.arange(len(taken), device=taken.device) % self.size == self.rank)

    def own(self, count: int) -> tuple[slice, ...]:
        width = -(-count // self.size)
        return (slice(min(self.rank * width, count), min((self.rank + 1) * width, count)),)

    def reduce_scatter(self, values: Tensor) -> Tensor:
        (own,) = self.own(len(values))
        return self._scattered(values, -(-len(values) // self.size))[: own.stop - own.start]

    def _scattered(self, values: Tensor, each: int) -> Tensor:
        """This process's part, `each` numbers, of the sum over all processes."""
        part = values.new_empty(each)
        with self._together():
            _reduce_scatter(part, F.pad(values, (0, each * self.size - len(values))))
        return part

    def all_gather(self, part: Tensor, count: int) -> Tensor:
        width = -(-count // self.size)
        whole = part.new_empty(width * self.size)
        with self._together():
            _all_gather(whole, F.pad(part, (0, width - len(part))))
        return whole[:count]

    def any(self, *flags: bool) -> tuple[bool, ...]:
        raised = torch.tensor(flags, dtype=torch.int64)
        with self._together():
            dist.all_reduce(raised, op=dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in raised.tolist())

    def first(self, work: Callable[[], T]) -> T | None:
        made: T | None = None
        error: BaseException | None = None
        if self.rank == 0:
            try:
                made = work()
            except Exception as raised:
                error = raised
        ours = isinstance(error, AdaDPIGUError)
        said = "" if error is None else str(error) if ours else f"rank 0 has failed: {type(error).__name__}"
        refusal = self.broadcast_object(said)
        if error is not None:
            raise error
        if refusal:
            raise JobError(refusal)
        return made

    def broadcast_object(self, value: T | None) -> T:
        box: list[Any] = [value]
        with self._together():
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        said: T = box[0]
        return said

    def check_alike(self, weights: Tensor) -> None:
        if odd := odd_ranks(self.all_gather_object(digest([("weights", weights)]))):
            told = f"the weights of rank {odd} are not those of rank 0 any more; allowed: one kind of machine and of"
            raise JobError(f"{told} device, deterministic optimisers, and no change to weights by hand")

    def all_gather_object(self, value: T) -> list[T]:
        said: list[Any] = [None] * self.size
        with self._together():
            dist.all_gather_object(said, value)
        return said

    def broadcast(self, tensor: Tensor) -> None:
        whole = tensor.contiguous()  # itself, unless it lies in parts
        with self._together():
            dist.broadcast(whole, src=0)
        tensor.copy_(whole)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """A process that has gone, or is silent for too long, ends the others too, in one line."""
        try:
            yield
        except RuntimeError as error:
            reason = re.sub(r"^\[\S*\]\s*", "", first_line(error))[:80]  # without where it stands in gloo or NCCL
            lost = f"rank {self.rank} of {self.size} has lost another process of the job ({reason})"
            raise LostProcessError(f"{lost}; what was charged stands on the ledger; go on with --resume") from None


def odd_ranks(every: Sequence[object]) -> str:
    """Who says something else than the first process."""
    return ", ".join(str(rank) for rank, said in enumerate(every) if said != every[0])
