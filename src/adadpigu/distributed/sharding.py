"""Models that do not fit: weights, sums, noise and optimiser state sharded over the processes by FSDP2.

    per layer:  rows g_i of the records here -> ‖g_i‖² of this layer    (its weights gathered for the forward alone)
    factors c_i from all layers, then per layer:  Σ c_i g_i -> reduced to the owners of its rows -> + their noise

A rank owns the rows of every parameter that `fully_shard` has given it: it alone holds their weights, draws their
noise and keeps their optimiser state. DP-SGD on models that layer rules cover; anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.bounding import GradientSum, record_factors
from adadpigu.distributed.job import Job
from adadpigu.errors import InputError, ModelError
from adadpigu.gradients.rule_engine import RuleEngine, Wanted, owns
from adadpigu.layout import Layout, Slot
from adadpigu.mechanism import Release, look
from adadpigu.standardising import Standardised

Shard = Callable[[nn.Module], None]
"""applies `fully_shard` to the parts of a model and then to the model"""


class Shards(Job):
    """A job whose members own rows of every parameter, as `fully_shard` splits them: ⌈rows/W⌉ each, in order.

    Unlike in a plain job, sums come reduced from the engine, and releases stay with their owners.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout

    def rows(self, slot: Slot) -> slice:
        """The rows of a parameter that this process owns."""
        each = -(-slot.shape[0] // self.size)
        return slice(min(self.rank * each, slot.shape[0]), min((self.rank + 1) * each, slot.shape[0]))

    def place(self, slot: Slot) -> slice:
        """Where they lie in the flat gradient."""
        rows, width = self.rows(slot), (slot.stop - slot.start) // slot.shape[0]
        return slice(slot.start + rows.start * width, slot.start + rows.stop * width)

    def own(self, count: int) -> tuple[slice, ...]:
        if count != self.layout.size:
            raise ModelError(f"a sum of {count} numbers is no gradient; allowed with shards: sums of gradients alone")
        return tuple(self.place(slot) for slot in self.layout.slots)

    def padding(self, count: int, size: int | None) -> int:
        """All processes gather weights for the micro-batches of any: so each has as many as the largest share needs."""
        assert size is not None
        batches = torch.tensor(max(1, -(-count // size)))
        with self._together():
            torch.distributed.all_reduce(batches, op=torch.distributed.ReduceOp.MAX)
        return int(batches) * size - count

    def reduced(self, slot: Slot, total: Tensor) -> Tensor:
        """This process's rows of the sum over all processes, of one parameter."""
        each = -(-slot.shape[0] // self.size)
        width = len(total) // slot.shape[0]
        padded = total.new_zeros(self.size * each * width)
        padded[: len(total)] = total
        rows = self.rows(slot)
        return self._scattered(padded)[: (rows.stop - rows.start) * width]

    def added_up(self, values: Tensor) -> Tensor:
        return values

    def gathered(self, part: Tensor, count: int) -> Tensor:
        return part


class ShardedEngine(RuleEngine):
    """Layer rules, one layer at a time, so that no process holds the sum of all of them: what it returns is its own.

    Rows are built twice, for their norm and for the sum: the same operations on the same numbers.
    """

    name = "sharded"

    def __init__(self, engine: RuleEngine, shards: Shards) -> None:
        super().__init__(engine.model, engine.loss, f"one layer at a time, sharded; {engine.reason}")
        self.layout = engine.layout
        self.operations, self.rows_alike, self.align = engine.operations, engine.rows_alike, engine.align
        self._shards = shards

    def clipped(
        self, inputs: Tensor, targets: Tensor, copies: int, query: GradientSum, present: Tensor | None = None
    ) -> Tensor:
        if query.active is not None or query.center is not None or query.scale is not None or query.top_k < 1:
            raise ModelError(f"{query.name!r} is masked or standardised; allowed with shards: DP-SGD's plain sum")
        calls, losses = self._forward(inputs, targets, copies, self.layout.slots)
        pairs = self._backward(calls, losses, len(inputs))
        layers = [Wanted(query, tuple(s), self.layout.size, inputs.device) for s in self.layout.layers().values()]

        def built(layer: Wanted) -> Standardised:
            parameters = self._owned(layer.slots)
            used = [(call, dy) for call, dy in pairs if owns(call.module, parameters)]
            return layer.standardised(self._rows(used, layer, slice(0, len(targets)), copies))

        squares = [built(layer).squares() for layer in layers]
        factors = record_factors(squares, query, present, length=self.layout.size)
        own: list[Tensor] = []
        for layer in layers:
            totals = torch.split(built(layer).total(factors), [slot.stop - slot.start for slot in layer.slots])
            own += [self._shards.reduced(slot, total) for slot, total in zip(layer.slots, totals, strict=True)]
        return torch.cat(own)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Watches buffers alone: `fully_shard` itself replaces parameters in a forward and keeps state in modules."""
        before = {name: (buffer, buffer._version) for name, buffer in self.model.named_buffers()}
        with torch.autocast(self._kind()[1].type, enabled=False):
            yield
        for name, buffer in self.model.named_buffers():
            held, version = before.get(name, (None, 0))
            if held is not buffer or version != buffer._version:
                raise ModelError(f"buffer {name!r} was changed in a forward; allowed: layers that keep nothing of it")


def by_blocks(model: nn.Module) -> None:
    """`fully_shard` on every part of the model that has parts of its own, then on the model; leaves keep their type."""
    from torch.distributed.fsdp import fully_shard

    for child in model.children():
        if any(True for _ in child.children()):
            fully_shard(child)
    fully_shard(model, reshard_after_forward=True)


def shard(model: nn.Module, engine: object, how: Shard) -> tuple[Shards, ShardedEngine]:
    """Shards a model whose engine was chosen while it was whole."""
    if not isinstance(engine, RuleEngine):
        raise ModelError("<model>: it is not covered by layer rules; allowed with shards: layers that have a rule")
    order = [slot for slots in engine.layout.layers().values() for slot in slots]
    if order != list(engine.layout.slots):
        raise ModelError("<model>: the parameters of a layer do not follow each other; allowed with shards: they do")
    shards = Shards(engine.layout)
    how(model)
    whole = [slot.name for slot in engine.layout.slots if not hasattr(model.get_parameter(slot.name), "to_local")]
    if whole:
        raise InputError(f"shard: parameter {whole[0]!r} is still whole; allowed: fully_shard on the model at last")
    return shards, ShardedEngine(engine, shards)


@torch.no_grad()
def expose(release: Release, model: nn.Module, shards: Shards, batch_size: int) -> None:
    """ĝ = S/B in the `grad` of every parameter, each process its own rows."""
    value, _ = look(release)
    at = 0
    for slot in shards.layout.slots:
        parameter: Any = model.get_parameter(slot.name)
        local = parameter.to_local()
        part = (value[at : at + local.numel()] / batch_size).view(local.shape).to(local)
        at += local.numel()
        parameter.grad = _sharded_like(part, parameter)


def _sharded_like(local: Tensor, parameter: Any) -> Tensor:
    from torch.distributed.tensor import DTensor

    made: Tensor = DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )
    return made
