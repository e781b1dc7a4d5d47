"""Feature maps of a pre-trained encoder: fixed, public, each record on its own.

φ(x) = (pool(h_k(x)) − m_k) / s_k for the chosen stages k, side by side, at every fourth pixel. Weights are constants
(buffers), and so are m_k and s_k, the mean and deviation of each channel over images of random processes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.errors import InputError
from adadpigu.priors.encoder import Encoder, Plan, centred, staged
from adadpigu.priors.processes import Processes
from adadpigu.priors.views import Views
from adadpigu.tensors import read_header, read_tensors, write_tensors

STEP = 4
"""pixels an output position"""
_SMALLEST, _LARGEST = 8, 64


class PriorMaps(nn.Module):
    """Features [b, c, h/4, w/4] of colour images [b, 3, h, w] with values from 0 to 1. No gradient flows to them."""

    def __init__(self, plan: Plan, weights: Mapping[str, Tensor], stages: Sequence[int]) -> None:
        super().__init__()
        self.plan = plan
        self.stages = tuple(stages)
        self.projected = "projection.weight" in weights
        self.kinds = [len(weights["projection.weight"])] if self.projected else [plan.widths[k] for k in self.stages]
        self.channels = sum(self.kinds)
        self.strides = {name: stride for name, *_, stride in plan.units()}
        for name, *_ in plan.units():
            self._keep(f"{name}.weight", weights)
            self._keep(f"{name}.bias", weights)
        for stage in self.stages:
            self._keep(f"stage{stage}.mean", weights)
            self._keep(f"stage{stage}.std", weights)
        if self.projected:
            self._keep("projection.weight", weights)
            self._keep("projection.bias", weights)
        self.signature = f"prior maps {self.stages} of {fingerprint(weights)} v1"

    def _keep(self, name: str, weights: Mapping[str, Tensor]) -> None:
        self.register_buffer(_key(name), weights[name].float(), persistent=False)

    def _kept(self, name: str) -> Tensor:
        found: Tensor = self.get_buffer(_key(name))
        return found

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a record's features."""
        if len(shape) == 3 and shape[0] == 3 and all(_SMALLEST <= n <= _LARGEST and n % STEP == 0 for n in shape[1:]):
            return (self.channels, shape[1] // STEP, shape[2] // STEP)
        raise InputError(
            f"prior: records of shape {tuple(shape)}; allowed: (3, height, width) with height and width multiples of "
            f"{STEP} from {_SMALLEST} to {_LARGEST}"
        )

    def declared(self) -> str:
        """What a statement says of it."""
        return "an encoder trained on images of random processes alone (no photograph, no record): " + self.signature

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        maps = staged(self.plan, self._convolve, centred(x))
        side = (x.shape[2] // STEP, x.shape[3] // STEP)
        parts = [self._standard(stage, pooled(maps[stage], side)) for stage in self.stages]
        if not self.projected:
            return torch.cat(parts, 1)
        normal = torch.cat([F.layer_norm(part, part.shape[1:]) for part in parts], 1)
        return F.conv2d(normal, self._kept("projection.weight"), self._kept("projection.bias"))

    def _convolve(self, name: str, x: Tensor) -> Tensor:
        weight = self._kept(f"{name}.weight")
        return F.conv2d(x, weight, self._kept(f"{name}.bias"), self.strides[name], weight.shape[-1] // 2)

    def _standard(self, stage: int, x: Tensor) -> Tensor:
        mean, std = (self._kept(f"stage{stage}.{part}")[:, None, None] for part in ("mean", "std"))
        return (x - mean) / std


def pooled(x: Tensor, side: tuple[int, int]) -> Tensor:
    """Means over blocks where maps are larger than `side`."""
    return x if tuple(x.shape[2:]) == side else F.adaptive_avg_pool2d(x, side)


@torch.no_grad()
def constants(encoder: Encoder, chance: torch.Generator, images: int = 4096) -> dict[str, Tensor]:
    """What `PriorMaps` needs of an encoder: folded weights, and each channel's mean and deviation on process images."""
    found = encoder.folded()
    plan = encoder.plan
    plain = Views(smallest=0.4, jitter=0.0, hue=0.0, gray=0.0)
    views = torch.cat([plain(Processes()(512, chance), chance) for _ in range(max(1, images // 512))])
    convolve = Bare(plan, found)
    moments: dict[int, list[Tensor]] = {stage: [] for stage in range(len(plan.widths))}
    for part in views.split(512):
        for stage, made in enumerate(staged(plan, convolve, centred(part))):
            small = pooled(made, (views.shape[2] // STEP, views.shape[3] // STEP))
            moments[stage].append(torch.stack([small.mean((0, 2, 3)), small.square().mean((0, 2, 3))]))
    for stage, parts in moments.items():
        mean, square = torch.stack(parts).mean(0)
        found[f"stage{stage}.mean"] = mean
        found[f"stage{stage}.std"] = (square - mean.square()).clamp(min=1e-6).sqrt()
    return {name: value.half().cpu().contiguous() for name, value in found.items()}


@torch.no_grad()
def projection(maps: PriorMaps, keep: int, power: float, chance: torch.Generator) -> dict[str, Tensor]:
    """The `keep` directions over channels in which process images differ most, each scaled by variance^(−power/2)."""
    device = maps.get_buffer("stem_weight").device
    plain = Views(smallest=0.4, jitter=0.0, hue=0.0, gray=0.0)
    found = []
    for _ in range(8):
        parts = maps(plain(Processes()(512, chance), chance).to(device)).split(maps.kinds, 1)
        found.append(torch.cat([F.layer_norm(part, part.shape[1:]) for part in parts], 1))
    values = torch.cat(found).permute(0, 2, 3, 1).flatten(0, 2).double()
    mean = values.mean(0)
    variances, directions = torch.linalg.eigh((values - mean).T @ (values - mean) / len(values))
    kept = directions.flip(1)[:, :keep] * variances.flip(0)[:keep].clamp(min=1e-4).pow(-power / 2)
    return {
        "projection.weight": kept.T[:, :, None, None].half().cpu().contiguous(),
        "projection.bias": -(kept.T @ mean).half().cpu(),
    }


class Bare:
    """Convolutions with given weights."""

    def __init__(self, plan: Plan, weights: Mapping[str, Tensor]) -> None:
        self.strides = {name: stride for name, *_, stride in plan.units()}
        self.weights = weights

    def __call__(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        return F.conv2d(x, weight, self.weights[f"{name}.bias"], self.strides[name], weight.shape[-1] // 2)


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """A SHA-256 over all weights, names and shapes included."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save(path: Path, plan: Plan, weights: Mapping[str, Tensor], told: Mapping[str, str]) -> None:
    """Writes constants with what they are; the file names its own fingerprint."""
    shape = json.dumps({"widths": plan.widths, "blocks": plan.blocks})
    write_tensors(path, weights, {**told, "plan": shape, "sha256": fingerprint(weights)})


def load(path: Path, stages: Sequence[int]) -> PriorMaps:
    """The maps of a file, found to be what was written."""
    told = read_header(path, "prior").metadata
    weights = read_tensors(path, "prior")
    if told.get("sha256") != fingerprint(weights):
        raise InputError(f"prior={str(path)!r}: its content is not what was written")
    shape = json.loads(told["plan"])
    return PriorMaps(Plan(widths=tuple(shape["widths"]), blocks=tuple(shape["blocks"])), weights, stages)


def packaged() -> PriorMaps:
    """The maps of the weights that come with the package."""
    import os
    return load(Path(__file__).with_name("processes.safetensors"), tuple(map(int, os.environ.get("STAGES", "1,2").split(","))))


def _key(name: str) -> str:
    return name.replace(".", "_")
