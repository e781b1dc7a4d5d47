"""Two figures on pruning: test accuracy over the epochs, and its late mean against the pruning rate. MNIST, ε = 4.

Drawn from public values alone. A difference is called one where a paired test over seeds shows it:
d_s = late mean of the rate − late mean of DP-SGD, by seed s.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adadpigu.reproduce import paper
from adadpigu.reproduce.artefact import Artefact, Drawn
from adadpigu.reproduce.jobs import Row
from adadpigu.reproduce.keeping import tabled
from adadpigu.reproduce.paired import LEVEL, corrected, paired, verdict
from adadpigu.reproduce.pruning_runs import (
    BASELINE,
    LATE,
    RANKING,
    RATES,
    Runs,
    curves,
    jobs,
    late_means,
    protocol,
    runs_by_rate,
    sweep,
)
from adadpigu.reproduce.stand_in import told

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACCURACY, _CLAIM, _GRID = "#1b6ca8", "#c8553d", "#d9d9d9"
_MARKED = (BASELINE, paper.BEST_PRUNING_RATE)
"""drawn thicker"""


def draw_curves(rows: Sequence[Row]) -> Drawn:
    """Accuracy at some epochs as a table, at all of them as a figure with an inset on the late ones."""
    title = "# Pruning: test accuracy over the epochs"
    if not rows:
        return Drawn(markdown=f"{title}\n\nNothing was measured.\n", rows=[])
    runs = runs_by_rate(rows)
    found = curves(runs)
    epochs = found[0]["epochs"]
    shown = sorted({max(0, round(len(epochs) * share) - 1) for share in (0.05, 0.25, 0.5, 0.75, 1.0)})
    head = ["pruning rate", *(f"epoch {epochs[index]:.3g}" for index in shown), "late fluctuation", "paper"]
    body = [
        [
            _name(row["pruning_rate"]),
            *(_spread(row["mean"][index], row["std"][index]) for index in shown),
            f"{row['late_fluctuation']:.2f}",
            _place(row["pruning_rate"]),
        ]
        for row in found
    ]
    about = (
        "Test accuracy (%) of AdaDPIGU by pruning rate, the share of weights that keep their initial value after stage "
        "1, and of DP-SGD. Late fluctuation: standard deviation over the last quarter of the epochs, points. The "
        "paper prints no figures here but an order."
    )
    lines = [_ranking(runs), _steadiest(found), *_gaps_in(runs)]
    text = _page(title, about, rows, tabled(head, body), lines)
    return Drawn(markdown=text, rows=found, figures={"pruning-curves": _curves_figure(found)})


def draw_sweep(rows: Sequence[Row]) -> Drawn:
    """The late mean by pruning rate, against DP-SGD's and against the line that the paper prints."""
    title = "# Pruning: accuracy against the pruning rate"
    if not rows:
        return Drawn(markdown=f"{title}\n\nNothing was measured.\n", rows=[])
    runs = runs_by_rate(rows)
    found = sweep(runs)
    head = ["pruning rate", "accuracy", "paper", "minus DP-SGD", "95 % interval", "p (Holm)", "against DP-SGD"]
    body = [
        [
            _name(row["pruning_rate"]),
            _spread(row["mean"], row["std"]),
            "none" if row["claim"] is None else f"{row['claim']:.2f}",
            "" if row["difference"] is None else f"{row['difference']:+.2f}",
            "" if row["low"] is None else f"{row['low']:+.2f} to {row['high']:+.2f}",
            "" if row["p_holm"] is None else f"{row['p_holm']:.2g}",
            "" if row["pruning_rate"] is BASELINE else row["verdict"],
        ]
        for row in found
    ]
    about = (
        "Test accuracy (%), mean of the last quarter of the epochs, mean ± standard deviation over seeds, by pruning "
        "rate. Test: paired t over seeds, two-sided, Holm's correction over the rates, level "
        f"{LEVEL:g}; a pair shares its initial weights."
    )
    lines = [*_baseline(found), _against_baseline(found), _best(found), *_gaps_in(runs)]
    text = _page(title, about, rows, tabled(head, body), lines)
    return Drawn(markdown=text, rows=found, figures={"pruning-sweep": _sweep_figure(found)})


