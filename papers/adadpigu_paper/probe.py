"""How good features are for a private linear head: scores on held-out *training* records of a public data set.

Simulated, not run by the package: Poisson batches, clipping at 1, noise at the σ of PLD, scaled down to as many records
as are used, so that heads of few records can be compared. Records of a user never come here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from adadpigu.accounting import Plan, PlannedDraw, PlannedStage, calibrate
from adadpigu.data import load_dataset, training_split
from adadpigu.errors import InputError

BATCH = 4096
"""B, of all records"""
STEPS = {1: 300, 2: 400, 4: 600, 8: 800}
"""of a head at each ε"""
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


def rate_of(records: int) -> float:
    """q = B/N, of few records a quarter."""
    return min(BATCH / records, 0.25)


@functools.cache
def noise(epsilon: float, records: int, steps: int) -> float:
    """σ of so many Poisson draws of B records each, by PLD, at δ = 1e-5."""

    def plan(sigma: float) -> Plan:
        draw = PlannedDraw(name="gradient", sample_rate=rate_of(records), noise_multiplier=sigma)
        return Plan(stages=(PlannedStage(name="training", steps=steps, draws=(draw,)),))

    return calibrate(plan, epsilon=epsilon, delta=1e-5).noise_multiplier


@torch.no_grad()
def probe(features: Features, split: Split, device: torch.device | None = None) -> dict[str, float]:
    """Accuracy in percent of heads at each ε, and of one without noise; and on features averaged over mirror images."""
    heads = {f"ε = {epsilon}": (noise(epsilon, split.records, steps), steps) for epsilon, steps in STEPS.items()}
    heads["no noise"] = (0.0, 600)
    scores = {}
    for mirrored, told in ((False, ""), (True, ", averaged")):
        x, seen = (of_records(features, images, device, mirrored=mirrored) for images in (split.inputs, split.held_out))
        targets, labels = split.targets.to(x.device), split.labels.to(x.device)
        share, rate = len(x) / split.records, rate_of(split.records)
        for name, (sigma, steps) in heads.items():
            found = []
            for length in LENGTHS if sigma else LENGTHS[:1]:
                weights = head(x, targets, sigma=sigma * share, steps=steps, length=length, rate=rate)
                found.append(100 * float(((seen @ weights).argmax(1) == labels).float().mean()))
            scores[name + told] = max(found)
    return scores


def of_records(features: Features, images: Tensor, device: torch.device | None = None, *, mirrored: bool) -> Tensor:
    """Features of images, or their mean with those of mirror images, each record brought to mean 0 and variance 1.

    The last entry is a constant, for the bias.
    """
    made = []
    for part in torch.split(images, 250):
        part = part if device is None else part.to(device)
        made.append((features(part) + features(part.flip(-1))) / 2 if mirrored else features(part))
    flat = torch.cat([F.layer_norm(value, value.shape[1:]).flatten(1) for value in made])
    return torch.cat([flat, flat.new_ones(len(images), 1)], 1)


def head(x: Tensor, y: Tensor, *, sigma: float, steps: int, length: float, rate: float) -> Tensor:
    """The averaged weights of a linear head of ten classes, with noise of deviation σ on each sum."""
    expected, lr = rate * len(x), length / math.sqrt(x.shape[1] - 1)
    weights = x.new_zeros(x.shape[1], 10)
    momentum, average = weights.clone(), weights.clone()
    for _ in range(steps):
        drawn = (torch.rand(len(x), device=x.device) < rate).nonzero()[:, 0]
        inputs, errors = x[drawn], (x[drawn] @ weights).softmax(1) - F.one_hot(y[drawn], 10)
        scale = (1 / (errors.norm(dim=1) * inputs.norm(dim=1)).clamp(min=1e-9)).clamp(max=1)
        noisy = inputs.T @ (errors * scale[:, None]) + sigma * torch.randn_like(weights)
        momentum = 0.9 * momentum + noisy / expected
        weights = weights - lr * momentum
        average = 0.99 * average + 0.01 * weights
    return average
