"""What a per-sample gradient engine is: records in, one sealed gradient g_i = ∇ℓ(θ; record i) a record out.

What an engine returns is sensitive and sealed. Two engines are for models without a rule for every layer: vmap over
records, and where vmap refuses, one record at a time. Both run the model on a batch of one, so records cannot mix.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from adadpigu.core.bounding import BoundedSum, GradientSum, MappedSum, record_factors, total_of
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.slicing import BLOCK, aligned, is_narrow, length_for_all, rounded
from adadpigu.core.gradients.state import refuse_changes
from adadpigu.core.layout import Layout
from adadpigu.core.sensitive import GradientBatch, PerRecordLosses, PerSampleGradients, Records, unseal
from adadpigu.core.standardising import Standardised, Standardiser
from adadpigu.core.trees import Tree, map_tensors, select

LARGE = 2**20  # parameters from which a net counts as large: memory is kept for them
ROWS_AT_ONCE = 256  # rows that go through a net together on a CPU: more would not fit its cache
_FEW_ROWS = 16  # the same for a large net: what its layers keep should not come on top of its parameters
_MANY_OPERATIONS = 2**22  # multiply-adds for each row from which a slice of one block takes no longer than a long one


class GradientEngine(ABC):
    """A way to compute per-sample gradients; which one is used changes speed and memory, never the numbers.

    | batch | result |
    | --- | --- |
    | no records | [0, d] and [0]; the model is not run |
    | rows that are no records | computed with, and marked: they count for nothing |
    | a buffer or parameter changed in the forward | `ModelError` that names it |
    | not `Records` | `PrivacyLineError` |
    """

    name: ClassVar[str]
    sums_whole_rows: ClassVar[bool] = True
    """whether a record's whole gradient is there when it is added, as tier `exact` needs it"""

    def __init__(self, model: nn.Module, loss: RecordLoss, reason: str, net: nn.Module | None = None) -> None:
        self.model = model
        self.net = model if net is None else net
        """what is called with a batch's inputs: the model, or the `Objective` around it, with `GivenLosses`"""
        self.loss = loss
        self.reason = reason  # One sentence for users: why this engine.
        self.layout = Layout.of(model)
        self.operations = 0.0  # multiply-adds of a forward for each row, about
        self.rows_alike = False  # whether a record's gradient has the same bits at any place, in any number of blocks
        self.align = False  # whether all products are aligned, where this machine rounds unaligned ones otherwise
        self._watched = False

    @abstractmethod
    def compute(self, inputs: Tree, targets: Tensor, copies: int = 1) -> GradientBatch:
        """The unsealed gradients of at least one record; its loss is the mean over its `copies` rows of `inputs`."""

    def losses(self, inputs: Tree, targets: Tensor) -> Tensor:
        """The unsealed losses of at least one input, one each; only for this package."""
        rows = [slice(row, row + 1) for row in range(len(targets))]
        return torch.stack([self.loss.one(self.net(select(inputs, row)), targets[row]) for row in rows])

    def per_sample_gradients(self, records: Records) -> PerSampleGradients:
        """g_i for every record, at the model's current parameters."""
        inputs, targets = unseal(records, Records)
        if len(targets) == 0:
            return PerSampleGradients(GradientBatch(self.buffer(0), self.buffer(0, 1)[:, 0]))
        with self.watched(), torch.enable_grad():
            batch = self.compute(inputs, targets, records.copies)
        present = None if records.present is None else unseal(records.present)
        return PerSampleGradients(replace(batch, present=present))

    def clipped_sum(self, records: Records, query: GradientSum) -> BoundedSum:
        """Σ clip(g_i) of one micro-batch as the query asks for it: in float64, zero where frozen."""
        inputs, targets = unseal(records, Records)
        dtype, device = self._kind()
        if len(targets) == 0:
            total = torch.zeros(self.layout.size, dtype=torch.float64, device=device)
        else:
            present = None if records.present is None else unseal(records.present)
            with nullcontext() if self._watched else self.watched(), torch.enable_grad():
                total = self.clipped(inputs, targets, records.copies, query, present).detach()
        return BoundedSum(total, query, size=self.layout.size, dtype=dtype)

    def clipped(
        self, inputs: Tree, targets: Tensor, copies: int, query: GradientSum, present: Tensor | None = None
    ) -> Tensor:
        """The unsealed sum over the rows that are `present` (None: all), [d] in float64, zero where frozen."""
        rows = self.compute(inputs, targets, copies).gradients
        standardised = Standardiser(query, self.layout.size, device=rows.device)(rows)
        factors = record_factors([standardised.squares()], query, present, length=self.layout.size)
        return total_of(standardised, query, factors)

    def mapped_sums(
        self, records: Records, queries: Sequence[GradientSum | MappedSum], coins: Sequence[Tensor | None] = ()
    ) -> list[BoundedSum]:
        """Σ clip(z_i) of one micro-batch, z_i by `rows` of each query; whole gradients are there a slice at a time.

        `coins` has for each query that takes any its own for each row, [b, tosses].
        """
        coins = coins or [None] * len(queries)
        inputs, targets = unseal(records, Records)
        dtype = self._kind()[0]
        present = None if records.present is None else unseal(records.present)
        none = torch.zeros(0, 2, dtype=torch.float64, device=self._kind()[1])
        totals = [query.rows(self.buffer(0), none).sum(0) for query in queries]
        if len(targets) > 0:
            with nullcontext() if self._watched else self.watched(), torch.enable_grad():
                for part, rows in self.row_slices(inputs, targets, records.copies):
                    here = None if present is None else present[part]
                    for added, query, coin in zip(totals, queries, coins, strict=True):
                        z = Standardised(query.rows(rows.detach(), None if coin is None else coin[part]))
                        factors = record_factors([z.squares()], query, here, length=len(added))
                        added += total_of(z, query, factors)
        pairs = zip(totals, queries, strict=True)
        return [BoundedSum(total, query, size=len(total), dtype=dtype) for total, query in pairs]

    def row_slices(self, inputs: Tree, targets: Tensor, copies: int) -> Iterator[tuple[slice, Tensor]]:
        """The unsealed gradients of at least one record, [b, d], in slices."""
        yield slice(0, len(targets)), self.compute(inputs, targets, copies).gradients

    def per_record_losses(self, records: Records) -> PerRecordLosses:
        """ℓ_i for every row, rows that are no records included, without gradients."""
        inputs, targets = unseal(records, Records)
        if len(targets) == 0:
            return PerRecordLosses(self.buffer(0, 1)[:, 0])
        with self.watched(), torch.no_grad():
            each = self.losses(inputs, repeated(targets, records.copies)).detach()
        return PerRecordLosses(each.view(len(targets), records.copies).mean(dim=1))

    def slice_length(self, expected: float, copies: int) -> int:
        """How many records are best processed at once where so many are drawn on average: a public number."""
        large = self.layout.size > LARGE
        if self._kind()[1].type != "cpu":
            most = length_for_all(expected)
            return min(most, max(1, 128 // copies)) if large else most
        rows = BLOCK if self.operations >= _MANY_OPERATIONS else ROWS_AT_ONCE if self.rows_alike else 2 * BLOCK
        return rounded(max(1, (_FEW_ROWS if large else rows) // copies))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watches the model over several calls, instead of anew over each."""
        if self._watched:
            yield
            return
        self._watched = True
        try:
            with (
                aligned(self.model, attention=self.align) if self.align or self._narrow else nullcontext(),
                self._unchanged(),
                torch.autocast(self._trained[0].device.type, enabled=False),  # bounds are reckoned for what runs here
            ):
                yield
        finally:
            self._watched = False

    @functools.cached_property
    def _narrow(self) -> bool:
        """Whether the model has layers that a CPU rounds by where their rows lie."""
        return any(map(is_narrow, self.model.modules()))

    def _unchanged(self) -> AbstractContextManager[object]:
        """Within, the model leaves nothing of what it sees in its own state."""
        return refuse_changes(self.net)

    def replay_memory(self) -> object:
        """What must stay alive for as long as a device may replay this engine's last work."""
        return None

    def in_layout(self, inputs: Tree) -> Tree:
        """Inputs in the layout in which the engine gives them to the net."""
        return inputs

    def buffer(self, records: int, width: int | None = None) -> Tensor:
        """An unfilled [b, d] tensor (or of another width) where the model's parameters live."""
        dtype, device = self._kind()
        return torch.empty(records, self.layout.size if width is None else width, dtype=dtype, device=device)

    def _kind(self) -> tuple[torch.dtype, torch.device]:
        kinds = {parameter.dtype for parameter in self._trained}
        return functools.reduce(torch.promote_types, kinds), self._trained[0].device

    @functools.cached_property
    def _trained(self) -> list[nn.Parameter]:
        return self.layout.parameters(self.model)


def repeated(targets: Tensor, copies: int) -> Tensor:
    """One target a row: each record's target for each of its copies."""
    return targets if copies == 1 else targets.repeat_interleave(copies, dim=0)


class FunctionalEngine(GradientEngine):
    """vmap(grad_and_value(functional_call)) over the whole model; every record draws its own randomness."""

    name: ClassVar[str] = "functional"

    def compute(self, inputs: Tree, targets: Tensor, copies: int = 1) -> GradientBatch:
        prefix = "" if self.net is self.model else "model."
        trained = zip(self.layout.slots, self.layout.parameters(self.model), strict=True)
        parameters = {prefix + slot.name: parameter.detach() for slot, parameter in trained}

        def alone(theta: dict[str, Tensor], x: Tree, y: Tensor) -> Tensor:
            rows = [select(x, slice(row, row + 1)) for row in range(copies)]
            losses = [self.loss.one(functional_call(self.net, theta, (row,)), y.unsqueeze(0)) for row in rows]
            return torch.stack(losses).mean() if copies > 1 else losses[0]

        each = vmap(grad_and_value(alone), in_dims=(None, 0, 0), randomness="different")
        count = len(targets)
        gradients, losses = each(parameters, _grouped(inputs, count, copies), targets)
        flat = self.buffer(count)
        for slot in self.layout.slots:
            flat[:, slot.start : slot.stop] = gradients.pop(prefix + slot.name).detach().reshape(count, -1)
        return GradientBatch(flat, losses.detach())

    def losses(self, inputs: Tree, targets: Tensor) -> Tensor:
        def alone(x: Tree, y: Tensor) -> Tensor:
            return self.loss.one(self.net(x), y.unsqueeze(0))

        try:
            losses: Tensor = vmap(alone, randomness="different")(_grouped(inputs, len(targets), 1), targets)
            return losses
        except RuntimeError:  # some kernels that need no gradient have no batching rule: same values, one at a time
            return super().losses(inputs, targets)


class LoopEngine(GradientEngine):
    """Ordinary autograd on one record after the other: slow, and the definition all other engines must meet."""

    name: ClassVar[str] = "loop"

    def slice_length(self, expected: float, copies: int) -> int:
        return BLOCK  # records are alone anyway

    def compute(self, inputs: Tree, targets: Tensor, copies: int = 1) -> GradientBatch:
        flat = self.buffer(len(targets))
        losses = []
        parameters = self.layout.parameters(self.model)
        for number, (row, y) in enumerate(zip(flat, targets.unsqueeze(1), strict=True)):
            places = range(number * copies, (number + 1) * copies)
            rows = [map_tensors(torch.clone, select(inputs, slice(place, place + 1))) for place in places]
            loss = torch.stack([self.loss.one(self.net(x), y) for x in rows]).mean()
            row.copy_(flat_gradient(loss, parameters))
            losses.append(loss.detach())
        return GradientBatch(flat, torch.stack(losses))


def _grouped(inputs: Tree, count: int, copies: int) -> Tree:
    """[b, k, ...]: the copies of each record together."""
    return map_tensors(lambda rows: rows.reshape(count, copies, *rows.shape[1:]), inputs)


def flat_gradient(loss: Tensor, parameters: list[nn.Parameter], retain_graph: bool = False) -> Tensor:
    """∇_θ of a scalar loss by ordinary autograd, flat [d]; zero for parameters it does not depend on."""
    if not loss.requires_grad:
        return torch.cat([torch.zeros_like(parameter).reshape(-1) for parameter in parameters])
    gradients = torch.autograd.grad(
        loss, parameters, retain_graph=retain_graph, allow_unused=True, materialize_grads=True
    )
    return torch.cat([gradient.reshape(-1) for gradient in gradients])
