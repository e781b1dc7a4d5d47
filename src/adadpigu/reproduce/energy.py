"""The energy-retention lemma, measured: how much of the training gradient's energy a mask learned from noise keeps.

    α_t = ‖m ⊙ ∇L(θ_t)‖²/‖∇L(θ_t)‖²   beside k/d, what any mask keeps by chance, and the top-k of ∇L(θ_t) itself

The lemma is about the top-k of a vector itself; a run's mask comes from releases of stage 1 and is then fixed. The
gradient carries no noise: under Diagnostics, and everything drawn carries the stamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from adadpigu.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu.reproduce.jobs import Job, Row
from adadpigu.reproduce.keeping import tabled
from adadpigu.reproduce.stand_in import quick_config, told

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPSILON = 4.0
SCORES = ("absolute", "signed", "energy")
RETENTIONS = (0.6, 0.3)
SHARES = ("kept", "most", "held", "layered", "chance")
"""what a look has found of the energy, each as a share"""
_COLOURS = {"absolute": "#1b6ca8", "signed": "#c8553d", "energy": "#2f7d4f"}
_BESIDE = {
    "most": ("most possible", "--"),
    "held": ("top-k when stage 1 ended", "-."),
    "chance": ("by chance, k/d", ":"),
}


def jobs(scale: Scale) -> list[Job]:
    """Three scores at two retentions; a quick run has one retention, few steps and a gradient of few records."""
    if scale.quick:
        base = {**quick_config("mnist", "mnist-cnn"), "steps": 90, "evaluate_every": 30}
        first, retentions, look = 30, RETENTIONS[:1], "energy-sample"
    else:
        base = {"dataset": "mnist", "model": "mnist-cnn", "batch_size": 2048, "steps": 2000, "evaluate_every": 100}
        first, retentions, look = 100, RETENTIONS, "energy"
    base |= {"epsilon": EPSILON, "lr": 3.0, "momentum": 0.9, "diagnostics": True, "method": "adadpigu"}
    return [
        Job(
            f"energy/{score}/{retention:g}",
            {**base, "method_options": _options(score, retention, first)},
            seed,
            look=look,
        )
        for retention in retentions
        for score in SCORES
        for seed in scale.runs(3)
    ]


def _options(score: str, retention: float, first: int) -> dict[str, Any]:
    return {"clip_norm": 0.1, "retention": retention, "score": score, "importance_steps": first}


def summed_up(rows: Sequence[Row]) -> list[Row]:
    """A row for each retention, score and look: mean and standard deviation of every share over the seeds."""
    groups: dict[tuple[float, str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        options = row["config"]["method_options"]
        for seen in row["seen"]:
            groups.setdefault((-options["retention"], options["score"], seen["step"]), []).append(seen)
    ordered = sorted(groups, key=lambda key: (key[0], SCORES.index(key[1]), key[2]))
    return [_summary(key, groups[key]) for key in ordered]


def _summary(key: tuple[float, str, int], looks: Sequence[Row]) -> Row:
    shares: Row = {}
    for name in SHARES:
        values = [look[name] for look in looks]
        measured = None not in values
        shares[name] = fmean(values) if measured else None
        shares[f"{name}_std"] = (stdev(values) if len(values) > 1 else 0.0) if measured else None
    first = looks[0]
    return {
        "retention": -key[0],
        "score": key[1],
        "step": key[2],
        "epoch": first["epoch"],
        "stage": first["stage"],
        "active": first["active"],
        "parameters": first["parameters"],
        "norm": fmean(look["norm"] for look in looks),
        "seeds": len(looks),
        **shares,
    }


def over_training(rows: Sequence[Row]) -> list[Row]:
    """A row for each retention and score: every share's mean over the looks of stage 2, seed by seed."""
    lines = []
    ranked = sorted(rows, key=lambda row: int(row["seed"]))
    for retention in sorted({row["config"]["method_options"]["retention"] for row in rows}, reverse=True):
        for score in SCORES:
            wanted = (retention, score)
            runs = [row["seen"] for row in ranked if _setting(row) == wanted]
            means = [means for seen in runs if (means := _masked_means(seen)) is not None]
            if means:
                lines.append({"retention": retention, "score": score, "seeds": len(means), "by_seed": means})
    return lines


