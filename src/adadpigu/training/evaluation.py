"""Accuracy on test records. They are somebody's too: the statement says that they are outside the guarantee."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adadpigu.sampling import Population
from adadpigu.training.memory import runs_out


@torch.no_grad()
def predict(model: nn.Module, inputs: Tensor, *, device: torch.device, chunk: int = 1024) -> Tensor:
    """The model's outputs for a batch of inputs, in evaluation mode; fewer at once where a GPU is short of memory."""
    training = model.training
    model.eval()
    outputs: list[Tensor] = []

    def next_part() -> None:
        outputs.append(model(inputs[done : done + chunk].to(device)).cpu())

    done = 0
    try:
        while done < max(len(inputs), 1):
            if chunk > 1 and runs_out(next_part):
                chunk //= 2
                continue
            if chunk == 1:
                next_part()
            done += chunk
        return torch.cat(outputs)
    finally:
        model.train(training)


def accuracy(model: nn.Module, population: Population, *, device: torch.device, chunk: int = 1024) -> float:
    """The share of records whose largest output is their label."""
    correct = 0
    for start in range(0, len(population), chunk):
        inputs, targets = population.take(torch.arange(start, min(start + chunk, len(population))))
        correct += int((predict(model, inputs, device=device).argmax(dim=1) == targets.cpu()).sum())
    return correct / max(len(population), 1)
