"""Models that do not fit: weights, sums, noise and optimiser state sharded over the processes by FSDP2.

    per layer:  rows g_i of the records here -> ‖g_i‖² of this layer    (its weights gathered for the forward alone)
    factors c_i from all layers, then per layer:  Σ c_i g_i -> reduced to the owners of its rows -> + their noise

A rank owns the rows of every parameter that `fully_shard` has given it: it alone holds their weights, draws their
noise and keeps their optimiser state. DP-SGD on models that layer rules cover; anything else is refused by name. The
loop, the sampler, the ledger, the draws and the mechanism are those of `train`.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.core.bounding import GradientSum, record_factors
from adadpigu.core.gradients.engine import GradientEngine
from adadpigu.core.gradients.rule_engine import RuleEngine, Wanted
from adadpigu.core.gradients.state import refuse_changes
from adadpigu.core.layout import Layout, Slot
from adadpigu.core.mechanism import Release, look
from adadpigu.core.randomness import Randomness, Tier
from adadpigu.core.standardising import Standardised
from adadpigu.core.trees import Tree
from adadpigu.data.datasets import Source
from adadpigu.errors import InputError, ModelError, require
from adadpigu.methods import DPSGD
from adadpigu.runs.run import Run
from adadpigu.training.distributed.job import Job, JobError, current
from adadpigu.training.loop import Session
from adadpigu.training.optimiser import MaskedOptimiser
from adadpigu.training.reporting import print_path
from adadpigu.training.train import name_hooks, opened, prepared_for, randomness_of

Shard = Callable[[nn.Module], None]  # applies `fully_shard` to the parts of a model and then to the model


@dataclass(frozen=True)
class ShardedLayout(Layout):
    """The layout of a sharded model: places are those of the whole, θ is the part that this process holds."""

    def read(self, model: nn.Module) -> Tensor:
        return torch.cat([local.reshape(-1) for local in self._held(model)])

    def write(self, model: nn.Module, flat: Tensor) -> None:
        held = self._held(model)
        for local, value in zip(held, torch.split(flat, [local.numel() for local in held]), strict=True):
            local.copy_(value.view(local.shape))

    @torch.no_grad()
    def _held(self, model: nn.Module) -> list[Tensor]:
        parameters: list[Any] = self.parameters(model)
        return [parameter.to_local().detach() for parameter in parameters]


class ShardedOptimiser(MaskedOptimiser):
    """Steps the rows that this process holds, along its part of a release."""

    @torch.no_grad()
    def expose(self, direction: Release) -> None:
        from torch.distributed.tensor import DTensor

        parameters: list[Any] = self._parameters
        held = [parameter.to_local() for parameter in parameters]
        parts = torch.split(look(direction)[0], [local.numel() for local in held])
        for parameter, local, value in zip(parameters, held, parts, strict=True):
            part, place = value.view(local.shape).to(local), (parameter.device_mesh, parameter.placements)
            parameter.grad = DTensor.from_local(part, *place, shape=parameter.shape, stride=parameter.stride())

    def refresh(self) -> None:
        self.weights.copy_(self._layout.read(self._model))


class Shards(Job):
    """A job whose members own rows of every parameter, as `fully_shard` splits them: ⌈rows/W⌉ each, in order.

    Unlike in a plain job, sums come reduced from the engine, and releases stay with their owners.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout

    def rows(self, slot: Slot) -> slice:
        return super().own(slot.shape[0])[0]

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
        each, width, rows = -(-slot.shape[0] // self.size), len(total) // slot.shape[0], self.rows(slot)
        return self._scattered(total, each * width)[: (rows.stop - rows.start) * width]

    def reduce_scatter(self, values: Tensor) -> Tensor:
        return values

    def all_gather(self, part: Tensor, count: int) -> Tensor:
        return part

    def check_alike(self, weights: Tensor) -> None:
        """Each process holds weights of its own."""


class ShardedEngine(RuleEngine):
    """Layer rules, one layer at a time, so that no process holds all sums. Rows are built twice: for norm and sum."""

    name = "sharded"
    sums_whole_rows = False

    def __init__(self, engine: RuleEngine, shards: Shards) -> None:
        super().__init__(engine.model, engine.loss, f"one layer at a time, sharded; {engine.reason}", engine.net)
        self.layout = shards.layout
        self.operations, self.rows_alike, self.align = engine.operations, engine.rows_alike, engine.align
        self._shards = shards

    def clipped(
        self, inputs: Tree, targets: Tensor, copies: int, query: GradientSum, present: Tensor | None = None
    ) -> Tensor:
        if query.active is not None or query.center is not None or query.scale is not None or query.top_k < 1:
            raise ModelError(f"{query.name!r} is masked or standardised; allowed with shards: DP-SGD's plain sum")
        calls, losses = self._forward(inputs, targets, copies, self.selection(self.layout.slots))
        pairs = self._backward(calls, losses, copies * len(targets))
        layers = [self.wanted(query, slots, targets.device) for slots in self.layout.layers().values()]

        def built(layer: Wanted) -> Standardised:
            used = [(call, dy) for call, dy in pairs if self.owns(call.module, layer.chosen.names)]
            return layer.standardised(self._rows(used, layer.chosen, slice(0, len(targets)), copies))

        squares = [built(layer).squares() for layer in layers]
        factors = record_factors(squares, query, present, length=self.layout.size)
        own: list[Tensor] = []
        for layer in layers:
            totals = torch.split(built(layer).total(factors), layer.chosen.sizes)
            own += [self._shards.reduced(slot, total) for slot, total in zip(layer.chosen.slots, totals, strict=True)]
        return torch.cat(own)

    def _unchanged(self) -> AbstractContextManager[object]:
        """Does not watch parameters: `fully_shard` itself replaces them in a forward."""
        return refuse_changes(self.net, kinds=("buffer", "attribute"))


def by_blocks(model: nn.Module) -> None:
    """`fully_shard` on every part of the model that has parts of its own, then on the model; leaves keep their type."""
    from torch.distributed.fsdp import fully_shard

    for child in model.children():
        if any(True for _ in child.children()):
            fully_shard(child)
    fully_shard(model, reshard_after_forward=True)


def shard(model: nn.Module, engine: GradientEngine, how: Shard) -> tuple[Shards, ShardedEngine]:
    """Shards a model whose engine was chosen while it was whole."""
    if not isinstance(engine, RuleEngine):
        raise ModelError(f"<model>: {engine.reason}; allowed with shards: engine='ghost', for layers that have a rule")
    order = [slot for slots in engine.layout.layers().values() for slot in slots]
    if order != list(engine.layout.slots):
        raise ModelError("<model>: the parameters of a layer do not follow each other; allowed with shards: they do")
    shards = Shards(ShardedLayout(engine.layout.slots))
    how(model)
    whole = [slot.name for slot in engine.layout.slots if not hasattr(model.get_parameter(slot.name), "to_local")]
    if whole:
        raise InputError(f"shard: parameter {whole[0]!r} is still whole; allowed: fully_shard on the model at last")
    return shards, ShardedEngine(engine, shards)


_IDLE = frozenset({"lr", "momentum", "weight_decay", "lr_schedule", "warmup", "ema", "tail"}) | frozenset(
    {"execution", "diagnostics", "checkpoint_every", "evaluate_every", "perturbation"}
    | {"copies", "shift", "flip", "views", "body_lr"}
)
"""options of `train` that mean nothing, or cannot be had, here"""


def train_sharded(
    model: nn.Module,
    dataset: Source,
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    clip_norm: float = 0.5,
    shards: Shard = by_blocks,
    out: Path | str | None = None,
    randomness: Randomness | Tier | None = None,
    **options: Any,
) -> Run:
    """Trains a model by DP-SGD, sharded over all processes of the job.

    `model` is whole and the same everywhere when it comes, on the CPU or on each rank's own device; `shards` applies
    `fully_shard` to it. `optimizer` makes any optimiser of one gradient a step from the sharded parameters.
    `options` are arguments of `train`: records, privacy, delta, loss or losses, batch_size, steps or epochs, device,
    noise_multiplier, reserve, physical_batch_size (needed: rows of a layer's gradients that are built at once). With
    `out` the ledger and the statement are written there; a run has no checkpoints.

    Formal guarantee: as for `train`. No process sees a coordinate's sum before its noise but the coordinate's owner.
    """
    if current().size == 1:
        raise JobError("a model is sharded over the processes of a job; allowed: in one that torchrun has started")
    for name in _IDLE & options.keys():
        raise InputError(f"{name}={options[name]!r} is not for sharded training; allowed: leave it out")
    at_once = options.get("physical_batch_size")
    require(isinstance(at_once, int), f"physical_batch_size={at_once}: sharded training needs a number of records")
    engine = "auto" if options.get("losses") is None else "ghost"  # by themselves they run one record at a time
    asked = {"device": "cpu", "engine": engine, **options, "optimizer": optimizer}
    prepared = prepared_for(model, dataset, method=DPSGD(clip_norm=clip_norm), out=out, **asked)
    source = randomness_of(randomness, prepared)
    with opened(prepared, source, out=out) as begun:
        if current().rank == 0:
            print_path(prepared)
        name_hooks(begun.prepared, begun.ledger)
        sharing, layered = shard(begun.prepared.model, begun.prepared.engine, shards)
        ready = replace(begun, prepared=replace(begun.prepared, engine=layered), folder=None)
        run = Session(ready, randomness=source, processes=sharing, optimiser=ShardedOptimiser).run()
        if begun.folder is not None:
            begun.folder.write_privacy(run.privacy)
            begun.folder.close_record()
    return run


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a sharded model, made whole in every process: they are functions of releases."""
    kept: dict[str, Any] = model.state_dict()
    whole = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in kept.items()}
    return {name: value.detach().cpu().clone() for name, value in whole.items()}
