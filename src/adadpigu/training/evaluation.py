"""Accuracy on test records. They are somebody's too: the statement says that they are outside the guarantee."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.gradients.norms import train_mode
from adadpigu.core.sampling import Population
from adadpigu.core.trees import Tree, call, count_rows, select, to_device
from adadpigu.training.memory import runs_out

_AT_ONCE = 1024  # records


@torch.no_grad()
def predict(model: nn.Module, inputs: Tree, *, device: torch.device, chunk: int = _AT_ONCE) -> Tensor:
    """The model's outputs for a batch of inputs, in evaluation mode; fewer at once where a GPU is short of memory."""
    training = model.training
    model.eval()
    outputs: list[Tensor] = []

    def next_part() -> None:
        outputs.append(call(model, to_device(select(inputs, slice(done, done + chunk)), device)).cpu())

    done, count = 0, count_rows(inputs)
    try:
        while done < max(count, 1):
            if chunk > 1 and runs_out(next_part):
                chunk //= 2
                continue
            if chunk == 1:
                next_part()
            done += chunk
        return torch.cat(outputs)
    finally:
        train_mode(model, training)


def accuracy(model: nn.Module, population: Population, *, device: torch.device) -> float:
    """The share of records whose largest output is their label; of several labels, of them; one output is a logit."""
    right = sum(float(right.sum()) for _, _, right in answers(model, population, device=device))
    return right / max(len(population), 1)


def answers(
    model: nn.Module, population: Population, *, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Outputs, targets, and how far each record's answer is right, in [0, 1]: some records at a time."""
    for start in range(0, len(population), _AT_ONCE):
        inputs, targets = population.take(torch.arange(start, min(start + _AT_ONCE, len(population))))
        if getattr(population, "whole", False):
            inputs, targets = inputs
        labels = targets.cpu().reshape(len(targets), targets[:1].numel()).double()
        outputs = scores = predict(model, inputs, device=device)
        if outputs.numel() == len(outputs):  # beside the score 0 of label 0
            scores = F.pad(outputs.reshape(-1, 1), (1, 0))
        right = scores.argmax(dim=1).reshape(labels.shape) == labels.round()
        known = (labels >= 0).sum(dim=1).clamp(min=1)
        yield outputs, targets.cpu(), right.sum(dim=1).double() / known