def _setting(row: Row) -> tuple[float, str]:
    options = row["config"]["method_options"]
    return options["retention"], options["score"]


def _masked_means(seen: Sequence[Row]) -> Row | None:
    """Of one run; None where no look fell into stage 2."""
    masked = [look for look in seen if look["active"] < look["parameters"]]
    if not masked:
        return None
    return {
        name: None if any(look[name] is None for look in masked) else fmean(look[name] for look in masked)
        for name in SHARES
    }


def draw(rows: Sequence[Row]) -> Drawn:
    """The table of means over stage 2, whether importance beats chance, and the course of it over the steps."""
    overall = over_training(rows)
    head = [
        "r",
        "score",
        "kept by the mask",
        "random in each layer",
        "by chance (k/d)",
        "top-k when stage 1 ended",
        "most possible",
    ]
    names = ("kept", "layered", "chance", "held", "most")
    body = [[f"{line['retention']:g}", line["score"], *(_cell(line, name) for name in names)] for line in overall]
    text = "# Energy kept by the mask\n\n" + _protocol(rows) + "\n\n" + tabled(head, body) + "\n\n"
    text += "\n".join(f"- {note}" for note in _notes(rows, overall)) + "\n"
    return Drawn(markdown=text, rows=summed_up(rows), figures={"energy": _figure(summed_up(rows))}, exposed=True)


def _values(line: Row, name: str) -> list[float]:
    return [100 * means[name] for means in line["by_seed"] if means[name] is not None]


def _cell(line: Row, name: str) -> str:
    values = _values(line, name)
    if len(values) < line["seeds"]:
        return "not measured"
    spread = stdev(values) if len(values) > 1 else 0.0
    return f"{fmean(values):.1f} %" if name == "chance" else f"{fmean(values):.1f} ± {spread:.1f} %"


def _protocol(rows: Sequence[Row]) -> str:
    config, last = rows[0]["config"], rows[0]["seen"][-1]
    devices = sorted({row["device"] for row in rows})
    seeds = sorted({row["seed"] for row in rows})
    return (
        f"α = ‖m ⊙ u‖²/‖u‖² of the mean gradient u of {last['records']:,} training records at the weights of a step, mean "
        f"over the looks of stage 2 (every {config['evaluate_every']} steps), ± standard deviation over "
        f"{len(seeds)} seed(s). AdaDPIGU on {config['dataset']}, {config['model']} ({last['parameters']:,} parameters), "
        f"ε = {EPSILON:g} by PLD at δ = 1e-05, Poisson batches of {config['batch_size']} on average, {config['steps']:,} "
        f"steps of which {config['method_options']['importance_steps']} are stage 1, C = "
        f"{config['method_options']['clip_norm']:g}, last iterate; {', '.join(devices)}. In stage 1 there is no mask: "
        "all is kept."
    )


def _notes(rows: Sequence[Row], overall: Sequence[Row]) -> list[str]:
    notes = []
    if (stand_in := told(rows[0]["config"], "mnist")) is not None:
        notes.append(f"{stand_in}.")
    missing = [r for r in RETENTIONS if r not in {line["retention"] for line in overall}]
    if missing:
        notes.append(f"Not measured: r = {', '.join(f'{r:g}' for r in missing)}.")
    notes += [_verdict(line) for line in overall]
    if overall:
        notes.append(_lemma(overall))
    return notes


def _verdict(line: Row) -> str:
    """Whether the ranking beats chance, and whether it does so by more than knowing the layers."""
    kept, chance, layered, most = (_values(line, name) for name in ("kept", "chance", "layered", "most"))
    gain = fmean(kept) - fmean(chance)
    reach = fmean(most) - fmean(chance)
    part = f", {gain / reach:.0%} of the way from chance to the most possible" if reach > 0 and gain > 0 else ""
    return (
        f"r = {line['retention']:g}, {line['score']}: the mask keeps {fmean(kept):.1f} % of the energy, "
        f"{_compared(kept, chance)} chance ({gain:+.1f} points{part}), and {_compared(kept, layered)} a random mask with "
        f"the same number in each layer ({fmean(kept) - fmean(layered):+.1f} points)."
    )


