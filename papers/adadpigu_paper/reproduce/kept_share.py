"""What share of the drawn records DPIS keeps: mean of min(1, ‖g_i‖/C) while it trains. Un-noised: under Diagnostics.

A record's coin keeps it with that probability, so q times the share is the rate at which records are kept. It tells at
which batch size DPIS keeps as many records as DP-SGD draws (the presets `dpis-kept`).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import cast

from adadpigu.config import all_presets, read_preset
from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu_paper.reproduce.jobs import Job, Row
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.looks import KEPT_RECORDS
from adadpigu_paper.reproduce.stand_in import quick_config
from adadpigu_paper.reproduce.systems import EPSILONS, preset_of

_LOOKS = 20


def jobs(scale: Scale) -> list[Job]:
    """One run of each preset that is meant to keep as many records as DP-SGD draws; quick: one at ε = 4."""
    made = []
    for dataset in paper.TITLES:
        for epsilon in EPSILONS:
            names = [preset_of(system, dataset, epsilon) for system in ("dpis-kept", "dpis")]
            config = dict(read_preset(next(name for name in names if name in all_presets())))
            if scale.quick:
                config |= {**quick_config(dataset, "mnist-cnn"), "steps": _LOOKS, "copies": 1, "shift": 0}
            every = max(1, cast(int, config["steps"]) // _LOOKS)
            config |= {"diagnostics": True, "evaluate_every": every}
            made.append(Job(f"kept-share/{dataset}-eps{epsilon}", config, 0, look="kept-share"))
    return made[1:2] if scale.quick else made


def draw(rows: Sequence[Row]) -> Drawn:
    """A line a run."""
    lines, told = [], []
    for row in rows:
        name, epsilon = row["name"].partition("/")[2].rsplit("-eps", 1)
        plain = read_preset(preset_of("dpsgd", name, int(epsilon)))["batch_size"]
        drawn, share = row["config"]["batch_size"], fmean(seen["kept"] for seen in row["seen"])
        told.append({"dataset": name, "epsilon": int(epsilon), "drawn": drawn, "share": share, "dpsgd": plain})
        ends = " to ".join(f"{row['seen'][end]['kept']:.2f}" for end in (0, -1))
        kept = [f"{share:.2f} ({ends})", f"{share * drawn:,.0f}"]
        lines.append([paper.TITLES[name], epsilon, f"{drawn:,}", *kept, f"{plain:,}"])
    head = ["data set", "ε", "drawn by DPIS", "kept (first look to last)", "records kept", "drawn by DP-SGD"]
    text = "# What share of the drawn records DPIS keeps\n\nmin(1, ‖g‖/C), mean over the looks of a run at its first "
    text += f"{KEPT_RECORDS:,} training records.\n\n{tabled(head, lines)}\n"
    return Drawn(markdown=text if lines else f"{text}\nNothing is measured.\n", rows=told, exposed=bool(lines))


KEPT_SHARE = Artefact(
    name="kept-share",
    about="the share of drawn records that DPIS keeps, by which it is compared with DP-SGD at equal records",
    rows="paper/kept-share.jsonl",
    draw=draw,
    jobs=jobs,
)
