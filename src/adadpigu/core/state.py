"""What has to come back when a run goes on after its process has ended: named tensors, nothing else.

A learner returns its tensors (`state`) and takes them back (`load`). Numbers are tensors without dimensions, so a
checkpoint is one file of tensors. Generators are never part of it: noise is re-keyed, not restored.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

State = dict[str, Tensor]


class TensorState:
    """Something that learns from releases, in tensors that are changed in place: their names are `state_names`."""

    state_names: ClassVar[tuple[str, ...]]

    def state(self) -> State:
        return {name.lstrip("_"): getattr(self, name) for name in self.state_names}

    def load(self, state: State) -> None:
        for name in self.state_names:
            getattr(self, name).copy_(state[name.lstrip("_")])


def as_tensor(value: float) -> Tensor:
    """A number as a tensor; whole ones stay exact.

    >>> as_tensor(3), as_tensor(0.5)
    (tensor(3), tensor(0.5000, dtype=torch.float64))
    """
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


def named(name: str, state: Mapping[str, Tensor]) -> State:
    """A part's state under the part's name: `count` of `mask` becomes `mask.count`."""
    return {f"{name}.{key}": value for key, value in state.items()}


def part(name: str, state: Mapping[str, Tensor]) -> State:
    """The inverse of `named`: what stands under a part's name.

    >>> part("mask", named("mask", {"count": as_tensor(3)}) | {"other": as_tensor(1)})
    {'count': tensor(3)}
    """
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
