"""The ablation's forest plot: differences to DP-SGD with their intervals, one panel a net, drawn from compared rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adadpigu_paper.reproduce.ablation_variants import VARIANTS, YARDSTICK, title_of
from adadpigu_paper.reproduce.jobs import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"better": "#1b6ca8", "worse": "#c8553d", "no difference shown": "#7a7a7a", "not tested": "#7a7a7a"}
_WORDS = {
    "better": "better than DP-SGD (corrected)",
    "worse": "worse (corrected)",
    "no difference shown": "no difference shown (corrected)",
    "not tested": "one pair, not tested",
}


def forest(found: Sequence[Row]) -> Figure:
    """One panel a net that was measured; a variant stands at the same height in all of them."""
    from matplotlib.figure import Figure

    shown = [row for row in found if row["variant"] != YARDSTICK and row["difference"] is not None]
    nets = list(dict.fromkeys(row["net"] for row in shown))
    names = [name for name in VARIANTS if any(row["variant"] == name for row in shown)]
    width = max(7.0, 2.0 + 2.7 * len(nets))
    figure = Figure(figsize=(width, 1.7 + 0.27 * max(len(names), 4)), layout="constrained")
    budgets = ", ".join(f"{value:g}" for value in sorted({row["epsilon"] for row in shown}))
    figure.suptitle(
        f"Ablation: accuracy against DP-SGD at ε = {budgets}\n"
        "bars: 95 % interval each, not corrected; colour: after Holm's correction; *: not AdaDPIGU",
        **{"x": 0.01, "ha": "left", "fontsize": 10},
    )
    if not nets:
        return figure
    panels = figure.subplots(1, len(nets), sharey=True, squeeze=False)[0]
    for axes, net in zip(panels, nets, strict=True):
        _panel(axes, [row for row in shown if row["net"] == net], names)
        axes.set_title(_title([row for row in found if row["net"] == net]), loc="left", fontsize=9)
    labels = [name if VARIANTS[name].of_adadpigu else f"{name} *" for name in names]
    panels[0].set_yticks(range(len(names)), labels, fontsize=8)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    figure.legend(handles=_legend({row["verdict"] for row in shown}), loc="outside lower center", **_plain(4))
    return figure


def _panel(axes: Axes, rows: Sequence[Row], names: Sequence[str]) -> None:
    axes.axvline(0, color="black", linewidth=0.8)
    for row in rows:
        place, colour = names.index(row["variant"]), _COLOURS[row["verdict"]]
        if row["low"] is not None:
            axes.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=1.4)
        filled = colour if row["verdict"] in ("better", "worse") else "white"
        axes.plot([row["difference"]], [place], "o", color=colour, markerfacecolor=filled, markersize=5)
    axes.set_xlabel("difference, points", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(color="#d9d9d9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _title(rows: Sequence[Row]) -> str:
    """The net, its pairs, and how many of its rates are the largest or smallest that was tried."""
    seeds = sorted({row["pairs"] for row in rows if row["difference"] is not None})
    told = "–".join(str(count) for count in dict.fromkeys((seeds[0], seeds[-1])))
    edges = sum(row["edge"] is not None for row in rows)
    tuning = f"; {edges} of {len(rows)} rates at an edge" if edges else ""
    title = title_of(rows[0]["net"], rows[0]["model"], rows[0]["dataset"])
    return f"{title}\n{told} seed{'' if told == '1' else 's'}{tuning}"


def _legend(verdicts: set[str]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D(
            *([], []),
            color=_COLOURS[name],
            marker="o",
            markerfacecolor=_COLOURS[name] if name in ("better", "worse") else "white",
            markersize=5,
            label=_WORDS[name],
        )
        for name in _WORDS
        if name in verdicts
    ]


def _plain(columns: int) -> dict[str, Any]:
    return {"frameon": False, "fontsize": 8, "ncols": columns}
