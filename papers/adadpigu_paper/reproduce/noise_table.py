"""Table 3: the noise multiplier σ for each ε and data set, under four ways of accounting. No record is involved.

The paper prints σ without batch size or epochs. Those that explain it are searched for here among round numbers: the
setting at which the printed σ spend their ε most exactly under the classic Rényi conversion, the paper's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu_paper.reproduce.jobs import Row
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.paper import TITLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DELTA = 1e-5
BATCH_SIZES = (250, 500, 1000, 2000)
EPOCHS = (20, 50, 100, 200)
_COLOURS = {"mnist": "#1b6ca8", "cifar10": "#c8553d"}


def compute(scale: Scale) -> list[Row]:
    """A row for each data set and ε; a quick one leaves out the larger half of the ε."""
    rows = []
    for dataset, printed in paper.NOISE_TABLE.items():
        batch_size, epochs, misfit = explaining(dataset)
        wanted = list(printed)[: 3 if scale.quick else None]
        rows += [{**noise_row(dataset, epsilon, batch_size, epochs), "misfit": misfit} for epsilon in wanted]
    return rows


def explaining(dataset: str) -> tuple[int, int, float]:
    """The B and epochs under which the printed σ spend their ε, and the largest relative misfit there.

    Settings with nearly equal q²T spend nearly the same, so of those that fit as well the smallest B is told.
    """
    found = {}
    for batch_size in BATCH_SIZES:
        for epochs in EPOCHS:
            printed = paper.NOISE_TABLE[dataset].items()
            misfits = [abs(_spent(dataset, batch_size, epochs, sigma) / epsilon - 1) for epsilon, sigma in printed]
            found[batch_size, epochs] = max(misfits)
    best = min(found.values())
    batch_size, epochs = min(key for key, misfit in found.items() if misfit <= best + 0.002)
    return batch_size, epochs, found[batch_size, epochs]


def noise_row(dataset: str, epsilon: float, batch_size: int, epochs: int) -> Row:
    """σ that each accounting asks for, and what the printed σ spends under each."""
    from adadpigu.accounting import calibrate, plan_for
    from adadpigu.accounting.closed_forms import dpsgd_theorem_sigma

    rate, steps = _sampling(dataset, batch_size, epochs)
    printed = paper.NOISE_TABLE[dataset][int(epsilon)]

    def cost(accountant: str) -> Callable[[float], float]:
        return lambda sigma: _spent(dataset, batch_size, epochs, sigma, accountant)

    closed = dpsgd_theorem_sigma(sample_rate=rate, steps=steps, epsilon=epsilon, delta=DELTA)
    return {
        "dataset": dataset,
        "epsilon": epsilon,
        "batch_size": batch_size,
        "epochs": epochs,
        "steps": steps,
        "sigma_printed": printed,
        "sigma_pld": calibrate(plan_for(rate, steps), epsilon=epsilon, delta=DELTA).noise_multiplier,
        "sigma_rdp": _least(cost("rdp"), epsilon),
        "sigma_rdp_classic": _least(cost("rdp_classic"), epsilon),
        "sigma_closed_form": closed,
        "epsilon_pld_of_printed": cost("pld")(printed),
        "epsilon_rdp_of_printed": cost("rdp")(printed),
        "epsilon_rdp_classic_of_printed": cost("rdp_classic")(printed),
    }


def _sampling(dataset: str, batch_size: int, epochs: int) -> tuple[float, int]:
    from adadpigu.data.published import find_published

    records = find_published(dataset).records
    return batch_size / records, math.ceil(epochs * records / batch_size)


def _spent(dataset: str, batch_size: int, epochs: int, sigma: float, accountant: str = "rdp_classic") -> float:
    from adadpigu.accounting import epsilon, plan_for

    rate, steps = _sampling(dataset, batch_size, epochs)
    return epsilon(plan_for(rate, steps)(sigma).event(), DELTA, accountant)


def _least(cost: Callable[[float], float], epsilon: float) -> float:
    """The least σ, to half a thousandth of it, that spends at most ε: bisection, since the cost falls with σ."""
    low, high = 0.3, 100.0
    while high / low > 1.0005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    return high


def draw(rows: Sequence[Row]) -> Drawn:
    """The table, in the paper's order, with what explains it, and a figure of the same."""
    head = ["data set", "ε", "σ printed", "σ PLD", "σ RDP", "σ classic RDP", "σ closed form", "ε of printed σ (PLD)"]
    columns = [f"sigma_{key}" for key in ("printed", "pld", "rdp", "rdp_classic", "closed_form")]
    columns.append("epsilon_pld_of_printed")
    body = [[TITLES[row["dataset"]], f"{row['epsilon']:g}", *(f"{row[key]:.3g}" for key in columns)] for row in rows]
    notes = [
        f"- {TITLES[dataset]}: explained by B = {row['batch_size']} and {row['epochs']} epochs (T = {row['steps']:,}): "
        f"under classic RDP the printed σ then spend the ε beside them to within {row['misfit']:.1%}."
        for dataset in paper.NOISE_TABLE
        if (row := next((row for row in rows if row["dataset"] == dataset), None)) is not None
    ]
    text = (
        "# Table 3: noise for a budget\n\n"
        f"δ = {DELTA:g}, Poisson sampling, add or remove one record. σ is the least that keeps ε under each "
        "accounting; the closed form 2q√(T ln(1/δ))/ε is asymptotic and no guarantee.\n\n"
    )
    text += tabled(head, body) + "\n\n" + "\n".join(notes)
    text += "\n- Of all B and epochs with the same q²T the smallest B is told; PLD spends less than the paper claims.\n"
    return Drawn(markdown=text, rows=rows, figures={"noise-table": _figure(rows)})


def _figure(rows: Sequence[Row]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    lines = (("sigma_rdp_classic", "classic RDP", "-"), ("sigma_rdp", "RDP", "-."), ("sigma_pld", "PLD", "--"))
    for dataset, colour in _COLOURS.items():
        chosen = [row for row in rows if row["dataset"] == dataset]
        places = [row["epsilon"] for row in chosen]
        for key, name, style in lines:
            axes.plot(places, [row[key] for row in chosen], style, color=colour, label=f"{TITLES[dataset]}, {name}")
        printed = [row["sigma_printed"] for row in chosen]
        axes.plot(places, printed, "o", color=colour, markersize=5, label=f"{TITLES[dataset]}, printed")
    axes.set_xlabel(f"ε at δ = {DELTA:g}")
    axes.set_ylabel("noise multiplier σ")
    axes.grid(color="#d9d9d9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, ncols=2)
    axes.set_title("Table 3: σ that keeps ε, by accounting, and as printed", loc="left", fontsize=11)
    return figure


NOISE_TABLE = Artefact(
    name="noise-table",
    about="Table 3: σ for each ε and data set, under PLD, RDP, classic RDP and the paper's closed form",
    rows="paper/noise-table.jsonl",
    draw=draw,
    compute=compute,
)
