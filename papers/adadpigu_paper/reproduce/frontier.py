"""The accuracy frontier: our best recipe at each ε beside the best published figure, and how innocently it was found.

Rows are test runs of the presets `<set>-best-eps<n>`. What was tried, how much it took and when a test figure was first
seen is computed from the rows of tuning and pre-training beside them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adadpigu.config import all_presets, merge, read_preset
from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.accuracy_table import SEEDS, SHORT
from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu_paper.reproduce.frontier_curve import curve
from adadpigu_paper.reproduce.frontier_entries import entries
from adadpigu_paper.reproduce.frontier_published import BEST, EPSILONS
from adadpigu_paper.reproduce.jobs import Job, Row
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.stand_in import quick_config
from adadpigu_paper.reproduce.tuned import settings_of, tuned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = ("data set", "ε", "ours", "best published", "source")
_NOT_MEASURED = "not measured"
_COLOURS = ("#1b6ca8", "#c8553d")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A place on the frontier."""

    dataset: str
    epsilon: int
    runs: tuple[Row, ...]
    """test runs with the preset's present settings"""
    tried: tuple[Row, ...]
    """runs of the cell on held-out training records"""

    @property
    def name(self) -> str:
        return preset_of(self.dataset, self.epsilon)

    @property
    def found(self) -> list[float]:
        """In percent."""
        return [100 * run["accuracy"] for run in self.runs]

    @property
    def ours(self) -> str:
        """Mean and standard deviation; of one run the figure alone."""
        if not self.runs:
            return _NOT_MEASURED
        spread = f" ± {statistics.stdev(self.found):.1f}" if len(self.found) > 1 else ""
        return f"{statistics.mean(self.found):.1f}{spread}"

    def row(self) -> Row:
        """The cell as JSON."""
        best, found = BEST[self.dataset, self.epsilon], self.found
        return {
            "dataset": self.dataset,
            "epsilon": self.epsilon,
            "delta": 1e-5,
            "ours": round(statistics.mean(found), 4) if found else None,
            "std": round(statistics.stdev(found), 4) if len(found) > 1 else None,
            "runs": len(found),
            "seeds": len({run["seed"] for run in self.runs}),
            "most_epsilon": max((run["epsilon"] for run in self.runs), default=None),
            "best_published": best.accuracy,
            "source": best.source,
            "preset": self.name,
            **self.protocol(),
        }

    def protocol(self) -> Row:
        """What was tried before, how long it took, and what of it came after the first look at a test figure."""
        settings = settings_of(read_preset(self.name)) if self.name in all_presets() else None
        times = sorted(run["at"] for run in self.runs if "at" in run)
        known = bool(self.runs) and len(times) == len(self.runs)
        later = [run for run in self.tried if known and run.get("at", "") > times[0]]
        return {
            "settings_tried": tuned(self.name, settings, self.tried).grid,
            "held_out_runs": len(self.tried),
            "tuning_seconds": round(sum(run.get("seconds", 0.0) for run in self.tried), 1),
            "test_seconds": round(sum(run.get("seconds", 0.0) for run in self.runs), 1),
            "first_test_figure": times[0] if known else None,
            "held_out_runs_after_it": len(later) if known else None,
        }


def preset_of(dataset: str, epsilon: int) -> str:
    return f"{SHORT[dataset]}-best-eps{epsilon}"


def jobs(scale: Scale) -> list[Job]:
    """Every preset, seed by seed; quick: a linear layer on digits at each ε."""
    if scale.quick:
        base = {**quick_config("mnist", "linear"), "steps": 40, "method": "dpsgd", "normalisation": "record"}
        return [
            Job(preset_of("mnist", epsilon), {**base, "epsilon": float(epsilon)}, seed)
            for seed in scale.runs(1)
            for epsilon in EPSILONS
        ]
    names = [preset_of(*place) for place in BEST if preset_of(*place) in all_presets()]
    return [Job(name, read_preset(name), seed) for seed in scale.runs(SEEDS) for name in names]


def cells(rows: Sequence[Row]) -> list[Cell]:
    """The frontier, from rows of runs; those of settings that a preset no longer has do not count."""
    runs = [row for row in rows if {"name", "score", "config", "accuracy"} <= row.keys() and "source" not in row]
    return [_cell(dataset, epsilon, runs) for dataset, epsilon in BEST]


def _cell(dataset: str, epsilon: int, runs: Sequence[Row]) -> Cell:
    name = preset_of(dataset, epsilon)
    own = [run for run in runs if run["name"].split()[0] == name or run["name"].startswith(f"{name}-")]
    settings = settings_of(read_preset(name)) if name in all_presets() else None
    tested = [run for run in own if run["name"] == name and run["score"] == "test"]
    kept = [run for run in tested if run.get("quick") or settings_of(run["config"]) == settings]
    tried = [run for run in own if run["score"] == "held-out"]
    return Cell(dataset=dataset, epsilon=epsilon, runs=tuple(kept), tried=tuple(tried))


