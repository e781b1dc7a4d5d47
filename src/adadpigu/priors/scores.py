"""Scores of a model's weights from images of random processes: public, so that a mask made of them costs nothing.

s_j = mean over images of |∂ℓ/∂θ_j|, each image with a label drawn at random
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.gradients import Loss
from adadpigu.priors.processes import Processes

_IMAGES = 256


def takes_images(record: Tensor) -> bool:
    """Whether a record [1, ...] is an image of one or three channels."""
    return record.ndim == 4 and record.shape[1] in (1, 3)


def process_scores(model: nn.Module, front: nn.Module | None, record: Tensor, loss: Loss, seed: int) -> Tensor:
    """s at the model's weights of now, [d] in float64; images and labels follow from the run's public seed."""
    model = copy.deepcopy(model).eval()  # hooks and modes of the one in training stay as they are
    chance = torch.Generator().manual_seed(seed % 2**63)
    images = _images(record, chance)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64, device=record.device)
    with torch.enable_grad():
        for image in torch.split(images, 1):
            outputs = model(image if front is None else front(image))
            label = torch.randint(outputs.shape[1], (1,), generator=chance).to(record.device)
            found = torch.autograd.grad(loss(outputs, label), parameters, allow_unused=True)
            flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
            total += torch.cat([g.reshape(-1) for g in flat]).abs() / len(images)
    return total


def _images(record: Tensor, chance: torch.Generator) -> Tensor:
    """Images of the record's shape, type and place."""
    _, channels, height, width = record.shape
    side = 16 * -(-max(height, width) // 16)
    made = Processes(side=side)(_IMAGES, chance)
    made = made if channels == 3 else made.mean(dim=1, keepdim=True)
    made = F.interpolate(made, size=(height, width), mode="bilinear", align_corners=False)
    made = made if record.is_floating_point() else 255 * made
    return made.to(record)
