"""The encoder that is pre-trained: a residual net with batch norms, which it sheds when it is done.

Batch norms mix the images of a batch, which are images of random processes and public. `folded` turns each into a
constant of the convolution before it, w ← w·g/√(v + ε), b ← β − m·g/√(v + ε), so that the encoder as it is used on
records treats each of them alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.errors import InputError, check_known
from adadpigu.features.prior import Parts
from adadpigu.models import make_model
from adadpigu.priors.encoder import EncoderMaps, EncoderShape, centred, staged
from adadpigu.priors.random_images import RandomImages
from adadpigu_paper.views import Views

_AT_ONCE = 512
NETS = ("wrn-16-4",)
"""models by name that can be pre-trained as they are"""
Plan = EncoderShape | str
"""of an encoder: its shape, or one of NETS"""


class Encoder(nn.Module):
    """Images [n, 3, h, w] to the maps of every stage, [n, widths[k], h/2^k, w/2^k]."""

    def __init__(self, plan: EncoderShape) -> None:
        super().__init__()
        self.plan, self.width = plan, plan.widths[-1]
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


class WideEncoder(nn.Module):
    """A net by name without its last layers, whose maps [n, width, h', w'] it gives: `wrn-16-4`, of group norms.

    It sees images as `normalisation = "record"` makes them: mean 0 and variance 1 each.
    """

    def __init__(self, plan: str) -> None:
        super().__init__()
        check_known("net", plan, NETS)
        whole = make_model(plan)
        assert isinstance(whole, nn.Sequential)
        *layers, _, last = whole
        assert isinstance(last, nn.Linear)
        self.plan, self.width, self.net = plan, last.in_features, nn.Sequential(*layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.net(F.layer_norm(x, x.shape[1:]))]


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
    return [plain(RandomImages()(size, chance), chance) for size in sizes]


@torch.no_grad()
def projection(parts: Parts, images: Sequence[Tensor], *, keep: int, power: float) -> dict[str, Tensor]:
    """The `keep` directions over channels in which images differ most, scaled by variance^(−power/2), and −P m."""
    values = torch.cat([parts(part) for part in images]).permute(0, 2, 3, 1).flatten(0, 2).double()
    if not 1 <= keep <= values.shape[1] or not 0 <= power <= 1:
        raise InputError(f"keep={keep}, power={power}; allowed: keep from 1 to {values.shape[1]}, power from 0 to 1")
    mean = values.mean(0)
    variance, direction = torch.linalg.eigh((values - mean).T @ (values - mean) / len(values))
    scaled = direction.flip(1)[:, :keep] * variance.flip(0)[:keep].clamp(min=1e-4).pow(-power / 2)
    return {"projection.weight": scaled.T[:, :, None, None].float(), "projection.bias": -(scaled.T @ mean).float()}


def _key(name: str) -> str:
    return name.replace(".", "_")  # names of modules have no dots
