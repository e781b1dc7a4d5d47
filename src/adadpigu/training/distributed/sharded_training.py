"""Models that do not fit: weights, sums, noise and optimiser state sharded over the processes by FSDP2.

    per layer:  rows g_i of the records here -> ‖g_i‖² of this layer    (its weights gathered for the forward alone)
    factors c_i from all layers, then per layer:  Σ c_i g_i -> reduced to the owners of its rows -> + their noise

A rank owns the rows of every parameter that `fully_shard` has given it: it alone holds their weights, draws their
noise and keeps their optimiser state. DP-SGD on models that layer rules cover; anything else is refused by name. The
sampler, the ledger, the draws and the mechanism are those of `train`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.accounting import Budget, PrivacyReport
from adadpigu.core.bounding import GradientSum, record_factors
from adadpigu.core.gradients import Loss
from adadpigu.core.gradients.norms import train_mode
from adadpigu.core.gradients.rule_engine import RuleEngine, Wanted
from adadpigu.core.layout import Layout, Slot
from adadpigu.core.mechanism import GaussianMechanism, Release, look
from adadpigu.core.randomness import Randomness, Tier
from adadpigu.core.standardising import Standardised
from adadpigu.core.trees import Tree
from adadpigu.data.datasets import Source
from adadpigu.errors import InputError, ModelError, require
from adadpigu.methods import DPSGD
from adadpigu.training.distributed.job import Job, JobError, current
from adadpigu.training.preparation import Preparation
from adadpigu.training.reporting import report_on
from adadpigu.training.step import Draws
from adadpigu.training.train import opened, prepared_for, randomness_of

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

    def reduce_scatter(self, values: Tensor) -> Tensor:
        return values

    def all_gather(self, part: Tensor, count: int) -> Tensor:
        return part


class ShardedEngine(RuleEngine):
    """Layer rules, one layer at a time, so that no process holds the sum of all of them: what it returns is its own.

    Rows are built twice, for their norm and for the sum: the same operations on the same numbers.
    """

    name = "sharded"

    def __init__(self, engine: RuleEngine, shards: Shards) -> None:
        super().__init__(engine.model, engine.loss, f"one layer at a time, sharded; {engine.reason}", engine.net)
        self.layout = engine.layout
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
            used = self._pairs_of(pairs, layer.chosen)
            return layer.standardised(self._rows(used, layer.chosen, slice(0, len(targets)), copies))

        squares = [built(layer).squares() for layer in layers]
        factors = record_factors(squares, query, present, length=self.layout.size)
        own: list[Tensor] = []
        for layer in layers:
            totals = torch.split(built(layer).total(factors), layer.chosen.sizes)
            own += [self._shards.reduced(slot, total) for slot, total in zip(layer.chosen.slots, totals, strict=True)]
        return torch.cat(own)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Watches buffers alone: `fully_shard` itself replaces parameters in a forward and keeps state in modules."""
        before = {name: (buffer, buffer._version) for name, buffer in self.model.named_buffers()}
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


Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
_IDLE = frozenset({"lr", "momentum", "weight_decay", "optimizer", "lr_schedule", "warmup", "ema", "tail"}) | frozenset(
    {"execution", "diagnostics", "checkpoint_every", "evaluate_every", "copies", "shift", "flip"}
)
"""options of `train` that mean nothing here"""


@dataclass(frozen=True, kw_only=True)
class ShardedRun:
    """A finished run: the model stays sharded."""

    model: nn.Module
    privacy: PrivacyReport
    steps: int
    optimizer: torch.optim.Optimizer

    @property
    def epsilon(self) -> float:
        """The ε to cite: of the whole plan, by PLD."""
        return self.privacy.epsilon_pld


def train_sharded(
    model: nn.Module,
    dataset: Source,
    *,
    optimizer: Optimiser,
    records: int | None = None,
    privacy: Budget | None = None,
    clip_norm: float = 0.5,
    loss: Loss = F.cross_entropy,
    shards: Shard = by_blocks,
    out: Path | str | None = None,
    randomness: Randomness | Tier | None = None,
    delta: float = 1e-5,
    **options: Any,
) -> ShardedRun:
    """Trains a model by DP-SGD, sharded over all processes of the job.

    `model` is whole and the same everywhere when it comes, on the CPU or on each rank's own device; `shards` applies
    `fully_shard` to it. `optimizer` makes any optimiser of one gradient a step from the sharded parameters.
    `options` are those of `train` that are left: batch_size, steps or epochs, noise_multiplier, physical_batch_size
    (needed: rows of a layer's gradients that are built at once), device, reserve. With `out` the ledger and the
    statement are written there; a run has no checkpoints.

    Formal guarantee: as for `train`. No process sees a coordinate's sum before its noise but the coordinate's owner.
    """
    if current().size == 1:
        raise JobError("a model is sharded over the processes of a job; allowed: in one that torchrun has started")
    for name in _IDLE & options.keys():
        raise InputError(f"{name}={options[name]!r} is not for sharded training; allowed: leave it out")
    at_once = options.get("physical_batch_size")
    require(isinstance(at_once, int), f"physical_batch_size={at_once}: sharded training needs a number of records")
    prepared = prepared_for(
        model,
        dataset,
        records=records,
        method=DPSGD(clip_norm=clip_norm),
        privacy=privacy,
        delta=delta,
        loss=loss,
        out=out,
        options={"device": "cpu", **options},
    )
    source = randomness_of(randomness, prepared)
    with opened(prepared, source, out=None if out is None else Path(out)) as (begun, _):
        prepared, ledger = begun.prepared, begun.ledger
        sharing, engine = shard(prepared.model, prepared.engine, shards)
        mechanism = GaussianMechanism(ledger, source, sharing)
        draws = Draws(replace(prepared, engine=engine), mechanism, source, processes=sharing)
        made = optimizer(prepared.model.parameters())
        train_mode(prepared.model)
        done = _steps(prepared, draws, sharing, made, clip_norm, ledger.cover)
        ledger.note("finished", steps_done=done)
        report = report_on(prepared, ledger, source, done=done, interrupted=False, exposed=False)
        if begun.folder is not None:
            begun.folder.write_privacy(report)
            begun.folder.close_record()
    return ShardedRun(model=prepared.model, privacy=report, steps=done, optimizer=made)


def _steps(
    prepared: Preparation,
    draws: Draws,
    shards: Shards,
    optimizer: torch.optim.Optimizer,
    clip_norm: float,
    cover: Callable[..., None],
) -> int:
    """All steps of the plan: charged, drawn, clipped where records live, noised by owners."""
    (stage,), planned = prepared.stages, prepared.samplers(0)
    events = {name: sampler.event([sigma]) for name, (sampler, sigma) in planned.items()}
    query = GradientSum(clip_norm=clip_norm)
    for step in range(stage.steps):
        cover(stage.name, step, events, left=stage.steps - step)
        draws.begin_step(stage.name, step, planned)
        release = draws.release(query)[query.name]
        expose(release, prepared.model, shards, prepared.options.batch_size)
        optimizer.step()
        optimizer.zero_grad()
    return stage.steps


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a sharded model, made whole in every process: they are functions of releases."""
    return {name: _whole(tensor) for name, tensor in model.state_dict().items()}


def _whole(tensor: Any) -> Tensor:
    made: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return made.detach().cpu().clone()