def _page(title: str, about: str, rows: Sequence[Row], table: str, lines: Sequence[str]) -> str:
    stand_in = told(rows[0]["config"], "mnist")
    first = "" if stand_in is None else f"{stand_in}.\n\n"
    return (
        f"{title}\n\n{first}{about} {protocol(rows)}\n\n{table}\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"
    )


def _name(rate: float | None) -> str:
    return "DP-SGD" if rate is BASELINE else f"{rate:g}"


def _place(rate: float | None) -> str:
    return f"{RANKING.index(rate) + 1} of {len(RANKING)}" if rate in RANKING else "none"


def _spread(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}")


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates) or "none"


def _ranking(runs: Runs) -> str:
    """Ours of the rates that the paper ranks, and which of its steps a paired test bears out."""
    means = {rate: late_means(runs[rate]) for rate in RANKING if rate in runs}
    ours = sorted(means, key=lambda rate: -statistics.fmean(means[rate].values()))
    steps = {(a, b): paired(means[a], means[b]) for a, b in itertools.pairwise(means)}
    p = corrected(steps)
    shown = [f"{a:g} > {b:g}" for (a, b), found in steps.items() if verdict(found, p[a, b]) == "better"]
    tested = sum(value is not None for value in p.values())
    test = f"{len(shown)} of {tested} such steps exceed seed noise ({', '.join(shown) or 'none'}; paired t, Holm)"
    return (
        f"Paper: {' > '.join(f'{rate:g}' for rate in RANKING)}. Measured, by the mean of the last quarter: "
        f"{' > '.join(f'{rate:g}' for rate in ours) or 'nothing'}. Of the paper's order, "
        + (f"{test}." if tested else "no step can be tested with one seed.")
    )


def _steadiest(found: Sequence[Row]) -> str:
    least = min(found, key=lambda row: float(row["late_fluctuation"]))
    most = max(found, key=lambda row: float(row["late_fluctuation"]))
    return (
        f"Paper: {paper.BEST_PRUNING_RATE:g} fluctuates least in the late epochs. Measured: "
        f"{_name(least['pruning_rate'])} does ({least['late_fluctuation']:.2f} points), "
        f"{_name(most['pruning_rate'])} most ({most['late_fluctuation']:.2f})."
    )


def _baseline(found: Sequence[Row]) -> list[str]:
    """DP-SGD beside the paper's, and beside what it is called at pruning rate 0."""
    reference = next((row for row in found if row["pruning_rate"] is BASELINE), None)
    if reference is None:
        return []
    lines = []
    if reference["claim"] is not None:
        lines.append(
            f"DP-SGD: the paper prints {reference['claim']:.2f} %, measured "
            f"{_spread(reference['mean'], reference['std'])} %: {reference['mean'] - reference['claim']:+.2f} points. "
            f"σ is {reference['noise_multiplier']:.3g} here; Table 3 has {paper.NOISE_TABLE['mnist'][4]:g} for ε = 4."
        )
    unpruned = next((row for row in found if row["pruning_rate"] == 0), None)
    if unpruned is not None and unpruned["clip_norm"] == reference["clip_norm"]:
        lines.append(
            "Pruning rate 0 has no mask and no stage 1, so it is DP-SGD with other batches and noise: its difference "
            f"of {unpruned['difference']:+.2f} points is what chance does here."
        )
    elif unpruned is not None:
        lines.append(
            f"Pruning rate 0 has no mask and no stage 1, so it is DP-SGD with C = {unpruned['clip_norm']:g} instead of "
            f"{reference['clip_norm']:g}: its difference is that of C, and chance."
        )
    return lines


def _against_baseline(found: Sequence[Row]) -> str:
    pruned = [row for row in found if row["pruning_rate"] and row["difference"] is not None]
    ahead = [row["pruning_rate"] for row in pruned if row["difference"] > 0]
    if all(row["verdict"] == "not tested" for row in pruned):
        return f"Above DP-SGD in the mean: {_listed(ahead)}; whether beyond seed noise takes at least two seeds."
    shown = {word: [row["pruning_rate"] for row in pruned if row["verdict"] == word] for word in ("better", "worse")}
    return (
        f"Above DP-SGD in the mean: {_listed(ahead)}; beyond seed noise: {_listed(shown['better'])}. Below it beyond "
        f"seed noise: {_listed(shown['worse'])}. Paper: 0.1 to 0.4 above it, up to 0.6 on a par, beyond 0.6 a fall."
    )


