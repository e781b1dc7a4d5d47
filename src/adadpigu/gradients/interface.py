"""What a per-sample gradient engine is: records in, one sealed gradient g_i = ∇ℓ(θ; record i) a record out.

What an engine returns is on the sensitive side of the privacy line, so it is sealed before it leaves this package.
`SealedEngine` holds what all engines share: the empty batch, the seal, and the watch over the model's buffers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from adadpigu.bounding import ClippedSum, GradientSum, record_factors
from adadpigu.errors import PrivacyLineError
from adadpigu.gradients.losses import RecordLoss
from adadpigu.gradients.slicing import BLOCK, aligned, length_for_all, rounded
from adadpigu.gradients.state import refuse_changes
from adadpigu.layout import Layout
from adadpigu.records import GradientBatch, PerRecordLosses, PerSampleGradients, Records
from adadpigu.sensitive import unseal
from adadpigu.standardising import Standardiser

LARGE = 2**20
"""parameters from which a net counts as large: memory is kept for them"""
ROWS_AT_ONCE = 256
"""rows that go through a net together on a CPU: more would not fit its cache"""
_FEW_ROWS = 16
"""the same for a large net: what its layers keep should not come on top of its parameters"""
_MANY_OPERATIONS = 2**22
"""multiply-adds for each row from which a slice of one block takes no longer than a long one"""


class GradientEngine(Protocol):
    """A way to compute per-sample gradients; which one is used changes speed and memory, never the numbers."""

    @property
    def name(self) -> str:
        """`materialised`, `ghost`, `functional` or `loop`."""
        ...

    @property
    def reason(self) -> str:
        """One sentence for users: why this engine."""
        ...

    @property
    def layout(self) -> Layout:
        """Where each parameter lies in the flat gradient."""
        ...

    def per_sample_gradients(self, records: Records) -> PerSampleGradients:
        """g_i for every record, at the model's current parameters."""
        ...

    def clipped_sum(self, records: Records, query: GradientSum) -> ClippedSum:
        """Σ clip(g_i) as the query asks for it, in whatever way is fastest."""
        ...

    def per_record_losses(self, records: Records) -> PerRecordLosses:
        """ℓ_i for every record, at the model's current parameters, without gradients."""
        ...

    @property
    def rows_alike(self) -> bool:
        """Whether a record's gradient is the same, bit for bit, at any place, in any number of blocks of records.

        Where `slice_length` is less than a block: at any place of a slice of that length.
        """
        ...

    def slice_length(self, expected: float, copies: int) -> int:
        """How many records are best processed at once where so many are drawn on average: a public number."""
        ...

    def watched(self) -> AbstractContextManager[None]:
        """Watches the model over several calls, instead of anew over each."""
        ...

    def keepsake(self) -> object:
        """What must stay alive for as long as a device may replay this engine's last work."""
        ...


