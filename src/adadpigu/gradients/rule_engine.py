"""The rule engine: one forward and one backward for the whole batch, then a rule per layer call.

Hooks live for one call. Each remembers a layer's input and a gradient edge of its output, so that dℓ/dy comes from
one `autograd.grad(Σ ℓ_i, edges)` that computes no weight gradient and touches no `p.grad`. The base class seals.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from adadpigu.errors import ModelError
from adadpigu.gradients.interface import SealedEngine, repeated
from adadpigu.gradients.rules import RULES
from adadpigu.gradients.state import describe
from adadpigu.layout import Layout
from adadpigu.records import GradientBatch


@dataclass(frozen=True)
class Call:
    """One call of a layer during the forward."""

    path: str
    module: nn.Module
    x: Tensor
    version: int
    edge: GradientEdge


class RuleEngine(SealedEngine):
    """Per-sample gradients by layer rules; contributions of repeated calls and shared parameters are added."""

    name: ClassVar[str] = "rules"

    def compute(self, inputs: Tensor, targets: Tensor, copies: int = 1) -> GradientBatch:
        with captured(self.model) as calls:
            each = self.loss(self.model(inputs), repeated(targets, copies))
            losses = each if copies == 1 else each.view(len(targets), copies).mean(dim=1)
        flat = FlatGradients(self.buffer(len(targets)), self.layout, self.model)
        for call, dy in zip(calls, _output_gradients(losses, calls), strict=True):
            if dy is not None:
                _refuse_unruly(call, dy, len(inputs))
                RULES[type(call.module)](call.module, call.x, dy, ModuleGradients(flat, call.module, copies))
        return GradientBatch(flat.finish(), losses.detach())

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self.model(inputs), targets)


@contextmanager
def captured(model: nn.Module) -> Iterator[list[Call]]:
    """Collects the calls of all layers with trained parameters; the hooks are gone afterwards, whatever happened."""
    calls: list[Call] = []
    handles = []
    try:
        for path, module in ruled(model):
            handles.append(module.register_forward_hook(_recorder(path, calls), with_kwargs=True))
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def ruled(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that own trained parameters, hence need a rule."""
    for path, module in model.named_modules():
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            yield path, module


def _recorder(path: str, calls: list[Call]) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if output.requires_grad:
            x: Tensor = args[0] if args else kwargs["input"]
            # The edge is taken now: an in-place operation that follows replaces output.grad_fn, not the edge.
            calls.append(Call(path, module, x.detach(), x._version, get_gradient_edge(output)))

    return hook


def _output_gradients(losses: Tensor, calls: list[Call]) -> tuple[Tensor | None, ...]:
    if not calls or not losses.requires_grad:
        return (None,) * len(calls)
    return torch.autograd.grad(losses.sum(), [call.edge for call in calls], allow_unused=True)


def _refuse_unruly(call: Call, dy: Tensor, records: int) -> None:
    where = describe(call.path, call.module)
    if call.x._version != call.version:
        raise ModelError(f"{where}: its input is changed in place later in the forward; use the out-of-place operation")
    if call.x.dim() == 0 or len(call.x) != records or len(dy) != records:
        raise ModelError(f"{where}: its input does not have the batch as first dimension; keep it first in every layer")


class FlatGradients:
    """The [b, d] buffer of one engine call, filled slot by slot: a first contribution is written, later ones added."""

    def __init__(self, flat: Tensor, layout: Layout, model: nn.Module) -> None:
        self._flat = flat
        parameters = layout.parameters(model)
        self._slots = {id(p): slot for p, slot in zip(parameters, layout.slots, strict=True)}
        self._unwritten = dict(self._slots)

    def holds(self, parameter: nn.Parameter | None) -> bool:
        return id(parameter) in self._slots

    def claim(self, parameter: nn.Parameter) -> tuple[Tensor, bool]:
        """The parameter's [b, n] view, and whether it is still unwritten; it counts as written from here on."""
        slot = self._slots[id(parameter)]
        fresh = self._unwritten.pop(id(parameter), None) is not None
        return self._flat[:, slot.start : slot.stop], fresh

    def finish(self) -> Tensor:
        """The whole buffer; parameters that no call touched have gradient zero."""
        for slot in self._unwritten.values():
            self._flat[:, slot.start : slot.stop] = 0
        return self._flat


class ModuleGradients:
    """One module's parameters within the flat buffer: the `Destination` its rule writes to.

    A rule works row by row; the rows of one record's copies are added up here, where they meet the record's gradient.
    """

    def __init__(self, flat: FlatGradients, module: nn.Module, copies: int = 1) -> None:
        self._flat = flat
        self._copies = copies
        self._parameters = dict(module.named_parameters(recurse=False))

    def wants(self, name: str) -> bool:
        return self._flat.holds(self._parameters.get(name))

    def add(self, name: str, value: Tensor) -> None:
        if self._copies > 1:
            value = value.reshape(-1, self._copies, *value.shape[1:]).sum(dim=1)
        view, fresh = self._flat.claim(self._parameters[name])
        view = view.view(value.shape)
        if fresh:
            view.copy_(value)
        else:
            view.add_(value)

    def add_product(self, name: str, left: Tensor, right: Tensor) -> None:
        if self._copies > 1:  # copies are further positions of the same record
            left = left.reshape(-1, self._copies, *left.shape[1:]).transpose(1, 2).flatten(2)
            right = right.reshape(-1, self._copies * right.shape[1], right.shape[2])
        view, fresh = self._flat.claim(self._parameters[name])
        view = view.view(len(left), left.shape[1], right.shape[2])
        if left.shape[2] != 1:
            # Not baddbmm_ into the view: its kernel for strided results is far slower than a product and a copy.
            product = torch.bmm(left, right)
            if fresh:
                view.copy_(product)
            else:
                view.add_(product)
        elif fresh:
            torch.mul(left, right, out=view)
        else:
            view.addcmul_(left, right)

    def add_scaled(self, name: str, factors: Tensor, rows: Tensor) -> None:
        if self._copies > 1:
            factors = factors.reshape(-1, self._copies, factors.shape[1]).sum(dim=1)
        view, fresh = self._flat.claim(self._parameters[name])
        view = view.view(len(factors), *rows.shape)
        if fresh:
            torch.mul(factors.unsqueeze(2), rows, out=view)
        else:
            view.addcmul_(factors.unsqueeze(2), rows)
