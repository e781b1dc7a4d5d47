"""The energy-retention lemma, measured: how much of the training gradient's energy a mask learned from noise keeps.

    α_t = ‖m ⊙ ∇L(θ_t)‖²/‖∇L(θ_t)‖²   beside k/d, what any mask keeps by chance, and the top-k of ∇L(θ_t) itself

The lemma is about the top-k of a vector itself; a run's mask is ranked by releases of stage 1 and grows in that order.
The gradient carries no noise: under Diagnostics, and everything drawn carries the stamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from adadpigu.config import merge
from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu_paper.reproduce.jobs import Job, Row
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.pruning_runs import STATISTICS, seeds_told
from adadpigu_paper.reproduce.stand_in import quick_config, told

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPSILON = 4.0
SEEDS = 3
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
_FULL = {"dataset": "mnist", "model": "mnist-cnn", "batch_size": 2048, "steps": 2000, "evaluate_every": 150}


def jobs(scale: Scale) -> list[Job]:
    """Three scores at two retentions; a quick run has one retention, few steps and a gradient of few records."""
    base, first, look = (_quick(), 30, "energy-sample") if scale.quick else (_FULL, 150, "energy")
    shared = {"epsilon": EPSILON, "lr": 3.0, "momentum": 0.9, "diagnostics": True, "method": "adadpigu"}
    return [
        Job(
            f"energy/{score}/{retention:g}",
            {**base, **shared, "method_options": _options(score, retention, first)},
            seed,
            look=look,
        )
        for retention in RETENTIONS[: 1 if scale.quick else None]
        for score in SCORES
        for seed in scale.runs(SEEDS)
    ]


def _quick() -> dict[str, Any]:
    return {**quick_config("mnist", "mnist-cnn"), "steps": 90, "evaluate_every": 15}


def _options(score: str, retention: float, first: int) -> dict[str, Any]:
    """Settings of the preset mnist-adadpigu-eps4, whose stage 1 is so long too."""
    return {"clip_norm": 0.1, "retention": retention, "score": score, "importance_steps": first, **STATISTICS}


def summed_up(rows: Sequence[Row]) -> list[Row]:
    """A row for each retention, score and look: mean and standard deviation (None: one seed) of every share."""
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
        shares[f"{name}_std"] = stdev(values) if measured and len(values) > 1 else None
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
            by_seed = [means for seen in runs if (means := _masked_means(seen)) is not None]
            if by_seed:
                lines.append({"retention": retention, "score": score, "seeds": len(by_seed), "by_seed": by_seed})
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
    """The table of means over stage 2, in how many seeds a mask keeps more than chance, and the course over steps."""
    title = "# Energy kept by the mask\n\n"
    if not rows:
        return Drawn(markdown=f"{title}Nothing was measured.\n", rows=[], exposed=True)
    overall, course = over_training(rows), summed_up(rows)
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
    text = title + _protocol(rows) + "\n\n" + tabled(head, body) + "\n\n"
    text += "\n".join(f"- {note}" for note in _notes(rows, overall)) + "\n"
    return Drawn(markdown=text, rows=course, figures={"energy": _figure(course)}, exposed=True)


def _values(line: Row, name: str) -> list[float]:
    return [100 * means[name] for means in line["by_seed"] if means[name] is not None]


def _cell(line: Row, name: str) -> str:
    values = _values(line, name)
    if len(values) < line["seeds"]:
        return "not measured"
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 and name != "chance" else ""
    return f"{fmean(values):.1f}{spread} %"


def _protocol(rows: Sequence[Row]) -> str:
    config, last = merge(rows[0]["config"]), rows[0]["seen"][-1]
    options = config.method_options
    devices = sorted({row["device"] for row in rows})
    seeds = seeds_told(rows, SEEDS if config.steps == _FULL["steps"] else None)
    return (
        f"α = ‖m ⊙ u‖²/‖u‖² of the mean gradient u of {last['records']:,} training records at the weights of a step: "
        f"mean over the looks of stage 2 (every {config.evaluate_every} steps) at which some weight is frozen, ± "
        f"standard deviation over seeds ({seeds} a setting). Stage 2 starts with a share r of the weights; the mask "
        "then grows linearly to all of them, in the order of importance. AdaDPIGU, the whole method, on "
        f"{config.dataset}, {config.model} ({last['parameters']:,} parameters), "
        f"ε = {EPSILON:g} by PLD at δ = {config.delta:g}, Poisson batches of {config.batch_size} on average, "
        f"{config.steps:,} steps of which {options['importance_steps']} are stage 1, C = {options['clip_norm']}, "
        f"learning rate {config.lr:g}, weights of the step itself, not averaged; {', '.join(devices)}. In stage 1 "
        "there is no mask: all is kept. The paper prints no figure of this."
    )


def _notes(rows: Sequence[Row], overall: Sequence[Row]) -> list[str]:
    notes = []
    if (stand_in := told(rows[0]["config"], "mnist")) is not None:
        notes.append(f"{stand_in}.")
    notes += _gaps_in(overall)
    notes += [_verdict(line) for line in overall]
    if overall:
        notes += [_caution(overall), _ageing(overall), _lemma(overall)]
    return notes


def _gaps_in(overall: Sequence[Row]) -> list[str]:
    there = {r: [line["score"] for line in overall if line["retention"] == r] for r in RETENTIONS}
    missing = [f"{r:g}" for r, scores in there.items() if not scores]
    notes = [f"Not measured: r = {', '.join(missing)}."] if missing else []
    for r, scores in there.items():
        if scores and (without := [score for score in SCORES if score not in scores]):
            notes.append(f"Not measured at r = {r:g}: {', '.join(without)}.")
    return notes


def _verdict(line: Row) -> str:
    """In how many seeds the ranking keeps more than chance, and more than knowing the layers would."""
    kept, chance, most = (fmean(_values(line, name)) for name in ("kept", "chance", "most"))
    way = f", {100 * (kept - chance) / (most - chance):.0f} % of the way to the most possible" if kept > chance else ""
    return (
        f"r = {line['retention']:g}, {line['score']}: the mask keeps {kept:.1f} % of the energy; "
        f"{_compared(line, 'chance')} chance ({kept - chance:+.1f} points{way}), {_compared(line, 'layered')} a random "
        f"mask with as many in each layer ({kept - fmean(_values(line, 'layered')):+.1f} points)."
    )


def _compared(line: Row, other: str) -> str:
    pairs = zip(_values(line, "kept"), _values(line, other), strict=True)
    return f"in {sum(kept > beside for kept, beside in pairs)} of {line['seeds']} seeds more than"


def _caution(overall: Sequence[Row]) -> str:
    """How easily all seeds agree: a mask that is neither better nor worse keeps more in half of them."""
    least = min(int(line["seeds"]) for line in overall)
    return (
        f"These are counts and no test: with {least} seed{'' if least == 1 else 's'}, a mask that is no better would "
        f"still keep more in every one with probability {0.5**least:.2g}."
    )


def _ageing(overall: Sequence[Row]) -> str:
    """What is lost because the gradient moves on, which no better ranking of stage 1 would give back."""
    kept, held, most = (
        [value for line in overall for value in _values(line, name)] for name in ("kept", "held", "most")
    )
    if len(held) < len(kept):
        return "No look fell into stage 1, so what a mask of the gradient of that time keeps is not measured."
    behind = f"{fmean(held) - fmean(kept):.1f} points more" if fmean(held) > fmean(kept) else "no more"
    return (
        f"Masks age: the top-k of the gradient of the moment when stage 1 ended, found without any noise, keeps "
        f"{fmean(held):.1f} % later on, {fmean(most) - fmean(held):.1f} points short of the most possible, on average "
        f"over all runs. That is {behind} than the masks that were ranked by noisy releases keep; though a run lowers "
        "what its own mask keeps, since there alone it can make the gradient smaller."
    )


def _lemma(overall: Sequence[Row]) -> str:
    """What the lemma says is of the top-k of the gradient itself; of a ranking fixed before nothing follows."""
    least = min(min(_values(line, "most")) - max(_values(line, "chance")) for line in overall)
    holds = "holds in every run" if least >= 0 else "fails"
    below = [line for line in overall if fmean(_values(line, "kept")) < fmean(_values(line, "chance"))]
    fixed = f"{len(below)} of {len(overall)} settings keep less than that" if below else "here all keep at least that"
    return (
        f"The lemma's α ≥ k/d for the top-k of the gradient itself {holds} (by {least:.1f} points or more). For a "
        f"ranking fixed before, which is what trains, it promises nothing: {fixed}."
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
    masked = [line for line in lines if line["active"] < line["parameters"]]
    for name, (label, style) in _BESIDE.items():
        measured = [line for line in masked if line[name] is not None]
        steps = sorted({line["step"] for line in measured})
        # nearly the same whatever the score, so one line for all runs
        means = [100 * fmean(line[name] for line in measured if line["step"] == step) for step in steps]
        axes.plot(steps, means, style, color="#6c6c6c", label=label, linewidth=1.4)
    for score in SCORES:
        _curve(axes, [line for line in masked if line["score"] == score], score)
    unmasked = [line["step"] for line in lines if line["stage"] == "importance"]
    if unmasked:
        axes.axvspan(0, max(unmasked), color="#d9d9d9", alpha=0.5, linewidth=0, label="stage 1: no mask")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 102)
    axes.tick_params(axis="x", labelsize=8)
    axes.margins(x=0.08)
    axes.grid(axis="y", color="#d9d9d9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _curve(axes: Axes, lines: Sequence[Row], score: str) -> None:
    """What the run's mask keeps over the steps, with a band of a standard deviation over the seeds."""
    steps = [line["step"] for line in lines]
    low = [100 * (line["kept"] - (line["kept_std"] or 0.0)) for line in lines]
    high = [100 * (line["kept"] + (line["kept_std"] or 0.0)) for line in lines]
    kept = [100 * line["kept"] for line in lines]
    axes.plot(steps, kept, color=_COLOURS[score], label=f"importance, {score}", linewidth=1.4)
    axes.fill_between(steps, low, high, color=_COLOURS[score], alpha=0.15, linewidth=0)


ENERGY = Artefact(
    name="energy",
    about="the energy-retention lemma: energy of the training gradient that masks keep over training (Diagnostics)",
    rows="paper/energy.jsonl",
    draw=draw,
    jobs=jobs,
)