class SealedEngine(ABC):
    """The part of an engine that stands on the privacy line.

    | batch | result |
    | --- | --- |
    | no records | [0, d] and [0]; the model is not run |
    | rows that are no records | computed with, and marked: they count for nothing |
    | a buffer or parameter changed in the forward | `ModelError` that names it |
    | not `Records` | `PrivacyLineError` |
    """

    name: ClassVar[str]

    def __init__(self, model: nn.Module, loss: RecordLoss, reason: str) -> None:
        self.model = model
        self.loss = loss
        self.reason = reason
        self.layout = Layout.of(model)
        self.operations = 0.0
        """multiply-adds of a forward for each row, about"""
        self.rows_alike = False
        self.align = False
        """whether all products are aligned, where this machine would round them otherwise at another address"""
        self._watched = False

    @abstractmethod
    def compute(self, inputs: Tensor, targets: Tensor, copies: int = 1) -> GradientBatch:
        """The unsealed gradients of a batch of at least one record; only for this package.

        `inputs` holds `copies` rows a record, one after the other; a record's loss is the mean over its rows.
        """

    @abstractmethod
    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The unsealed losses of at least one input, one each; only for this package."""

    def per_sample_gradients(self, records: Records) -> PerSampleGradients:
        inputs, targets = _open(records)
        if len(targets) == 0:
            return PerSampleGradients(GradientBatch(self.buffer(0), self._no_losses()))
        with self.watched(), torch.enable_grad():
            batch = self.compute(inputs, targets, records.copies)
        return PerSampleGradients(replace(batch, present=_present(records)))

    def clipped_sum(self, records: Records, query: GradientSum) -> ClippedSum:
        inputs, targets = _open(records)
        dtype, device = self._kind()
        if len(targets) == 0:
            return ClippedSum(torch.zeros(self.layout.size, dtype=torch.float64, device=device), query, dtype)
        with self.watched(), torch.enable_grad():
            total = self.clipped(inputs, targets, records.copies, query, _present(records))
        return ClippedSum(total.detach(), query, dtype)

    def clipped(
        self, inputs: Tensor, targets: Tensor, copies: int, query: GradientSum, present: Tensor | None = None
    ) -> Tensor:
        """The unsealed sum for a batch of at least one record, [d] in float64, zero where frozen.

        Rows that are not `present` (None: all are) are no records and add nothing.
        """
        rows = self.compute(inputs, targets, copies).gradients
        standardised = Standardiser(query, self.layout.size, device=rows.device)(rows)
        return standardised.total(record_factors([standardised.squares()], query, present, length=self.layout.size))

    def per_record_losses(self, records: Records) -> PerRecordLosses:
        """One a row, rows that are no records included."""
        inputs, targets = _open(records)
        if len(targets) == 0:
            return PerRecordLosses(self._no_losses())
        with self.watched(), torch.no_grad():
            each = self.losses(inputs, repeated(targets, records.copies)).detach()
        return PerRecordLosses(each.view(len(targets), records.copies).mean(dim=1))

    def slice_length(self, expected: float, copies: int) -> int:
        large = self.layout.size > LARGE
        if self._kind()[1].type != "cpu":
            most = length_for_all(expected)
            return min(most, max(1, 128 // copies)) if large else most
        rows = BLOCK if self.operations >= _MANY_OPERATIONS else ROWS_AT_ONCE if self.rows_alike else 2 * BLOCK
        return rounded(max(1, (_FEW_ROWS if large else rows) // copies))

    @contextmanager
    def watched(self) -> Iterator[None]:
        if self._watched:
            yield
            return
        self._watched = True
        try:
            with aligned(self.model, attention=self.align), self._alone():
                yield
        finally:
            self._watched = False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Watches the model, and leaves an autocast of the caller's outside: bounds are reckoned for what runs here."""
        kind = self._kind()[1].type
        with refuse_changes(self.model), torch.autocast(kind, enabled=False):
            yield

    def keepsake(self) -> object:
        return None

    def arranged(self, inputs: Tensor) -> Tensor:
        """Inputs in the layout in which the engine gives them to the net."""
        return inputs

    def buffer(self, records: int, width: int | None = None) -> Tensor:
        """An unfilled [b, d] tensor (or of another width) where the model's parameters live."""
        dtype, device = self._kind()
        return torch.empty(records, self.layout.size if width is None else width, dtype=dtype, device=device)

    def _no_losses(self) -> Tensor:
        dtype, device = self._kind()
        return torch.empty(0, dtype=dtype, device=device)

    def _kind(self) -> tuple[torch.dtype, torch.device]:
        parameters = self.layout.parameters(self.model)
        dtype = parameters[0].dtype
        for parameter in parameters[1:]:
            dtype = torch.promote_types(dtype, parameter.dtype)
        return dtype, parameters[0].device


def repeated(targets: Tensor, copies: int) -> Tensor:
    """One target a row: each record's target for each of its copies."""
    return targets if copies == 1 else targets.repeat_interleave(copies, dim=0)


def _open(records: Records) -> tuple[Tensor, Tensor]:
    if not isinstance(records, Records):
        raise PrivacyLineError(f"expected Records, got {type(records).__name__}")
    return unseal(records)


def _present(records: Records) -> Tensor | None:
    return None if records.present is None else unseal(records.present)
