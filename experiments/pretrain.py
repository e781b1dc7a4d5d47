"""Makes the prior's weights anew: contrastive pre-training on images of random processes, no photograph, no record.

    python experiments/pretrain.py --steps 4000 --out prior.safetensors --device cuda

With --seconds, the number of steps is chosen from how long the first ones take; the file says how many they were. On a
CPU a tiny one: --steps 3 --images 16 --widths 8,8,8.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from adadpigu.priors.encoder import Encoder, Plan
from adadpigu.priors.maps import constants, save
from adadpigu.priors.pretraining import Pretraining, pretrain


def paced(told: Pretraining, device: torch.device, seconds: float) -> Pretraining:
    """With as many steps as fit into the seconds, two figures of them."""
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


def told_of(told: Pretraining, seconds: float, loss: float) -> dict[str, str]:
    """What stands in the file beside the weights."""
    return {
        "trained on": "images of random processes (adadpigu.priors.processes); no photograph, no record",
        "settings": repr(told),
        "torch": torch.__version__,
        "seconds": f"{seconds:.0f}",
        "last loss": f"{loss:.4f}",
    }


def saver(told: Pretraining, out: Path, every: float) -> Callable[[int, float, Encoder], None]:
    """Tells how far it is, and writes the weights now and then and at the end."""
    start = saved = time.perf_counter()

    def hear(step: int, loss: float, encoder: Encoder) -> None:
        nonlocal saved
        now = time.perf_counter()
        sys.stderr.write(f"step {step + 1} of {told.steps}, loss {loss:.4f}, {now - start:.0f} s\n")
        sys.stderr.flush()
        if step + 1 == told.steps or now - saved > every:
            saved = now
            chance = torch.Generator(device=next(encoder.parameters()).device).manual_seed(told.seed + 1)
            save(out, encoder.plan, constants(encoder, chance), told_of(told, now - start, loss))

    return hear


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="choose the number of steps so that they take about so long")
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--widths", default="64,128,256")
    parser.add_argument("--blocks", default="1,2,2")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=float, default=60.0, help="seconds")
    given = parser.parse_args()
    widths, blocks = (tuple(int(n) for n in text.split(",")) for text in (given.widths, given.blocks))
    told = Pretraining(
        plan=Plan(widths=widths, blocks=blocks),
        steps=given.steps,
        images=given.images,
        lr=given.lr,
        temperature=given.temperature,
        seed=given.seed,
    )
    device = torch.device(given.device)
    torch.backends.cudnn.benchmark = True
    if given.seconds is not None:
        told = paced(told, device, given.seconds)
    pretrain(told, device, saver(told, given.out, given.save_every))


if __name__ == "__main__":
    main()
