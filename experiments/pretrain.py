"""Makes a prior anew: contrastive pre-training on images of random processes, then a projection. Public throughout.

    python experiments/pretrain.py --steps 3200 --out prior.safetensors --device cuda

With --seconds, the number of steps is chosen from how long the first ones take; the file says how many they were. With
--encoder FILE, the encoder of a file is taken as it is and only the projection is made. A tiny one, on a CPU:
--steps 3 --images 16 --widths 8,8,8 --statistics 64 --keep 16.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from adadpigu.features.prior import Parts
from adadpigu.priors.encoder import EncoderShape, Weights, read_weights
from adadpigu.tensors import write_tensors
from adadpigu_paper.encoder import Encoder, encoder_constants, process_images, projection
from adadpigu_paper.pretraining import Pretraining, pretrain

ORIGIN = "images of random processes (adadpigu.priors.random_images); no photograph, no record"
SHAPE = (3, 32, 32)


def paced(told: Pretraining, device: torch.device, seconds: float) -> Pretraining:
    """With as many steps as fit into the seconds, by the pace of the first few; two figures of that number."""
    pretrain(replace(told, steps=5), device)
    finish(device)
    start = time.perf_counter()
    pretrain(replace(told, steps=25), device)
    finish(device)
    found = (seconds - time.perf_counter() + start) * 25 / (time.perf_counter() - start)
    unit = 10 ** max(0, math.floor(math.log10(max(1.0, found))) - 1)
    return replace(told, steps=max(1, int(found // unit * unit)))


def finish(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def telling(steps: int) -> Callable[[int, float, Encoder], None]:
    """Tells how far it is."""
    start = time.perf_counter()

    def hear(step: int, loss: float, encoder: Encoder) -> None:
        sys.stderr.write(f"step {step + 1} of {steps}, loss {loss:.4f}, {time.perf_counter() - start:.0f} s\n")
        sys.stderr.flush()

    return hear


def trained(told: Pretraining, device: torch.device, statistics: int) -> Weights:
    """An encoder's constants, with the channels' statistics over fresh process images."""
    start = time.perf_counter()
    encoder = pretrain(told, device, telling(told.steps))
    finish(device)
    chance = torch.Generator(device=device).manual_seed(told.seed + 1)
    facts = {
        "trained on": ORIGIN,
        "settings": repr(told),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "seconds": f"{time.perf_counter() - start:.0f}",
    }
    constants = encoder_constants(encoder, process_images(statistics, chance))
    return Weights(plan=told.plan, tensors=constants, metadata=facts)


def projected(
    weights: Weights, device: torch.device, *, seed: int, statistics: int, keep: int, power: float
) -> Weights:
    """The weights with a projection, from process images of its own seed."""
    images = process_images(statistics, torch.Generator(device=device).manual_seed(seed))
    encoder: Mapping[str, Tensor] = {
        k: v.half().clone(memory_format=torch.contiguous_format)  # laid out as it is read from a file
        for k, v in weights.tensors.items()
        if not k.startswith("projection")
    }
    found = projection(Parts(weights.plan, encoder, SHAPE).to(device), images, keep=keep, power=power)
    facts = {"projection": f"keep {keep}, power {power:g}, {statistics} images, seed {seed}"}
    return Weights(plan=weights.plan, tensors={**encoder, **found}, metadata={**weights.metadata, **facts})


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--encoder", type=Path, help="a prior whose encoder is taken")
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--seconds", type=float, help="choose the number of steps so that they take about so long")
    parser.add_argument("--images", type=int, default=1024, help="in a step")
    parser.add_argument("--widths", default="64,128,256", help="channels of each stage")
    parser.add_argument("--blocks", default="1,2,2", help="residual blocks of each stage")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--statistics", type=int, default=4096, help="process images for means and directions")
    parser.add_argument("--keep", type=int, default=483, help="directions")
    parser.add_argument("--power", type=float, default=0.75, help="0: as they vary, 1: all alike")
    return parser.parse_args()


def save(made: Weights, path: Path) -> None:
    """Writes the file whole, numbers as halves; it holds its own fingerprint."""
    plan = json.dumps({"widths": made.plan.widths, "blocks": made.plan.blocks})
    halves = {name: value.half().cpu().contiguous() for name, value in made.tensors.items()}
    kept = replace(made, tensors=halves)
    write_tensors(path, halves, {**made.metadata, "plan": plan, "sha256": kept.fingerprint()})


def main() -> None:
    given = arguments()
    device = torch.device(given.device)
    torch.backends.cudnn.benchmark = True
    if given.encoder is not None:
        weights = read_weights(given.encoder)
    else:
        widths, blocks = (tuple(int(n) for n in text.split(",")) for text in (given.widths, given.blocks))
        told = Pretraining(
            plan=EncoderShape(widths=widths, blocks=blocks),
            steps=given.steps,
            images=given.images,
            lr=given.lr,
            temperature=given.temperature,
            seed=given.seed,
        )
        told = told if given.seconds is None else paced(told, device, given.seconds)
        weights = trained(told, device, given.statistics)
    made = projected(
        weights, device, seed=given.seed + 7, statistics=given.statistics, keep=given.keep, power=given.power
    )
    save(made, given.out)
    print(f"{given.out}: SHA-256 {read_weights(given.out).fingerprint()}")


if __name__ == "__main__":
    main()
