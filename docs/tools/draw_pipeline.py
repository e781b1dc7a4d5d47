"""Draws docs/images/pipeline.png: the two stages of AdaDPIGU and the line between what is sensitive and what is public.

`python docs/tools/draw_pipeline.py` draws it. Nothing is trained and no record is read.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

ROOT = Path(__file__).parents[2]
SENSITIVE, PUBLIC, LINE, INK = "#fbe3df", "#e2edfa", "#b3261e", "#1f2933"
WIDTH, HEIGHT, BORDER = 16.0, 10.6, 8.55
"""of the drawing, and where the privacy line stands"""
Place = tuple[float, float]


def box(axes: Axes, at: Place, size: Place, text: str) -> None:
    """A step, by its lower left corner; its side of the line gives the colour."""
    filled = SENSITIVE if at[0] + size[0] / 2 < BORDER else PUBLIC
    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch(at, *size, boxstyle=style, facecolor=filled, edgecolor=INK, linewidth=0.9, zorder=3))
    axes.text(at[0] + size[0] / 2, at[1] + size[1] / 2, text, ha="center", va="center", fontsize=8.6, zorder=4)


def path(axes: Axes, *points: Place, dashed: bool = False) -> None:
    """Straight lines from point to point, with an arrow head at the last; dashed for what comes back from releases."""
    style = {"color": "#3b6ea5" if dashed else INK, "linewidth": 1.2, "linestyle": "--" if dashed else "-"}
    for start, end in pairwise(points[:-1]):
        axes.plot(*zip(start, end, strict=True), zorder=2, solid_capstyle="round", **style)
    arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "mutation_scale": 11, **style}
    axes.annotate("", points[-1], points[-2], arrowprops=arrow, zorder=2)


def row(axes: Axes, y: float, height: float, boxes: list[tuple[float, float, str]]) -> None:
    """Boxes of one height, by x, width and text, with an arrow from each to the next."""
    for x, width, text in boxes:
        box(axes, (x, y), (width, height), text)
    for (x, width, _), (following, _, _) in pairwise(boxes):
        path(axes, (x + width, y + height / 2), (following, y + height / 2))


def frame(axes: Axes) -> None:
    """The line, and what stands on either side of it."""
    axes.add_patch(Rectangle((0, 0), WIDTH, HEIGHT, facecolor="white", zorder=0))
    axes.plot([BORDER, BORDER], [0.1, 9.75], color=LINE, linewidth=2, linestyle=(0, (5, 2)), zorder=1)
    axes.text(BORDER, 10.2, "the privacy line", color=LINE, ha="center", va="center", fontsize=9.5, weight="bold")
    axes.text(0.3, 10.2, "sensitive: computed from records", ha="left", va="center", fontsize=9.5)
    axes.text(15.7, 10.2, "public: computed from releases", ha="right", va="center", fontsize=9.5)
    axes.text(0.3, 9.35, "Stage 1, the first $T_{pre}$ steps", fontsize=10, weight="bold", va="center")
    axes.text(0.3, 5.95, "Stage 2, all later steps", fontsize=10, weight="bold", va="center")


def first_stage(axes: Axes) -> None:
    """DP-SGD whose releases become scores, and the mask that follows from them."""
    first: list[tuple[float, float, str]] = [
        (0.3, 1.75, "gradient $g_i$\nof each\nrecord"),
        (6.3, 1.75, "clip each\nto $C$,\nadd up"),
        (8.9, 1.9, "charge, then\nadd noise\n$N(0,\\sigma^2C^2I)$"),
        (11.2, 1.75, "divide by $B$:\n$\\hat g$"),
        (13.35, 2.35, "optimiser moves\nall weights"),
    ]
    row(axes, 7.45, 1.45, first)
    box(axes, (11.0, 5.75), (2.15, 1.05), "scores\n$s_j$ += $|\\hat g_j|\\,/\\,T_{pre}$")
    path(axes, (12.07, 7.45), (12.07, 6.8))
    box(
        axes,
        (13.45, 5.15),
        (2.25, 1.65),
        "mask $m$: the first\n$\\lfloor r_t d\\rfloor$ by score;\n$r_t$ grows from $r$\nto 1 (unfreezing)",
    )
    path(axes, (13.15, 6.27), (13.45, 6.27))


def second_stage(axes: Axes) -> None:
    """A step on the mask, and what comes back to the next one."""
    second: list[tuple[float, float, str]] = [
        (0.3, 1.75, "gradient $g_i$\nof each\nrecord"),
        (2.3, 1.85, "mask, then\nstandardise:\n$\\dfrac{g_i-\\alpha}{\\sqrt{\\beta}+\\mu}$"),
        (4.4, 1.65, "top-$k$ of\neach record\n(an option)"),
        (6.3, 1.75, "clip each\nto $C$,\nadd up"),
        (8.9, 1.9, "charge, then\nadd noise\non $m$ only"),
        (11.05, 2.05, "restore $\\hat g$:\n$\\times(\\sqrt{\\beta}+\\mu)/B$,\n$+\\,\\alpha$, on $m$ only"),
        (13.35, 2.35, "optimiser moves\nthe weights of $m$"),
    ]
    row(axes, 3.2, 1.6, second)
    path(axes, (13.45, 5.35), (3.22, 5.35), (3.22, 4.8), dashed=True)
    axes.text(6.0, 5.57, "mask", color="#3b6ea5", fontsize=8.6, ha="center", va="center")
    box(
        axes,
        (11.05, 1.35),
        (2.05, 1.1),
        "$\\alpha$ and $\\beta$ learn\nfrom $\\hat g$ (decays\n$\\gamma_1$, $\\gamma_2$)",
    )
    path(axes, (12.07, 3.2), (12.07, 2.45))
    path(axes, (11.05, 1.9), (3.22, 1.9), (3.22, 3.2), dashed=True)
    axes.text(6.0, 2.12, "mean $\\alpha$ and spread $\\beta$", color="#3b6ea5", fontsize=8.6, ha="center", va="center")
    path(axes, (14.5, 3.2), (14.5, 0.75), (1.17, 0.75), (1.17, 3.2), dashed=True)
    axes.text(6.0, 0.97, "weights", color="#3b6ea5", fontsize=8.6, ha="center", va="center")
    axes.text(
        4.2, 0.35, "dashed: releases come back, free of charge", color="#3b6ea5", fontsize=8.6, ha="center", va="center"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="folder for the drawing")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    figure = plt.figure(figsize=(8, 8 * HEIGHT / WIDTH))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    for part in (frame, first_stage, second_stage):
        part(axes)
    figure.savefig(folder / "pipeline.png", dpi=200, metadata={"Software": None})
    plt.close(figure)
    print("pipeline.png")


if __name__ == "__main__":
    main()
