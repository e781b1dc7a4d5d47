"""What a model is shown of drawn records: augmented copies, then what is left of the fixed front. All sensitive."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from adadpigu.data.augmentation import Augmentation
from adadpigu.records import Records
from adadpigu.sensitive import unseal


@dataclass(frozen=True, kw_only=True)
class View:
    """Turns drawn records into what the trained net takes."""

    augmentation: Augmentation
    front: nn.Module | None
    device: torch.device

    def __call__(self, records: Records) -> Records:
        inputs, targets = unseal(records)
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        copies = self.augmentation.copies
        if self.augmentation:
            inputs = self.augmentation(inputs)
        if self.front is not None and len(inputs):
            with torch.no_grad():
                inputs = self.front(inputs)
        elif self.front is not None:
            inputs = inputs.new_zeros(0, *self.front(inputs.new_zeros(1, *inputs.shape[1:])).shape[1:])
        return Records((inputs, targets), copies=copies)
