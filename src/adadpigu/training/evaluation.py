"""Accuracy on test records. They are somebody's too: the statement says that they are outside the guarantee."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adadpigu.sampling import Population


@torch.no_grad()
def predict(model: nn.Module, inputs: Tensor, *, device: torch.device, chunk: int = 1024) -> Tensor:
    """The model's outputs for a batch of inputs, in evaluation mode."""
    training = model.training
    model.eval()
    try:
        return torch.cat([model(part.to(device)).cpu() for part in torch.split(inputs, chunk)])
    finally:
        model.train(training)


def accuracy(model: nn.Module, population: Population, *, device: torch.device, chunk: int = 1024) -> float:
    """The share of records whose largest output is their label."""
    correct = 0
    for start in range(0, len(population), chunk):
        inputs, targets = population.take(torch.arange(start, min(start + chunk, len(population))))
        correct += int((predict(model, inputs, device=device).argmax(dim=1) == targets.cpu()).sum())
    return correct / max(len(population), 1)
