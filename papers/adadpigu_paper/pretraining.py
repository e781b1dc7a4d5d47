"""Pre-training: an encoder learns to tell images of random processes apart, whatever view of them it sees.

θ ← AdamW of ∇ℓ(two views of fresh images), ℓ of `contrast`; what is kept is a running average of θ. No record and no
photograph has any part in it; it stands before the privacy line, and what it makes is a public file.

A long training is made in parts: each starts from the averaged weights of the one before (`prior_files`). AdamW's
moments start anew in each, so the rate rises over the first steps of a part.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from adadpigu.errors import InputError, check_range
from adadpigu.priors.encoder import EncoderShape
from adadpigu.priors.random_images import RandomImages
from adadpigu_paper.contrast import contrastive_loss
from adadpigu_paper.encoder import Encoder
from adadpigu_paper.views import Views

_WARM_UP = 0.03
"""share of the steps over which the learning rate rises"""
_RISE = 100
"""steps over which it rises again in a part that goes on"""


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
    decay: float = 1.0
    """share of the steps, the last ones, over which the learning rate falls; with 1.0 it falls from the top on"""
    average: float = 0.998
    """decay of the running average of the weights; 0: the last weights"""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("images", 2), ("store", 1), ("uses", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)} is not at least {least}")
        for name in ("lr", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name}={getattr(self, name)} is not a finite number above 0")
        check_range("decay", self.decay, "in (0, 1]")
        check_range("average", self.average, "in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """What a part leaves: the averaged encoder, the projector of the loss, and how many steps were made in all."""

    encoder: Encoder
    projector: nn.Module
    step: int


Progress = Callable[[int, float], None]
"""hears of a step and its loss, now and then"""


def pretrain(
    told: Pretraining,
    device: torch.device,
    progress: Progress | None = None,
    *,
    start: Pretrained | None = None,
    seconds: float = math.inf,
) -> Pretrained:
    """Trains up to the planned steps, from where `start` left off, or until so many seconds are over."""
    end = time.monotonic() + seconds
    first = 0 if start is None else start.step
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(told.seed)
        encoder, projector = Encoder(told.plan), make_projector(told.plan.widths[-1])
    if start is not None:
        encoder.load_state_dict(start.encoder.state_dict())
        projector.load_state_dict(start.projector.state_dict())
    encoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    projector.to(device)
    models = nn.ModuleList([encoder, projector])
    averaged = copy.deepcopy(models)
    chance = torch.Generator(device=device).manual_seed(told.seed + first)
    optimiser = torch.optim.AdamW(models.parameters(), lr=told.lr, weight_decay=told.weight_decay)
    store = Store(told, chance)
    step = first
    while step < told.steps and (step == first or time.monotonic() < end):
        rise = 1.0 if start is None else min(1.0, (step - first + 1) / _RISE)
        for group in optimiser.param_groups:
            group["lr"] = rise * told.lr * pace(step, told.steps, told.decay)
        # oneDNN's backward of the encoder, as torch 2.13 has it, ends the process on some CPUs without AVX-512.
        with torch.backends.mkldnn.flags(enabled=device.type != "cpu"):  # type: ignore[no-untyped-call, unused-ignore]
            loss = _loss(told, encoder, projector, store(), chance)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        _average(averaged, models, min(told.average, (step - first + 1) / (step - first + 10)))
        if progress is not None and (step % 50 == 0 or step + 1 == told.steps):
            progress(step, loss.item())
        step += 1
    kept, of_loss = averaged if told.average else models
    assert isinstance(kept, Encoder)
    return Pretrained(encoder=kept, projector=of_loss, step=step)


def pace(step: int, steps: int, decay: float = 1.0) -> float:
    """The share of the learning rate at a step: up in a line, level, then down as a half cosine over the last `decay`.

    >>> pace(0, 100) < pace(2, 100) == 1.0 and pace(99, 100) < 0.01
    True
    >>> pace(79, 100, 0.2) == 1.0 > pace(81, 100, 0.2)
    True
    """
    rise = max(1, round(_WARM_UP * steps))
    if step < rise:
        return (step + 1) / rise
    fall = max(rise, steps - round(decay * steps))
    return 0.5 + 0.5 * math.cos(math.pi * max(0, step + 1 - fall) / (steps + 1 - fall))


@torch.no_grad()
def _average(averaged: nn.Module, models: nn.Module, decay: float) -> None:
    """Weights, and the statistics of batch norms, a step of the running average nearer to those of now."""
    for held, now in zip(averaged.state_dict().values(), models.state_dict().values(), strict=True):
        held.lerp_(now, 1 - decay) if held.is_floating_point() else held.copy_(now)


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


def make_projector(width: int) -> nn.Module:
    """What the loss sees instead of the features: it may forget what the features should keep."""
    return nn.Sequential(
        nn.Linear(width, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128, bias=False)
    )


@contextlib.contextmanager
def _half_precision(device: torch.device) -> Iterator[None]:
    """bfloat16 products on a GPU, where they are many times faster; none on a CPU."""
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        yield
