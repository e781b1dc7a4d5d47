"""Pre-training: an encoder learns to tell images of random processes apart, whatever view of them it sees.

θ ← AdamW of ∇ℓ(two views of fresh images), ℓ of `contrast`; what is used is a running average of θ. No record and no
photograph has any part in it; it stands before the privacy line, and what it makes is a public file.

A long training is made in parts. The learning rate rises, then stays, so that any part can be followed by another. A
part whose result is used ends with a fall of the rate to zero. The fall is a branch: the next part goes on from the
state before it, which `prior_files` stores.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from adadpigu.errors import InputError, check_range
from adadpigu.priors.encoder import EncoderShape
from adadpigu.priors.random_images import RandomImages
from adadpigu_paper.contrast import contrastive_loss
from adadpigu_paper.encoder import Encoder, Plan, WideEncoder
from adadpigu_paper.views import Views

_RISE = 100
"""steps over which the learning rate rises, in every part"""
_TOLD_EVERY = 50
"""steps between losses that are told"""


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """What is trained, on what, for how long."""

    plan: Plan = field(default_factory=EncoderShape)
    processes: RandomImages = field(default_factory=RandomImages)
    views: Views = field(default_factory=Views)
    steps: int
    """of all parts together"""
    images: int = 1024
    """in a step, of which two views each are seen"""
    store: int = 16
    """images are drawn from a store of so many steps' worth"""
    uses: int = 4
    """a step's worth of the store is replaced by fresh images every so many steps"""
    lr: float = 2e-3
    weight_decay: float = 0.02
    temperature: float = 0.2
    fall: float = 0.3
    """share of a part, its last, over which the learning rate falls; 0: it stays"""
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
        check_range("fall", self.fall, "in [0, 1]")
        check_range("average", self.average, "in [0, 1)")


class Learner(nn.Module):
    """The encoder, and the projector that the loss sees: it may forget what the features should keep."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.encoder = WideEncoder(plan) if isinstance(plan, str) else Encoder(plan)
        self.projector = nn.Sequential(
            nn.Linear(self.encoder.width, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 128, bias=False),
        )

    def forward(self, views: Tensor) -> Tensor:
        made: Tensor = self.projector(self.encoder(views)[-1].mean((2, 3)))
        return made


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """What a part leaves: the weights of now, their running average, AdamW's mean squares, and how many steps made it.

    `squares` are v of each parameter of `now`, in their order.
    """

    now: Learner
    averaged: Learner
    squares: list[Tensor]
    step: int

    @property
    def encoder(self) -> Encoder | WideEncoder:
        """What is used."""
        return self.averaged.encoder


Progress = Callable[[int, float], None]
"""is told after how many steps what the loss was, now and then"""
Keep = Callable[[Pretrained], None]
"""is handed the state that the next part goes on from, which changes after it returns"""


def pretrain(
    told: Pretraining,
    device: torch.device,
    progress: Progress | None = None,
    *,
    start: Pretrained | None = None,
    seconds: float = math.inf,
    keep: Keep | None = None,
) -> Pretrained:
    """Trains up to the planned steps, from where `start` left off, or until so many seconds are over.

    `keep` gets the state before the fall of the learning rate, the returned one is that after it.
    """
    began = time.monotonic()
    step = first = 0 if start is None else start.step
    made, optimiser = _begin(told, device, start)
    chance = torch.Generator(device=device).manual_seed(told.seed + first)
    store, pairs, kept = Store(told, chance), _floats(made), False
    while step == first or (step < told.steps and time.monotonic() < began + seconds):
        done = max((step - first) / (told.steps - first), (time.monotonic() - began) / seconds)
        if told.fall and done > 1 - told.fall and keep is not None and not kept:
            keep(dataclasses.replace(made, step=step))
            kept = True
        for group in optimiser.param_groups:
            group["lr"] = told.lr * min(1.0, (step - first + 1) / _RISE) * pace(done, told.fall)
        with _plain_products(device):
            loss = _loss(told, made.now, store(), chance)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if told.average:
            torch._foreach_lerp_(*pairs, 1 - min(told.average, (step + 1) / (step + 10)))
        step += 1
        if progress is not None and (step - 1) % _TOLD_EVERY == 0:
            progress(step, loss.item())
    if progress is not None and (step - 1) % _TOLD_EVERY:
        progress(step, loss.item())
    made = dataclasses.replace(made, step=step)
    if keep is not None and not kept:
        keep(made)
    return made


def pace(done: float, fall: float) -> float:
    """The share of the learning rate once a share of a part is done: level, then half a cosine over the last `fall`.

    >>> [round(pace(done, 0.5), 2) for done in (0, 0.5, 0.75, 1)]
    [1.0, 1.0, 0.5, 0.0]
    >>> pace(0.9, 0)
    1.0
    """
    fallen = max(0.0, done - (1 - fall)) / fall if fall else 0.0
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, fallen))


def _begin(
    told: Pretraining, device: torch.device, start: Pretrained | None
) -> tuple[Pretrained, torch.optim.Optimizer]:
    """Learner, average and optimiser on the device: fresh, or as a part before left them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(told.seed)
        now = Learner(told.plan)
    if start is not None:
        now.load_state_dict(start.now.state_dict())
    averaged = copy.deepcopy(now)
    if start is not None:
        averaged.load_state_dict(start.averaged.state_dict())
    for learner in (now, averaged):
        learner.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    on_gpu = device.type == "cuda"
    optimiser = torch.optim.AdamW(now.parameters(), lr=told.lr, weight_decay=told.weight_decay, fused=on_gpu)
    squares = []
    for number, parameter in enumerate(now.parameters()):
        square = torch.zeros_like(parameter)
        if start is not None:
            square.copy_(start.squares[number])
        steps = torch.tensor(0.0 if start is None else float(start.step), device=device if on_gpu else None)
        optimiser.state[parameter] = {"step": steps, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": square}
        squares.append(square)
    return Pretrained(now=now, averaged=averaged if told.average else now, squares=squares, step=0), optimiser


def _floats(made: Pretrained) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and statistics of batch norms: of the average, and of now, which changes in place."""
    held, now = (
        [value.detach() for value in learner.state_dict().values() if value.is_floating_point()]
        for learner in (made.averaged, made.now)
    )
    return held, now


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


def _loss(told: Pretraining, learner: Learner, images: Tensor, chance: torch.Generator) -> Tensor:
    with torch.no_grad():
        views = torch.cat([told.views(images, chance), told.views(images, chance)])
        views = views.contiguous(memory_format=torch.channels_last)
    with _half_precision(views.device):
        first, second = learner(views).chunk(2)
    return contrastive_loss(first, second, told.temperature)


@contextlib.contextmanager
def _plain_products(device: torch.device) -> Iterator[None]:
    """No oneDNN on a CPU: its backward, as torch 2.13 has it, ends the process on some CPUs without AVX-512."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TF32 acceleration")  # torch says so of Intel's GPUs
        with torch.backends.mkldnn.flags(enabled=device.type != "cpu"):  # type: ignore[no-untyped-call, unused-ignore]
            yield


@contextlib.contextmanager
def _half_precision(device: torch.device) -> Iterator[None]:
    """bfloat16 products on a GPU, where they are many times faster; none on a CPU."""
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        yield
