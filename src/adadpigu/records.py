"""A drawn batch of private records, and what engines make of it record by record: sensitive, down to its length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from adadpigu.sensitive import Sensitive


class Records(Sensitive[tuple[Tensor, Tensor]]):
    """Inputs [b, ...] and targets [b, ...] of one Poisson draw; b itself is sensitive."""

    __slots__ = ()

    def chunks(self, size: int | None) -> Iterator[Records]:
        """Micro-batches of at most `size` records (all at once for None); an empty draw is one empty micro-batch."""
        inputs, targets = self._open()
        step = size or max(len(inputs), 1)
        for start in range(0, max(len(inputs), 1), step):
            yield Records((inputs[start : start + step], targets[start : start + step]))


@dataclass(frozen=True)
class GradientBatch:
    """Per-sample gradients [b, d] in the order of the layout, and the losses [b] they belong to."""

    gradients: Tensor
    losses: Tensor


class PerSampleGradients(Sensitive[GradientBatch]):
    """The sealed gradients and losses of one batch."""

    __slots__ = ()


class PerRecordLosses(Sensitive[Tensor]):
    """The sealed losses [b] of one batch, or [b, k] at k parameter vectors."""

    __slots__ = ()
