"""Opacus running DP-SGD in each of its modes: by hooks, by functorch, by expanded weights (ew), by ghost clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from adadpigu.bench.contestants import (
    CLIP_NORM,
    NOISE_MULTIPLIER,
    Contestant,
    Repeated,
    Task,
    Trainer,
    refuse_oversize,
    required,
    sgd,
)

_INSTALL = "pip install adadpigu[bench]"


def build(task: Task, contestant: Contestant) -> Trainer:
    """DP-SGD by Opacus on the task's net."""
    samples = required("opacus.grad_sample.utils", _INSTALL)
    optimisers = required("opacus.optimizers", _INSTALL)
    model, mode = task.model(), contestant.engine
    inner = sgd(model)
    noise = {
        "noise_multiplier": NOISE_MULTIPLIER,
        "max_grad_norm": CLIP_NORM,
        "expected_batch_size": task.batch,
        "generator": torch.Generator(task.device).manual_seed(0),
    }
    if mode == "ghost":
        wrapped = samples.wrap_model(model, grad_sample_mode=mode, max_grad_norm=CLIP_NORM)
        step = _ghost_step(task, wrapped, optimisers.DPOptimizerFastGradientClipping(inner, **noise))
    else:
        refuse_oversize(task, 2.2)
        wrapped = samples.wrap_model(model, grad_sample_mode=mode)
        step = _step(task, wrapped, optimisers.DPOptimizer(inner, **noise))
    return Repeated(step, model, task.device)


def _step(task: Task, model: nn.Module, optimiser: Any) -> Callable[[], None]:
    inputs, targets = task.batch_on_device()

    def step() -> None:
        torch.autograd.backward(F.cross_entropy(model(inputs), targets))
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def _ghost_step(task: Task, model: nn.Module, optimiser: Any) -> Callable[[], None]:
    """Two backward passes behind one `backward()`: norms first, then the reweighted loss."""
    losses = required("opacus.utils.fast_gradient_clipping_utils", _INSTALL)
    criterion = losses.DPLossFastGradientClipping(model, optimiser, nn.CrossEntropyLoss(reduction="mean"))
    inputs, targets = task.batch_on_device()

    def step() -> None:
        criterion(model(inputs), targets).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step
