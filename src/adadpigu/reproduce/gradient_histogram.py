"""The paper's opening figure: which values gradients take at epoch 5 on MNIST, and how many lie within ±0.01.

Ordinary SGD, which the paper most likely looked at, DP-SGD and AdaDPIGU; of each, gradients of single records, their
mean, and their mean as the run clips it. All un-noised: under Diagnostics, and everything drawn carries the stamp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from adadpigu.reproduce import paper
from adadpigu.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu.reproduce.jobs import Job, Row
from adadpigu.reproduce.keeping import tabled
from adadpigu.reproduce.stand_in import quick_config, told

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPSILON = 4.0
EPOCH = 5
METHODS = {"sgd": "SGD, not private", "dpsgd": "DP-SGD", "adadpigu": "AdaDPIGU"}
KINDS = {"single": "single records", "mean": "their mean", "clipped": "their mean, clipped"}
_COLOURS = {"single": "#6c6c6c", "mean": "#1b6ca8", "clipped": "#c8553d"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1, "method_options": {}},
    "dpsgd": {"lr": 3.0, "epsilon": EPSILON, "method_options": {"clip_norm": 0.1}},
    "adadpigu": {"lr": 3.0, "epsilon": EPSILON, "method_options": {"clip_norm": 0.1, "retention": 0.6}},
}
_BOUND = 0.01


def jobs(scale: Scale) -> list[Job]:
    """The paper's batch of 1000 for 20 epochs, looked at after every fifth; a quick run ends before that."""
    if scale.quick:
        base = {**quick_config("mnist", "mnist-cnn"), "steps": 60, "evaluate_every": 60}
    else:
        base = {"dataset": "mnist", "model": "mnist-cnn", "batch_size": 1000, "steps": 1200, "evaluate_every": 300}
    base |= {"momentum": 0.9, "diagnostics": True}
    return [
        Job(f"gradient-histogram/{method}", {**base, "method": method, **options}, seed, look="gradient-values")
        for method, options in _OPTIONS.items()
        for seed in scale.runs(3)
    ]


