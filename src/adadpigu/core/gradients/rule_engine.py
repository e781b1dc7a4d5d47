"""The rule engines: one forward and one backward for the whole batch, then a rule per layer call.

Hooks live for one call. Each remembers a layer's input and a gradient edge of its output, so that dℓ/dy comes from
one `autograd.grad(Σ ℓ_i, edges)` that computes no weight gradient and touches no `p.grad`. A clipped sum is made in
slices of a few records: their gradients are built, bounded and added while they are in the cache, never all at once.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from adadpigu.core.bounding import GradientSum, record_factors, total_of
from adadpigu.core.gradients.engine import LARGE, GradientEngine, repeated
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.rules import RULES, Destination, FlatGradients, Rule, bytes_at_work
from adadpigu.core.gradients.state import describe
from adadpigu.core.gradients.unfolding import UNFOLDINGS, Part, has_rule, unfolded
from adadpigu.core.layout import Slot
from adadpigu.core.sensitive import GradientBatch
from adadpigu.core.side_stream import join, side_stream
from adadpigu.core.standardising import Standardised, Standardiser
from adadpigu.core.trees import Tree, map_tensors
from adadpigu.errors import ModelError

if TYPE_CHECKING:
    from adadpigu.core.gradients.ghost import OuterLayer

_SLICE_BYTES = {"cpu": 8 * 2**20}  # what the gradients of a slice of records may take: on a CPU they stay in the cache
_SLICE_BYTES_ELSEWHERE = 2**30
_MOST_SELECTIONS = 8  # that are kept: a mask that grows takes in one parameter after the other
Precision = Literal["float32", "bf16"]  # what a net's products are computed in; norms, sums, noise are always float64


@dataclass(frozen=True)
class Call:
    """One call of a layer during the forward."""

    path: str
    module: nn.Module
    x: Tensor
    version: int
    edge: GradientEdge
    rule: Rule[Any]


@dataclass(frozen=True, eq=False)
class Selection:
    """Some parameters: where they lie in the flat gradient, and which layers own them. The same throughout a run."""

    slots: tuple[Slot, ...]
    names: frozenset[str]
    sizes: list[int]
    columns: Tensor | None  # their places in the flat gradient; None: all of it
    layers: list[tuple[str, nn.Module]]  # those with a rule, by path
    unfolds: bool  # whether any of the layers is run unfolded


@dataclass(eq=False)
class Wanted:
    """What a query wants of some parameters, and how their gradients are standardised. Public."""

    query: GradientSum
    chosen: Selection
    size: int
    device: torch.device

    @functools.cached_property
    def whole(self) -> Standardiser:
        """How a whole gradient is standardised."""
        return Standardiser(self.query, self.size, device=self.device)

    @functools.cached_property
    def standardised(self) -> Standardiser:
        """How rows of these parameters' gradients are standardised."""
        if self.chosen.columns is None:
            return self.whole
        return Standardiser(self.query, self.size, device=self.device, columns=self.chosen.columns)


