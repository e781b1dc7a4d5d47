"""The paper's opening figure: which values gradients take at epoch 5 on MNIST, and how many lie within ±0.01.

Ordinary SGD, which the paper most likely looked at, DP-SGD and AdaDPIGU; of each, gradients of single records, their
mean, and their mean as the run clips it. All un-noised: under Diagnostics, and everything drawn carries the stamp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from adadpigu.config import merge
from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu_paper.reproduce.jobs import Job, Row
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.pruning_runs import STATISTICS, seeds_told
from adadpigu_paper.reproduce.stand_in import quick_config, told

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPSILON = 4.0
SEEDS = 3
EPOCH = 5
METHODS = {"sgd": "SGD, not private", "dpsgd": "DP-SGD", "adadpigu": "AdaDPIGU"}
KINDS = {"single": "single records", "mean": "mean of the records", "clipped": "mean of clipped ones"}
_COLOURS = {"single": "#6c6c6c", "mean": "#1b6ca8", "clipped": "#c8553d"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1, "method_options": {}},
    "dpsgd": {"lr": 3.0, "epsilon": EPSILON, "method_options": {"clip_norm": 0.1}},
    "adadpigu": {"lr": 3.0, "epsilon": EPSILON, "method_options": {"clip_norm": 0.1, "retention": 0.6, **STATISTICS}},
}
_BOUND = 0.01
_STEPS = 1200


def jobs(scale: Scale) -> list[Job]:
    """The paper's batch of 1000 for 20 epochs, looked at after every fifth; a quick run ends before that."""
    if scale.quick:
        base = {**quick_config("mnist", "mnist-cnn"), "steps": 60, "evaluate_every": 60}
    else:
        base = {"dataset": "mnist", "model": "mnist-cnn", "batch_size": 1000, "steps": _STEPS, "evaluate_every": 300}
    base |= {"momentum": 0.9, "diagnostics": True}
    return [
        Job(f"gradient-histogram/{method}", {**base, "method": method, **options}, seed, look="gradient-values")
        for method, options in _OPTIONS.items()
        for seed in scale.runs(SEEDS)
    ]


