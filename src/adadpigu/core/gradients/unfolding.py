"""Unfolding: layers that compute too much at once for one rule run as plain operations while gradients are captured.

An unfolding gives the same outputs as the layer's own forward, and notes for each part its input x, its output y and a
rule from x and dℓ/dy to the part's parameters. It sees sensitive tensors and keeps nothing: the layer's own forward is
put back when the capture ends. Most parts are affine: y = x Wᵀ + b, W and b being (some rows of) two parameters.
Embedding bags are unfolded here, attention and recurrent nets in files of their own.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from adadpigu.core.gradients.rules import RULES, Destination, Rule, embedding, positions, refuse_lookup
from adadpigu.core.gradients.slicing import other_forwards
from adadpigu.errors import ModelError


@dataclass(frozen=True)
class Part:
    """The rule of one part of a layer, and the names of the layer's own parameters that it writes to."""

    parameters: tuple[str, ...]
    rule: Rule[Any]


Note = Callable[..., None]  # notes a part: its input and output [b, ...], its rule, and the submodule, if any
Record = Callable[[str, nn.Module, Tensor, Tensor, Part], None]  # notes path, module of parameters, input, output, rule
U = TypeVar("U", bound=Callable[..., Any])

UNFOLDINGS: dict[type[nn.Module], Callable[..., Any]] = {}


def unfolding(*kinds: type[nn.Module]) -> Callable[[U], U]:
    """Registers the unfolding of exactly these module types: `function(module, note, *args, **kwargs)`."""

    def register(function: U) -> U:
        UNFOLDINGS.update(dict.fromkeys(kinds, function))
        return function

    return register


def has_rule(module: nn.Module) -> bool:
    """Whether layer rules give the gradients of the module's own parameters."""
    return type(module) in RULES or type(module) in UNFOLDINGS


def unfolded(model: nn.Module, parameters: set[int], record: Record) -> AbstractContextManager[None]:
    """Runs the layers that hold one of these parameters (by identity) unfolded; each part that has one is recorded."""
    forwards = {}
    for path, module in model.named_modules():
        function = UNFOLDINGS.get(type(module))
        if function is not None and any(id(parameter) in parameters for parameter in module.parameters()):
            note = functools.partial(_note, path, module, parameters, record)
            forwards[module] = functools.partial(function, module, note)
    return other_forwards(forwards)


def _note(
    path: str, layer: nn.Module, parameters: set[int], record: Record, x: Tensor, y: Tensor, part: Part, name: str = ""
) -> None:
    owner = layer.get_submodule(name)
    if y.requires_grad and any(id(getattr(owner, each)) in parameters for each in part.parameters):
        record(".".join(filter(None, (path, name))), owner, x, y, part)


def tapped(tensor: Tensor) -> Tensor:
    """The tensor with a gradient to be asked for, even where nothing below it is trained."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


def affine(weight: str, bias: str | None = None, start: int = 0, bias_start: int = 0) -> Part:
    """y = x Wᵀ + b at every position; W and b may be `len(y)` rows of their parameters, from `start` on."""

    def widened(dy: Tensor, parameter: nn.Parameter, start: int) -> Tensor:
        """dy with zeros for the rows that this part does not use."""
        after = len(parameter) - start - dy.shape[-1]
        return F.pad(dy, (start, after)) if start or after else dy

    def rule(module: nn.Module, x: Tensor, dy: Tensor, into: Destination) -> None:
        dy = positions(dy, keep=1)
        if into.wants(weight):
            left = widened(dy, module.get_parameter(weight), start)
            into.add_product(weight, left.mT, positions(x, keep=1))
        if bias is not None and into.wants(bias):
            into.add(bias, widened(dy.sum(1), module.get_parameter(bias), bias_start))

    return Part((weight,) if bias is None else (weight, bias), rule)


@unfolding(nn.EmbeddingBag)
def embedding_bag(
    module: nn.EmbeddingBag,
    note: Note,
    input: Tensor,  # noqa: A002  torch's own name, by which callers may pass it
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """One bag [p] of ids a record: look up, then pool. Ids of the padding are left out."""
    refuse_lookup(module)
    if input.dim() != 2 or offsets is not None:
        told = f"EmbeddingBag: takes ids {tuple(input.shape)} cut up by offsets"
        raise ModelError(f"{told}; give it [batch, ids], one bag a record")
    rows = F.embedding(input, module.weight, module.padding_idx)
    note(input, rows, Part(("weight",), embedding))
    left_out = None if module.padding_idx is None else (input == module.padding_idx).unsqueeze(2)
    if module.mode == "max":
        return _largest(rows, left_out)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(2)
    total = (rows if left_out is None else rows.masked_fill(left_out, 0.0)).sum(1)
    if module.mode == "sum":
        return total
    if left_out is None:
        return total / max(input.shape[1], 1)
    return total / (~left_out).sum(1).clamp(min=1)


def _largest(rows: Tensor, left_out: Tensor | None) -> Tensor:
    if rows.shape[1] == 0:
        return rows.sum(1)
    if left_out is None:
        return rows.max(1).values
    return rows.masked_fill(left_out, -float("inf")).max(1).values.masked_fill(left_out.all(1), 0.0)
