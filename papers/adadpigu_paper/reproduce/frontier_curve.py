"""The course of a pre-training: its loss, and how probes on held-out training records score, by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adadpigu_paper.reproduce.jobs import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = ("ε = 1, averaged", "ε = 8, averaged")


def curve(rows: Sequence[Row]) -> dict[str, Figure]:
    """A figure of two panels; none without rows of a pre-training. A fall that was made anew is a line of its own."""
    from matplotlib.figure import Figure

    losses = [row for row in rows if "loss" in row]
    probes = [row for row in rows if "probe" in row]
    if not losses:
        return {}
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for part in _parts(losses):
        left.plot([row["step"] for row in part], [row["loss"] for row in part], color="#1b6ca8", linewidth=1)
    for kind, marker in zip(_SHOWN, "os", strict=True):
        for colour, name in enumerate(sorted({row["probe"] for row in probes})):
            own = sorted((row for row in probes if row["probe"] == name and kind in row), key=lambda row: row["step"])
            label = f"{name}, {kind.partition(',')[0]}"
            steps, scores = [row["step"] for row in own], [row[kind] for row in own]
            right.plot(steps, scores, color=f"C{colour}", marker=marker, label=label)
    for axes, title in ((left, "contrastive loss"), (right, "probes on held-out records, %")):
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("step")
        axes.grid(color="#d9d9d9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    if probes:
        right.legend(frameon=False, fontsize=8)
    return {"prior-curve": figure}


def _parts(losses: Sequence[Row]) -> list[list[Row]]:
    """Rows of a file in parts: each begins where the seconds do."""
    parts: list[list[Row]] = []
    for row in losses:
        if not parts or row["seconds"] < parts[-1][-1]["seconds"]:
            parts.append([])
        parts[-1].append(row)
    return parts
