"""The rule engines: one forward and one backward for the whole batch, then a rule per layer call.

Hooks live for one call. Each remembers a layer's input and a gradient edge of its output, so that dℓ/dy comes from
one `autograd.grad(Σ ℓ_i, edges)` that computes no weight gradient and touches no `p.grad`. A clipped sum is made in
slices of a few records: their gradients are built, bounded and added while they are in the cache, never all at once.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from adadpigu.beside import beside, join
from adadpigu.bounding import GradientSum, record_factors
from adadpigu.errors import ModelError
from adadpigu.gradients.destinations import FlatGradients, ModuleGradients
from adadpigu.gradients.interface import LARGE, SealedEngine, repeated
from adadpigu.gradients.losses import RecordLoss
from adadpigu.gradients.outer import Outer
from adadpigu.gradients.rules import RULES, Rule, bytes_at_work
from adadpigu.gradients.sequences import slice_size
from adadpigu.gradients.state import describe
from adadpigu.gradients.unfolding import UNFOLDINGS, Part, has_rule, unfolded
from adadpigu.layout import Slot
from adadpigu.records import GradientBatch
from adadpigu.standardising import Standardiser

Precision = Literal["float32", "bf16"]
"""what a net's products are computed in; norms, sums and noise are float64 in either case"""


@dataclass(frozen=True)
class Call:
    """One call of a layer during the forward."""

    path: str
    module: nn.Module
    x: Tensor
    version: int
    edge: GradientEdge
    rule: Rule[Any]


@dataclass(frozen=True)
class Batch:
    """How many rows a batch has, and which of them are records (None: all)."""

    records: int
    present: Tensor | None


class Wanted:
    """What a query wants of some parameters: their place in the flat gradient and how they are standardised. Public."""

    def __init__(self, query: GradientSum, slots: tuple[Slot, ...], size: int, device: torch.device) -> None:
        self.query = query
        self.slots = slots
        self.size = size
        self.device = device
        self.width = sum(slot.stop - slot.start for slot in slots)
        self._others: tuple[frozenset[Slot], Wanted] | None = None

    @functools.cached_property
    def whole(self) -> Standardiser:
        """How a whole gradient is standardised."""
        return Standardiser(self.query, self.size, device=self.device)

    @functools.cached_property
    def columns(self) -> Tensor | slice:
        """Where these parameters lie in the flat gradient."""
        if self.width == self.size:
            return slice(None)
        parts = [torch.arange(slot.start, slot.stop, device=self.device) for slot in self.slots]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long, device=self.device)

    @functools.cached_property
    def standardised(self) -> Standardiser:
        """How rows of these parameters' gradients are standardised."""
        if isinstance(self.columns, slice):
            return self.whole
        return Standardiser(self.query, self.size, device=self.device, columns=self.columns)

    def without(self, apart: frozenset[Slot]) -> Wanted:
        """The same without some parameters."""
        if not apart.intersection(self.slots):
            return self
        if self._others is None or self._others[0] != apart:
            kept = tuple(slot for slot in self.slots if slot not in apart)
            self._others = apart, Wanted(self.query, kept, self.size, self.device)
        return self._others[1]


