"""`BatchMemoryManager`: a logical batch that does not fit in memory is differentiated in parts, of a public size."""

from __future__ import annotations

import torch

from adadpigu.integrations.opacus.loader import PrivateDataLoader


class BatchMemoryManager:
    """As in Opacus, but the script goes through whole batches: one `backward` and one `step` each."""

    def __init__(
        self, *, data_loader: PrivateDataLoader, max_physical_batch_size: int, optimizer: torch.optim.Optimizer
    ) -> None:
        self._loader, self._most = data_loader, max_physical_batch_size

    def __enter__(self) -> PrivateDataLoader:
        self._loader.process_at_once(self._most)
        return self._loader

    def __exit__(self, *_: object) -> None:
        return
