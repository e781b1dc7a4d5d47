"""`BatchMemoryManager`: a logical batch that does not fit in memory is differentiated in parts, of a public size."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import torch

from adadpigu.errors import InputError

if TYPE_CHECKING:
    from adadpigu.compat.opacus.training import PrivateDataLoader


class BatchMemoryManager:
    """As in Opacus, but the script goes through whole batches: one `backward` and one `step` each."""

    def __init__(
        self, *, data_loader: PrivateDataLoader, max_physical_batch_size: int, optimizer: torch.optim.Optimizer
    ) -> None:
        if max_physical_batch_size < 1:
            raise InputError(f"max_physical_batch_size={max_physical_batch_size} is not at least 1")
        self._loader, self._most = data_loader, max_physical_batch_size

    def __enter__(self) -> PrivateDataLoader:
        self._loader.process_at_once(self._most)
        return self._loader

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return
