"""What a model is shown of drawn records: augmented copies, then what is left of the fixed front. All sensitive."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adadpigu.data.augmentation import Augmentation
from adadpigu.records import Records
from adadpigu.sensitive import unseal


@dataclass(frozen=True, kw_only=True)
class View:
    """Turns drawn records into what the trained net takes.

    Where the features of every variant of every record were computed beforehand (`variants`, [n, v, ...]), the drawn
    inputs are positions in them; what is shown is the same, at a fraction of the time.
    """

    augmentation: Augmentation
    front: nn.Module | None
    device: torch.device
    variants: Tensor | None = None

    def __call__(self, records: Records) -> Records:
        inputs, targets = unseal(records)
        shown = self._shown(inputs.to(self.device))
        return Records((shown, targets.to(self.device)), copies=self.augmentation.copies, present=records.present)

    @torch.no_grad()
    def _shown(self, inputs: Tensor) -> Tensor:
        if self.variants is not None:
            which = inputs.repeat_interleave(self.augmentation.copies, dim=0)
            inputs = self.variants[which, self.augmentation.draw(len(inputs), self.device)]
        elif self.augmentation:
            inputs = self.augmentation(inputs)
        if self.front is None:
            return inputs
        shown: Tensor = self.front(inputs)
        return shown
