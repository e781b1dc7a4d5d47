"""Feature maps of a pre-trained encoder: fixed, public, each record on its own.

h_k(x) → (pool(h_k(x)) − m_k) / s_k for every stage k, side by side, at every fourth pixel. Weights are constants
(buffers), and so are m_k and s_k, the mean and deviation of each channel over images of random processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.errors import InputError
from adadpigu.priors.encoder import Encoder, Plan, centred, staged
from adadpigu.priors.processes import Processes
from adadpigu.priors.views import Views

STEP = 4
"""pixels an output position"""
_AT_ONCE = 512


class EncoderMaps(nn.Module):
    """The maps of all stages [b, Σ widths, h/4, w/4] of colour images [b, 3, h, w] with values from 0 to 1.

    No gradient flows to the images. `constants` holds the weight and bias of every convolution of the plan, and the
    mean and std of every stage, by name.
    """

    def __init__(self, plan: Plan, constants: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.plan = plan
        self.strides = {name: stride for name, *_, stride in plan.units()}
        names = [f"{unit}.{part}" for unit in self.strides for part in ("weight", "bias")]
        names += [f"stage{stage}.{part}" for stage in range(len(plan.widths)) for part in ("mean", "std")]
        for name in names:
            if name not in constants:
                raise InputError(f"prior: no constant {name!r}, which an encoder of {plan} needs")
            self.register_buffer(_key(name), constants[name].float(), persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        side = (x.shape[2] // STEP, x.shape[3] // STEP)
        maps = staged(self.plan, self._convolve, centred(x))
        return torch.cat([self._standard(stage, _pooled(made, side)) for stage, made in enumerate(maps)], 1)

    def _convolve(self, name: str, x: Tensor) -> Tensor:
        weight = self._constant(f"{name}.weight")
        return F.conv2d(x, weight, self._constant(f"{name}.bias"), self.strides[name], weight.shape[-1] // 2)

    def _standard(self, stage: int, x: Tensor) -> Tensor:
        mean, std = (self._constant(f"stage{stage}.{part}")[:, None, None] for part in ("mean", "std"))
        return (x - mean) / std

    def _constant(self, name: str) -> Tensor:
        return self.get_buffer(_key(name))


@torch.no_grad()
def encoder_constants(encoder: Encoder, images: Sequence[Tensor]) -> dict[str, Tensor]:
    """What `EncoderMaps` needs of an encoder: folded weights, and each channel's mean and deviation over the images."""
    plan, found = encoder.plan, encoder.folded()
    for stage, width in enumerate(plan.widths):
        found[f"stage{stage}.mean"] = torch.zeros(width)
        found[f"stage{stage}.std"] = torch.ones(width)
    maps = EncoderMaps(plan, found).to(images[0].device)
    seen = [maps(part) for part in images]
    mean = torch.stack([part.mean((0, 2, 3)) for part in seen]).mean(0)
    square = torch.stack([part.square().mean((0, 2, 3)) for part in seen]).mean(0)
    deviation = (square - mean.square()).clamp(min=1e-6).sqrt()
    parts = (torch.split(values, list(plan.widths)) for values in (mean, deviation))
    for stage, (m, s) in enumerate(zip(*parts, strict=True)):
        found[f"stage{stage}.mean"], found[f"stage{stage}.std"] = m, s
    return found


def process_images(count: int, chance: torch.Generator) -> list[Tensor]:
    """Images of random processes as records are: 32 pixels a side, colours left alone; in portions."""
    plain = Views(smallest=0.4, jitter=0.0, hue=0.0, gray=0.0)
    sizes = [min(_AT_ONCE, count - start) for start in range(0, count, _AT_ONCE)]
    return [plain(Processes()(size, chance), chance) for size in sizes]


def _pooled(x: Tensor, side: tuple[int, int]) -> Tensor:
    """Means over blocks where maps are larger than `side`; an empty batch is let through."""
    factor = x.shape[2] // side[0]
    return x if factor == 1 else F.avg_pool2d(x, factor)


def _key(name: str) -> str:
    return name.replace(".", "_")  # names of buffers have no dots
