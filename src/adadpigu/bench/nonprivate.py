"""Ordinary training: SGD with momentum on one ready batch. Eager is the yardstick; the others are what it could be.

The batch lies ready, so no step of the yardstick pays for drawing records; ours do.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from adadpigu.bench.contestants import (
    CHANNELS_LAST,
    CUDA_GRAPH,
    Contestant,
    Repeated,
    Task,
    Trainer,
    Unavailable,
    sgd,
)

_BEFORE_CAPTURE = 3
"""steps on a side stream, so that libraries and the optimiser have allocated what they keep"""


def build(task: Task, contestant: Contestant) -> Trainer:
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
        return Repeated(step, model, task.device)
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

    return Repeated(replay, model, task.device)
