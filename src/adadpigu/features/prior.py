"""Features from a prior: an encoder trained on images of random processes beside a scattering, then decorrelated.

φ(x) = pool(P (n(x) − m)): n holds the encoder's stages and the scattering's orders, each brought to mean 0 and
variance 1 within the record; m and P (principal directions over channels, scaled by variance^(−power/2)) are those
of process images. All of it is constant and public, and treats each record alone: it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.errors import InputError
from adadpigu.features.scattering import OrderNorm, Scattering
from adadpigu.priors.encoder import Plan
from adadpigu.priors.maps import EncoderMaps
from adadpigu.priors.weights import SHA256, Weights
from adadpigu.tensors import digest

STEP = 8
"""pixels an output position"""
_SMALLEST, _LARGEST = 8, 64


class Parts(nn.Module):
    """What a prior sees of colour images: stages and orders [b, Σ widths + 243, h/4, w/4], each kind normalised."""

    def __init__(self, plan: Plan, constants: Mapping[str, Tensor], shape: Sequence[int]) -> None:
        super().__init__()
        self.encoder = EncoderMaps(plan, constants)
        self.scattering = Scattering(shape)
        self.orders = OrderNorm(shape[0])

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        stages = self.encoder(x).split(self.encoder.plan.widths, 1)
        normal = [F.layer_norm(stage, stage.shape[1:]) for stage in stages]
        return torch.cat([*normal, self.orders(self.scattering(x))], 1)


class Prior(nn.Module):
    """Features [b, k, h/8, w/8] of colour images [b, 3, h, w] with values from 0 to 1. No gradient flows to them."""

    direction: Tensor
    origin: Tensor

    def __init__(self, weights: Weights, shape: Sequence[int]) -> None:
        super().__init__()
        for name in ("projection.weight", "projection.bias"):
            if name not in weights.tensors:
                raise InputError(f"prior: no constant {name!r}; allowed: a file with a projection")
        self.features = self.output_shape(weights, shape)
        self.shape = tuple(shape)
        self.parts = Parts(weights.plan, weights.tensors, shape)
        self.register_buffer("direction", weights.tensors["projection.weight"].float(), persistent=False)
        self.register_buffer("origin", weights.tensors["projection.bias"].float(), persistent=False)
        self.sha256 = weights.fingerprint()
        self._constants = self._digest()
        self.signature = f"prior {self.sha256} beside {Scattering.signature} v1"

    @staticmethod
    def output_shape(weights: Weights, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a record's features."""
        sides = shape[1:]
        if len(shape) == 3 and shape[0] == 3 and all(_SMALLEST <= n <= _LARGEST and n % STEP == 0 for n in sides):
            return (len(weights.tensors["projection.weight"]), shape[1] // STEP, shape[2] // STEP)
        raise InputError(
            f"prior: records of shape {tuple(shape)}; allowed: (3, height, width) with height and width multiples of "
            f"{STEP} from {_SMALLEST} to {_LARGEST}"
        )

    def declared(self) -> str:
        """What a privacy statement says of it: where weights come from is known of the packaged ones alone."""
        if self._digest() != self._constants:
            raise InputError("prior: its constants were changed after it was made; allowed: as they were read")
        named = f"(weights of SHA-256 {self.sha256[:16]}…)"
        if self.sha256 != SHA256:
            return f"a feature extractor {named}: that no private record had a part in it is whoever made it's word"
        return (
            f"a feature extractor trained on images of random processes alone, no photograph and no record {named}; "
            "its projection was chosen by scores on training records of CIFAR-10"
        )

    def _digest(self) -> str:
        """A hash of all constants as they are now."""
        return digest(self.named_buffers())

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or tuple(x.shape[1:]) != self.shape or not x.is_floating_point():
            wanted = ", ".join(map(str, self.shape))
            raise InputError(f"prior: inputs {list(x.shape)} of {x.dtype}; allowed: [records, {wanted}] of floats")
        if not len(x):
            return self.direction.new_empty(0, *self.features)
        seen = self.parts(x.to(self.direction.dtype))
        return F.avg_pool2d(F.conv2d(seen, self.direction, self.origin), 2)


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