def summed_up(rows: Sequence[Row]) -> list[Row]:
    """A row for each method, look and kind of gradient: mean and spread (None: one seed) over the seeds."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        for seen in row["seen"]:
            groups.setdefault((row["config"]["method"], seen["step"]), []).append({**seen, "epsilon": row["epsilon"]})
    return [
        _summary(method, step, kind, groups[method, step])
        for method in METHODS
        for step in sorted(step for name, step in groups if name == method)
        for kind in KINDS
        if kind != "clipped" or groups[method, step][0]["noise"] is not None  # where nothing is clipped: the mean
    ]


def _summary(method: str, step: int, kind: str, looks: Sequence[Row]) -> Row:
    parts, first = [look[kind] for look in looks], looks[0]
    within = [100 * part["within"] for part in parts]
    # a plain mean of shares: all seeds count the same number of values
    shares = [fmean(part["counts"][place] / part["values"] for part in parts) for place in range(_bins(first))]
    return {
        "method": method,
        "epsilon": first["epsilon"],
        "kind": kind,
        "step": step,
        "epoch": first["epoch"],
        "mean": fmean(within),
        "std": stdev(within) if len(within) > 1 else None,
        "seeds": len(within),
        "claim": paper.SMALL_GRADIENTS,
        "held_by": 100 * fmean(part["held_by"] for part in parts),
        "below_noise": _mean(part["below_noise"] for part in parts) if kind == "clipped" else None,
        "noise": _mean(look["noise"] for look in looks),
        "norm": _mean(part.get("norm") for part in parts),
        "parameters": first["parameters"],
        "records": first["records"],
        "edges": first["edges"],
        "shares": shares,
    }


def _bins(look: Row) -> int:
    return len(look["edges"]) + 1


def _mean(values: Any) -> float | None:
    """Of those that were measured; None where one was not."""
    found = list(values)
    return None if None in found else fmean(found)


def draw(rows: Sequence[Row]) -> Drawn:
    """The table of shares, what they show and what they do not, and the histograms."""
    title = f"# Gradient values at epoch {EPOCH}\n\n"
    if not rows:
        return Drawn(markdown=f"{title}Nothing was measured.\n", rows=[], exposed=True)
    lines = summed_up(rows)
    chosen = at_epoch(lines)
    head = [
        "method",
        "gradient",
        f"within ±{_BOUND:g}",
        "paper",
        "coordinates with 90 % of the energy",
        "smaller than the noise",
        "within, at the end",
    ]
    body = [[*_cells(line), _share(_last(lines, line))] for line in chosen]
    text = title + _protocol(rows, chosen) + "\n\n" + tabled(head, body) + "\n\n"
    text += "\n".join(f"- {note}" for note in _notes(rows, chosen)) + "\n"
    return Drawn(markdown=text, rows=lines, figures={"gradient-histogram": _figure(chosen)}, exposed=True)


def at_epoch(lines: Sequence[Row]) -> list[Row]:
    """Of each method the look that is nearest to epoch 5."""
    nearest = {
        method: min((abs(line["epoch"] - EPOCH), line["step"]) for line in lines if line["method"] == method)[1]
        for method in {line["method"] for line in lines}
    }
    return [line for line in lines if line["step"] == nearest[line["method"]]]


def _last(lines: Sequence[Row], like: Row) -> Row:
    same = [line for line in lines if (line["method"], line["kind"]) == (like["method"], like["kind"])]
    return max(same, key=lambda line: int(line["step"]))


def _share(line: Row) -> str:
    spread = "" if line["std"] is None else f" ± {line['std']:.2f}"
    return f"{line['mean']:.2f}{spread} %"


def _cells(line: Row) -> list[str]:
    noise = "" if line["below_noise"] is None else f"{100 * line['below_noise']:.1f} %"
    claim = f"> {line['claim']:g} %" if line["method"] == "sgd" else ""
    held = f"{line['held_by']:.1f} %"
    return [METHODS[line["method"]], KINDS[line["kind"]], _share(line), claim, held, noise]


def _protocol(rows: Sequence[Row], chosen: Sequence[Row]) -> str:
    first, config = chosen[0], merge(rows[0]["config"])
    devices = sorted({row["device"] for row in rows})
    when = sorted({f"step {line['step']} (epoch {line['epoch']:.3g})" for line in chosen})
    end = max(look["epoch"] for row in rows for look in row["seen"])
    seeds = seeds_told(rows, SEEDS if config.steps == _STEPS else None)
    retentions = {row["config"]["method_options"].get("retention") for row in rows} - {None}
    kept = ", ".join(f"{100 * retention:g} %" for retention in sorted(retentions))
    stage = f"; AdaDPIGU, the whole method, starts stage 2 with {kept} of the coordinates" if kept else ""
    return (
        f"{config.dataset}, {config.model} ({first['parameters']:,} parameters), after {' and '.join(when)}; the end "
        f"is epoch {end:.3g}. Looked at are {first['records']:,} training records, at the weights of that step, not "
        f"averaged. Poisson batches of {config.batch_size} on average. The private runs spend ε = {EPSILON:g} by PLD "
        f"over all their steps, at δ = {config.delta:g}{stage}. Mean ± standard deviation over seeds ({seeds} a "
        f"method); {', '.join(devices)}."
    )


def _notes(rows: Sequence[Row], chosen: Sequence[Row]) -> list[str]:
    notes = []
    if (stand_in := told(rows[0]["config"], "mnist")) is not None:
        notes.append(f"{stand_in}.")
    off = [line for line in chosen if abs(line["epoch"] - EPOCH) > 0.05]
    if off:
        notes.append(f"Epoch {EPOCH} is not measured here: the nearest look is at epoch {off[0]['epoch']:.3g}.")
    found = {(line["method"], line["kind"]): line for line in chosen}
    missing = [name for method, name in METHODS.items() if not any(key[0] == method for key in found)]
    if missing:
        notes.append(f"Not measured: {', '.join(missing)}.")
    for kind in ("mean", "single"):
        if (line := found.get(("sgd", kind))) is not None:
            notes.append(_verdict(line))
    if (line := found.get(("sgd", "mean"))) is not None:
        notes.append(_scale_note(line))
    for method in ("dpsgd", "adadpigu"):
        line = found.get((method, "clipped"))
        if line is not None and line["below_noise"] is not None:
            notes.append(_noise_note(line))
    return notes


def _verdict(line: Row) -> str:
    holds = "holds" if line["mean"] > line["claim"] else "does not hold"
    return (
        f"The claim (more than {line['claim']:g} % within ±{_BOUND:g}) {holds} under SGD for the gradient of the "
        f"kind “{KINDS[line['kind']]}”: {_share(line)}."
    )


def _scale_note(line: Row) -> str:
    """Small values say that a gradient is short and the net large; only their unevenness says that it is sparse."""
    even = line["norm"] / math.sqrt(line["parameters"])
    told = (
        f"so that the share by itself shows no sparsity: all of them lie within ±{_BOUND:g}"
        if even <= _BOUND
        else f"and none of them lies within ±{_BOUND:g}"
    )
    return (
        f"The mean gradient under SGD has norm {line['norm']:.2g}. One of that norm without any zero, with all "
        f"{line['parameters']:,} values of the same size, has each at ±{even:.2g}, {told}. What tells is how few "
        f"coordinates hold the energy: {line['held_by']:.1f} % of them hold 90 % of it."
    )


def _scaled(line: Row) -> str:
    return ", times its (√β + μ) over their geometric mean" if line["method"] == "adadpigu" else ""


def _noise_note(line: Row) -> str:
    return (
        f"{METHODS[line['method']]}: noise of standard deviation σC/B = {line['noise']:.2g} is added to each value of "
        f"the clipped mean{_scaled(line)}; {100 * line['below_noise']:.1f} % of these values are smaller."
    )


def _figure(chosen: Sequence[Row]) -> Figure:
    from matplotlib.figure import Figure

    methods = [method for method in METHODS if any(line["method"] == method for line in chosen)]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = figure.subplots(1, len(methods), sharey=True, squeeze=False)[0]
    for axes, method in zip(panels, methods, strict=True):
        _panel(axes, {line["kind"]: line for line in chosen if line["method"] == method}, METHODS[method])
    panels[0].set_ylabel("share of values in a bin, %")
    figure.supxlabel("value of one coordinate (logarithmic on either side of 0)\n ", fontsize=10)
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.suptitle(f"Gradient values at epoch {chosen[0]['epoch']:.3g}\n ", x=0.01, ha="left", fontsize=11)
    legend = figure.legend(handles, labels, loc="upper left", ncols=len(labels), fontsize=8, frameon=False)
    legend.set_bbox_to_anchor((0.0, 0.95))  # on the second, empty line of the title
    return figure


def _panel(axes: Axes, lines: Mapping[str, Row], title: str) -> None:
    texts = []
    for kind, line in lines.items():
        edges = [2 * line["edges"][0], *line["edges"], 2 * line["edges"][-1]]
        axes.stairs([100 * share for share in line["shares"]], edges, color=_COLOURS[kind], label=KINDS[kind])
        texts.append(f"{KINDS[kind]}: {line['mean']:.1f} %")
    axes.axvspan(-_BOUND, _BOUND, ymax=0.8, color="#ececec", linewidth=0, zorder=0, label=f"±{_BOUND:g}")
    _noise_lines(axes, lines)
    axes.set_yscale("log")
    axes.set_ylim(1e-5, 2000)
    axes.set_yticks([1e-5, 1e-3, 1e-1, 1e1])
    axes.set_xscale("symlog", linthresh=1e-7, linscale=0.5)
    axes.set_xlim(-20, 20)
    axes.set_xticks([-1, -1e-2, -1e-5, 0, 1e-5, 1e-2, 1])
    axes.tick_params(axis="x", labelsize=7)
    axes.minorticks_off()
    axes.grid(axis="y", color="#d9d9d9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=9)
    inside = f"within ±{_BOUND:g}\n" + "\n".join(texts)
    axes.text(0.02, 0.98, inside, transform=axes.transAxes, va="top", fontsize=7)


def _noise_lines(axes: Axes, lines: Mapping[str, Row]) -> None:
    noise = next((line["noise"] for line in lines.values()), None)
    for place, label in () if noise is None else ((noise, "± σC/B, the noise"), (-noise, None)):
        axes.axvline(place, ymax=0.8, color="#2f7d4f", linestyle=":", linewidth=1.2, label=label)


GRADIENT_HISTOGRAM = Artefact(
    name="gradient-histogram",
    about="the paper's opening figure: share of gradient values within ±0.01 at epoch 5, MNIST (Diagnostics)",
    rows="paper/gradient-histogram.jsonl",
    draw=draw,
    jobs=jobs,
)