def draw(rows: Sequence[Row]) -> Drawn:
    """The table, the protocol, a figure, and the same as JSON; entries for the public leaderboard."""
    made, parts = cells(rows), [row for row in rows if "images_per_second" in row]
    text = "# The accuracy frontier without public images\n\n" + _introduction(made, rows) + "\n\n"
    text += tabled(HEAD, [_line(cell) for cell in made]) + "\n\n## How it was found\n\n" + _protocol(made, parts)
    told = {"cells": [cell.row() for cell in made], "pre_training": parts}
    return Drawn(
        markdown=text,
        rows=told["cells"],
        figures={"frontier": _figure(made), **curve(rows)},
        texts={"frontier.json": json.dumps(told, indent=2, ensure_ascii=False) + "\n", "entries.md": entries(made)},
    )


def _introduction(made: Sequence[Cell], rows: Sequence[Row]) -> str:
    words = (
        "Test accuracy in percent, mean ± standard deviation of runs with different seeds, none left out; δ = 1e-5, "
        "add or remove one record, ε of the whole run by PLD with exact Poisson sampling. No photograph and no other "
        "record was seen: features come from images of random processes. Published figures are as printed, under "
        "their own accountants and without public images; (at ε = …) where none was found at this one. DP-RandP tells "
        "of ε up to 8 in figures that could not be read here: they may be higher."
    )
    if any(row.get("quick") for row in rows):
        words += "\n\n**A quick version: a few steps on the digits, to see that all works; figures mean nothing.**"
    few = [f"{cell.name} ({len(cell.runs)})" for cell in made if 0 < len(cell.runs) < SEEDS]
    return words + (f"\n\nFewer than {SEEDS} runs: {', '.join(few)}." if few else "")


def _line(cell: Cell) -> list[str]:
    best = BEST[cell.dataset, cell.epsilon]
    return [paper.TITLES[cell.dataset], str(cell.epsilon), cell.ours, f"{best.accuracy:.1f}", best.source]


def _protocol(made: Sequence[Cell], parts: Sequence[Row]) -> str:
    head = ["cell", "settings tried", "held-out runs", "their hours", "test runs", "their hours"]
    head += ["first test figure (UTC)", "held-out runs after it"]
    body = []
    for cell in made:
        told = cell.protocol()
        hours = [f"{told[kind] / 3600:.2f}" for kind in ("tuning_seconds", "test_seconds")]
        seen = [told["first_test_figure"], told["held_out_runs_after_it"]]
        first, after = ("not recorded" if cell.runs and value is None else str(value or 0) for value in seen)
        counts = [str(told["settings_tried"]), str(told["held_out_runs"]), hours[0], str(len(cell.runs)), hours[1]]
        body.append([cell.name, *counts, first if cell.runs else "none yet", after])
    text = (
        "Settings were compared on about 5,000 held-out *training* records, chosen by a hash of each "
        "(`experiments/tune.py`, `experiments/choose_best.py`); test records are scored once, at the end of a run. "
        "Such tuning is outside the guarantee: these data sets are public. Hours are of processes, several of which "
        "shared a machine.\n\n"
    )
    return text + tabled(head, body) + "\n\n" + _pre_training(made, parts)


def _pre_training(made: Sequence[Cell], parts: Sequence[Row]) -> str:
    used = sorted({merge(read_preset(cell.name)).features for cell in made if cell.name in all_presets()})
    lines = [f"- Features that the presets use: {', '.join(used)}."]
    for prior in dict.fromkeys(str(part["name"]) for part in parts):
        own = [part for part in parts if part["name"] == prior]
        seconds = sum(part["seconds"] for part in own)
        devices = ", ".join(sorted({str(part["device"]) for part in own}))
        lines.append(
            f"- Pre-training `{prior}` on process images: {len(own)} parts, {seconds:.0f} s on {devices}, up to step "
            f"{max(part['step'] for part in own)}. No record had a part in it; it was judged by probes on held-out "
            "training records (`prior/*.jsonl`)."
        )
    return "\n".join(lines) + "\n"


def _figure(made: Sequence[Cell]) -> Figure:
    """A panel a data set: our mean with its deviation, and the published figures."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for axes, (dataset, title) in zip(figure.subplots(1, len(paper.TITLES)), paper.TITLES.items(), strict=True):
        own = [cell for cell in made if cell.dataset == dataset]
        measured = [cell for cell in own if cell.runs]
        spreads = [statistics.stdev(cell.found) if len(cell.found) > 1 else 0.0 for cell in measured]
        axes.plot(
            *([cell.epsilon for cell in own], [BEST[dataset, cell.epsilon].accuracy for cell in own]),
            **{"color": _COLOURS[1], "marker": "s", "linestyle": "--", "label": "best published"},
        )
        axes.errorbar(
            [cell.epsilon for cell in measured],
            [statistics.mean(cell.found) for cell in measured],
            yerr=spreads,
            **{"color": _COLOURS[0], "marker": "o", "capsize": 3, "label": "ours"},
        )
        axes.set_xscale("log", base=2)
        axes.set_xticks(EPSILONS, [str(epsilon) for epsilon in EPSILONS])
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("ε")
        axes.grid(color="#d9d9d9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("test accuracy, %")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


FRONTIER = Artefact(
    name="frontier",
    about="our best recipe at ε = 1, 2, 4 and 8 beside the best published figures, and how it was found",
    rows="presets.jsonl",
    beside=("superseded.jsonl", "tuning/*.jsonl", "prior/*.jsonl"),
    draw=draw,
    jobs=jobs,
)
