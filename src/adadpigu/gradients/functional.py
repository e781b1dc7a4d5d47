"""Engines for models without a rule for every layer: vmap over records, and where vmap refuses, one record at a time.

Both compute g_i = ∇_θ ℓ(model(x_i as a batch of one), y_i) by definition, so records cannot mix. Output is sealed by
the base class.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from adadpigu.gradients.interface import SealedEngine
from adadpigu.gradients.slicing import BLOCK
from adadpigu.records import GradientBatch


class FunctionalEngine(SealedEngine):
    """vmap(grad_and_value(functional_call)) over the whole model; every record draws its own randomness."""

    name: ClassVar[str] = "functional"

    def compute(self, inputs: Tensor, targets: Tensor, copies: int = 1) -> GradientBatch:
        trained = zip(self.layout.slots, self.layout.parameters(self.model), strict=True)
        parameters = {slot.name: parameter.detach() for slot, parameter in trained}

        def alone(theta: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            losses = [
                self.loss.one(functional_call(self.model, theta, (row.unsqueeze(0),)), y.unsqueeze(0))
                for row in x.unbind(0)
            ]
            return torch.stack(losses).mean() if copies > 1 else losses[0]

        each = vmap(grad_and_value(alone), in_dims=(None, 0, 0), randomness="different")
        count = len(targets)
        gradients, losses = each(parameters, inputs.reshape(count, copies, *inputs.shape[1:]), targets)
        flat = self.buffer(count)
        for slot in self.layout.slots:
            flat[:, slot.start : slot.stop] = gradients.pop(slot.name).detach().reshape(count, -1)
        return GradientBatch(flat, losses.detach())

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        def alone(x: Tensor, y: Tensor) -> Tensor:
            return self.loss.one(self.model(x.unsqueeze(0)), y.unsqueeze(0))

        try:
            losses: Tensor = vmap(alone, randomness="different")(inputs, targets)
        except RuntimeError:  # some kernels that need no gradient have no batching rule: same values, one at a time
            losses = torch.stack([alone(x, y) for x, y in zip(inputs, targets, strict=True)])
        return losses


class LoopEngine(SealedEngine):
    """Ordinary autograd on one record after the other: slow, and the definition all other engines must meet."""

    name: ClassVar[str] = "loop"

    def slice_length(self, expected: float, copies: int) -> int:
        return BLOCK  # records are alone anyway

    def compute(self, inputs: Tensor, targets: Tensor, copies: int = 1) -> GradientBatch:
        flat = self.buffer(len(targets))
        losses = []
        parameters = self.layout.parameters(self.model)
        grouped = inputs.reshape(len(targets), copies, 1, *inputs.shape[1:])
        for row, rows, y in zip(flat, grouped, targets.unsqueeze(1), strict=True):
            loss = torch.stack([self.loss.one(self.model(x), y) for x in rows.clone()]).mean()
            row.copy_(flat_gradient(loss, parameters))
            losses.append(loss.detach())
        return GradientBatch(flat, torch.stack(losses))

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        pairs = zip(inputs.unsqueeze(1), targets.unsqueeze(1), strict=True)
        return torch.stack([self.loss.one(self.model(x), y) for x, y in pairs])


def flat_gradient(loss: Tensor, parameters: list[nn.Parameter], retain_graph: bool = False) -> Tensor:
    """∇_θ of a scalar loss by ordinary autograd, flat [d]; zero for parameters it does not depend on."""
    if not loss.requires_grad:
        return torch.cat([torch.zeros_like(parameter).reshape(-1) for parameter in parameters])
    gradients = torch.autograd.grad(
        loss, parameters, retain_graph=retain_graph, allow_unused=True, materialize_grads=True
    )
    return torch.cat([gradient.reshape(-1) for gradient in gradients])
