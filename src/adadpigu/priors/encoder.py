"""The encoder that is pre-trained: a residual net with batch norms, which it sheds when it is done.

Batch norms mix the images of a batch, which are images of random processes and public. `folded` turns each into a
constant of the convolution before it, w ← w·g/√(v + ε), b ← β − m·g/√(v + ε), so that the encoder as it is used on
records treats each of them alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.errors import InputError

Convolve = Callable[[str, Tensor], Tensor]
"""applies a convolution, by its name, to maps"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How wide and deep an encoder is: stage k has `blocks[k]` residual blocks of `widths[k]` channels.

    From one stage to the next the side of the maps halves.
    """

    widths: tuple[int, ...] = (64, 128, 256)
    blocks: tuple[int, ...] = (1, 2, 2)

    def __post_init__(self) -> None:
        if not self.widths or len(self.widths) != len(self.blocks) or min(*self.widths, *self.blocks) < 1:
            raise InputError(
                f"widths={self.widths}, blocks={self.blocks}; allowed: as many of one as of the other, each 1 at least"
            )

    def units(self) -> tuple[tuple[str, int, int, int, int], ...]:
        """Every convolution: name, channels in and out, kernel, stride."""
        found = [("stem", 3, self.widths[0], 3, 1)]
        width = self.widths[0]
        for stage, (outputs, blocks) in enumerate(zip(self.widths, self.blocks, strict=True)):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                name = f"stage{stage}.block{block}"
                found.append((f"{name}.first", width, outputs, 3, stride))
                found.append((f"{name}.second", outputs, outputs, 3, 1))
                if stride != 1 or width != outputs:
                    found.append((f"{name}.shortcut", width, outputs, 1, stride))
                width = outputs
        return tuple(found)


class Encoder(nn.Module):
    """Images [n, 3, h, w] to the maps of every stage, [n, widths[k], h/2^k, w/2^k]."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.units = nn.ModuleDict(
            {
                _key(name): _Unit(inputs, outputs, kernel, stride)
                for name, inputs, outputs, kernel, stride in plan.units()
            }
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        return staged(self.plan, lambda name, value: self.units[_key(name)](value), centred(x))

    @torch.no_grad()
    def folded(self) -> dict[str, Tensor]:
        """The weight and bias of every convolution with its batch norm in it."""
        found = {}
        for name, *_ in self.plan.units():
            unit = self.units[_key(name)]
            assert isinstance(unit, _Unit)
            found[f"{name}.weight"], found[f"{name}.bias"] = unit.folded()
        return found


class _Unit(nn.Module):
    """A convolution and its batch norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out")
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.convolution(x))
        return y

    def folded(self) -> tuple[Tensor, Tensor]:
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        return self.convolution.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale


def centred(images: Tensor) -> Tensor:
    """Values from 0 to 1 to about −2 to 2, by public constants."""
    return (images - 0.5) / 0.25


def staged(plan: Plan, convolve: Convolve, x: Tensor) -> list[Tensor]:
    """The maps of every stage; `convolve` applies a convolution by name."""
    x = F.relu(convolve("stem", x))
    maps = []
    names = {name for name, *_ in plan.units()}
    for stage, blocks in enumerate(plan.blocks):
        for block in range(blocks):
            name = f"stage{stage}.block{block}"
            kept = convolve(f"{name}.shortcut", x) if f"{name}.shortcut" in names else x
            x = F.relu(kept + convolve(f"{name}.second", F.relu(convolve(f"{name}.first", x))))
        maps.append(x)
    return maps


def _key(name: str) -> str:
    return name.replace(".", "_")  # names of modules have no dots
