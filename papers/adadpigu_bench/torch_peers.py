"""Trainers that are not ours: ordinary PyTorch, and DP-SGD by Opacus, BackPACK and FastDP, all on one ready batch.

Eager PyTorch is the yardstick. The batch lies ready, so none of them pays for drawing records; ours do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from adadpigu_bench.contestants import (
    CHANNELS_LAST,
    CLIP_NORM,
    CUDA_GRAPH,
    NOISE_MULTIPLIER,
    Contestant,
    Task,
    Trainer,
    Unavailable,
    refuse_oversize,
    repeated,
    required,
    sgd,
)

_INSTALL = "pip install 'adadpigu-paper[bench]'"
_BACKPACK = "pip install --no-deps backpack-for-pytorch einops unfoldNd: its torchvision is not needed, and not wanted"
_FASTDP = "no package index has it: install github.com/awslabs/fast-differential-privacy from source"
_BEFORE_CAPTURE = 3
"""steps on a side stream, so that libraries and the optimiser have allocated what they keep"""


def build(task: Task, contestant: Contestant) -> Trainer:
    """A contestant's trainer on the task's net."""
    private = {"opacus": opacus, "backpack": backpack, "fastdp": fastdp}
    return private.get(contestant.peer or "", nonprivate)(task, contestant)


def nonprivate(task: Task, contestant: Contestant) -> Trainer:
    """Plain SGD on the task's net."""
    model = task.model()
    inputs, targets = task.batch_on_device()
    if contestant.peer == CHANNELS_LAST:
        if inputs.dim() != 4:
            raise Unavailable(f"not available for this net: records of shape {tuple(inputs.shape[1:])} are not images")
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    optimiser = sgd(model)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(F.cross_entropy(model(inputs), targets))
        optimiser.step()

    if contestant.peer != CUDA_GRAPH:
        return repeated(step, model, task.device)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_BEFORE_CAPTURE):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    kept = inputs, targets, optimiser  # what a graph reads must outlive it

    def replay() -> None:
        assert kept
        graph.replay()

    return repeated(replay, model, task.device)


def opacus(task: Task, contestant: Contestant) -> Trainer:
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
    if mode != "ghost":
        refuse_oversize(task, 2.2)
        wrapped = samples.wrap_model(model, grad_sample_mode=mode)
        return repeated(_step(task, wrapped, optimisers.DPOptimizer(inner, **noise)), model, task.device)
    losses = required("opacus.utils.fast_gradient_clipping_utils", _INSTALL)
    wrapped = samples.wrap_model(model, grad_sample_mode=mode, max_grad_norm=CLIP_NORM)
    optimiser = optimisers.DPOptimizerFastGradientClipping(inner, **noise)
    # two backward passes behind one `backward()`: norms first, then the reweighted loss
    criterion = losses.DPLossFastGradientClipping(wrapped, optimiser, nn.CrossEntropyLoss(reduction="mean"))
    return repeated(_step(task, wrapped, optimiser, criterion), model, task.device)


def _step(task: Task, model: nn.Module, optimiser: Any, loss: Any = F.cross_entropy) -> Callable[[], None]:
    inputs, targets = task.batch_on_device()

    def step() -> None:
        loss(model(inputs), targets).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def backpack(task: Task, contestant: Contestant) -> Trainer:
    """DP-SGD with BackPACK's `BatchGrad` on the task's net."""
    library = required("backpack", _BACKPACK)
    extensions = required("backpack.extensions", _BACKPACK)
    refuse_oversize(task, 2.2)
    model = library.extend(task.model())
    loss = library.extend(nn.CrossEntropyLoss(reduction="sum"))
    inputs, targets = task.batch_on_device()
    optimiser = sgd(model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with library.backpack(extensions.BatchGrad()):
            loss(model(inputs), targets).backward()
        private_gradients(parameters, task.batch)
        optimiser.step()

    return repeated(step, model, task.device)


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


def fastdp(task: Task, contestant: Contestant) -> Trainer:
    """DP-SGD by FastDP on the task's net."""
    library = required("fastDP", _FASTDP)
    model = task.model()
    optimiser = sgd(model)
    engine = library.PrivacyEngine(
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
    return repeated(_step(task, model, optimiser), model, task.device)
