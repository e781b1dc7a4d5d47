"""A private run followed by TensorBoard, and by a logger of your own: three methods, which see public values only.

python examples/loggers.py --steps 100 --out runs/logged
tensorboard --logdir runs/logged/tensorboard
"""

from __future__ import annotations

import argparse
from pathlib import Path

import adadpigu as ad
from adadpigu.loggers import Facts, Metrics, Run, TensorBoardLogger
from adadpigu.models import make_model


class Lines:
    """Prints a line for each look at the test set. `MLflowLogger` and `WandbLogger` have the same three methods."""

    def begin(self, facts: Facts) -> None:
        print(f"{facts.method} on {facts.dataset}: {facts.steps} steps")

    def update(self, metrics: Metrics) -> None:
        if metrics.test_accuracy is not None:
            print(f"step {metrics.step}: epsilon {metrics.epsilon:.3f}, test accuracy {metrics.test_accuracy:.1%}")

    def end(self, run: Run) -> None:
        print(run.privacy.statement().splitlines()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("runs/logged"))
    given = parser.parse_args()
    if given.out.exists():
        parser.error(f"--out {given.out} is there already; allowed: a new folder")
    ad.train(
        make_model("digits-mlp"),
        ad.load_dataset("digits"),
        privacy=ad.Budget(epsilon=4, delta=1e-5),
        method=ad.DPSGD(clip_norm=0.1),
        batch_size=256,
        steps=given.steps,
        lr=2.0,
        out=given.out,
        observers=[Lines(), TensorBoardLogger(given.out / "tensorboard")],
    )
    print(f"Look at it: tensorboard --logdir {given.out / 'tensorboard'}")


if __name__ == "__main__":
    main()
