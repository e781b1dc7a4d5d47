"""Accuracy against ε over batch sizes and learning rates, with time and steps: the price of a batch size on MNIST.

σ is the paper's and the epochs are fixed, so q²T = B·epochs/N grows with B, and ε about as its root does. Rows hold
public values alone; ε is told by PLD, and by the paper's classic RDP beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu_paper.reproduce.jobs import Job, Row
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.pruning_runs import protocol, setting, shortened, whole
from adadpigu_paper.reproduce.stand_in import told

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BATCH_SIZES = (500, 700, 900, 1000, 1100, 1300, 1500)
LEARNING_RATES = (0.01, 0.05, 0.1, 0.2)
QUICK_BATCH_SIZES = (128, 256, 512)
QUICK_LEARNING_RATES = (0.1, 0.2)
SEEDS = 1
QUICK_NOISE = 0.6
"""σ of the few steps of a quick run: under the paper's they would learn nothing"""
RETENTION = 0.6
CLAIMED = (900, 1100)
"""B between which the paper claims its accuracy"""
CLAIMED_EPSILON = (3.7, 4.2)
_PLAIN = "#1b6ca8"
_MARKERS = ("v", "s", "o", "^", "D", "P")


def jobs(scale: Scale) -> list[Job]:
    """A run for each B and learning rate; small batches first, since they take longest."""
    sizes, rates = (QUICK_BATCH_SIZES, QUICK_LEARNING_RATES) if scale.quick else (BATCH_SIZES, LEARNING_RATES)
    sigma = QUICK_NOISE if scale.quick else paper.NOISE_TABLE["mnist"][4]
    shared = {**setting(scale), **whole(RETENTION), "noise_multiplier": sigma}
    return [
        Job(f"batch-tradeoff B={size} lr={rate:g}", {**shared, "batch_size": size, "lr": rate}, seed)
        for seed in scale.runs(SEEDS)
        for size in sizes
        for rate in rates
    ]


def cells(rows: Sequence[Row]) -> list[Row]:
    """One JSON-able row for each B and learning rate, in that order: accuracies in per cent, means over seeds."""
    found: dict[tuple[int, float], list[Row]] = {}
    for row in rows:
        found.setdefault((row["config"]["batch_size"], row["config"]["lr"]), []).append(row)
    return [_cell(*key, sorted(found[key], key=lambda row: int(row["seed"]))) for key in sorted(found)]


def _cell(batch_size: int, lr: float, runs: list[Row]) -> Row:
    accuracies = [100 * run["accuracy"] for run in runs]
    claimed = CLAIMED[0] <= batch_size <= CLAIMED[1] and runs[0]["config"]["dataset"] == "mnist"
    return {
        "batch_size": batch_size,
        "lr": lr,
        "steps": runs[0]["steps"],
        "noise_multiplier": runs[0]["noise_multiplier"],
        "epsilon": runs[0]["epsilon"],
        "epsilon_rdp_classic": classic_epsilon(runs[0]),
        "mean": statistics.fmean(accuracies),
        "std": statistics.stdev(accuracies) if len(runs) > 1 else None,
        "seeds": len(runs),
        "training_seconds": statistics.fmean(run["training_seconds"] for run in runs),
        "claim": paper.TRADEOFF_ACCURACY if claimed else None,
    }


def classic_epsilon(row: Row) -> float:
    """ε of a run's plan as the paper accounts for it."""
    from adadpigu.accounting import epsilon, plan_for

    config = row["config"]
    rate = config["batch_size"] / declared_records(config["dataset"])
    return epsilon(plan_for(rate, row["steps"])(row["noise_multiplier"]).event(), config["delta"], "rdp_classic")


def declared_records(dataset: str) -> int:
    """N, from the public description of a data set that comes with the package.

    >>> declared_records("mnist")
    60000
    """
    from adadpigu.data.fetching import DIGITS
    from adadpigu.data.published import find_published

    return DIGITS if dataset == "digits" else find_published(dataset).records


def draw(rows: Sequence[Row]) -> Drawn:
    """A table with a line for each B, and the scatter of all cells."""
    if not rows:
        return Drawn(markdown="# Batch size, accuracy, privacy and time\n\nNothing was measured.\n", rows=[])
    found = cells(rows)
    stand_in = told(rows[0]["config"], "mnist")
    text = (
        "# Batch size, accuracy, privacy and time\n\n"
        + ("" if stand_in is None else f"{stand_in}.\n\n")
        + f"Test accuracy (%) after the last step of AdaDPIGU, the whole method with retention {RETENTION:g}, for "
        f"each batch size B and learning rate (lr). {protocol(rows, SEEDS)}\n\n"
        + _table(found)
        + "\n\n"
        + "\n".join(f"- {line}" for line in _findings(found, rows))
        + "\n"
    )
    return Drawn(markdown=text, rows=found, figures={"batch-tradeoff": _figure(found, rows)})


