"""BackPACK running DP-SGD: it computes per-sample gradients, the clip and the noise are the usual lines around it."""

from __future__ import annotations

import torch
from torch import nn

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

_INSTALL = "pip install --no-deps backpack-for-pytorch einops unfoldNd: its torchvision is not needed, and not wanted"


def build(task: Task, contestant: Contestant) -> Trainer:
    """DP-SGD with BackPACK's `BatchGrad` on the task's net."""
    backpack = required("backpack", _INSTALL)
    extensions = required("backpack.extensions", _INSTALL)
    refuse_oversize(task, 2.2)
    model = backpack.extend(task.model())
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))
    inputs, targets = task.batch_on_device()
    optimiser = sgd(model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with backpack.backpack(extensions.BatchGrad()):
            loss(model(inputs), targets).backward()
        private_gradients(parameters, task.batch)
        optimiser.step()

    return Repeated(step, model, task.device)


@torch.no_grad()
def private_gradients(parameters: list[nn.Parameter], batch: int) -> None:
    """Turns `grad_batch` [B, ...] of each parameter into the clipped, noised mean in `grad`."""
    rows = [parameter.grad_batch.flatten(1) for parameter in parameters]  # type: ignore[attr-defined]
    norms = torch.stack([row.norm(dim=1) for row in rows]).norm(dim=0)
    factors = (CLIP_NORM / norms.clamp(min=1e-12)).clamp(max=1.0)
    for parameter, row in zip(parameters, rows, strict=True):
        total = (factors @ row).view_as(parameter)
        noise = NOISE_MULTIPLIER * CLIP_NORM * torch.randn_like(total)
        parameter.grad = (total + noise) / batch
        del parameter.grad_batch  # type: ignore[attr-defined]
