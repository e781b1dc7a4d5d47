"""A drawn batch of private records: sensitive, down to its length."""

from __future__ import annotations

from collections.abc import Iterator

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
