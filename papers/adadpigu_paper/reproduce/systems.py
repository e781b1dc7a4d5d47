"""Every system that the paper names on one table: test accuracy of its presets, against DP-SGD on the same net.

Rows are those of the accuracy table: runs of presets, each once per seed. The yardstick of a system is DP-SGD with the
net and the inputs that the system has, at the same ε.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adadpigu.config import all_presets, read_preset
from adadpigu.methods import make_method
from adadpigu.methods.standalone import Standalone
from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.accuracy_table import SHORT, Cell, preset_cell, runs_of
from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu_paper.reproduce.jobs import Job, Row
from adadpigu_paper.reproduce.paired import Paired, Verdict, corrected, unpaired, verdict
from adadpigu_paper.reproduce.stand_in import quick_config

SEEDS = 5
EPSILONS = (2, 4)
FURTHER = {"gep": (8,), "dpsgd": (8,)}
"""ε beyond those of all"""
LOCAL = "fedsel"
"""whose ε is another guarantee's"""
SYSTEMS = (
    *("dpsgd", "perturbed-clipping", "per-layer", "quantile", "slaclip", "adaclip", "scale-then-privatise"),
    *("projected-dpsgd", "pcdp-sgd", "gep", "gradient-encoding-public", "gradient-encoding", "rgp", "powersgd", "dpdr"),
    *("random-freeze", "parameter-freezing", "parameter-selection", "tp-topk", "adadpigu", "dpis", "dpis-kept"),
    *("ts", "hf", "linear-probing", "dpsur", "objective-perturbation", "output-perturbation"),
)
"""rows of a table, in the order of what they do: the clip, directions, masks, sampling, inputs, one release"""
YARDSTICKS = dict.fromkeys(("dpsur",), "hf") | dict.fromkeys(
    ("objective-perturbation", "output-perturbation"), "linear-probing"
)
"""by system; of all others it is dpsgd"""
OTHER_INPUTS = ("hf", "linear-probing")
"""that train another net, on features, than the yardstick they are shown beside"""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A cell beside its yardstick."""

    cell: Cell
    beside: Cell | None
    found: Paired | None
    p: float | None
    """after Holm's correction over all of the table"""

    @property
    def verdict(self) -> Verdict:
        return verdict(self.found, self.p)

    def row(self) -> Row:
        """As JSON."""
        told = self.cell.row() | {"verdict": self.verdict, "p_holm": self.p}
        told["against"] = None if self.beside is None else self.beside.method
        found = self.found
        return told if found is None else told | {"difference": found.mean, "low": found.low, "high": found.high}


def preset_of(system: str, dataset: str, epsilon: int) -> str:
    """The preset of a cell. Linear probing has that of the recipe that trains a linear layer."""
    short = SHORT[dataset]
    if system == "linear-probing":
        system = "hf" if (short, epsilon) == ("mnist", 2) else "best"
    return f"{short}-{system}-{'local' if system == LOCAL else 'eps'}{epsilon}"


def keys() -> list[tuple[str, str, int]]:
    """Data set, system and ε of each cell that has a preset."""
    every = [
        (dataset, system, epsilon)
        for dataset in paper.TITLES
        for system in (*SYSTEMS, LOCAL)
        for epsilon in (*EPSILONS, *FURTHER.get(system, ()))
    ]
    return [key for key in every if preset_of(key[1], key[0], key[2]) in all_presets()]


def jobs(scale: Scale) -> list[Job]:
    """Every preset, seed by seed: ε = 4 first, then 2, then 8; quick: each system once, a few steps."""
    if scale.quick:
        return [replace(job, seed=seed) for seed in scale.runs(1) for job in _quick_jobs()]
    ordered = sorted(keys(), key=lambda key: (4, 2, 8).index(key[2]))
    names = dict.fromkeys(preset_of(system, dataset, epsilon) for dataset, system, epsilon in ordered)
    return [Job(name, read_preset(name), seed) for seed in scale.runs(SEEDS) for name in names]


def _quick_jobs() -> list[Job]:
    """MNIST's presets at ε = 4 for some steps on what is at hand, without features; heads on pixels."""
    made: dict[str, Job] = {}
    for system in (*SYSTEMS, LOCAL):
        name = preset_of(system, "mnist", 4)
        config = dict(read_preset(name))
        if isinstance(make_method(str(config["method"])), Standalone):
            kept = ("epsilon", "lr", "method", "method_options")
            config = {key: config[key] for key in kept if key in config} | {"dataset": "digits", "model": "linear"}
        else:
            config |= {**quick_config("mnist", "mnist-cnn"), "steps": 20, "copies": 1, "shift": 0}
            config |= {"features": "none", "normalisation": "none"}
        made[name] = Job(name, config, 0)
    return list(made.values())


def compared(rows: Sequence[Row]) -> list[Compared]:
    """All cells, each beside its yardstick, and corrected p over all that could be tested."""
    runs = runs_of(rows)
    cells = {key: preset_cell(preset_of(key[1], key[0], key[2]), runs, key, None) for key in keys()}
    beside = {key: cells.get((key[0], YARDSTICKS.get(key[1], "dpsgd"), key[2])) for key in cells}
    tested = {
        key: unpaired(cell.found, other.found) if (other := beside[key]) is not None else None
        for key, cell in cells.items()
        if key[1] not in ("dpsgd", LOCAL)
    }
    adjusted = corrected(tested)
    return [
        Compared(cell=cell, beside=beside[key], found=tested.get(key), p=adjusted.get(key))
        for key, cell in cells.items()
    ]


def draw(rows: Sequence[Row]) -> Drawn:
    """The table of each data set, what follows from it in words, and the figure."""
    from adadpigu_paper.reproduce.systems_drawing import page
    from adadpigu_paper.reproduce.systems_figure import figure

    found = compared(rows)
    quick = any(row.get("quick") for row in rows)
    figures = {"systems": figure(found)} if any(one.found is not None for one in found) else {}
    return Drawn(markdown=page(found, quick=quick), rows=[one.row() for one in found], figures=figures)


SYSTEMS_TABLE = Artefact(
    name="systems",
    about="every system that the paper names, on three data sets, against DP-SGD on the same net",
    rows="presets.jsonl",
    beside=("tuning/*.jsonl",),
    draw=draw,
    jobs=jobs,
)
