"""How the two figures on pruning look: accuracies over the epochs with an inset, and the late mean by pruning rate.

Drawn from the public rows that `pruning_runs` sums up, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.jobs import Row
from adadpigu_paper.reproduce.pruning_runs import BASELINE, LATE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACCURACY, _CLAIM, _GRID, _UNSHOWN = "#1b6ca8", "#c8553d", "#d9d9d9", "#8a8a8a"
_MARKED = (BASELINE, paper.BEST_PRUNING_RATE)
"""drawn thicker"""


def rate_name(rate: float | None) -> str:
    """A pruning rate as it is printed."""
    return "DP-SGD" if rate is BASELINE else f"{rate:g}"


def _colour(rate: float | None) -> Any:
    from matplotlib import colormaps

    return "black" if rate is BASELINE else colormaps["plasma"](0.92 * (1 - rate))


def curves_figure(found: Sequence[Row]) -> Figure:
    """Test accuracy over the epochs, a line for each rate, with an inset on the late ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(0, found[0]["epochs"][-1])
    for row in found:
        _line(axes, row)
        if row["seeds"] > 1:
            _band(axes, row)
    _late_inset(axes, found)
    axes.grid(color=_GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("epoch (all stages)")
    axes.set_ylabel("test accuracy, %")
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", fontsize=8, frameon=False, title="pruning rate")
    axes.set_title("Test accuracy over the epochs, by pruning rate", loc="left", fontsize=11)
    return figure


def _late_inset(axes: Axes, found: Sequence[Row]) -> None:
    """The late epochs of the better half, below the curves; the first epochs make room, or there is no inset."""
    epochs = found[0]["epochs"]
    late, settled = max(1, round(LATE * len(epochs))), len(epochs) // 4
    lowest = min(
        m - (s or 0) for row in found for m, s in zip(row["mean"][settled:], row["std"][settled:], strict=True)
    )
    highest = max(m + (s or 0) for row in found for m, s in zip(row["mean"], row["std"], strict=True)) + 0.2
    bottom = (lowest - 0.62 * highest) / 0.38  # so that no curve is in the lower 62 % once it has settled
    if bottom < 0:
        return
    axes.set_ylim(bottom, highest)
    inset = axes.inset_axes((0.33, 0.1, 0.64, 0.44))
    inset.set_xlim(epochs[-late], epochs[-1])
    better = sorted(value for row in found for value in row["mean"][-late:])[len(found) * late // 2 :]
    inset.set_ylim(better[0] - 0.3 * (better[-1] - better[0]) - 0.05, better[-1] + 0.1)
    for row in found:
        _line(inset, row)
        if row["seeds"] > 1 and row["pruning_rate"] in _MARKED:  # eleven bands would hide each other
            _band(inset, row)
    inset.set_title("late epochs, better half; bands: DP-SGD and the paper's best", fontsize=7, loc="left", pad=2)
    inset.grid(color=_GRID, linewidth=0.6)
    inset.spines[["top", "right"]].set_visible(False)
    inset.tick_params(labelsize=7)


def _line(axes: Axes, row: Row) -> None:
    rate = row["pruning_rate"]
    width, place = (1.6, 4) if rate in _MARKED else (0.8, 3)
    style = "--" if rate is BASELINE else "-"
    axes.plot(
        row["epochs"], row["mean"], style, label=rate_name(rate), color=_colour(rate), linewidth=width, zorder=place
    )


def _band(axes: Axes, row: Row) -> None:
    low, high = ([m + side * s for m, s in zip(row["mean"], row["std"], strict=True)] for side in (-1, 1))
    axes.fill_between(row["epochs"], low, high, color=_colour(row["pruning_rate"]), alpha=0.12, linewidth=0)


def sweep_figure(found: Sequence[Row]) -> Figure:
    """The late mean by rate beside DP-SGD's, and the paired differences between them, each with what its bars are."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    pruned = [row for row in found if row["pruning_rate"] is not BASELINE]
    _means(left, found, pruned)
    _differences(right, [row for row in pruned if row["difference"] is not None])
    for axes in (left, right):
        axes.set_xlabel("pruning rate")
        axes.grid(color=_GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _means(axes: Axes, found: Sequence[Row], pruned: Sequence[Row]) -> None:
    spread = [row["std"] or 0.0 for row in pruned]
    several = any(spread)
    rates, means = [row["pruning_rate"] for row in pruned], [row["mean"] for row in pruned]
    name = "AdaDPIGU (bars: ± standard deviation)" if several else "AdaDPIGU (one seed)"
    axes.errorbar(rates, means, spread, fmt="o-", color=_ACCURACY, ms=4, label=name)
    for row in found:
        if row["pruning_rate"] is BASELINE:
            name = "DP-SGD (band: ± standard deviation)" if row["std"] is not None else "DP-SGD (one seed)"
            axes.axhline(row["mean"], color="black", linestyle="--", linewidth=1, label=name)
            spread_of = row["std"] or 0.0
            axes.axhspan(row["mean"] - spread_of, row["mean"] + spread_of, color="black", alpha=0.1, linewidth=0)
        if row["claim"] is not None:
            axes.axhline(row["claim"], color=_CLAIM, linestyle=":", label=f"paper's DP-SGD, {row['claim']:g}")
    axes.set_ylabel("test accuracy, %, mean of the late epochs")
    _legend_below(axes, None)
    axes.set_title("Accuracy by pruning rate", loc="left", fontsize=11)


def _legend_below(axes: Axes, title: str | None) -> None:
    """Under the labels of the axis: within the panel some course of the points would always cross it."""
    look: dict[str, Any] = {"fontsize": 8, "frameon": False, "alignment": "left", "title_fontsize": 8}
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.14), title=title, **look)


def _differences(axes: Axes, compared: Sequence[Row]) -> None:
    """All rates, each under what the corrected test says of it."""
    kinds = {
        "shown by the corrected test": (_ACCURACY, _ACCURACY, ("better", "worse")),
        "not shown by the corrected test": (_UNSHOWN, _UNSHOWN, ("no difference shown",)),
        "not tested": (_UNSHOWN, "white", ("not tested",)),
    }
    for name, (colour, face, verdicts) in kinds.items():
        here = [row for row in compared if row["verdict"] in verdicts]
        if here:
            reach = [0.0 if row["low"] is None else row["high"] - row["difference"] for row in here]
            places, values = [row["pruning_rate"] for row in here], [row["difference"] for row in here]
            axes.errorbar(places, values, reach, fmt="o", color=colour, mfc=face, ms=5, capsize=2, label=name)
    axes.axhline(0, color="black", linestyle="--", linewidth=1)
    if compared:
        known = any(row["low"] is not None for row in compared)
        bars = "bars: 95 % intervals, each by itself" if known else "one seed: no intervals"
        _legend_below(axes, bars)
    axes.set_ylabel("minus DP-SGD, points")
    axes.set_title("Difference, paired over seeds", loc="left", fontsize=11)