def summed_up(rows: Sequence[Row]) -> list[Row]:
    """A row for each method, look and kind of gradient: mean and spread over the seeds."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        for seen in row["seen"]:
            groups.setdefault((row["config"]["method"], seen["step"]), []).append({**seen, "epsilon": row["epsilon"]})
    return [
        _summary(method, step, kind, groups[method, step])
        for method in METHODS
        for step in sorted(step for name, step in groups if name == method)
        for kind in KINDS
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
        "std": stdev(within) if len(within) > 1 else 0.0,
        "seeds": len(within),
        "claim": paper.SMALL_GRADIENTS,
        "held_by": 100 * fmean(part["held_by"] for part in parts),
        "below_noise": _mean(part.get("below_noise") for part in parts) if first["noise"] else None,
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
    lines = summed_up(rows)
    chosen = at_epoch(lines)
    head = [
        "method",
        "gradients of",
        f"within ±{_BOUND:g}",
        "paper",
        "coordinates with 90 % of the energy",
        "smaller than the noise",
        "within, at the end",
    ]
    body = [[*_cells(line), _share(_last(lines, line))] for line in chosen]
    text = f"# Gradient values at epoch {EPOCH}\n\n" + _protocol(rows, chosen) + "\n\n" + tabled(head, body) + "\n\n"
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
    return f"{line['mean']:.2f} ± {line['std']:.2f} %"


def _cells(line: Row) -> list[str]:
    noise = "" if line["below_noise"] is None else f"{100 * line['below_noise']:.1f} %"
    claim = f"> {line['claim']:g} %" if line["method"] == "sgd" else ""
    held = f"{line['held_by']:.1f} %"
    return [METHODS[line["method"]], KINDS[line["kind"]], _share(line), claim, held, noise]


def _protocol(rows: Sequence[Row], chosen: Sequence[Row]) -> str:
    first, config = chosen[0], rows[0]["config"]
    devices = sorted({row["device"] for row in rows})
    steps = sorted({(line["step"], line["epoch"]) for line in chosen})
    when = " and ".join(f"step {step} (epoch {epoch:.3g})" for step, epoch in steps)
    ended = {max(look["epoch"] for look in row["seen"]) for row in rows}
    seeds = sorted({line["seeds"] for line in chosen})
    return (
        f"{config['dataset']}, {config['model']} ({first['parameters']:,} parameters), after {when}; the end is "
        f"epoch {max(ended):.3g}. {first['records']:,} training records are looked at, at the weights of that step, not "
        f"averaged. Poisson batches of {config['batch_size']} records on average; the private runs spend ε = "
        f"{EPSILON:g} by PLD over all their steps at δ = 1e-05, and AdaDPIGU keeps 60 % of the coordinates once it has "
        f"ranked them. "
        f"Mean ± standard deviation over {' or '.join(map(str, seeds))} seed(s); {', '.join(devices)}."
    )


def _notes(rows: Sequence[Row], chosen: Sequence[Row]) -> list[str]:
    notes = []
    if (stand_in := told(rows[0]["config"], "mnist")) is not None:
        notes.append(f"{stand_in}.")
    off = [line for line in chosen if abs(line["epoch"] - EPOCH) > 0.05]
    if off:
        notes.append(f"Epoch {EPOCH} is not measured here: the nearest look is at epoch {off[0]['epoch']:.3g}.")
    found = {(line["method"], line["kind"]): line for line in chosen}
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
        f"The claim (more than {line['claim']:g} % within ±{_BOUND:g}) {holds} for gradients of {KINDS[line['kind']]} "
        f"under SGD: {_share(line)}."
    )


def _scale_note(line: Row) -> str:
    """Small values say that a gradient is short and the net large; only their unevenness says that it is sparse."""
    even = line["norm"] / math.sqrt(line["parameters"])
    side = "within" if even <= _BOUND else "outside"
    return (
        f"By itself that share shows no sparsity: that mean gradient has norm {line['norm']:.2g}, and one of this norm "
        f"without any zero, all {line['parameters']:,} values of equal size, would have each at ±{even:.2g}, so all of "
        f"them {side} ±{_BOUND:g}. What tells is how few coordinates hold the energy: {line['held_by']:.1f} % hold 90 % "
        "of it."
    )


def _noise_note(line: Row) -> str:
    return (
        f"{METHODS[line['method']]}: noise of standard deviation σC/B = {line['noise']:.2g} is added to each value of "
        f"the clipped mean; {100 * line['below_noise']:.1f} % of these values are smaller."
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
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), fontsize=8, frameon=False)
    epoch = chosen[0]["epoch"]
    figure.suptitle(f"Gradient values at epoch {epoch:.3g}", x=0.01, ha="left", fontsize=11)
    return figure


def _panel(axes: Axes, lines: Mapping[str, Row], title: str) -> None:
    texts = []
    for kind, line in lines.items():
        if kind == "clipped" and line["noise"] is None:
            continue  # nothing is clipped: it is the mean
        edges = [2 * line["edges"][0], *line["edges"], 2 * line["edges"][-1]]
        axes.stairs([100 * share for share in line["shares"]], edges, color=_COLOURS[kind], label=KINDS[kind])
        texts.append(f"{KINDS[kind]}: {line['mean']:.1f} %")
    axes.axvspan(-_BOUND, _BOUND, color="#d9d9d9", alpha=0.5, linewidth=0, label=f"±{_BOUND:g}")
    _noise_lines(axes, lines)
    axes.set_yscale("log")
    axes.set_ylim(1e-5, 300)
    axes.set_xscale("symlog", linthresh=1e-7, linscale=0.5)
    axes.set_xlim(-20, 20)
    axes.set_xticks([-1, -1e-2, -1e-4, -1e-6, 0, 1e-6, 1e-4, 1e-2, 1])
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
        axes.axvline(place, color="#2f7d4f", linestyle=":", linewidth=1.2, label=label)


GRADIENT_HISTOGRAM = Artefact(
    name="gradient-histogram",
    about="the paper's opening figure: share of gradient values within ±0.01 at epoch 5, MNIST (Diagnostics)",
    rows="paper/gradient-histogram.jsonl",
    draw=draw,
    jobs=jobs,
)
