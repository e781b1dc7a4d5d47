"""How good features are for a private linear head: scores on held-out *training* records of a public data set.

Simulated, not run by the package: Poisson batches, clipping at 1, noise at the presets' σ, scaled down to as many
records as are used, so that heads of few records can be compared. Records of a user never come here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from adadpigu.data import load_dataset, training_split
from adadpigu.errors import InputError

SAMPLE_RATE = 4096 / 50_000
BUDGETS = {2: (3.420, 400), 4: (2.335, 600)}
"""ε: σ and steps of `cifar10-best-eps2` and `-eps4`"""
LENGTHS = (9.0, 15.0)
"""learning rates, in units of 1/√d; the better one counts"""
HELD_OUT = 5_000
Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Records to learn from, those held out, and how many there would be in all."""

    inputs: Tensor
    targets: Tensor
    held_out: Tensor
    labels: Tensor
    records: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.shape[1:])


def split_of(name: str, records: int) -> Split:
    """The first `records` training records of a data set, and about 5,000 others that are held out by hash."""
    data = training_split(load_dataset(name), HELD_OUT)
    if not 10 <= records <= data.records:
        raise InputError(f"records={records} is not from 10 to {data.records}")
    assert data.test is not None
    inputs, targets = data.train.take(torch.arange(min(records, len(data.train))))
    held_out, labels = data.test.take(torch.arange(len(data.test)))
    return Split(inputs=inputs, targets=targets, held_out=held_out, labels=labels, records=data.records)


@torch.no_grad()
def probe(features: Features, split: Split, device: torch.device | None = None) -> dict[str, float]:
    """Accuracy in percent of heads at ε = 2 and 4, and of one without noise."""
    x, seen = (of_records(features, images, device) for images in (split.inputs, split.held_out))
    targets, labels = split.targets.to(x.device), split.labels.to(x.device)

    def best(sigma: float, steps: int, lengths: tuple[float, ...]) -> float:
        heads = [head(x, targets, sigma=sigma * share, steps=steps, length=length) for length in lengths]
        return max(100 * float(((seen @ w).argmax(1) == labels).float().mean()) for w in heads)

    share = len(x) / split.records
    found = {f"ε = {epsilon}": best(sigma, steps, LENGTHS) for epsilon, (sigma, steps) in BUDGETS.items()}
    return {**found, "no noise": best(0.0, 600, LENGTHS[:1])}


def of_records(features: Features, images: Tensor, device: torch.device | None = None) -> Tensor:
    """Features of images, each record brought to mean 0 and variance 1, with a constant for the bias."""
    made = [features(part if device is None else part.to(device)) for part in torch.split(images, 250)]
    flat = torch.cat([F.layer_norm(value, value.shape[1:]).flatten(1) for value in made])
    return torch.cat([flat, flat.new_ones(len(images), 1)], 1)


def head(x: Tensor, y: Tensor, *, sigma: float, steps: int, length: float) -> Tensor:
    """The averaged weights of a linear head of ten classes, with noise of deviation σ on each sum."""
    expected, lr = SAMPLE_RATE * len(x), length / math.sqrt(x.shape[1] - 1)
    weights = x.new_zeros(x.shape[1], 10)
    momentum, average = weights.clone(), weights.clone()
    for _ in range(steps):
        drawn = (torch.rand(len(x), device=x.device) < SAMPLE_RATE).nonzero()[:, 0]
        inputs, errors = x[drawn], (x[drawn] @ weights).softmax(1) - F.one_hot(y[drawn], 10)
        scale = (1 / (errors.norm(dim=1) * inputs.norm(dim=1)).clamp(min=1e-9)).clamp(max=1)
        noisy = inputs.T @ (errors * scale[:, None]) + sigma * torch.randn_like(weights)
        momentum = 0.9 * momentum + noisy / expected
        weights = weights - lr * momentum
        average = 0.99 * average + 0.01 * weights
    return average
