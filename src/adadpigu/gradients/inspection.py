"""Refuses models that cannot be trained privately, each with its dotted path and a remedy, before training starts.

What is refused would carry data around the privacy line: batch statistics, buffers written in a forward, records that
influence each other. Only a public, synthetic example is run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from adadpigu.errors import ModelError
from adadpigu.gradients.mixing import refuse_counting, refuse_mixing
from adadpigu.gradients.probing import exact_products, forward, nudge, seed, varied
from adadpigu.gradients.state import changed, describe, refuse_changes, remember, untouched


def inspect_model(model: nn.Module, inputs: Tensor) -> None:
    """Raises `ModelError` for the first thing that stands in the way; leaves the model and torch's seed as they were.

    `inputs` are at least three synthetic records, made from public shapes and dtypes.
    """
    refuse_by_type(model)
    with untouched(model), exact_products(), torch.enable_grad():
        refuse_by_behaviour(model, prepared(model, inputs))


def prepared(model: nn.Module, inputs: Tensor) -> Tensor:
    """Readies a model held in `untouched` for probing (training, nothing zero); returns the example to probe with."""
    seed()
    model.train()
    nudge(model)
    return varied(model, inputs)


def refuse_by_type(model: nn.Module) -> None:
    """Everything that can be said without running the model."""
    for text in objections(model):
        raise ModelError(text)


def objections(model: nn.Module) -> Iterator[str]:
    """What stands in the way by type, each with its dotted path and a remedy."""
    for path, module in model.named_modules():
        remedy = _objection(module)
        if remedy:
            yield f"{describe(path, module)}: {remedy}"
    if not any(parameter.requires_grad for parameter in model.parameters()):
        yield f"{describe('', model)}: has no trainable parameter; set requires_grad=True on what to train"


def refuse_by_behaviour(model: nn.Module, inputs: Tensor) -> None:
    """Everything that a forward in training mode shows; the model is held in `untouched` by the caller."""
    _refuse_writing(model, inputs)  # first: a second forward on the same example may write what is already there
    _refuse_output(model, inputs)
    refuse_mixing(model, inputs)
    _refuse_output(model, inputs[:1])
    refuse_counting(model, inputs)


def _objection(module: nn.Module) -> str | None:
    if isinstance(module, _BatchNorm):
        return f"mixes records through batch statistics; replace it by {_told(module)}"
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return "keeps running statistics of the data; build it with track_running_stats=False"
    if any(
        is_lazy(tensor) for tensor in (*module._parameters.values(), *module._buffers.values()) if tensor is not None
    ):
        return "has uninitialised parameters; run one forward on a synthetic example first"
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        return "stores extra state of its own beside its parameters, which could hold data; remove get_extra_state"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
        return "gives sparse gradients, which reveal the rows in use; build it with sparse=False"
    return None


def group_norm(module: _BatchNorm) -> nn.GroupNorm:
    """What to put in its place; flat features make one group, since a group of one value would normalise to zero.

    >>> [group_norm(norm).num_groups for norm in (nn.BatchNorm2d(64), nn.BatchNorm2d(6), nn.BatchNorm1d(16))]
    [16, 2, 1]
    """
    channels = module.num_features
    groups = 1 if isinstance(module, nn.BatchNorm1d) else math.gcd(channels, 16)
    return nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine)


def _told(module: _BatchNorm) -> str:
    if not module.num_features:
        return "nn.GroupNorm(groups, channels)"
    return f"nn.GroupNorm({group_norm(module).num_groups}, {module.num_features})"


def _refuse_output(model: nn.Module, inputs: Tensor) -> None:
    output = forward(model, inputs)
    if isinstance(output, Tensor) and output.dim() > 0 and len(output) == len(inputs):
        return
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise ModelError(
        f"{describe('', model)}: output {shape} for {len(inputs)} record(s) lacks the batch as first dimension; "
        f"return one tensor [{len(inputs)}, ...]"
    )


def _refuse_writing(model: nn.Module, inputs: Tensor) -> None:
    before = [(entry, entry.tensor.detach().clone()) for entry in remember(model)]
    with refuse_changes(model):
        forward(model, inputs)
    for entry, value in before:  # writes through .data leave no trace in the version counter
        if not torch.allclose(entry.tensor, value, rtol=0, atol=0, equal_nan=True):
            raise changed(entry)
