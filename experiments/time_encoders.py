"""How many images a second encoders of several sizes featurise on a CPU, and how long CIFAR-10 with mirror images is.

    python experiments/time_encoders.py --threads 2

CPU seconds are those of the process: on a machine that is shared they tell more than the clock.
"""

from __future__ import annotations

import argparse
import time

import torch

from adadpigu.features.scattering import Scattering
from adadpigu.priors.encoder import EncoderMaps, EncoderShape
from adadpigu_paper.reproduce.keeping import tabled

SHAPE, IMAGES = (3, 32, 32), 120_000
PLANS = (
    EncoderShape(widths=(64, 128, 256), blocks=(1, 2, 2)),
    EncoderShape(widths=(64, 128, 256, 512), blocks=(2, 2, 2, 2)),
    EncoderShape(widths=(80, 160, 320, 640), blocks=(1, 2, 2, 2)),
    EncoderShape(widths=(128, 256, 512), blocks=(1, 2, 2)),
)


def products(plan: EncoderShape, side: int = SHAPE[1]) -> tuple[int, int]:
    """Multiplications an image, and weights."""
    counts = []
    for name, inputs, outputs, kernel, _ in plan.units():
        stage = 0 if name == "stem" else int(name.removeprefix("stage").partition(".")[0])
        counts.append((inputs * outputs * kernel**2, (side >> stage) ** 2))
    return sum(weights * pixels for weights, pixels in counts), sum(weights for weights, _ in counts)


def constants(plan: EncoderShape) -> dict[str, torch.Tensor]:
    """Random weights: their values do not matter here."""
    found = {}
    for name, inputs, outputs, kernel, _ in plan.units():
        found[f"{name}.weight"] = torch.randn(outputs, inputs, kernel, kernel) / (inputs * kernel**2) ** 0.5
        found[f"{name}.bias"] = torch.zeros(outputs)
    for stage, width in enumerate(plan.widths):
        found[f"stage{stage}.mean"], found[f"stage{stage}.std"] = torch.zeros(width), torch.ones(width)
    return found


def seconds(module: torch.nn.Module, images: torch.Tensor, threads: int, rounds: int = 3) -> float:
    """The least CPU seconds of a pass, divided by the threads."""
    with torch.no_grad():
        module(images)
        taken = []
        for _ in range(rounds):
            start = time.process_time()
            module(images)
            taken.append((time.process_time() - start) / threads)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--images", type=int, default=96)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    images = torch.rand(given.images, *SHAPE)
    scattering = seconds(Scattering(SHAPE), images, given.threads) / given.images
    rows = []
    for plan in PLANS:
        encoder = seconds(EncoderMaps(plan, constants(plan)), images, given.threads) / given.images
        count, weights = products(plan)
        shown = [", ".join(map(str, plan.widths)), ", ".join(map(str, plan.blocks)), f"{weights / 1e6:.1f}"]
        shown += [f"{count / 1e9:.2f}", f"{1 / encoder:.0f}", f"{IMAGES * (encoder + scattering) / 60:.1f}"]
        rows.append(shown)
    head = ["channels", "blocks", "weights, M", "products, G", "images/s", f"minutes for {IMAGES:,} with ScatterNet"]
    print(tabled(head, rows))


if __name__ == "__main__":
    main()
