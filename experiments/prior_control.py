"""What training the prior's encoder gives: a head on ScatterNet alone, beside the encoder, beside it untrained.

    python experiments/prior_control.py --records 10000

Scored on held-out *training* records of CIFAR-10. Simulated, not run by the package: Poisson batches, clipping at 1 and
noise at the presets' σ, scaled down to as many records as are used, so that heads of few records can be compared.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.data import load_dataset, training_split
from adadpigu.features.prior import Parts, Prior
from adadpigu.priors.encoder import Weights, packaged_weights
from adadpigu_paper.encoder import Encoder, encoder_constants, process_images, projection
from adadpigu_paper.reproduce.keeping import tabled

SHAPE = (3, 32, 32)
SAMPLE_RATE = 4096 / 50_000
BUDGETS = {2: (3.420, 400), 4: (2.335, 600)}
"""ε: σ and steps of `cifar10-best-eps2` and `-eps4`"""
LENGTHS = (9.0, 15.0)
"""learning rates, in units of 1/√d; the better one counts"""
Features = Callable[[Tensor], Tensor]


def untrained(weights: Weights) -> Prior:
    """The same plan with random weights, its statistics and projection made as those of the trained one."""
    images = process_images(1024, torch.Generator().manual_seed(7))
    encoder = Encoder(weights.plan)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # plain means over all that it sees
    with torch.no_grad():
        for part in images:
            encoder(part)
    constants = {name: value.half() for name, value in encoder_constants(encoder.eval(), images).items()}
    constants |= projection(Parts(weights.plan, constants, SHAPE), images, keep=483, power=0.75)
    return Prior(Weights(plan=weights.plan, tensors=constants, metadata={}), SHAPE)


def of_records(features: Features, images: Tensor) -> Tensor:
    """Features of images, each record brought to mean 0 and variance 1, with a constant for the bias."""
    made = [F.layer_norm(value, value.shape[1:]).flatten(1) for value in map(features, images.split(250))]
    return torch.cat([torch.cat(made), torch.ones(len(images), 1)], 1)


def head(x: Tensor, y: Tensor, *, sigma: float, steps: int, length: float, share: float) -> Tensor:
    """The averaged weights of a linear head; noise is `share` of what all records would need."""
    expected, lr = SAMPLE_RATE * len(x), length / math.sqrt(x.shape[1] - 1)
    weights = torch.zeros(x.shape[1], 10)
    momentum, average = weights.clone(), weights.clone()
    for _ in range(steps):
        drawn = (torch.rand(len(x)) < SAMPLE_RATE).nonzero()[:, 0]
        inputs, errors = x[drawn], (x[drawn] @ weights).softmax(1) - F.one_hot(y[drawn], 10)
        scale = (1 / (errors.norm(dim=1) * inputs.norm(dim=1)).clamp(min=1e-9)).clamp(max=1)
        noisy = inputs.T @ (errors * scale[:, None]) + share * sigma * torch.randn_like(weights)
        momentum = 0.9 * momentum + noisy / expected
        weights = weights - lr * momentum
        average = 0.99 * average + 0.01 * weights
    return average


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000)
    given = parser.parse_args()
    torch.manual_seed(0)
    data = training_split(load_dataset("cifar10"), 5_000)
    assert data.test is not None
    inputs, targets = data.train.take(torch.arange(given.records))
    held_out, labels = data.test.take(torch.arange(len(data.test)))
    trained = Prior(packaged_weights(), SHAPE)
    scattering = trained.parts
    kinds: dict[str, Features] = {
        "ScatterNet, no projection": lambda x: F.avg_pool2d(scattering.orders(scattering.scattering(x)), 2),
        "ScatterNet beside the same encoder *untrained*, projected": untrained(packaged_weights()),
        "ScatterNet beside the trained encoder, projected": trained,
    }
    rows = []
    for name, features in kinds.items():
        x, seen = of_records(features, inputs), of_records(features, held_out)
        cells = []
        for sigma, steps, lengths, share in (
            *((sigma, steps, LENGTHS, given.records / data.records) for sigma, steps in BUDGETS.values()),
            (0.0, 600, LENGTHS[:1], 0.0),
        ):
            heads = [head(x, targets, sigma=sigma, steps=steps, length=length, share=share) for length in lengths]
            cells.append(f"{max(100 * float(((seen @ w).argmax(1) == labels).float().mean()) for w in heads):.1f}")
        rows.append([name, *cells])
    print(tabled(["features of the linear head", *(f"ε = {epsilon}" for epsilon in BUDGETS), "no noise"], rows))


if __name__ == "__main__":
    main()
