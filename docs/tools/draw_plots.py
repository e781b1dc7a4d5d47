"""Draws the plots of docs/choosing.md into docs/images, from the accountant and from the rows in results/.

Nothing is trained and no record is read. `python docs/tools/draw_plots.py` draws all of them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from adadpigu.accounting import calibrate, epsilon, epsilon_curve, plan_for

ROOT = Path(__file__).parents[2]
RECORDS, DELTA = 60_000, 1e-5


def noise_multiplier(budget: float, batch: float, steps: int, delta: float = DELTA) -> float:
    """σ for a budget, of Poisson batches of `batch` records on average out of 60,000."""
    return calibrate(plan_for(batch / RECORDS, steps), epsilon=budget, delta=delta).noise_multiplier


def budgets(left: Axes, right: Axes) -> None:
    """What a larger ε buys: less noise, and, measured, more accuracy."""
    choices = [0.5, 1, 2, 3, 4, 6, 8, 10]
    left.plot(choices, [noise_multiplier(choice, 1000, 2000) for choice in choices], "o-")
    left.set(xlabel="ε", ylabel="noise multiplier σ", title="σ that a budget needs\n(B = 1000 of 60,000, 2,000 steps)")
    left.set_ylim(0)
    names = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
    for name, label in names.items():
        means = [_mean_accuracy(f"{name}-{rest}") for rest in ("dpsgd-eps2", "dpsgd-eps4", "sgd")]
        right.plot(["2", "4", "∞"], means, "o-", label=label)
    right.set(xlabel="ε", ylabel="test accuracy, %", title="DP-SGD's presets, measured\n(∞: SGD without privacy)")
    right.legend()


def _mean_accuracy(preset: str) -> float:
    from adadpigu.config import read_preset

    wanted = {key: value for key, value in read_preset(preset).items() if key not in ("engine", "description")}
    rows = [json.loads(line) for line in (ROOT / "results" / "presets.jsonl").read_text().splitlines()]
    scores: list[float] = [
        row["accuracy"] for row in rows if row["name"] == preset and wanted.items() <= row["config"].items()
    ]
    if not scores:
        raise SystemExit(f"no row of results/presets.jsonl has the settings of {preset}")
    return 100 * sum(scores) / len(scores)


def deltas(left: Axes, right: Axes) -> None:
    """δ costs little, ε grows with the root of the steps."""
    powers = list(range(-12, -2))
    event = plan_for(1000 / RECORDS, 2000)(1.0).event()
    left.semilogx([10.0**power for power in powers], [epsilon(event, 10.0**power) for power in powers], "o-")
    left.axvline(1 / RECORDS, color="gray", linestyle="--", label="1/N, N = 60,000")
    left.set(xlabel="δ", ylabel="ε", title="one run, told at several δ\n(σ = 1, B = 1000 of 60,000, 2,000 steps)")
    left.legend()
    left.set_ylim(0)
    steps = list(range(0, 10_001, 500))
    for sigma in (0.8, 1.0, 2.0):
        curve = epsilon_curve(plan_for(1000 / RECORDS, steps[-1])(sigma), DELTA, steps)
        right.plot(steps, curve, label=f"σ = {sigma}")
    right.set(xlabel="steps", ylabel="ε", title="ε over the steps\n(B = 1000 of 60,000, δ = 1e-5)")
    right.legend()
    right.set_ylim(0)


def batches(left: Axes, right: Axes) -> None:
    """At a fixed ε and a fixed number of steps a larger batch drowns the noise; measured, with its learning rate."""
    sizes = [125, 250, 500, 1000, 2000, 4000, 8000]
    for count in (500, 2000, 8000):
        noise = [noise_multiplier(4, size, count) / size for size in sizes]
        left.loglog(sizes, noise, "o-", label=f"{count:,} steps")
    left.set(xlabel="B", ylabel="σ/B", title="noise on the mean gradient, in units of C\n(ε = 4, N = 60,000)")
    left.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
    left.set_yticks([0.0005, 0.001, 0.002, 0.004], ["0.0005", "0.001", "0.002", "0.004"])
    left.minorticks_off()
    left.legend()
    rows = [json.loads(line) for line in (ROOT / "results/paper/batch-tradeoff.jsonl").read_text().splitlines()]
    if not rows:
        words = "not measured yet\nwith the whole method"
        print("choosing-batch: results/paper/batch-tradeoff.jsonl has no rows, the right panel stays empty")
        right.text(0.5, 0.5, words, transform=right.transAxes, ha="center", va="center")
    for rate in sorted({row["config"]["lr"] for row in rows}):
        cells = sorted((r["config"]["batch_size"], 100 * r["accuracy"]) for r in rows if r["config"]["lr"] == rate)
        right.plot(*zip(*cells, strict=True), "o-", label=f"lr {rate:g}")
    right.set(xlabel="B", ylabel="test accuracy, %", title="AdaDPIGU on MNIST, 200 epochs, σ = 2.49\n(one run a point)")
    if rows:
        right.legend()


def bounds(left: Axes, right: Axes) -> None:
    """C is chosen with the learning rate; steps past what B can carry add noise only."""
    rows = [json.loads(line) for line in (ROOT / "results/paper/ablation.jsonl").read_text().splitlines()]
    names = {"half-bound": 0.05, "dpsgd": 0.1, "double-bound": 0.2}
    scores: dict[float, list[float]] = {bound: [] for bound in names.values()}
    for row in rows:
        net, _, variant = row["name"].partition("/")
        if net == "26k" and variant in names:
            scores[names[variant]].append(100 * row["accuracy"])
    left.boxplot([scores[bound] for bound in names.values()], tick_labels=[f"{bound:g}" for bound in names.values()])
    left.set(
        xlabel="C", ylabel="test accuracy, %", title="DP-SGD on Fashion-MNIST, ε = 4\n(8 runs each, lr·C the same)"
    )
    counts = [100, 200, 500, 1000, 2000, 4000, 8000]
    for size in (500, 2000, 8000):
        drift = [math.sqrt(count) * noise_multiplier(4, size, count) / size for count in counts]
        right.loglog(counts, drift, "o-", label=f"B = {size:,}")
    right.set(xlabel="steps", ylabel="√T·σ/B", title="noise of all steps, in units of C·lr\n(ε = 4, N = 60,000)")
    right.legend()


PLOTS: dict[str, Callable[[Axes, Axes], None]] = {
    "choosing-epsilon": budgets,
    "choosing-delta-steps": deltas,
    "choosing-batch": batches,
    "choosing-clip": bounds,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="folder for the plots")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PLOTS.items():
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        for axes in (left, right):
            axes.grid(visible=True, alpha=0.3)
        draw(left, right)
        figure.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})
        plt.close(figure)
        print(f"{name}.png")


if __name__ == "__main__":
    main()
