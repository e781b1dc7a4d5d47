"""The table and the figure that docs/theory.md links, from the rows of `measured`: six claims against what happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from adadpigu_paper.theory.measured import BIAS, CROWD, FIRST, FOREIGN_MASK, LEMMA, OWN_TOP_K, POISSON, SECOND, THIRD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, object]]

_MEASURED, _CORRECTED, _PRINTED, _GRID = "#222222", "#1b6ca8", "#c8553d", "#d9d9d9"
_TITLES = {
    LEMMA: "Lemma: energy a mask keeps",
    POISSON: "Poisson batches: length of their mean",
    FIRST: "First theorem: clipped SGD",
    SECOND: "Second theorem: mask and noise",
    THIRD: "Third theorem: mask, clip and noise",
    BIAS: "An inner product is no gradient",
}
_AT = {
    LEMMA: "k/d",
    POISSON: "B",
    FIRST: "T",
    SECOND: "α",
    THIRD: "B",
    BIAS: "T",
}
_QUANTITY = {
    LEMMA: "α, at least",
    POISSON: "E‖ḡ‖²",
    FIRST: "mean of ⟨∇L, ḡ⟩",
    SECOND: "mean of ‖∇L‖²",
    THIRD: "mean of ⟨∇L, ḡ⟩",
    BIAS: "mean of ‖∇L‖²",
}


def draw(rows: Rows) -> tuple[str, Figure]:
    """The markdown table and the figure."""
    return table(rows), figure(rows)


def table(rows: Rows) -> str:
    """A line for each row; what the measurement contradicts, beyond four standard errors, is marked."""
    lines = [
        "| claim | problem | at | quantity | measured | corrected bound | printed bound |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        claim = str(row["claim"])
        error = _number(row, "standard_error")
        measured = f"{_number(row, 'measured'):.4g}" + (f" ± {error:.2g}" if error else "")
        cells = [
            _TITLES[claim].split(":")[0],
            str(row["problem"]),
            f"{_AT[claim]} = {row['at']:g}",
            _QUANTITY[claim],
            measured,
            _judged(row, "corrected"),
            _judged(row, "printed"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def violated(row: Mapping[str, object], bound: str) -> bool:
    """Whether the measurement is on the wrong side of a bound ("corrected", "printed", "proof") by more than chance."""
    if row[bound] is None:
        return False
    beyond = _number(row, "measured") - _number(row, bound)
    side = -1 if row["claim"] == LEMMA else 1
    rounding = 1e-9 * abs(_number(row, bound))
    return side * beyond > 4 * _number(row, "standard_error") + rounding


def figure(rows: Rows) -> Figure:
    """Six panels, bounds as lines and measurements as points."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(12, 7.2), layout="constrained")
    panels = made.subplots(2, 3)
    drawers: dict[str, Callable[[Axes, Rows], None]] = {
        LEMMA: _lemma,
        POISSON: _poisson,
        FIRST: _first,
        SECOND: _second,
        THIRD: _third,
        BIAS: _bias,
    }
    for axes, (claim, drawer) in zip(panels.flat, drawers.items(), strict=True):
        axes.set_title(_TITLES[claim], loc="left", fontsize=10.5)
        axes.grid(color=_GRID, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        drawer(axes, [row for row in rows if row["claim"] == claim])
        axes.legend(fontsize=8, frameon=False)
    made.suptitle("Bound against measurement, on problems where the truth is known", x=0.01, ha="left", fontsize=12)
    return made


def _lemma(axes: Axes, rows: Rows) -> None:
    axes.plot([0, 1], [0, 1], color=_CORRECTED, label="k/d, bound for own top-k")
    for problem, marker in zip((*OWN_TOP_K, FOREIGN_MASK), "os^v", strict=True):
        colour = _PRINTED if problem == FOREIGN_MASK else _MEASURED
        chosen = _of(rows, problem)
        axes.plot(_column(chosen, "at"), _column(chosen, "measured"), marker, color=colour, ms=5, label=problem)
    axes.set(xlabel="share of coordinates kept, k/d", ylabel="energy kept, α", xlim=(0, 1), ylim=(-0.03, 1.75))
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])


