"""Accuracy against r and time against r: what it is worth to start with a part of the weights, and what it saves.

Accuracies are of whole runs at one ε; times are those of `retention-time`, which needs the device to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adadpigu.config import merge
from adadpigu_paper.reproduce.artefact import Artefact, Drawn
from adadpigu_paper.reproduce.jobs import Row
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.pruning_runs import seeds_told
from adadpigu_paper.reproduce.retention_runs import PRESET, RETENTIONS, SEEDS, accuracies, jobs, preset
from adadpigu_paper.reproduce.retention_time import BASELINE, RETENTION_TIME, cost, ratio_told, times
from adadpigu_paper.reproduce.retention_time import protocol as time_protocol
from adadpigu_paper.reproduce.stand_in import told

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACCURACY, _TIME, _GRID = "#1b6ca8", "#c8553d", "#d9d9d9"
_NOT_MEASURED = "not measured"


def draw(rows: Sequence[Row]) -> Drawn:
    """A table of both by r, what they say, and a figure with a panel for each."""
    runs = [row for row in rows if "accuracy" in row]
    timed = [row for row in rows if "ms" in row]
    found, took = accuracies(runs), times(timed)
    by_r = {row["retention"]: row for row in found}
    ms = {row["retention"]: row for row in took}
    told_rows = [{**_blank(r), **by_r.get(r, {}), **_timed(ms.get(r))} for r in sorted(({*by_r, *ms}) - {BASELINE})]
    head = ["r", "accuracy, %", "− r = 1, points", "p (Holm)", "verdict", "ms a step", "times that of r = 1"]
    text = "# Accuracy and time against the retention r\n\n" + _protocol(runs, timed) + "\n\n"
    if told_rows:
        text += tabled(head, [_line(row) for row in told_rows]) + "\n\n"
    text += "\n".join(f"- {line}" for line in _findings(runs, found, took)) + "\n"
    return Drawn(markdown=text, rows=told_rows, figures={"retention": _figure(found, took)})


def _blank(retention: float) -> Row:
    names = ("mean", "std", "difference", "low", "high", "p_holm")
    return {"retention": retention, **dict.fromkeys(names), "seeds": 0, "verdict": "not tested"}


def _timed(row: Row | None) -> Row:
    names = ("ms", "ratio", "least", "most")
    return dict.fromkeys(names) if row is None else {name: row[name] for name in names}


def _line(row: Row) -> list[str]:
    accuracy = _NOT_MEASURED
    if row["mean"] is not None:
        accuracy = f"{row['mean']:.2f}" + ("" if row["std"] is None else f" ± {row['std']:.2f}")
    interval = "" if row["low"] is None else f" [{row['low']:+.2f}, {row['high']:+.2f}]"
    return [
        f"{row['retention']:g}",
        accuracy,
        "" if row["difference"] is None else f"{row['difference']:+.2f}{interval}",
        "" if row["p_holm"] is None else f"{row['p_holm']:.2g}",
        "no mask" if row["retention"] == 1 else row["verdict"],
        _NOT_MEASURED if row["ms"] is None else f"{row['ms']:.3f}",
        ratio_told(row),
    ]


def _protocol(runs: Sequence[Row], timed: Sequence[Row]) -> str:
    words = [
        "AdaDPIGU, the whole method, starts stage 2 with a share r of the weights and takes up the others one by one "
        "until its end; r = 1 has no mask."
    ]
    if runs:
        config = merge(runs[0]["config"])
        planned = SEEDS if config.steps == preset()["steps"] else None
        words.append(
            f"Accuracy: test records, settings of the preset {PRESET}, tuned at r = 0.6: {config.dataset}, "
            f"{config.model}, ε = {config.epsilon:g} by PLD, δ = {config.delta:g}, B = {config.batch_size}, "
            f"{config.steps:,} steps of all stages, average {config.ema:g}; mean ± standard deviation over seeds "
            f"({seeds_told(runs, planned)} an r), differences paired by seed with 95 % intervals each by itself, p of "
            f"the paired t-test after Holm's correction; {', '.join(sorted({row['device'] for row in runs}))}."
        )
    if timed:
        words.append(time_protocol(timed))
    return " ".join(words)


def _findings(runs: Sequence[Row], found: Sequence[Row], took: Sequence[Row]) -> list[str]:
    lines = []
    if runs and (stand_in := told(runs[0]["config"], "mnist")) is not None:
        lines.append(f"{stand_in}.")
    lines += _accuracy(found)
    lines.append(cost(took))
    missing = [f"{r:g}" for r in RETENTIONS if r not in {row["retention"] for row in found}]
    if missing:
        lines.append(f"Accuracy is not measured at r = {', '.join(missing)}.")
    return lines


def _accuracy(found: Sequence[Row]) -> list[str]:
    """Which r are shown to differ from no mask, and which is best in the mean."""
    tested = [row for row in found if row["verdict"] != "not tested"]
    if not tested:
        return ["Whether a mask changes accuracy is not tested: that takes two seeds of some r and of r = 1."]
    shown = {
        word: ", ".join(f"{row['retention']:g} ({row['difference']:+.2f})" for row in tested if row["verdict"] == word)
        for word in ("better", "worse")
    }
    best = max(found, key=lambda row: float(row["mean"]))
    return [
        f"Shown to be better than no mask: r = {shown['better'] or 'none'}; shown to be worse: r = "
        f"{shown['worse'] or 'none'}. Highest in the mean: r = {best['retention']:g} ({best['mean']:.2f} %)."
    ]


def _figure(found: Sequence[Row], took: Sequence[Row]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _accuracies(left, found)
    _ratios(right, took)
    for axes in (left, right):
        axes.set_xlabel("retention r (1: no mask)")
        axes.grid(color=_GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _accuracies(axes: Axes, found: Sequence[Row]) -> None:
    several = any(row["std"] is not None for row in found)
    axes.set_title("Test accuracy" + (" (bars: ± standard deviation)" if several else ""), loc="left", fontsize=10)
    axes.set_ylabel("test accuracy, %")
    if not found:
        _say_not_measured(axes)
        return
    spread = [row["std"] or 0.0 for row in found]
    places, means = [row["retention"] for row in found], [row["mean"] for row in found]
    axes.errorbar(places, means, spread, fmt="o-", color=_ACCURACY, ms=4, capsize=2)


def _ratios(axes: Axes, took: Sequence[Row]) -> None:
    axes.set_title("Time of a step, held mask (bars: all rounds)", loc="left", fontsize=10)
    axes.set_ylabel("times that of r = 1")
    masked = [row for row in took if row["retention"] is not BASELINE and row["ratio"] is not None]
    if not masked:
        _say_not_measured(axes)
        return
    reach = [[row["ratio"] - row["least"] for row in masked], [row["most"] - row["ratio"] for row in masked]]
    places, ratios = [row["retention"] for row in masked], [row["ratio"] for row in masked]
    axes.errorbar(places, ratios, reach, fmt="o-", color=_TIME, ms=4, capsize=2, label="AdaDPIGU")
    for row in took:
        if row["retention"] is BASELINE and row["ratio"] is not None:
            axes.axhline(row["ratio"], color="black", linestyle="--", linewidth=1, label="DP-SGD")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)


def _say_not_measured(axes: Axes) -> None:
    axes.text(0.5, 0.5, _NOT_MEASURED, transform=axes.transAxes, ha="center")


RETENTION = Artefact(
    name="retention",
    about="accuracy and time of a step against the retention r, MNIST at ε = 2",
    rows="paper/retention.jsonl",
    beside=(RETENTION_TIME.rows,),
    draw=draw,
    jobs=jobs,
)