class RuleEngine(SealedEngine):
    """Per-sample gradients by layer rules; contributions of repeated calls and shared parameters are added."""

    name: ClassVar[str] = "materialised"

    def __init__(self, model: nn.Module, loss: RecordLoss, reason: str) -> None:
        super().__init__(model, loss, reason)
        self.precision: Precision = "float32"
        self.laid_out = True
        """whether images are given with their channels side by side"""
        self._last: Wanted | None = None
        self._apart: frozenset[Slot] = frozenset()

    def compute(self, inputs: Tensor, targets: Tensor, copies: int = 1) -> GradientBatch:
        calls, losses = self._forward(inputs, targets, copies, self.layout.slots)
        flat = FlatGradients(self.buffer(len(targets)), self.layout.slots, self.model)
        for call, dy in self._backward(calls, losses, len(inputs)):
            call.rule(call.module, call.x, dy, ModuleGradients(flat, call.module, copies, align=self.align))
        return GradientBatch(flat.finish(), losses.detach())

    def clipped(
        self, inputs: Tensor, targets: Tensor, copies: int, query: GradientSum, present: Tensor | None = None
    ) -> Tensor:
        part = self._wanted(query, inputs.device)
        with beside(inputs.device):  # vectors that will be needed, if the same layers are built as in the last batch
            _ = part.whole, (part if query.top_k < 1 else part.without(self._apart)).standardised
        calls, losses = self._forward(inputs, targets, copies, part.slots)
        pairs = self._backward(calls, losses, len(inputs))
        outer = self.outer_layers(pairs, copies, part)
        self._apart = frozenset(layer.slot for layer in outer)
        return self._totals(pairs, part.without(self._apart), outer, copies, Batch(len(targets), present))

    def _wanted(self, query: GradientSum, device: torch.device) -> Wanted:
        """What a query wants of the gradient: worked out once for all batches it is asked of."""
        if self._last is None or self._last.query is not query or self._last.device != device:
            slots = active_slots(self.layout.slots, query)
            self._last = Wanted(query, tuple(slots), self.layout.size, device)
        return self._last

    def keepsake(self) -> object:
        return self._last

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self._outputs(inputs), targets)

    def outer_layers(self, pairs: Sequence[tuple[Call, Tensor]], copies: int, wanted: Wanted) -> list[Outer]:
        """The layers whose gradients are never built: none here."""
        return []

    def _totals(
        self,
        pairs: Sequence[tuple[Call, Tensor]],
        built: Wanted,
        outer: Sequence[Outer],
        copies: int,
        batch: Batch,
    ) -> Tensor:
        """Σ of clipped rows, zero where frozen; of the parameters that are built, slice by slice."""
        parameters, query, records = self._owned(built.slots), built.query, batch.records
        used = [(call, dy) for call, dy in pairs if owns(call.module, parameters)]
        with beside(built.device):
            elsewhere = [layer.squares() for layer in outer]
        size = slice_size(records, _bytes_a_record(used, built.width, copies), built.device)
        factors: list[Tensor] = []
        added: Tensor | None = None
        parts: dict[Slot, Tensor] = {}
        for start in range(0, records, size):
            part = slice(start, start + size)
            z = built.standardised(self._rows(used, built, part, copies))
            here = None if batch.present is None else batch.present[part]
            squares = [z.squares(), *(square[..., part].contiguous() for square in elsewhere)]
            factors.append(record_factors(squares, query, here, length=self.layout.size))
            if len(elsewhere) and part.stop == records and self.layout.size <= LARGE:  # of more, one at a time
                with beside(built.device):
                    parts = {layer.slot: layer.total(_joined(factors)) for layer in outer}
            here_added = z.total(factors[-1])
            added = here_added if added is None else added.add_(here_added)
        assert added is not None
        split = torch.split(added, [slot.stop - slot.start for slot in built.slots])
        join(built.device)
        parts |= dict(zip(built.slots, split, strict=True))
        return self._put_together(parts, outer, _joined(factors))

    def _put_together(self, parts: dict[Slot, Tensor], outer: Sequence[Outer], factors: Tensor) -> Tensor:
        """The sums of all parameters as one vector; those that are not there yet are made one at a time."""
        slots = self.layout.slots
        if all(slot in parts for slot in slots):
            return torch.cat([parts[slot] for slot in slots])
        total = torch.zeros(self.layout.size, dtype=torch.float64, device=factors.device)
        for slot, part in parts.items():
            total[slot.start : slot.stop] = part
        for layer in outer:
            if layer.slot not in parts:
                total[layer.slot.start : layer.slot.stop] = layer.total(factors)
        return total

    def _rows(self, pairs: Sequence[tuple[Call, Tensor]], built: Wanted, part: slice, copies: int) -> Tensor:
        """The gradients of a slice of records, [slice, width]."""
        flat = FlatGradients(self.buffer(part.stop - part.start, built.width), built.slots, self.model)
        inputs = slice(part.start * copies, part.stop * copies)
        for call, dy in pairs:
            into = ModuleGradients(flat, call.module, copies, align=self.align)
            call.rule(call.module, call.x[inputs], dy[inputs], into)
        return flat.finish()

    def _forward(
        self, inputs: Tensor, targets: Tensor, copies: int, slots: Iterable[Slot]
    ) -> tuple[list[Call], Tensor]:
        inputs = self.arranged(inputs)
        with captured(self.model, self._owned(slots)) as calls:
            each = self.loss(self._outputs(inputs), repeated(targets, copies))
        return calls, each if copies == 1 else each.view(len(targets), copies).mean(dim=1)

    def arranged(self, inputs: Tensor) -> Tensor:
        return side_by_side(inputs) if self.laid_out else inputs

    def _outputs(self, inputs: Tensor) -> Tensor:
        """The model's outputs; with bf16 its products are shorter, all that follows is float32 again."""
        if self.precision == "float32":
            outputs: Tensor = self.model(inputs)
            return outputs
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
            shorter: Tensor = self.model(inputs)
        return shorter.float()

    def _owned(self, slots: Iterable[Slot]) -> set[int]:
        return {id(self.model.get_parameter(slot.name)) for slot in slots}

    def _backward(self, calls: list[Call], losses: Tensor, rows: int) -> list[tuple[Call, Tensor]]:
        """Each call with dℓ/dy; calls that the loss does not depend on are left out."""
        pairs = [(call, dy) for call, dy in zip(calls, _output_gradients(losses, calls), strict=True) if dy is not None]
        for call, dy in pairs:
            _refuse_unruly(call, dy, rows)
        if self.precision == "float32":
            return pairs
        # The same numbers are measured and added up, however short they were in the net.
        return [(replace(call, x=_long(call.x)), _long(dy)) for call, dy in pairs]