def _poisson(axes: Axes, rows: Rows) -> None:
    _lines(axes, rows, printed="printed: C²", corrected="corrected: C²(1 + (1 − q)/B)")
    _points(axes, rows, "measured, equal gradients")
    _ticks(axes, rows)
    axes.set(
        xlabel="expected batch size B of 256 records", ylabel="mean square of the batch mean, E‖ḡ‖²", ylim=(0.9, 2.1)
    )


def _first(axes: Axes, rows: Rows) -> None:
    crowd = _of(rows, CROWD)
    _lines(axes, crowd, printed="printed, statement", corrected="corrected")
    axes.plot(_column(crowd, "at"), _column(crowd, "proof"), color=_PRINTED, linestyle=":", label="printed, proof")
    _points(axes, crowd, f"measured, {CROWD}")
    axes.set(xscale="log", yscale="log", xlabel="steps T, constant η", ylabel="average of E⟨∇L, ḡ⟩", ylim=(5e-4, 3e3))


def _second(axes: Axes, rows: Rows) -> None:
    _lines(axes, rows, printed="printed", corrected="corrected")
    _points(axes, rows, "measured (exact)")
    axes.set(xscale="log", yscale="log", xlabel="energy kept of the gradient, α", ylabel="average of ‖∇L‖²")
    axes.set_xticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
    axes.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.minorticks_off()


def _third(axes: Axes, rows: Rows) -> None:
    _lines(axes, rows, printed="printed", corrected="corrected")
    _points(axes, rows, "measured, fixed mask")
    _ticks(axes, rows)
    axes.set(yscale="log", xlabel="expected batch size B of 128 records", ylabel="average of E⟨∇L, ḡ⟩")


def _bias(axes: Axes, rows: Rows) -> None:
    steps = _column(rows, "at")
    axes.plot(steps, _column(rows, "corrected"), color=_CORRECTED, label="bound on ‖∇L‖², with the clipping bias")
    axes.plot(steps, _column(rows, "measured"), "o", color=_MEASURED, ms=5, label="measured ‖∇L‖²")
    bound = _column(rows, "inner_product_bound")
    axes.plot(steps, bound, color=_CORRECTED, linestyle=":", label="first theorem, on ⟨∇L, ḡ⟩")
    axes.plot(steps, _column(rows, "inner_product"), "^", color=_MEASURED, ms=5, mfc="none", label="measured ⟨∇L, ḡ⟩")
    axes.set(xscale="log", yscale="log", xlabel="steps T, constant η", ylabel="average over the steps", ylim=(4e-3, 80))


def _ticks(axes: Axes, rows: Rows) -> None:
    axes.set_xscale("log")
    axes.set_xticks(_column(rows, "at"), [f"{at:g}" for at in _column(rows, "at")])
    axes.minorticks_off()


def _lines(axes: Axes, rows: Rows, *, printed: str, corrected: str) -> None:
    at = _column(rows, "at")
    axes.plot(at, _column(rows, "corrected"), color=_CORRECTED, label=corrected)
    axes.plot(at, _column(rows, "printed"), color=_PRINTED, linestyle="--", label=printed)


def _points(axes: Axes, rows: Rows, label: str) -> None:
    spread = [2 * error for error in _column(rows, "standard_error")]
    values = _column(rows, "measured")
    axes.errorbar(_column(rows, "at"), values, yerr=spread, fmt="o", color=_MEASURED, ms=5, label=label)


def _of(rows: Rows, problem: str) -> Rows:
    return [row for row in rows if row["problem"] == problem]


def _column(rows: Rows, key: str) -> list[float]:
    return [_number(row, key) for row in rows]


def _number(row: Mapping[str, object], key: str) -> float:
    value = row[key]
    assert isinstance(value, int | float)
    return float(value)


def _judged(row: Mapping[str, object], bound: str) -> str:
    if row[bound] is None:
        return "—"
    text = f"{_number(row, bound):.4g}"
    judged = f"**{text}, violated**" if violated(row, bound) else text
    return f"{judged} (proof: {_judged(row, 'proof')})" if bound == "printed" and "proof" in row else judged
