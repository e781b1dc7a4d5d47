"""Figures of a run: accuracy and ε over the steps, what guesses about who was used can gain, the mask by layer.

Drawn from public metrics and the claim only.
"""

import itertools
from pathlib import Path

from matplotlib.figure import Figure

from adadpigu.accounting.membership import MembershipBounds
from adadpigu.accounting.wording import percent
from adadpigu.features.front import Fronted
from adadpigu.runs.run import Run

_ACCURACY, _EPSILON, _GRID = "#1b6ca8", "#c8553d", "#d9d9d9"


def draw_figures(run: Run, folder: Path) -> list[Path]:
    """Writes the run's figures as PNG and returns their paths."""
    if not run.metrics:
        return []
    folder.mkdir(exist_ok=True)
    drawn = [_progress(run, folder / "progress.png")]
    if run.privacy.private and run.privacy.membership is not None:
        drawn.append(_guesses(run, run.privacy.membership, folder / "guesses.png"))
    if any(share < 1 for share in run.metrics[-1].mask.values()) or any(m.active < 1 for m in run.metrics):
        drawn.append(_mask(run, folder / "mask.png"))
    return drawn


def _save(figure: Figure, run: Run, title: str, path: Path) -> Path:
    figure.axes[0].spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_title(f"{run.method} on {run.dataset}: {title}", loc="left", fontsize=11)
    figure.savefig(path, dpi=150)
    return path


def _progress(run: Run, path: Path) -> Path:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel("step (all stages)")
    axes.set_xlim(0, run.metrics[-1].steps)
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    seen = [m for m in run.metrics if m.test_accuracy is not None]
    if seen:
        values = [100 * (m.test_accuracy or 0.0) for m in seen]
        axes.plot([m.step for m in seen], values, color=_ACCURACY, marker="o", markersize=3)
        axes.set_ylabel("test accuracy, %", color=_ACCURACY)
        axes.set_ylim(0, 100)
    spent = [m for m in run.metrics if m.epsilon is not None]
    if spent:
        right = axes.twinx()
        right.spines[["top"]].set_visible(False)
        right.plot([0, *(m.step for m in spent)], [0.0, *(m.epsilon or 0.0 for m in spent)], color=_EPSILON)
        target = run.privacy.epsilon_pld
        right.axhline(target, color=_EPSILON, linestyle=":", linewidth=1)
        right.set_ylabel(f"ε spent of {target:.3g} (PLD), δ = {run.privacy.delta:g}", color=_EPSILON)
        right.set_ylim(0, target * 1.08)
    for before, after in itertools.pairwise(run.metrics):
        if before.stage != after.stage:
            axes.axvline(before.step, color="gray", linewidth=0.8, linestyle="--")
            words, at = f"{before.stage} | {after.stage}", (before.step, 2)
            axes.annotate(words, at, xytext=(4, 0), textcoords="offset points", fontsize=8)
    return _save(figure, run, "accuracy and privacy spent", path)


def _guesses(run: Run, found: MembershipBounds, path: Path) -> Path:
    """For whoever answers for the records: how many guesses are right without the model, and at most with it."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes, gains = figure.subplots(), found.gains()
    for offset, of, colour, words in ((-0.2, 1, _GRID, "without the model"), (0.2, 2, _ACCURACY, "with it, at most")):
        shares = [float(row[of]) for row in gains]
        places = [place + offset for place in range(len(gains))]
        axes.barh(places, [100 * share for share in shares], color=colour, height=0.36, label=words)
        for place, share in zip(places, shares, strict=True):
            axes.annotate(percent(share), (100 * share, place), (4, -3), textcoords="offset points", fontsize=8)
    axes.set_yticks(range(len(gains)), [row[0] for row in gains])
    axes.invert_yaxis()
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    rate = percent(found.true_positive_rates["0.001"])
    told = f"*by who wrongly names 1 in 1,000 of those not used, and at most {rate} of those used"
    axes.set_xlabel(f"right guesses, %\n{told}", fontsize=8)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return _save(figure, run, "guesses who was used", path)


def _mask(run: Run, path: Path) -> Path:
    last = run.metrics[-1]
    first = next((m for m in run.metrics if m.stage == last.stage), last)
    layers = list(last.mask)
    trained = run.model.body if isinstance(run.model, Fronted) else run.model
    kinds = {layer: type(module).__name__ for layer, module in [*trained.named_modules(), ("model", trained)]}
    figure = Figure(figsize=(7, 1.1 + 0.36 * len(layers)), layout="constrained")
    axes = figure.subplots()
    places = range(len(layers))
    axes.barh(places, [100 * last.mask[layer] for layer in layers], color=_ACCURACY, height=0.5)
    moved = first.mask != last.mask
    if moved:
        axes.plot([100 * first.mask[layer] for layer in layers], places, "|", color="white", ms=12, mew=2)
    for place, layer in zip(places, layers, strict=True):
        text = f"{first.mask[layer]:.0%} → {last.mask[layer]:.0%}" if moved else f"{last.mask[layer]:.0%}"
        axes.annotate(text, (100 * last.mask[layer], place), (4, -3), textcoords="offset points", fontsize=8)
    axes.set_yticks(list(places), [f"{layer}  {kinds[layer]}" for layer in layers])
    axes.invert_yaxis()
    axes.set_xlim(0, 122)
    axes.set_xticks(range(0, 101, 20))
    tick = " (tick: when training began)" if moved else ""
    axes.set_xlabel(f"weights that may change, % of the layer{tick}")
    return _save(figure, run, f"the mask by layer ({last.active:.0%} of all)", path)
