"""∇ℓ of public records at the weights of now, for a method that learns a basis from them. Public in, public out."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adadpigu.core.gradients import GradientEngine
from adadpigu.core.randomness import preserve_rng_state, seed_cpu_rng
from adadpigu.data.public import PublicRecords
from adadpigu.features.front import apply_front

_ROWS = 128
"""records whose gradients are computed at once"""


@dataclass(frozen=True, kw_only=True)
class PublicGradients:
    """Gradients of public records, which cost nothing."""

    engine: GradientEngine
    front: nn.Module | None
    records: PublicRecords
    classes: int | None
    seed: int

    @property
    def count(self) -> int:
        return len(self.records.inputs)

    def rows(self, weights: Tensor, number: int) -> Iterator[Tensor]:
        """[b, d] of all records in order, at these weights; `number`: which images of random processes are taken."""
        layout, model = self.engine.layout, self.engine.model
        records = self.records.anew(self.seed + number, self.classes or 1)
        present = layout.read(model)
        device = present.device
        layout.write(model, weights)
        try:
            with preserve_rng_state(device), self.engine.watched(), torch.enable_grad():
                seed_cpu_rng((self.seed + number) % 2**32)
                parts = zip(torch.split(records.inputs, _ROWS), torch.split(records.targets, _ROWS), strict=True)
                for inputs, targets in parts:
                    shown = inputs if self.front is None else apply_front(self.front, inputs)
                    for _, rows in self.engine.row_slices(shown, targets, 1):
                        yield rows.detach()
        finally:
            layout.write(model, present)
