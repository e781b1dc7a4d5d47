"""What training the prior's encoder gives: a head on ScatterNet alone, beside the encoder, beside it untrained.

    python experiments/prior_control.py --records 10000

Scored on held-out *training* records of CIFAR-10. Simulated, not run by the package (`adadpigu_paper.probe`).
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

from adadpigu.features.prior import Parts, Prior
from adadpigu.priors.encoder import Weights
from adadpigu.priors.named import named_weights
from adadpigu_paper.encoder import Encoder, encoder_constants, process_images, projection
from adadpigu_paper.probe import Features, probe, split_of
from adadpigu_paper.reproduce.keeping import tabled

SHAPE = (3, 32, 32)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000)
    given = parser.parse_args()
    torch.manual_seed(0)
    split = split_of("cifar10", given.records)
    trained = Prior(named_weights("prior"), SHAPE)
    scattering = trained.parts
    kinds: dict[str, Features] = {
        "ScatterNet, no projection": lambda x: F.avg_pool2d(scattering.orders(scattering.scattering(x)), 2),
        "ScatterNet beside the same encoder *untrained*, projected": untrained(named_weights("prior")),
        "ScatterNet beside the trained encoder, projected": trained,
    }
    rows = []
    for name, features in kinds.items():
        scores = {kind: score for kind, score in probe(features, split).items() if "averaged" not in kind}
        rows.append([name, *(f"{score:.1f}" for score in scores.values())])
    print(tabled(["features of the linear head", *scores], rows))


if __name__ == "__main__":
    main()
