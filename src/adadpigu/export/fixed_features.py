"""Fixed features in a form that can be exported: the same numbers, for any number of records at once.

A scattering goes through records in portions, to spare memory, and so a traced one would be bound to the number of
records it was traced with. Exported, it takes them all at once: about a kilobyte a pixel of working memory.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn

from adadpigu.features.scattering import Scattering


class UndividedScattering(nn.Module):
    """A scattering that takes all records at once."""

    def __init__(self, scattering: Scattering) -> None:
        super().__init__()
        self.scattering = scattering

    def forward(self, x: Tensor) -> Tensor:
        planes = x.to(self.scattering.fine.bank.dtype).flatten(0, 1)
        return self.scattering._planes(planes).reshape(x.shape[0], *self.scattering.features)


def exportable(model: nn.Module) -> nn.Module:
    """A copy of a model on the CPU, in evaluation mode, that needs no gradient; the model stays as it is."""
    made = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    if isinstance(made, Scattering):
        return UndividedScattering(made)
    for path, module in list(made.named_modules()):
        if isinstance(module, Scattering):
            made.set_submodule(path, UndividedScattering(module))
    return made
