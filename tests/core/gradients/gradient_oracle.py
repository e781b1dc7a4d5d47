"""The oracle of all gradient tests: float64 autograd, one record at a time, sharing no code with the engines."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from adadpigu.core.gradients import GradientEngine
from adadpigu.core.sensitive import PerSampleGradients, Records, unseal

Loss = Callable[[Tensor, Tensor], Tensor]
Gradients = dict[str, Tensor]


def double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def oracle(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> tuple[Gradients, Tensor]:
    """Per-sample gradients by parameter name, [b, *shape], and losses [b], by definition."""
    model = copy.deepcopy(model).double()
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).double()
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows: dict[str, list[Tensor]] = {name: [] for name in named}
    losses = []
    for i in range(len(inputs)):
        value = loss(model(double(inputs[i : i + 1])), double(targets[i : i + 1])).sum()
        found = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        for (name, parameter), gradient in zip(named.items(), found, strict=True):
            rows[name].append(torch.zeros_like(parameter) if gradient is None else gradient)
        losses.append(value.detach())
    stacked = {name: torch.stack(row) if row else torch.zeros(0, *named[name].shape) for name, row in rows.items()}
    return stacked, torch.stack(losses) if losses else torch.zeros(0)


def flat(engine: GradientEngine, inputs: Tensor, targets: Tensor) -> Tensor:
    return unseal(engine.per_sample_gradients(Records((inputs, targets)))).gradients


def assert_matches_oracle(
    engine: GradientEngine, model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, tolerance: float = 1e-5
) -> None:
    assert_matches(engine, oracle(model, loss, inputs, targets), inputs, targets, tolerance)


def assert_matches(
    engine: GradientEngine,
    truth: tuple[Gradients, Tensor],
    inputs: Tensor,
    targets: Tensor,
    tolerance: float = 1e-5,
) -> None:
    """Gradients equal to `tolerance` of the gradient norm of the layer that owns the parameter, and equal losses."""
    expected, losses = truth
    sealed = engine.per_sample_gradients(Records((inputs, targets)))
    assert isinstance(sealed, PerSampleGradients)
    batch = unseal(sealed)
    assert batch.gradients.shape == (len(inputs), sum(g.shape[1:].numel() for g in expected.values()))
    start = 0
    for name, gradient in expected.items():
        size = gradient.shape[1:].numel()
        found = batch.gradients[:, start : start + size].double().reshape(gradient.shape)
        assert (found - gradient).norm() <= tolerance * layer_norm(expected, name) + 1e-12, name
        start += size
    again = unseal(engine.per_record_losses(Records((inputs, targets))))
    for found in (batch.losses, again):
        assert torch.allclose(found.double(), losses.double(), rtol=1e-5, atol=1e-6)


def layer_norm(gradients: Gradients, name: str) -> float:
    """The norm of all gradients of the layer that owns a parameter."""
    layer = name.rpartition(".")[0]
    mine = [g.reshape(-1) for other, g in gradients.items() if other.rpartition(".")[0] == layer]
    return float(torch.cat(mine).norm())
