"""FastDP (fast-differential-privacy) running DP-SGD with mixed ghost norms and book-keeping, where a user has it."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from adadpigu.bench.contestants import (
    CLIP_NORM,
    NOISE_MULTIPLIER,
    Contestant,
    Repeated,
    Task,
    Trainer,
    required,
    sgd,
)

_INSTALL = "no package index has it: install github.com/awslabs/fast-differential-privacy from source"


def build(task: Task, contestant: Contestant) -> Trainer:
    """DP-SGD by FastDP on the task's net."""
    fastdp = required("fastDP", _INSTALL)
    model = task.model()
    inputs, targets = task.batch_on_device()
    optimiser = sgd(model)
    engine = fastdp.PrivacyEngine(
        model,
        batch_size=task.batch,
        sample_size=4 * task.batch,
        epochs=1,
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        clipping_fn="Abadi",
        clipping_mode=contestant.engine,
        clipping_style="all-layer",
    )
    engine.attach(optimiser)

    def step() -> None:
        torch.autograd.backward(F.cross_entropy(model(inputs), targets))
        optimiser.step()
        optimiser.zero_grad()

    return Repeated(step, model, task.device)