class RuleEngine(GradientEngine):
    """Per-sample gradients by layer rules; contributions of repeated calls and shared parameters are added."""

    name: ClassVar[str] = "materialised"

    def __init__(self, model: nn.Module, loss: RecordLoss, reason: str, net: nn.Module | None = None) -> None:
        super().__init__(model, loss, reason, net)
        self.precision: Precision = "float32"
        self.channels_last = True  # whether images are given with their channels side by side
        self._selections: dict[tuple[int, ...], Selection] = {}
        self._last: tuple[Wanted, Wanted] | None = None  # what the query before wanted: in all, and of the built layers
        self._outer_weights: frozenset[str] = frozenset()  # the weights that it wanted and that were not built

    def compute(self, inputs: Tree, targets: Tensor, copies: int = 1) -> GradientBatch:
        everything = self.selection(self.layout.slots)
        calls, losses = self._forward(inputs, targets, copies, everything)
        pairs = self._backward(calls, losses, copies * len(targets))
        return GradientBatch(self._rows(pairs, everything, slice(0, len(targets)), copies), losses.detach())

    def row_slices(self, inputs: Tree, targets: Tensor, copies: int) -> Iterator[tuple[slice, Tensor]]:
        everything, records = self.selection(self.layout.slots), len(targets)
        calls, losses = self._forward(inputs, targets, copies, everything)
        pairs = self._backward(calls, losses, copies * records)
        at_work = [copies * bytes_at_work(call.module, call.x, dy) for call, dy in pairs]
        size = slice_size(records, max([8 * self.layout.size, *at_work]), targets.device)
        for start in range(0, records, size):
            part = slice(start, start + size)
            yield part, self._rows(pairs, everything, part, copies)

    def clipped(
        self, inputs: Tree, targets: Tensor, copies: int, query: GradientSum, present: Tensor | None = None
    ) -> Tensor:
        part, built = self._wanted(query, targets.device)
        with side_stream(targets.device):  # vectors that this batch will need if it builds the layers of the last
            _ = part.whole, (part if query.top_k < 1 else built).standardised
        calls, losses = self._forward(inputs, targets, copies, part.chosen)
        pairs = self._backward(calls, losses, copies * len(targets))
        outer = self.outer_layers(pairs, copies, part)
        outer_weights = frozenset([layer.slot.name for layer in outer])
        if outer_weights != self._outer_weights:
            self._outer_weights, built = outer_weights, self._without(part, outer_weights)
        self._last = part, built
        return self._totals(pairs, built, outer, copies, len(targets), present)

    def wanted(self, query: GradientSum, slots: Sequence[Slot], device: torch.device) -> Wanted:
        return Wanted(query, self.selection(slots), self.layout.size, device)

    def _wanted(self, query: GradientSum, device: torch.device) -> tuple[Wanted, Wanted]:
        """What a query wants, and what it wants of the layers that the query before had built: once for all batches."""
        if self._last is not None and self._last[0].query is query and self._last[0].device == device:
            return self._last
        part = self.wanted(query, active_slots(self.layout.slots, query), device)
        return part, self._without(part, self._outer_weights)

    def _without(self, part: Wanted, outer_weights: frozenset[str]) -> Wanted:
        """The same without the weights of outer layers."""
        if part.chosen.names.isdisjoint(outer_weights):
            return part
        kept = [slot for slot in part.chosen.slots if slot.name not in outer_weights]
        return self.wanted(part.query, kept, part.device)

    def selection(self, slots: Sequence[Slot]) -> Selection:
        """Some parameters, worked out once."""
        key = tuple([slot.start for slot in slots])
        if key in self._selections:
            return self._selections[key]
        made = self._select(tuple(slots))
        if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):  # else it is the recording's
            if len(self._selections) >= _MOST_SELECTIONS:
                self._selections.clear()
            self._selections[key] = made
        return made

    def _select(self, slots: tuple[Slot, ...]) -> Selection:
        names = frozenset(slot.name for slot in slots)
        columns = None
        if len(slots) < len(self.layout.slots):  # made on the device: a recording copies nothing to it
            everywhere = torch.arange(self.layout.size, device=self._kind()[1])
            columns = torch.cat([everywhere[:0], *(everywhere[slot.start : slot.stop] for slot in slots)])
        layers = [(path, m) for path, m in ruled(self.model) if self.owns(m, names) and type(m) not in UNFOLDINGS]
        unfolds = any(type(module) in UNFOLDINGS for module in self.model.modules())
        return Selection(slots, names, [slot.stop - slot.start for slot in slots], columns, layers, unfolds)

    @functools.cached_property
    def slots_of(self) -> dict[nn.Module, dict[str, Slot]]:
        """The trained parameters of each module, by its own name for them; shared ones belong to several modules."""
        named = {id(self.model.get_parameter(slot.name)): slot for slot in self.layout.slots}
        own = {module: dict(module.named_parameters(recurse=False)) for module in self.model.modules()}
        return {m: {key: named[id(p)] for key, p in parts.items() if id(p) in named} for m, parts in own.items()}

    def owns(self, module: nn.Module, names: frozenset[str]) -> bool:
        return not names.isdisjoint([slot.name for slot in self.slots_of[module].values()])

    def replay_memory(self) -> object:
        return self._last

    def losses(self, inputs: Tree, targets: Tensor) -> Tensor:
        return self.loss(self._outputs(inputs), targets)

    def outer_layers(self, pairs: Sequence[tuple[Call, Tensor]], copies: int, wanted: Wanted) -> "list[OuterLayer]":
        """The layers whose gradients are never built: none here."""
        return []

    def _totals(
        self,
        pairs: Sequence[tuple[Call, Tensor]],
        built: Wanted,
        outer: "Sequence[OuterLayer]",
        copies: int,
        records: int,
        present: Tensor | None,
    ) -> Tensor:
        """Σ of clipped rows, zero where frozen; of the parameters that are built, slice by slice."""
        query, chosen = built.query, built.chosen
        used = [(call, dy) for call, dy in pairs if self.owns(call.module, chosen.names)]
        with side_stream(built.device):
            elsewhere = [layer.squares() for layer in outer]
        row = sum(chosen.sizes) * (4 if built.standardised.selects else 8)
        names = chosen.names
        at_work = []
        for call, dy in used:
            weight = self.slots_of[call.module].get("weight")
            if weight is None or weight.name in names:  # a bias alone takes next to nothing
                at_work.append(copies * bytes_at_work(call.module, call.x, dy))
        size = slice_size(records, max([row, *at_work]), built.device)
        factors: list[Tensor] = []
        added: Tensor | None = None
        parts: dict[str, Tensor] = {}
        for start in range(0, records, size):
            part = slice(start, start + size)
            rows, here = self._rows(used, chosen, part, copies), None if present is None else present[part]
            if built.standardised.selects:
                added = self._add_selected(added, built, rows, here)
                continue
            z = built.standardised(rows)
            squares = [z.squares(), *[square[..., part].contiguous() for square in elsewhere]]
            factors.append(record_factors(squares, query, here, length=self.layout.size))
            if len(elsewhere) and part.stop == records and self.layout.size <= LARGE:  # of more, one at a time
                every = factors[0] if len(factors) == 1 else torch.cat(factors)
                with side_stream(built.device):
                    parts = {layer.slot.name: layer.total(every) for layer in outer}
            here_added = z.total(factors[-1]) if query.grid is None else total_of(z, query, factors[-1])
            added = here_added if added is None else added.add_(here_added)
        assert added is not None
        if added.is_cuda:
            join(built.device)
        parts.update(zip([slot.name for slot in chosen.slots], torch.split(added, chosen.sizes), strict=True))
        return self._put_together(parts, outer, factors)

    def _add_selected(self, added: Tensor | None, built: Wanted, rows: Tensor, here: Tensor | None) -> Tensor:
        """Adds clipped rows of which the largest entries count, in float64, a few at a time."""
        added = torch.zeros(rows.shape[1], dtype=torch.float64) if added is None else added
        for few, z, squares in built.standardised.selected(rows):
            own = record_factors([squares], built.query, None if here is None else here[few], length=self.layout.size)
            if built.query.grid is not None:
                added += total_of(Standardised(z), built.query, own)
                continue
            z[own == 0] = 0.0  # whatever they hold
            added.addmv_(z.mT, own)
        return added

    def _put_together(self, parts: dict[str, Tensor], outer: "Sequence[OuterLayer]", factors: list[Tensor]) -> Tensor:
        """The sums of all parameters as one vector; those that are not there yet are made one at a time."""
        slots = self.layout.slots
        if len(parts) == len(slots):
            return torch.cat([parts[slot.name] for slot in slots])
        total = torch.zeros(self.layout.size, dtype=torch.float64, device=self._kind()[1])
        missing = {layer.slot.name: layer for layer in outer if layer.slot.name not in parts}
        for slot in slots:
            if slot.name in parts:
                total[slot.start : slot.stop] = parts[slot.name]
            elif slot.name in missing:
                total[slot.start : slot.stop] = missing[slot.name].total(torch.cat(factors))
        return total

    def _rows(self, pairs: Sequence[tuple[Call, Tensor]], chosen: Selection, part: slice, copies: int) -> Tensor:
        """The gradients of a slice of records, [slice, width]."""
        buffer = self.buffer(part.stop - part.start, sum(chosen.sizes))
        views = torch.split(buffer, chosen.sizes, dim=1)
        flat = FlatGradients({slot.name: view for slot, view in zip(chosen.slots, views, strict=True)})
        inputs = slice(part.start * copies, part.stop * copies)
        for call, dy in pairs:
            into = Destination(flat, self.slots_of[call.module], copies, align=self.align)
            x, dy = call.x[inputs], dy[inputs]
            if self.precision != "float32":
                x, dy = _long(x), _long(dy)
            call.rule(call.module, x, dy, into)
        flat.finish()
        return buffer

    def _forward(self, inputs: Tree, targets: Tensor, copies: int, chosen: Selection) -> tuple[list[Call], Tensor]:
        inputs = self.in_layout(inputs) if self.channels_last else inputs
        with captured(self.model, chosen) as calls:
            each = self.loss(self._outputs(inputs), targets if copies == 1 else repeated(targets, copies))
        return calls, each if copies == 1 else each.view(-1, copies).mean(dim=1)

    def in_layout(self, inputs: Tree) -> Tree:
        return map_tensors(to_channels_last, inputs) if self.channels_last else inputs

    def _outputs(self, inputs: Tree) -> Tensor:
        """The model's outputs; with bf16 its products are shorter, all that follows is float32 again."""
        if self.precision == "float32":
            outputs: Tensor = self.net(inputs)
            return outputs
        with torch.autocast(self._kind()[1].type, dtype=torch.bfloat16):
            shorter: Tensor = self.net(inputs)
        return shorter.float()

    def _backward(self, calls: list[Call], losses: Tensor, rows: int) -> list[tuple[Call, Tensor]]:
        """Each call with dℓ/dy; calls that the loss does not depend on are left out."""
        if not calls or not losses.requires_grad:
            return []
        found = torch.autograd.grad(losses.sum(), [call.edge for call in calls], allow_unused=True)
        pairs = [(call, dy) for call, dy in zip(calls, found, strict=True) if dy is not None]
        for call, dy in pairs:
            if call.x._version != call.version or call.x.dim() == 0 or len(call.x) != rows or len(dy) != rows:
                raise _unruly(call)
        return pairs


