"""θ as one vector: where each trainable parameter of a module lies in the flat [d] view.

Public throughout: names, shapes and offsets do not depend on records. The order is `named_parameters()`, shared (tied)
parameters counted once, frozen ones (`requires_grad=False`) left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Slot:
    """One parameter's place in the flat vector."""

    name: str
    shape: torch.Size
    start: int
    stop: int

    @property
    def layer(self) -> str:
        """The dotted path of the module that owns the parameter ('' for the model itself)."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Layout:
    """The flat view of a model's trainable parameters.

    >>> layout = Layout.of(nn.Linear(3, 2))
    >>> [(slot.name, slot.start, slot.stop) for slot in layout.slots], layout.size
    ([('weight', 0, 6), ('bias', 6, 8)], 8)
    """

    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        slots: list[Slot] = []
        start = 0
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                slots.append(Slot(name, parameter.shape, start, start + parameter.numel()))
                start += parameter.numel()
        return cls(tuple(slots))

    @cached_property
    def size(self) -> int:
        """d, the number of trainable parameters."""
        return self.slots[-1].stop if self.slots else 0

    def layers(self) -> dict[str, list[Slot]]:
        """The slots of each layer (the module that owns them), in order."""
        layers: dict[str, list[Slot]] = {}
        for slot in self.slots:
            layers.setdefault(slot.layer, []).append(slot)
        return layers

    def layer_sizes(self) -> list[int]:
        """How many coordinates each layer has; a layer's own lie in a row.

        >>> Layout.of(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4))).layer_sizes()
        [8, 12]
        """
        return [sum(slot.stop - slot.start for slot in slots) for slots in self.layers().values()]

    def layer_index(self) -> Tensor:
        """For every coordinate the number of its layer, in the order of `layers()`."""
        index = torch.empty(self.size, dtype=torch.long)
        for number, slots in enumerate(self.layers().values()):
            for slot in slots:
                index[slot.start : slot.stop] = number
        return index

    def split(self, flat: Tensor) -> Iterator[tuple[Slot, Tensor]]:
        """Views of a [..., d] tensor, one a parameter, in the parameter's shape."""
        for slot in self.slots:
            yield slot, flat[..., slot.start : slot.stop].reshape(*flat.shape[:-1], *slot.shape)

    def parameters_in_mask(self, mask: Tensor) -> frozenset[int]:
        """The parameters, by number, that have a coordinate in a [d] mask."""
        return frozenset(number for number, slot in enumerate(self.slots) if bool(mask[slot.start : slot.stop].any()))

    def parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """The model's parameters in the order of the slots."""
        named = dict(model.named_parameters())
        return [named[slot.name] for slot in self.slots]

    def read(self, model: nn.Module) -> Tensor:
        """A copy of θ."""
        parameters = self.parameters(model)
        return torch.cat([p.detach().reshape(-1) for p in parameters]) if parameters else torch.empty(0)

    @torch.no_grad()
    def write(self, model: nn.Module, flat: Tensor) -> None:
        """Copies θ into the model."""
        for parameter, (_, value) in zip(self.parameters(model), self.split(flat), strict=True):
            parameter.copy_(value)