def _best(found: Sequence[Row]) -> str:
    pruned = {row["pruning_rate"]: row["mean"] for row in found if row["pruning_rate"]}
    if not pruned:
        return "No pruning rate above 0 was measured."
    best, last = max(pruned, key=lambda rate: float(pruned[rate])), max(pruned)
    claimed = pruned.get(paper.BEST_PRUNING_RATE)
    lead = "" if claimed is None else f", {pruned[best] - claimed:.2f} points from {paper.BEST_PRUNING_RATE:g}"
    return (
        f"Best rate above 0: paper {paper.BEST_PRUNING_RATE:g}, measured {best:g} (in the mean{lead}). "
        f"From there to {last:g} accuracy falls by {pruned[best] - pruned[last]:.2f} points."
    )


def _gaps_in(runs: Runs) -> list[str]:
    missing = [rate for rate in (BASELINE, *RATES) if rate not in runs]
    return [f"Not measured: {', '.join(map(_name, missing))}."] if missing else []


def _colour(rate: float | None) -> Any:
    from matplotlib import colormaps

    return "black" if rate is BASELINE else colormaps["plasma"](0.92 * (1 - rate))


def _curves_figure(found: Sequence[Row]) -> Figure:
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
    axes.plot(row["epochs"], row["mean"], style, label=_name(rate), color=_colour(rate), linewidth=width, zorder=place)


def _band(axes: Axes, row: Row) -> None:
    low, high = ([m + side * s for m, s in zip(row["mean"], row["std"], strict=True)] for side in (-1, 1))
    axes.fill_between(row["epochs"], low, high, color=_colour(row["pruning_rate"]), alpha=0.12, linewidth=0)


def _sweep_figure(found: Sequence[Row]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    pruned = [row for row in found if row["pruning_rate"] is not BASELINE]
    rates = [row["pruning_rate"] for row in pruned]
    spread = [row["std"] or 0.0 for row in pruned]
    left.errorbar(rates, [row["mean"] for row in pruned], spread, fmt="o-", color=_ACCURACY, ms=4, label="AdaDPIGU")
    for row in found:
        if row["pruning_rate"] is BASELINE:
            left.axhline(row["mean"], color="black", linestyle="--", linewidth=1, label="DP-SGD")
            spread_of = row["std"] or 0.0
            left.axhspan(row["mean"] - spread_of, row["mean"] + spread_of, color="black", alpha=0.1, linewidth=0)
        if row["claim"] is not None:
            left.axhline(row["claim"], color=_CLAIM, linestyle=":", label=f"paper's DP-SGD, {row['claim']:g}")
    left.set_ylabel("test accuracy, %, mean of the late epochs")
    left.legend(fontsize=8, frameon=False, loc="lower left")
    left.set_title("Accuracy by pruning rate", loc="left", fontsize=11)
    _differences(right, [row for row in pruned if row["difference"] is not None])
    for axes in (left, right):
        axes.set_xlabel("pruning rate")
        axes.grid(color=_GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _differences(axes: Axes, compared: Sequence[Row]) -> None:
    """Those up to the rate where accuracy begins to fall, since the rest would hide them."""
    near = [row for row in compared if row["pruning_rate"] <= 0.6]
    for row in near:
        reach = 0.0 if row["low"] is None else row["high"] - row["difference"]
        colour = _ACCURACY if row["verdict"] in ("better", "worse") else "#8a8a8a"
        axes.errorbar(row["pruning_rate"], row["difference"], reach, fmt="o", color=colour, markersize=4, capsize=2)
    axes.axhline(0, color="black", linestyle="--", linewidth=1)
    axes.set_ylabel("minus DP-SGD, points (95 % interval)")
    axes.set_title("Difference, paired over seeds", loc="left", fontsize=11)


PRUNING_CURVES = Artefact(
    name="pruning-curves",
    about="test accuracy over the epochs for pruning rates 0 to 0.9, MNIST at ε = 4",
    rows="paper/pruning.jsonl",
    draw=draw_curves,
    jobs=jobs,
)
PRUNING_SWEEP = Artefact(
    name="pruning-sweep",
    about="late test accuracy against the pruning rate with the DP-SGD line, MNIST at ε = 4",
    rows="paper/pruning.jsonl",
    draw=draw_sweep,
    jobs=jobs,
)