def _compared(ours: Sequence[float], theirs: Sequence[float]) -> str:
    above = sum(mine > other for mine, other in zip(ours, theirs, strict=True))
    if above == len(ours):
        return f"above (in {above} of {len(ours)} seeds)"
    return f"not above (in {above} of {len(ours)} seeds)" if above else f"below or equal to (in all {len(ours)} seeds)"


def _lemma(overall: Sequence[Row]) -> str:
    """What the lemma says is of the top-k of the gradient itself; of a fixed mask nothing follows."""
    least = min(min(_values(line, "most")) - max(_values(line, "chance")) for line in overall)
    holds = "holds in every run" if least >= 0 else "fails"
    below = [line for line in overall if fmean(_values(line, "kept")) < fmean(_values(line, "chance"))]
    fixed = f"{len(below)} of {len(overall)} settings keep less than that" if below else "here all keep at least that"
    return (
        f"The lemma's α ≥ k/d for the top-k of the gradient itself {holds} (by {least:.1f} points or more). For a mask "
        f"fixed before, which is what trains, it promises nothing: {fixed}."
    )


def _figure(lines: Sequence[Row]) -> Figure:
    from matplotlib.figure import Figure

    retentions = sorted({line["retention"] for line in lines}, reverse=True)
    figure = Figure(figsize=(4.5 * max(len(retentions), 1.6), 4.2), layout="constrained")
    panels = figure.subplots(1, len(retentions), sharey=True, squeeze=False)[0]
    for axes, retention in zip(panels, retentions, strict=True):
        _panel(axes, [line for line in lines if line["retention"] == retention])
        axes.set_title(f"retention r = {retention:g}", loc="left", fontsize=9)
    panels[0].set_ylabel("energy of the training gradient kept, %")
    figure.supxlabel("step (all stages)\n ", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    figure.suptitle("Energy kept by the mask, over training", x=0.01, ha="left", fontsize=11)
    return figure


def _panel(axes: Axes, lines: Sequence[Row]) -> None:
    for score in SCORES:
        course = [line for line in lines if line["score"] == score]
        masked = [line for line in course if line["active"] < line["parameters"]]
        for name, (label, style) in _BESIDE.items():
            _curve(axes, masked, name, color="#6c6c6c" if score == "absolute" else None, style=style, label=label)
        _curve(axes, masked, "kept", color=_COLOURS[score], style="-", label=f"importance, {score}")
    unmasked = [line["step"] for line in lines if line["active"] == line["parameters"]]
    if unmasked:
        axes.axvspan(0, max(unmasked), color="#d9d9d9", alpha=0.5, linewidth=0, label="stage 1: no mask")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 102)
    axes.grid(axis="y", color="#d9d9d9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _curve(axes: Axes, lines: Sequence[Row], name: str, *, color: str | None, style: str, label: str) -> None:
    """One share over the steps, with a band of a standard deviation; nothing where it was not measured."""
    measured = [line for line in lines if line[name] is not None]
    if color is None or not measured:
        return
    steps = [line["step"] for line in measured]
    values = [100 * line[name] for line in measured]
    spread = [100 * line[f"{name}_std"] for line in measured]
    axes.plot(steps, values, style, color=color, label=label, linewidth=1.4, marker="o" if len(steps) == 1 else None)
    low = [value - deviation for value, deviation in zip(values, spread, strict=True)]
    high = [value + deviation for value, deviation in zip(values, spread, strict=True)]
    axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)


ENERGY = Artefact(
    name="energy",
    about="the energy-retention lemma: energy of the training gradient that masks keep over training (Diagnostics)",
    rows="paper/energy.jsonl",
    draw=draw,
    jobs=jobs,
)
