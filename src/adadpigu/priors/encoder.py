"""A pre-trained encoder: a residual net of convolutions without norms, its feature maps, and the file of its constants.

h_k(x) → (pool(h_k(x)) − m_k) / s_k for every stage k, side by side, at every fourth pixel. All constants come from
images of random processes: public, fixed, each record alone. Priors by name have to be those that were measured
(`named`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.errors import InputError, require
from adadpigu.tensors import digest, read_file

Convolve = Callable[[str, Tensor], Tensor]  # applies a convolution, by its name, to maps


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """How wide and deep an encoder is: stage k has `blocks[k]` residual blocks of `widths[k]` channels.

    From one stage to the next the side of the maps halves.
    """

    widths: tuple[int, ...] = (64, 128, 256)
    blocks: tuple[int, ...] = (1, 2, 2)

    def __post_init__(self) -> None:
        fits = 0 < len(self.widths) == len(self.blocks) <= 4 and min(*self.widths, *self.blocks) >= 1
        given = f"widths={self.widths}, blocks={self.blocks}"
        require(fits, f"{given}; allowed: as many of one as of the other, 4 at most, each 1 at least")

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


def centred(images: Tensor) -> Tensor:
    """Values from 0 to 1 to about −2 to 2, by public constants."""
    return (images - 0.5) / 0.25


def staged(plan: EncoderShape, convolve: Convolve, x: Tensor, act: Callable[[Tensor], Tensor] = F.relu) -> list[Tensor]:
    """The maps of every stage; `convolve` applies a convolution by name."""
    x = act(convolve("stem", x))
    maps = []
    names = {name for name, *_ in plan.units()}
    for stage, blocks in enumerate(plan.blocks):
        for block in range(blocks):
            name = f"stage{stage}.block{block}"
            kept = convolve(f"{name}.shortcut", x) if f"{name}.shortcut" in names else x
            x = act(kept + convolve(f"{name}.second", act(convolve(f"{name}.first", x))))
        maps.append(x)
    return maps


STEP = 4  # pixels an output position


def at_step(made: Tensor, stage: int) -> Tensor:
    """Maps of a stage, at every 2^stage-th pixel, at every fourth one."""
    factor = STEP / 2**stage
    if factor < 1:
        return F.interpolate(made, scale_factor=1 / factor)
    return made if factor == 1 else F.avg_pool2d(made, int(factor))


_AT_ONCE = 32  # images on a CPU, whose caches hold their maps: of 500 at once it computes a third as many a second


class EncoderMaps(nn.Module):
    """The maps of all stages [b, Σ widths, h/4, w/4] of colour images [b, 3, h, w] with values from 0 to 1.

    Finer maps are averaged, coarser ones repeated. No gradient flows to the images. `constants` holds the weight and
    bias of every convolution of the plan, and the mean and std of every stage, by name.
    """

    def __init__(self, plan: EncoderShape, constants: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.plan = plan
        self.strides = {name: stride for name, *_, stride in plan.units()}
        names = [f"{unit}.{part}" for unit in self.strides for part in ("weight", "bias")]
        names += [f"stage{stage}.{part}" for stage in range(len(plan.widths)) for part in ("mean", "std")]
        for name in names:
            require(name in constants, f"prior: no constant {name!r}, which an encoder of {plan} needs")
            self.register_buffer(_key(name), constants[name].float(), persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or torch.compiler.is_exporting():
            return self._maps(x)
        x = x.contiguous(memory_format=torch.channels_last)  # a CPU convolves faster so
        return torch.cat([self._maps(part) for part in torch.split(x, _AT_ONCE)]).contiguous()

    def _maps(self, x: Tensor) -> Tensor:
        return torch.cat([self.standard(stage, made) for stage, made in enumerate(self.stages(x))], 1)

    def standard(self, stage: int, made: Tensor) -> Tensor:
        """A stage's maps at every fourth pixel, less each channel's mean, over its deviation."""
        mean, std = (self._constant(f"stage{stage}.{part}")[:, None, None] for part in ("mean", "std"))
        return (at_step(made, stage) - mean) / std

    def stages(self, x: Tensor) -> list[Tensor]:
        """The maps of every stage as the encoder computes them, [b, widths[k], h/2^k, w/2^k]."""
        return staged(self.plan, self._convolve, centred(x))

    def _convolve(self, name: str, x: Tensor) -> Tensor:
        weight = self._constant(f"{name}.weight")
        return F.conv2d(x, weight, self._constant(f"{name}.bias"), self.strides[name], weight.shape[-1] // 2)

    def _constant(self, name: str) -> Tensor:
        return self.get_buffer(_key(name))


def _key(name: str) -> str:
    return name.replace(".", "_")  # names of buffers have no dots


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a prior consists of: constants by name, and the metadata of the file."""

    plan: EncoderShape
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]

    def fingerprint(self) -> str:
        """A SHA-256 over the plan, the metadata, and all constants with names, types and shapes."""
        start = f"{self.plan.widths} {self.plan.blocks} {sorted(self.metadata.items())}\n"
        return digest(sorted(self.tensors.items()), start)


def read_weights(path: Path, sha256: str | None = None, *, advice: str = "") -> Weights:
    """The constants of a file, which must be what was written, and have this fingerprint if one is given."""
    tensors, metadata = read_file(path, "prior")
    try:
        shape = json.loads(metadata.pop("plan"))
        plan = EncoderShape(widths=tuple(map(int, shape["widths"])), blocks=tuple(map(int, shape["blocks"])))
        written = metadata.pop("sha256")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"prior={str(path)!r} is no prior: its header lacks {error}; allowed: a file of its encoder's shape, "
            "as `adadpigu prior train` writes it; any other encoder: package.module:function"
        ) from None
    found = Weights(plan=plan, tensors=tensors, metadata=metadata)
    made, expected = found.fingerprint(), sha256 or written
    require(made == written == expected, f"prior={str(path)!r}: SHA-256 {made} is not {expected}{advice}")
    return found
