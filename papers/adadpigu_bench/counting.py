"""The two numbers of a step that bound its time: operations, and bytes moved to and from memory.

Operations are counted by running two records forward and backward and scaling: two for each multiply-add of matrix
products, convolutions and attention. Bytes follow from shapes: a layer's forward reads its input and weights and writes
its output; its backward reads the output's gradient, the input and the weights and writes both gradients; the optimiser
reads weights, gradient and momentum and writes weights and momentum. Caches make the true traffic smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from adadpigu_bench.nets import find_net, size

_EXAMPLE = 2
_FLOAT = 4


@dataclass(frozen=True, kw_only=True)
class StepCounts:
    """What one step asks of the machine, at least."""

    net: str
    batch: int
    parameters: int
    """d"""
    operations: int
    """of a non-private step"""
    bytes: int
    """of a non-private step"""
    norm_operations: int
    """that a private step adds where each per-sample gradient is built once: as many as the weights' gradients take"""
    per_sample_bytes: int
    """of the [B, d] buffer that is not needed where per-sample gradients are never held all at once"""


def count(name: str, batch: int) -> StepCounts:
    """Operations and bytes of a step of B records.

    >>> count("scatter-linear", 10).operations  # forward and weight gradient; nobody needs the input's
    1587600
    """
    card = find_net(name)
    model = card.model()
    inputs, targets = card.records(_EXAMPLE)
    moved = _Traffic(model)
    with FlopCounterMode(display=False) as forward:
        loss = F.cross_entropy(model(inputs), targets)
    with FlopCounterMode(display=False) as backward:
        torch.autograd.backward(loss)
    moved.remove()
    ahead, back = forward.get_total_flops(), backward.get_total_flops()
    parameters = size(model)
    a_record, shared = moved.numbers // _EXAMPLE, 4 * parameters + 5 * parameters
    return StepCounts(
        net=name,
        batch=batch,
        parameters=parameters,
        operations=(ahead + back) * batch // _EXAMPLE,
        bytes=_FLOAT * (a_record * batch + shared),
        norm_operations=min(ahead, back) * batch // _EXAMPLE,
        per_sample_bytes=_FLOAT * batch * parameters,
    )


class _Traffic:
    """Adds up, over all innermost layers, the numbers that a forward and a backward move for the example."""

    def __init__(self, model: nn.Module) -> None:
        self.numbers = 0
        leaves = [module for module in model.modules() if not any(True for _ in module.children())]
        self._handles = [leaf.register_forward_hook(self._see) for leaf in leaves]

    def _see(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        into = sum(x.numel() for x in inputs if isinstance(x, torch.Tensor))
        # forward: read input, write output; backward: read the output's gradient and the input, write the input's
        self.numbers += into + output.numel() + output.numel() + into + into

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
