"""`train_sharded`: DP-SGD on a model that no single device holds, from the first step to the privacy report.

The sampler, the ledger, the draws and the mechanism are those of `train`; what differs is who owns a coordinate
(`sharding`). Weights are made whole at the end only if asked for (`whole_weights`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.accounting import Budget, PrivacyReport
from adadpigu.bounding import GradientSum
from adadpigu.data.datasets import Source, declare
from adadpigu.distributed.job import JobError, current, refuse_wrapped
from adadpigu.distributed.meeting import met
from adadpigu.distributed.sharding import Shard, Shards, by_blocks, expose, shard
from adadpigu.errors import InputError, unknown
from adadpigu.gradients import Loss
from adadpigu.mechanism import GaussianMechanism
from adadpigu.methods import DPSGD
from adadpigu.randomness import Randomness, Tier, choose_randomness
from adadpigu.training.draws import Draws
from adadpigu.training.options import TrainingOptions
from adadpigu.training.preparation import Preparation, prepare
from adadpigu.training.reporting import report_on
from adadpigu.training.train import begun_by_first

Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
_IDLE = frozenset({"lr", "momentum", "weight_decay", "optimizer", "lr_schedule", "warmup", "ema", "tail", "execution"})
_IDLE_TOO = frozenset({"diagnostics", "checkpoint_every", "evaluate_every", "copies", "shift", "flip"})


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
    for name in options:
        if name in _IDLE | _IDLE_TOO:
            raise InputError(f"{name}={options[name]!r} is not for sharded training; allowed: leave it out")
    for name in options.keys() - {field.name for field in fields(TrainingOptions)}:
        raise unknown("option of train_sharded", name, [field.name for field in fields(TrainingOptions)])
    if not isinstance(options.get("physical_batch_size"), int):
        raise InputError("physical_batch_size=None: sharded training needs how many records are processed at once")
    refuse_wrapped(model)
    prepared = prepare(
        model,
        declare(dataset, records=records),
        method=DPSGD(clip_norm=clip_norm),
        budget=Budget(epsilon=4.0, delta=delta) if privacy is None and "noise_multiplier" not in options else privacy,
        delta=delta,
        options=TrainingOptions(**options),
        loss=loss,
    )
    source = choose_randomness(randomness, prepared.device) if isinstance(randomness, str | None) else randomness
    return _trained(prepared, optimizer, shards, source, clip_norm, None if out is None else Path(out))


def _trained(
    prepared: Preparation, optimizer: Optimiser, how: Shard, source: Randomness, clip_norm: float, out: Path | None
) -> ShardedRun:
    processes = current()
    prepared = met(prepared, processes, source)
    facts = {"randomness": source.description, "secret": source.private, "processes": processes.size, "shared": False}
    with begun_by_first(prepared, processes, out, facts) as begun:
        prepared, ledger = begun.prepared, begun.ledger
        shards, engine = shard(prepared.model, prepared.engine, how)
        draws = Draws(
            population=prepared.data.train,
            model=prepared.model,
            engine=engine,
            mechanism=GaussianMechanism(ledger, source, shards),
            randomness=source,
            view=prepared.view,
            batch_size=prepared.options.batch_size,
            at_once=prepared.options.at_once,
            processes=shards,
        )
        made = optimizer(prepared.model.parameters())
        prepared.model.train()
        done = _steps(prepared, draws, shards, made, clip_norm, ledger.cover)
        ledger.note("finished", steps_done=done)
        privacy = report_on(prepared, ledger, source, done=done, interrupted=False, exposed=False)
        if begun.folder is not None:
            begun.folder.write_privacy(privacy)
            begun.folder.close_record()
    return ShardedRun(model=prepared.model, privacy=privacy, steps=done, optimizer=made)


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
