"""The nets of the bench, and random records for them: the paper's four, a linear head, a wide ResNet, an encoder.

Weights and records come from fixed seeds, so that every contestant starts from the same net and the same batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.models import make_model

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class BenchNet:
    """A net, the shape of its records, and the batch sizes it is timed at where nobody chooses."""

    name: str
    shape: tuple[int, ...]
    build: Callable[[], nn.Module]
    cpu_batch: int
    cuda_batch: int = 1024

    def batch(self, device: str) -> int:
        """B where nobody chooses."""
        return self.cuda_batch if device.startswith("cuda") else self.cpu_batch

    def model(self) -> nn.Module:
        """The net at its fixed start."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build()

    def records(self, count: int) -> tuple[Tensor, Tensor]:
        """Random inputs and labels, the same at every call."""
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn((count, *self.shape), generator=generator)
        return inputs, torch.randint(CLASSES, (count,), generator=generator)


class _Attention(nn.Module):
    """Self-attention from two linear layers, so that every parameter has a layer rule."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.enter = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.enter(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-3, -2)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        left: Tensor = self.leave(mixed.transpose(-3, -2).flatten(-2))
        return left


class _EncoderBlock(nn.Module):
    """Pre-norm: x + attention(norm(x)), then x + two linear layers of norm(x)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), _Attention(width, heads))
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        fed: Tensor = x + self.feed(x)
        return fed


class _Positions(nn.Module):
    """Adds fixed sines and cosines, which tell positions apart and are not trained."""

    table: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        angle = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("table", torch.cat((angle.sin(), angle.cos()), dim=1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class _MeanOverPositions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(-2)


def transformer(*, length: int, features: int, width: int, blocks: int, heads: int) -> nn.Module:
    """An encoder over sequences of `length` embeddings, classified by the mean of its last states."""
    return nn.Sequential(
        nn.Linear(features, width),
        _Positions(length, width),
        *(_EncoderBlock(width, heads) for _ in range(blocks)),
        nn.LayerNorm(width),
        _MeanOverPositions(),
        nn.Linear(width, CLASSES),
    )


def _named(name: str, shape: tuple[int, ...], cpu_batch: int, cuda_batch: int = 1024) -> BenchNet:
    return BenchNet(
        name=name,
        shape=shape,
        build=lambda: make_model(name, shape=shape, classes=CLASSES),
        cpu_batch=cpu_batch,
        cuda_batch=cuda_batch,
    )


def _encoder() -> nn.Module:
    return transformer(length=32, features=64, width=384, blocks=6, heads=6)


NETS = {
    net.name: net
    for net in (
        _named("mnist-cnn", (1, 28, 28), 1000),
        _named("mnist-cnn-padded", (1, 28, 28), 1000),
        _named("cifar-small", (3, 32, 32), 1000),
        _named("cifar-big", (3, 32, 32), 250),
        _named("scatter-linear", (81, 7, 7), 1000),
        _named("wrn-16-4", (3, 32, 32), 32, 256),
        BenchNet(name="transformer", shape=(32, 64), build=_encoder, cpu_batch=32, cuda_batch=256),
    )
}
"""every net that can be asked for"""


def _mlp(width: int) -> BenchNet:
    return BenchNet(
        name=f"mlp-{width}",
        shape=(784,),
        build=lambda: nn.Sequential(nn.Linear(784, width), nn.Tanh(), nn.Linear(width, CLASSES)),
        cpu_batch=256,
    )


LADDER = {net.name: net for net in map(_mlp, (32, 64, 128, 256))}
"""nets of two linear layers, the same but for d, which doubles from each to the next"""


def find_net(name: str) -> BenchNet:
    """A net of the bench by name."""
    return {**NETS, **LADDER}[name]


def size(model: nn.Module) -> int:
    """d, the number of parameters.

    >>> size(NETS["mnist-cnn"].model()), size(NETS["transformer"].model()) >= 10_000_000
    (26010, True)
    """
    return sum(math.prod(parameter.shape) for parameter in model.parameters())
