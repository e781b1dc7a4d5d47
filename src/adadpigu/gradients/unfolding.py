"""Unfolding: layers that compute too much at once for one rule run as plain operations while gradients are captured.

An unfolding gives the same outputs as the layer's own forward, and notes for each part its input x, its output y and a
rule from x and dℓ/dy to the part's parameters. It sees sensitive tensors and keeps nothing: the layer's own forward is
put back when the capture ends. Most parts are affine: y = x Wᵀ + b, W and b being (some rows of) two parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from adadpigu.gradients.rules import RULES, Destination, positions


class Part(Protocol):
    """The rule of one part of a layer: a `Rule` that says which parameters it writes to."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the layer's own parameters."""
        ...

    def __call__(self, module: Any, x: Tensor, dy: Tensor, into: Destination) -> None:
        """Writes the gradients of those that are wanted."""
        ...


Note = Callable[[Tensor, Tensor, Part], None]
"""notes one part: its input [b, ...], its output [b, ...], its rule"""
NoteOf = Callable[[str], Note]
"""the note of a layer's submodule, or of the layer itself for the empty name"""
Record = Callable[[str, nn.Module, Tensor, Tensor, Part], None]
"""takes down one part: path and module that own its parameters, input, output, rule"""
U = TypeVar("U", bound=Callable[..., Any])

UNFOLDINGS: dict[type[nn.Module], Callable[..., Any]] = {}


def unfolding(*kinds: type[nn.Module]) -> Callable[[U], U]:
    """Registers the unfolding of exactly these module types: `function(module, note_of, *args, **kwargs)`."""

    def register(function: U) -> U:
        for kind in kinds:
            UNFOLDINGS[kind] = function
        return function

    return register


def has_rule(module: nn.Module) -> bool:
    """Whether layer rules give the gradients of the module's own parameters."""
    return type(module) in RULES or type(module) in UNFOLDINGS


@contextmanager
def unfolded(model: nn.Module, parameters: set[int], record: Record) -> Iterator[None]:
    """Runs the layers that hold one of these parameters (by identity) unfolded; each part that has one is recorded."""
    replaced: list[tuple[dict[str, Any], dict[str, Any]]] = []
    try:
        for path, module in model.named_modules():
            function = UNFOLDINGS.get(type(module))
            if function is not None and any(id(parameter) in parameters for parameter in module.parameters()):
                attributes = vars(module)
                replaced.append((attributes, {key: attributes[key] for key in ("forward",) if key in attributes}))
                note_of = functools.partial(_note, path, module, parameters, record)
                attributes["forward"] = functools.partial(function, module, note_of)
        yield
    finally:
        for attributes, own in replaced:
            del attributes["forward"]
            attributes.update(own)


def _note(path: str, layer: nn.Module, parameters: set[int], record: Record, name: str) -> Note:
    owner = layer.get_submodule(name)
    where = ".".join(filter(None, (path, name)))

    def note(x: Tensor, y: Tensor, part: Part) -> None:
        if y.requires_grad and any(id(getattr(owner, each)) in parameters for each in part.parameters):
            record(where, owner, x, y, part)

    return note


def tapped(tensor: Tensor) -> Tensor:
    """The tensor with a gradient to be asked for, even where nothing below it is trained."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


@dataclass(frozen=True)
class Affine:
    """y = x Wᵀ + b at every position; W and b may be `len(y)` rows of their parameters, from `start` on."""

    weight: str | None
    bias: str | None = None
    start: int = 0

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    def __call__(self, module: nn.Module, x: Tensor, dy: Tensor, into: Destination) -> None:
        dy = positions(dy, keep=1)
        if self.weight is not None and into.wants(self.weight):
            left = self._widened(dy, module.get_parameter(self.weight))
            into.add_product(self.weight, left.mT, positions(x, keep=1))
        if self.bias is not None and into.wants(self.bias):
            into.add(self.bias, self._widened(dy.sum(1), module.get_parameter(self.bias)))

    def _widened(self, dy: Tensor, parameter: nn.Parameter) -> Tensor:
        """dy with zeros for the rows that this part does not use."""
        after = len(parameter) - self.start - dy.shape[-1]
        return F.pad(dy, (self.start, after)) if self.start or after else dy