def _long(values: Tensor) -> Tensor:
    return values.float() if values.dtype == torch.bfloat16 else values


def side_by_side(inputs: Tensor) -> Tensor:
    """Images with their channels side by side on a CPU, where convolution and pooling are twice as fast that way."""
    if inputs.dim() != 4 or inputs.device.type != "cpu" or not inputs.is_floating_point():
        return inputs
    if inputs.shape[1] == 1 and inputs.is_contiguous():  # the same memory: torch only has to be told
        _, _, height, width = inputs.shape
        return inputs.as_strided(inputs.shape, (height * width, 1, width, 1))
    return inputs.contiguous(memory_format=torch.channels_last)


def active_slots(slots: Sequence[Slot], query: GradientSum) -> list[Slot]:
    """The parameters of which the mask keeps at least one coordinate: the others cost nothing."""
    if query.active is None:
        return list(slots)
    if query.trained is not None:
        return [slot for number, slot in enumerate(slots) if number in query.trained]
    kept = torch.stack([query.active[slot.start : slot.stop].any() for slot in slots]).tolist()
    return [slot for slot, any_kept in zip(slots, kept, strict=True) if any_kept]


def owns(module: nn.Module, parameters: set[int]) -> bool:
    """Whether one of these parameters (by identity) is the module's own; shared ones belong to several modules."""
    return any(id(parameter) in parameters for parameter in module.parameters(recurse=False))


def _bytes_a_record(pairs: Sequence[tuple[Call, Tensor]], width: int, copies: int) -> int:
    widest = max((bytes_at_work(call.module, call.x, dy) for call, dy in pairs), default=0)
    return max(8 * width, copies * widest)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@contextmanager
def captured(model: nn.Module, parameters: set[int]) -> Iterator[list[Call]]:
    """Collects the calls of all layers that own one of these parameters; the hooks are gone afterwards."""
    calls: list[Call] = []
    handles = []

    def record(path: str, module: nn.Module, x: Tensor, y: Tensor, part: Part) -> None:
        calls.append(Call(path, module, x.detach(), x._version, get_gradient_edge(y), part))

    try:
        for path, module in ruled(model):
            if owns(module, parameters) and type(module) not in UNFOLDINGS:
                handles.append(module.register_forward_hook(_recorder(path, calls), with_kwargs=True))
        with unfolded(model, parameters, record):
            yield calls
    finally:
        for handle in handles:
            handle.remove()


def ruled(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that own trained parameters, hence need a rule.

    One without a rule, all of whose parameters are also those of layers that have one (a bias that is tied to a
    layer's, say), is left to these.
    """
    kept = {id(p) for module in model.modules() if has_rule(module) for p in module.parameters(recurse=False)}
    for path, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        if own and (has_rule(module) or any(id(parameter) not in kept for parameter in own)):
            yield path, module


def _recorder(path: str, calls: list[Call]) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if output.requires_grad:
            x: Tensor = args[0] if args else kwargs["input"]
            # The edge is taken now: an in-place operation that follows replaces output.grad_fn, not the edge.
            edge = get_gradient_edge(output)
            calls.append(Call(path, module, x.detach(), x._version, edge, RULES[type(module)]))

    return hook


def _output_gradients(losses: Tensor, calls: list[Call]) -> tuple[Tensor | None, ...]:
    if not calls or not losses.requires_grad:
        return (None,) * len(calls)
    return torch.autograd.grad(losses.sum(), [call.edge for call in calls], allow_unused=True)


def _refuse_unruly(call: Call, dy: Tensor, rows: int) -> None:
    where = describe(call.path, call.module)
    if call.x._version != call.version:
        raise ModelError(f"{where}: its input is changed in place later in the forward; use the out-of-place operation")
    if call.x.dim() == 0 or len(call.x) != rows or len(dy) != rows:
        raise ModelError(f"{where}: its input does not have the batch as first dimension; keep it first in every layer")
