"""The figure of systems: how far each is from DP-SGD at the same privacy, the best on top, one panel a data set."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.systems import EPSILONS, OTHER_INPUTS, SYSTEMS, YARDSTICKS, Compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"better": "#1b7837", "worse": "#b2182b", "no difference shown": "#8a8a8a"}
_SHIFT = {2: 0.17, 4: -0.17}
"""of a row's two budgets, from its line"""
_LINEAR = 1.0
"""points up to which the axis is linear; beyond, it is logarithmic"""
_TICKS = (-30, -10, -3, -1, 0, 1, 3, 10, 30)


def figure(found: Sequence[Compared]) -> Figure:
    """One panel a data set that was measured; a system stands at the same height in all of them."""
    from matplotlib.figure import Figure

    shown = [one for one in found if one.found is not None and one.cell.epsilon in EPSILONS]
    datasets = [name for name in paper.TITLES if any(one.cell.dataset == name for one in shown)]
    names = _ordered(shown)
    made = Figure(figsize=(3.6 + 2.9 * len(datasets), 1.9 + 0.33 * len(names)), layout="constrained")
    made.suptitle(
        "What each system adds to DP-SGD at the same ε",
        **{"x": 0.01, "ha": "left", "fontsize": 14, "fontweight": "bold"},
    )
    panels = made.subplots(1, len(datasets), sharey=True, sharex=True, squeeze=False)[0]
    for axes, dataset in zip(panels, datasets, strict=True):
        _panel(axes, [one for one in shown if one.cell.dataset == dataset], names)
        axes.set_title(paper.TITLES[dataset], loc="left", fontsize=11)
    panels[0].set_yticks(range(len(names)), [_label(name) for name in names], fontsize=9)
    panels[0].set_ylim(len(names) - 0.4, -1.0)
    _widen(panels[0], shown)
    made.legend(handles=_legend(shown), loc="outside lower center", ncols=7, frameon=False, fontsize=9)
    return made


def _ordered(shown: Sequence[Compared]) -> list[str]:
    """The systems that were measured, by their mean difference over all cells."""

    def mean(name: str) -> float:
        return fmean(one.found.mean for one in shown if one.cell.method == name and one.found is not None)

    return sorted({one.cell.method for one in shown}, key=lambda name: (-mean(name), SYSTEMS.index(name)))


def _label(name: str) -> str:
    other = YARDSTICKS.get(name)
    return f"{name} *" if name in OTHER_INPUTS else f"{name}\nbeside {other}" if other else name


def _panel(axes: Axes, shown: Sequence[Compared], names: Sequence[str]) -> None:
    axes.axvspan(0, 1e3, color="#1b7837", alpha=0.05, linewidth=0)
    axes.axvspan(-1e3, 0, color="#b2182b", alpha=0.05, linewidth=0)
    axes.axvline(0, color="black", linewidth=1.0)
    for one in shown:
        found, epsilon = one.found, one.cell.epsilon
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert epsilon is not None
        place, colour = names.index(one.cell.method) + _SHIFT[epsilon], _COLOURS[one.verdict]
        axes.plot([found.low, found.high], [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
        face = colour if epsilon == max(EPSILONS) else "white"
        axes.plot([found.mean], [place], "o", color=colour, markerfacecolor=face, markersize=5.5)
    for place in range(1, len(names)):
        axes.axhline(place - 0.5, color="#e4e4e4", linewidth=0.6)
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=1.0)
    axes.set_xlabel("points of accuracy, 95 % interval", fontsize=9)
    for x, word, side in ((0.02, "← worse", "left"), (0.98, "better →", "right")):
        axes.text(x, 1.0, word, transform=axes.transAxes, ha=side, va="top", fontsize=8, color="#666666")
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _widen(axes: Axes, shown: Sequence[Compared]) -> None:
    """The same limits to the left and right, at least to 1 point, and ticks that read as plain numbers."""
    ends = [abs(end) for one in shown if one.found is not None for end in (one.found.low, one.found.high) if end]
    reach = 1.25 * max([_LINEAR, *ends])
    axes.set_xlim(-reach, reach)
    ticks = [tick for tick in _TICKS if abs(tick) <= reach]
    axes.set_xticks(ticks, [f"{tick:+d}" if tick else "DP-SGD" for tick in ticks])
    axes.minorticks_off()


def _legend(shown: Sequence[Compared]) -> list[Any]:
    from matplotlib.lines import Line2D

    def entry(colour: str, face: str, label: str) -> Line2D:
        return Line2D([], [], color=colour, marker="o", markerfacecolor=face, linewidth=1.6, label=label)

    verdicts = {one.verdict for one in shown}
    told = [entry(colour, colour, name) for name, colour in _COLOURS.items() if name in verdicts]
    budgets = [entry("#444444", "#444444", f"ε = {max(EPSILONS)}"), entry("#444444", "white", f"ε = {min(EPSILONS)}")]
    starred = any(one.cell.method in OTHER_INPUTS for one in shown)
    words = f"{'* another net, on features; ' if starred else ''}scale logarithmic beyond ±{_LINEAR:g}"
    return [*told, *budgets, Line2D([], [], linestyle="", label=words)]
