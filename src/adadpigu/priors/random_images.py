"""Images of random processes: shapes with textures that hide one another, coloured noise, untrained nets. Public.

No photograph and no record enters, so what is learnt from these images costs nothing. Dead leaves follow Lee, Mumford
and Huang (2001), images of untrained nets Baradad et al. (2021). `process_scores` ranks weights for a mask by
s_j = mean over images of |∂ℓ/∂θ_j|, labels at random.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.gradients import Loss
from adadpigu.errors import require

_WIDTH = 32  # channels of an untrained net
_LOBES = 4  # waves along the outline of a leaf


@dataclass(frozen=True, kw_only=True)
class RandomImages:
    """Makes images of random processes, [n, 3, side, side], with values from 0 to 1."""

    side: int = 48
    leaves: int = 24  # shapes painted onto an image, those that others hide included

    def __post_init__(self) -> None:
        require(self.side >= 16 and self.side % 16 == 0, f"side={self.side} is not a multiple of 16, 16 at least")
        require(self.leaves >= 0, f"leaves={self.leaves} is not 0 or more")

    def __call__(self, count: int, rng: torch.Generator) -> Tensor:
        """Fresh images, on the generator's device."""
        textures = self.textures(count, rng)
        if self.leaves:
            painted = dead_leaves(textures, self.leaves, rng)
            plain = uniform(count, rng, 0, 1) < 0.15  # some stay texture all over
            textures = torch.where(plain[:, None, None, None], textures, painted)
        return _exposed(textures, rng)

    def textures(self, count: int, rng: torch.Generator) -> Tensor:
        """Coloured noise and images of untrained nets, half and half; mean 0 and variance 1 each."""
        noise = coloured_noise(count - count // 2, self.side, rng)
        return torch.cat([noise, untrained_net(count // 2, self.side, rng)])


def uniform(count: int, rng: torch.Generator, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=rng, device=rng.device)


def normal(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


def shuffled(images: Tensor, rng: torch.Generator) -> Tensor:
    return images[torch.randperm(len(images), generator=rng, device=rng.device)]


def coloured_noise(count: int, side: int, rng: torch.Generator) -> Tensor:
    """Noise of spectrum |f|^−a with a from 0.8 to 2, stretched along one direction, in mixed colours."""
    across = torch.fft.rfftfreq(side, device=rng.device)
    down = torch.fft.fftfreq(side, device=rng.device)
    turn, stretch = uniform(count, rng, 0, math.pi), uniform(count, rng, 0, 1.5).exp()
    cosine, sine = turn.cos()[:, None, None], turn.sin()[:, None, None]
    along = cosine * across + sine * down[:, None]
    beside = (cosine * down[:, None] - sine * across) * stretch[:, None, None]
    frequency = (along.square() + beside.square()).sqrt().clamp_(min=0.5 / side)
    weight = frequency.pow(-uniform(count, rng, 0.8, 2)[:, None, None])
    weight[:, 0, 0] = 0
    waves = normal((count, 3, side, side // 2 + 1, 2), rng)
    planes = torch.fft.irfft2(torch.view_as_complex(waves) * weight[:, None], s=(side, side))
    return standardised(mixed(standardised(planes), rng))


def untrained_net(count: int, side: int, rng: torch.Generator) -> Tensor:
    """What a generator with random oriented filters makes of noise; filters are shared, styles are each image's own."""
    x = normal((count, _WIDTH, side // 16, side // 16), rng)
    for _ in range(4):
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = F.conv2d(x * normal((count, _WIDTH, 1, 1), rng).exp(), _oriented(_WIDTH, _WIDTH, rng), padding=1)
        x = x / x.square().mean((1, 2, 3), keepdim=True).add(1e-6).sqrt()
        x = F.leaky_relu(x + 0.3 * uniform(count, rng, 0, 1)[:, None, None, None] * normal(tuple(x.shape), rng), 0.2)
    x = x * normal((count, _WIDTH, 1, 1), rng).exp()
    return standardised(mixed(standardised(F.conv2d(x, normal((3, _WIDTH, 1, 1), rng))), rng))


def _oriented(outputs: int, inputs: int, rng: torch.Generator) -> Tensor:
    """Filters [outputs, inputs, 3, 3], each a slope along one direction with some of a bump."""
    steps = torch.arange(-1.0, 2.0, device=rng.device)
    bump = torch.exp(-steps.square()[:, None] - steps.square())
    turn = uniform(outputs * inputs, rng, 0, 2 * math.pi)
    slope = turn.cos()[:, None, None] * steps + turn.sin()[:, None, None] * steps[:, None]
    filters = slope * bump + 0.3 * normal((outputs * inputs, 1, 1), rng) * bump
    return (normal((outputs * inputs, 1, 1), rng) * filters).reshape(outputs, inputs, 3, 3)


def dead_leaves(textures: Tensor, leaves: int, rng: torch.Generator) -> Tensor:
    """Leaves painted one over the other onto the textures, each with a colour, a shade and another image's texture."""
    count, _, side, _ = textures.shape
    smallest = uniform(count, rng, math.log(0.06), math.log(0.35)).exp()  # few large shapes, or many small ones
    image, place = textures, torch.arange(count, device=rng.device)
    for _ in range(leaves):
        cover = _leaf(count, side, smallest, rng)
        turn = torch.randint(count, (1,), generator=rng, device=rng.device)  # stays there: a GPU need not be waited for
        texture = textures[(place - turn) % count].flip(-1)
        contrast = (1.2 * uniform(count, rng, -0.3, 1)).clamp_(min=0)[:, None, None, None]
        shade = _slope(count, side, rng)[:, None] * uniform(count, rng, 0, 0.8)[:, None, None, None]
        colour = normal((count, 3), rng)
        colour = 1.5 * colour.mean(1, keepdim=True) + uniform(count, rng, 0.1, 0.8)[:, None] * colour  # around gray
        image = torch.lerp(image, 1.2 * colour[:, :, None, None] + shade + contrast * texture, cover[:, None])
    return image


def _leaf(count: int, side: int, smallest: Tensor, rng: torch.Generator) -> Tensor:
    """How far a leaf covers each pixel, from 0 to 1, [n, side, side]: an outline between ellipse, box and star."""
    where = torch.linspace(-1, 1, side, device=rng.device)
    turn, stretch = uniform(count, rng, 0, math.pi), uniform(count, rng, -0.6, 0.6).exp()
    down = where[:, None] - uniform(count, rng, -1.1, 1.1)[:, None, None]
    across = where - uniform(count, rng, -1.1, 1.1)[:, None, None]
    cosine, sine = turn.cos()[:, None, None], turn.sin()[:, None, None]
    u = (cosine * across + sine * down) * stretch[:, None, None]
    v = (cosine * down - sine * across) / stretch[:, None, None]
    power = uniform(count, rng, 0, math.log(8)).exp()[:, None, None]
    distance = (u.abs().pow(power) + v.abs().pow(power)).add(1e-6).pow(1 / power)
    angle = torch.atan2(v, u)
    outline = torch.ones_like(distance)
    for lobe in range(2, 2 + _LOBES):
        height = 0.35 * (uniform(count, rng, -1, 1)).clamp_(min=0)[:, None, None] / lobe**0.5
        outline = outline + height * torch.cos(lobe * angle + uniform(count, rng, 0, 2 * math.pi)[:, None, None])
    radius = smallest * uniform(count, rng, 0.05, 1).pow(-0.5)  # density of r goes as r^−3
    softness = uniform(count, rng, math.log(0.01), math.log(0.08)).exp()[:, None, None]
    return torch.sigmoid((radius.clamp(max=1.0)[:, None, None] * outline - distance) / softness)


def _slope(count: int, side: int, rng: torch.Generator) -> Tensor:
    """A plane that rises in a random direction, [n, side, side], from about −1 to 1."""
    where = torch.linspace(-1, 1, side, device=rng.device)
    turn = uniform(count, rng, 0, 2 * math.pi)[:, None, None]
    return turn.cos() * where + turn.sin() * where[:, None]


def mixed(planes: Tensor, rng: torch.Generator) -> Tensor:
    """Three planes as colours that are much alike, as those of light on things are."""
    mixing = 0.35 * normal((len(planes), 3, 3), rng)
    mixing[:, :, 0] += 1
    return torch.einsum("nij,njhw->nihw", mixing, planes)


def standardised(planes: Tensor) -> Tensor:
    """Each image to mean 0 and variance 1."""
    deviation, mean = torch.std_mean(planes, dim=(1, 2, 3), correction=0, keepdim=True)
    return (planes - mean) / (deviation + 1e-6)


def _exposed(images: Tensor, rng: torch.Generator) -> Tensor:
    """Values from 0 to 1, each image with a brightness and a contrast of its own."""
    count = len(images)
    level = uniform(count, rng, 0.3, 0.65)[:, None, None, None]
    return (level + uniform(count, rng, 0.12, 0.32)[:, None, None, None] * standardised(images)).clamp_(0, 1)


_IMAGES = 256


def takes_images(record: Tensor) -> bool:
    """Whether a record [1, ...] is an image of one or three channels."""
    return record.ndim == 4 and record.shape[1] in (1, 3)


def process_scores(
    model: nn.Module,
    front: nn.Module | None,
    record: Tensor,
    target: Tensor,
    loss: Loss,
    seed: int,
    *,
    count: int = _IMAGES,
) -> Tensor:
    """s at the model's weights of now, [d] in float64; images and labels follow from the run's public seed.

    They have the shape and type of the synthetic `record` and `target`, [1, ...].
    """
    model = copy.deepcopy(model).eval()  # hooks and modes of the one in training stay as they are
    rng = torch.Generator().manual_seed(seed % 2**63)
    images = images_like(record, count, rng)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64, device=record.device)
    with torch.enable_grad():
        for image in torch.split(images, 1):
            outputs = model(image if front is None else front(image))
            label = _labels_like(target, outputs, rng)
            found = torch.autograd.grad(loss(outputs, label), parameters, allow_unused=True)
            flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
            total += torch.cat([g.reshape(-1) for g in flat]).abs() / len(images)
    return total


def _labels_like(target: Tensor, outputs: Tensor, rng: torch.Generator) -> Tensor:
    """Labels at random: classes where outputs are scores of them, at each place where they are; else 0 or 1."""
    scores = not target.is_floating_point() and outputs.ndim == target.ndim + 1
    return torch.randint(outputs.shape[1] if scores else 2, target.shape, generator=rng).to(target)


def images_like(record: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Images of the record's shape, type and place."""
    _, channels, height, width = record.shape
    made = RandomImages(side=16 * -(-max(height, width) // 16))(count, rng)
    made = made if channels == 3 else made.mean(dim=1, keepdim=True)
    made = F.interpolate(made, size=(height, width), mode="bilinear", align_corners=False)
    made = made if record.is_floating_point() else 255 * made
    return made.to(record)