def _long(values: Tensor) -> Tensor:
    """The same numbers are measured and added up, however short they were in the net."""
    return values.float() if values.dtype == torch.bfloat16 else values


def to_channels_last(inputs: Tensor) -> Tensor:
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


def slice_size(records: int, bytes_a_record: int, device: torch.device, most: int = _SLICE_BYTES_ELSEWHERE) -> int:
    """How many records' gradients are built at once: a number that divides them all, so that slices are alike."""
    fit = max(1, _SLICE_BYTES.get(device.type, most) // max(bytes_a_record, 1))
    size = min(fit, max(records, 1))
    while records % size:
        size -= 1
    return size


@contextmanager
def captured(model: nn.Module, chosen: Selection) -> Iterator[list[Call]]:
    """Collects the calls of the layers that own these parameters; hooks live for one call."""
    calls: list[Call] = []

    def record(path: str, module: nn.Module, x: Tensor, y: Tensor, part: Part) -> None:
        calls.append(Call(path, module, x.detach(), x._version, get_gradient_edge(y), part.rule))

    with ExitStack() as hooks:
        for path, module in chosen.layers:
            hook = functools.partial(_note_call, calls, path)
            hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        if chosen.unfolds:
            hooks.enter_context(unfolded(model, {id(model.get_parameter(name)) for name in chosen.names}, record))
        yield calls


def ruled(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that own trained parameters, so need a rule; not those that share all with layers that have one."""
    kept = {id(p) for module in model.modules() if has_rule(module) for p in module.parameters(recurse=False)}
    for path, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        if own and (has_rule(module) or any(id(parameter) not in kept for parameter in own)):
            yield path, module


def _note_call(calls: list[Call], path: str, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
    """A forward hook: notes one call of a layer."""
    if output.requires_grad:
        x: Tensor = args[0] if args else kwargs["input"]
        # The edge is taken now: an in-place operation that follows replaces output.grad_fn, not the edge.
        calls.append(Call(path, module, x.detach(), x._version, get_gradient_edge(output), RULES[type(module)]))


def _unruly(call: Call) -> ModelError:
    where = describe(call.path, call.module)
    if call.x._version != call.version:
        what = "its input is changed in place later in the forward; use the out-of-place operation"
    else:
        what = "its input does not have the batch as first dimension; keep it first in every layer"
    return ModelError(f"{where}: {what}")
