"""Features from a prior: an encoder trained on images of random processes beside a scattering, then decorrelated.

φ(x) = pool(P (n(x) − m)): n holds the encoder's stages and the scattering's orders, each brought to mean 0 and
variance 1 within the record; m and P (principal directions over channels, scaled by variance^(−power/2)) are those
of process images. All of it is constant and public, and treats each record alone: it costs no privacy.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.errors import require
from adadpigu.features.scattering import OrderNorm, Scattering, check_inputs
from adadpigu.priors.encoder import EncoderMaps, EncoderShape, Weights
from adadpigu.priors.named import known_by
from adadpigu.tensors import digest

STEP = 8  # pixels an output position
SIDES = (16, 96)  # pixels that an image may be high and wide


class Parts(nn.Module):
    """What a prior sees of colour images: stages and orders [b, Σ widths + 243, h/4, w/4], each kind normalised."""

    def __init__(self, plan: EncoderShape, constants: Mapping[str, Tensor], shape: Sequence[int]) -> None:
        super().__init__()
        self.encoder = EncoderMaps(plan, constants)
        self.scattering = Scattering(shape)
        self.orders = OrderNorm(shape[0])

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.beside(self.encoder(x).split(self.encoder.plan.widths, 1), x)

    def beside(self, stages: Sequence[Tensor], x: Tensor) -> Tensor:
        """The maps of the stages, normalised, and the orders of the images."""
        normal = [F.layer_norm(stage, stage.shape[1:]) for stage in stages]
        with torch.no_grad():
            orders = self.orders(self.scattering(x))
        return torch.cat([*normal, orders], 1)


class Prior(nn.Module):
    """Features [b, k, h/8, w/8] of images [b, 1 or 3, h, w] with values from 0 to 1. No gradient flows to them.

    A gray image stands in all three colours; sides are mirrored at their ends up to a multiple of 8 pixels.
    """

    direction: Tensor
    origin: Tensor

    def __init__(self, weights: Weights, shape: Sequence[int], *, keep: int | None = None) -> None:
        super().__init__()
        direction, origin = (weights.tensors[f"projection.{part}"].float()[:keep] for part in ("weight", "bias"))
        most = len(weights.tensors["projection.weight"])
        require(keep is None or 1 <= keep <= most, f"prior: {keep} directions; allowed: from 1 to {most}")
        fits = len(shape) == 3 and shape[0] in (1, 3) and all(SIDES[0] <= side <= SIDES[1] for side in shape[1:])
        allowed = "(1 or 3, height, width) with sides from {} to {}".format(*SIDES)
        require(fits, f"prior: records of shape {tuple(shape)}; allowed: {allowed}")
        self.shape, beyond = tuple(shape), [-side % STEP for side in shape[1:]]
        self.margins = [part for more in reversed(beyond) for part in (more // 2, more - more // 2)]
        height, width = (side + more for side, more in zip(shape[1:], beyond, strict=True))
        self.features = (len(direction), height // STEP, width // STEP)
        self.parts = Parts(weights.plan, weights.tensors, (3, height, width))
        self.register_buffer("direction", direction, persistent=False)
        self.register_buffer("origin", origin, persistent=False)
        self.sha256 = weights.fingerprint()
        self._as_read = digest(self.named_buffers())
        cut = "" if keep in (None, most) else f" {keep} directions"
        self.signature = f"prior {self.sha256} beside {Scattering.signature} v1{cut}"

    def declared(self) -> str:
        """What a privacy statement says of it: where weights come from is known of the packaged ones alone."""
        unchanged = digest(self.named_buffers()) == self._as_read
        require(unchanged, "prior: its constants were changed after it was made; allowed: as they were read")
        named = f"(weights of SHA-256 {self.sha256[:16]}…)"
        known = known_by(self.sha256)
        if known is None:
            return f"a feature extractor {named}: only its maker can say that it has seen no private record"
        told = "a feature extractor trained on images of random processes alone, no photograph and no record"
        return f"{told} {named}; {known.chosen}"

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        check_inputs("prior", x, self.shape)
        if not len(x):
            return self.direction.new_empty(0, *self.features)
        x = self.whole(x)
        return self.projected(self.parts(x))

    def whole(self, x: Tensor) -> Tensor:
        """Images in three colours, with sides that are multiples of 8."""
        return F.pad(x.to(self.direction.dtype), self.margins, mode="reflect").expand(-1, 3, -1, -1)

    def projected(self, parts: Tensor) -> Tensor:
        """φ of what `Parts` makes of images."""
        return F.avg_pool2d(F.conv2d(parts, self.direction, self.origin), 2)