def _table(found: Sequence[Row]) -> str:
    rates = sorted({cell["lr"] for cell in found})
    head = ["B", "steps", "ε (PLD)", "ε (classic RDP)", *(f"lr {rate:g}" for rate in rates), "training, s", "paper"]
    return tabled(head, [_line(size, rates, found) for size in sorted({cell["batch_size"] for cell in found})])


def _line(size: int, rates: Sequence[float], found: Sequence[Row]) -> list[str]:
    here = {cell["lr"]: cell for cell in found if cell["batch_size"] == size}
    first = next(iter(here.values()))
    return [
        str(size),
        f"{first['steps']:,}",
        f"{first['epsilon']:.2f}",
        f"{first['epsilon_rdp_classic']:.2f}",
        *(_accuracy(here[rate]) if rate in here else "not measured" for rate in rates),
        _span([cell["training_seconds"] for cell in here.values()], ".1f"),
        "none" if first["claim"] is None else f"above {first['claim']:g}",
    ]


def _accuracy(cell: Row) -> str:
    return f"{cell['mean']:.2f}" + ("" if cell["std"] is None else f" ± {cell['std']:.2f}")


def _span(values: Sequence[float], form: str) -> str:
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"


def _findings(found: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    return [_measured(found, rows), *_claim(found), _privacy(found), *_time(found, rows), _caution(found)]


def _measured(found: Sequence[Row], rows: Sequence[Row]) -> str:
    """How much of the plan there is; a quick run has one of its own."""
    quick = shortened(rows)
    sizes, rates = (QUICK_BATCH_SIZES, QUICK_LEARNING_RATES) if quick else (BATCH_SIZES, LEARNING_RATES)
    there = {(cell["batch_size"], cell["lr"]) for cell in found}
    planned = {(size, rate) for size in sizes for rate in rates}
    without = [size for size in sizes if not any((size, rate) in there for rate in rates)]
    missing = f" No run is there for B = {', '.join(map(str, without))}." if without else ""
    return f"{len(there & planned)} of the {len(planned)} planned settings are measured.{missing}"


def _claim(found: Sequence[Row]) -> list[str]:
    """The cells that the paper makes a claim for."""
    claimed = [cell for cell in found if cell["claim"] is not None]
    if not claimed:
        return [f"The paper's claim is for B from {CLAIMED[0]} to {CLAIMED[1]} on MNIST: not measured here."]
    above = sum(cell["mean"] > cell["claim"] for cell in claimed)
    best = max(claimed, key=lambda cell: (cell["mean"], -cell["batch_size"]))
    classic = _span([cell["epsilon_rdp_classic"] for cell in claimed], ".2f")
    tight = _span([cell["epsilon"] for cell in claimed], ".2f")
    return [
        f"Paper: above {claimed[0]['claim']:g} % for B from {CLAIMED[0]} to {CLAIMED[1]}. Measured: {above} of "
        f"{len(claimed)} such cells are above; the best of them has {best['mean']:.2f} % (B = {best['batch_size']}, "
        f"lr {best['lr']:g}), {best['mean'] - best['claim']:+.2f} points from the claim.",
        f"Paper: ε from {CLAIMED_EPSILON[0]:g} to {CLAIMED_EPSILON[1]:g} there. The same plans spend {classic} by "
        f"classic RDP, the paper's accounting, and {tight} by PLD.",
    ]


def _privacy(found: Sequence[Row]) -> str:
    least, most = (choose(found, key=lambda cell: int(cell["batch_size"])) for choose in (min, max))
    fixed = f"σ = {least['noise_multiplier']:g} and the epochs are fixed, so ε grows with B"
    if least["batch_size"] == most["batch_size"]:
        return f"{fixed}; by how much takes a second batch size."
    growth = most["epsilon"] / least["epsilon"]
    root = (most["batch_size"] / least["batch_size"]) ** 0.5
    return f"{fixed}: {growth:.2f} times from B = {least['batch_size']} to {most['batch_size']} (√B alone: {root:.2f})."


def _time(found: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    """How much longer small batches take, where times compare, and what stands against it where they do not."""
    sizes = sorted({cell["batch_size"] for cell in found})
    devices = sorted({row["device"] for row in rows})
    lines = [_shared(rows)]
    if len(devices) > 1:
        lines.append(f"The rows come from several devices ({', '.join(devices)}): their times do not compare.")
    if len(sizes) < 2 or len(devices) > 1 or len({row.get("at_once") for row in rows}) > 1:
        return lines
    slow, fast = (
        statistics.fmean(cell["training_seconds"] for cell in found if cell["batch_size"] == size)
        for size in (sizes[0], sizes[-1])
    )
    ratio = (
        f"A run with B = {sizes[0]} takes {slow / fast:.2f} times as long as one with B = {sizes[-1]}, in "
        f"{_steps(found, sizes[0]) / _steps(found, sizes[-1]):.2f} times the steps."
    )
    return [ratio, *lines]


def _shared(rows: Sequence[Row]) -> str:
    """How many processes had the machine at once, without which times say little."""
    counts = {row.get("at_once") for row in rows}
    known = sorted(int(count) for count in counts if count is not None)
    if None in counts:
        return "Not every row tells how many processes shared the machine (`at_once`): times say little."
    if len(known) > 1:
        told = ", ".join(map(str, known))
        return f"Processes that shared the machine differ between rows ({told} at once): their times do not compare."
    if known == [1]:
        return "Each run had the machine to itself, so times are its own."
    return (
        f"Up to {known[0]} processes shared the machine (`at_once` in the rows), so times are longer than those of a "
        "run by itself. With `--workers 1` each has the machine to itself."
    )


def _steps(found: Sequence[Row], size: int) -> int:
    return next(int(cell["steps"]) for cell in found if cell["batch_size"] == size)


def _caution(found: Sequence[Row]) -> str:
    least = min(cell["seeds"] for cell in found)
    seeds = "One seed a cell, so no spread is known" if least == 1 else f"At least {least} seeds a cell"
    return (
        f"{seeds}. These are scores on test records: to take the best of {len(found)} cells as a result would be "
        "choosing on the test set."
    )


def _figure(found: Sequence[Row], rows: Sequence[Row]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    several = len({cell["batch_size"] for cell in found}) > 1  # else colour and area would tell nothing but chance
    (_timed_marks if several else _plain_marks)(figure, axes, found)
    _claim_line(axes, found)
    _batch_axis(axes, found)
    axes.set_xlabel(f"ε at δ = {rows[0]['config']['delta']:g} (PLD)")
    axes.set_ylabel("test accuracy, %")
    axes.grid(color="#d9d9d9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    _legend(figure, axes, found)
    told = " (area: steps, colour: time)" if several else ""
    axes.set_title(f"Accuracy against ε by batch size{told}", loc="left", fontsize=11)
    return figure


def _by_rate(found: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The cells of each learning rate, with its marker."""
    rates = sorted({cell["lr"] for cell in found})
    return [
        (marker, [cell for cell in found if cell["lr"] == rate]) for marker, rate in zip(_MARKERS, rates, strict=False)
    ]


def _plain_marks(figure: Figure, axes: Axes, found: Sequence[Row]) -> None:
    for marker, here in _by_rate(found):
        places = [cell["epsilon"] for cell in here], [cell["mean"] for cell in here]
        axes.scatter(*places, s=80, marker=marker, color=_PLAIN, edgecolors="white", linewidths=0.5, zorder=3)


def _timed_marks(figure: Figure, axes: Axes, found: Sequence[Row]) -> None:
    most = max(cell["steps"] for cell in found)
    slowest, fastest = (choose(cell["training_seconds"] for cell in found) for choose in (max, min))
    for marker, here in _by_rate(found):
        drawn = axes.scatter(
            [cell["epsilon"] for cell in here],
            [cell["mean"] for cell in here],
            c=[cell["training_seconds"] for cell in here],
            s=[160 * cell["steps"] / most for cell in here],
            marker=marker,
            cmap="viridis_r",
            vmin=fastest,
            vmax=slowest,
            edgecolors="white",
            linewidths=0.5,
            zorder=3,
        )
    figure.colorbar(drawn, label="training time, s (darker: longer)")


def _legend(figure: Figure, axes: Axes, found: Sequence[Row]) -> None:
    """Markers in grey: their colours tell time."""
    from matplotlib.lines import Line2D

    drawn = [
        Line2D([], [], color="#777777", marker=marker, linestyle="", markersize=6, label=f"lr {rate:g}")
        for marker, rate in zip(_MARKERS, sorted({cell["lr"] for cell in found}), strict=False)
    ]
    lines, _ = axes.get_legend_handles_labels()
    handles = [*drawn, *lines]
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside lower center", ncols=len(handles))


def _claim_line(axes: Axes, found: Sequence[Row]) -> None:
    claimed = [cell for cell in found if cell["claim"] is not None]
    if claimed:
        ends = [choose(cell["epsilon"] for cell in claimed) for choose in (min, max)]
        label = f"paper: above {claimed[0]['claim']:g}"
        axes.plot(ends, [claimed[0]["claim"]] * 2, "--", color="#c8553d", linewidth=1.5, label=label)


def _batch_axis(axes: Axes, found: Sequence[Row]) -> None:
    """B on top: each has its own ε."""
    places: dict[int, Any] = {cell["batch_size"]: cell["epsilon"] for cell in found}
    top = axes.secondary_xaxis("top")
    top.set_xticks(list(places.values()), [str(size) for size in places], fontsize=8)
    top.set_xlabel("batch size B", fontsize=8)
    top.spines["top"].set_visible(False)


BATCH_TRADEOFF = Artefact(
    name="batch-tradeoff",
    about="accuracy against ε for batch sizes and learning rates, with training time and steps, MNIST",
    rows="paper/batch-tradeoff.jsonl",
    draw=draw,
    jobs=jobs,
)
