"""Pre-training: an encoder learns to tell images of random processes apart, whatever view of them it sees.

θ ← AdamW of ∇ℓ(two views of fresh images), ℓ of `contrast`. No record and no photograph has any part in it; it stands
before the privacy line, and what it makes is a public file.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from adadpigu.errors import InputError
from adadpigu.priors.encoder import EncoderShape
from adadpigu.priors.random_images import RandomImages
from adadpigu_paper.contrast import contrastive_loss
from adadpigu_paper.encoder import Encoder
from adadpigu_paper.views import Views

_WARM_UP = 0.03
"""share of the steps over which the learning rate rises"""


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """What is trained, on what, for how long."""

    plan: EncoderShape = field(default_factory=EncoderShape)
    processes: RandomImages = field(default_factory=RandomImages)
    views: Views = field(default_factory=Views)
    steps: int
    images: int = 1024
    """in a step, of which two views each are seen"""
    store: int = 16
    """images are drawn from a store of so many steps' worth"""
    uses: int = 4
    """a step's worth of the store is replaced by fresh images every so many steps"""
    lr: float = 2e-3
    weight_decay: float = 0.02
    temperature: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("images", 2), ("store", 1), ("uses", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)} is not at least {least}")
        for name in ("lr", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name}={getattr(self, name)} is not a finite number above 0")


def pretrain(
    told: Pretraining, device: torch.device, progress: Callable[[int, float, Encoder], None] | None = None
) -> Encoder:
    """The encoder after all steps; `progress` hears of a step, its loss and the encoder as it stands, now and then."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(told.seed)
        encoder, projector = Encoder(told.plan), _projector(told.plan.widths[-1])
    encoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    projector.to(device)
    chance = torch.Generator(device=device).manual_seed(told.seed)
    weights = [*encoder.parameters(), *projector.parameters()]
    optimiser = torch.optim.AdamW(weights, lr=told.lr, weight_decay=told.weight_decay)
    store = Store(told, chance)
    for step in range(told.steps):
        for group in optimiser.param_groups:
            group["lr"] = told.lr * pace(step, told.steps)
        # oneDNN's backward of the encoder, as torch 2.13 has it, ends the process on some CPUs without AVX-512.
        with torch.backends.mkldnn.flags(enabled=device.type != "cpu"):  # type: ignore[no-untyped-call, unused-ignore]
            loss = _loss(told, encoder, projector, store(), chance)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if progress is not None and (step % 50 == 0 or step + 1 == told.steps):
            progress(step, loss.item(), encoder)
    return encoder


def pace(step: int, steps: int) -> float:
    """The share of the learning rate at a step: up in a line, then down as a half cosine.

    >>> pace(0, 100) < pace(2, 100) == 1.0 and pace(99, 100) < 0.01
    True
    """
    rise = max(1, round(_WARM_UP * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 + 0.5 * math.cos(math.pi * (step + 1 - rise) / (steps + 1 - rise))


class Store:
    """Images to draw from: drawing them afresh for every step would take longer than learning from them."""

    def __init__(self, told: Pretraining, chance: torch.Generator) -> None:
        self._told, self._chance = told, chance
        self._kept = torch.stack([told.processes(told.images, chance) for _ in range(told.store)])
        self._drawn = 0

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """A step's worth, at random."""
        told, chance = self._told, self._chance
        self._drawn += 1
        if self._drawn % told.uses == 0:
            self._kept[self._drawn // told.uses % told.store] = told.processes(told.images, chance)
        count = told.images * told.store
        which = torch.randperm(count, generator=chance, device=chance.device)[: told.images]
        return self._kept.flatten(0, 1)[which]


def _loss(told: Pretraining, encoder: Encoder, projector: nn.Module, images: Tensor, chance: torch.Generator) -> Tensor:
    with torch.no_grad():
        views = torch.cat([told.views(images, chance), told.views(images, chance)])
        views = views.contiguous(memory_format=torch.channels_last)
    with _half_precision(views.device):
        first, second = projector(encoder(views)[-1].mean((2, 3))).chunk(2)
    return contrastive_loss(first, second, told.temperature)


def _projector(width: int) -> nn.Module:
    """What the loss sees instead of the features: it may forget what the features should keep."""
    return nn.Sequential(
        nn.Linear(width, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128, bias=False)
    )


@contextlib.contextmanager
def _half_precision(device: torch.device) -> Iterator[None]:
    """bfloat16 products on a GPU, where they are many times faster; none on a CPU."""
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        yield
