"""A drawn batch of private records, and what engines make of it record by record: sensitive, down to its length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adadpigu.errors import PrivacyLineError
from adadpigu.sensitive import Sensitive


class Presence(Sensitive[Tensor]):
    """Which rows of a batch of fixed size are records, [b] of bool: as sensitive as their number."""

    __slots__ = ()


class Records(Sensitive[tuple[Tensor, Tensor]]):
    """Inputs [b·k, ...] and targets [b, ...] of one Poisson draw; b itself is sensitive.

    k, the number of (augmented) copies of each record, is public. Copies of one record follow each other; its loss is
    their mean, so that however many there are, a record has one gradient and is clipped once.
    """

    __slots__ = ("copies", "present")

    def __init__(self, content: tuple[Tensor, Tensor], *, copies: int = 1, present: Presence | None = None) -> None:
        """`present` marks the rows that are records; the others fill a batch of fixed size and must count for nothing.

        None: all of them.
        """
        inputs, targets = content
        if len(inputs) != copies * len(targets):
            raise PrivacyLineError(f"{copies} inputs a record are needed, or a record could be clipped as several")
        super().__init__(content)
        self.copies = copies
        self.present = present


def padded(records: Records, rows: int) -> Records:
    """So many rows, of which those after the last record repeat the first and are absent; no records stay none."""
    inputs, targets = records._open()
    more = rows - len(targets)
    if more == 0 or len(targets) == 0:
        return records
    here = targets.new_ones(len(targets), dtype=torch.bool) if records.present is None else records.present._open()
    inputs, targets = (torch.cat([t, t[:1].expand(more, *t.shape[1:])]) for t in (inputs, targets))
    return Records((inputs, targets), present=Presence(torch.cat([here, here.new_zeros(more)])))


@dataclass(frozen=True)
class GradientBatch:
    """Per-sample gradients [b, d] in the order of the layout, and the losses [b] they belong to."""

    gradients: Tensor
    losses: Tensor
    present: Tensor | None = None
    """which rows are records, [b] of bool; None: all of them"""

    def records_only(self) -> GradientBatch:
        """The rows that are records."""
        if self.present is None:
            return self
        return GradientBatch(self.gradients[self.present], self.losses[self.present])


class PerSampleGradients(Sensitive[GradientBatch]):
    """The sealed gradients and losses of one batch."""

    __slots__ = ()


class PerRecordLosses(Sensitive[Tensor]):
    """The sealed losses [b] of one batch, or [b, k] at k parameter vectors."""

    __slots__ = ()


def losses_of(gradients: PerSampleGradients) -> PerRecordLosses:
    """The sealed losses that came with sealed gradients."""
    return PerRecordLosses(gradients._open().losses)
