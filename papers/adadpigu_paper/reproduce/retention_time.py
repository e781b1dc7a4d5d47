"""What a step costs by the share of weights that its mask keeps: the method's own steps, on random records.

Settings take turns, round by round, each in a run of its own whose first steps do not count; a round's ratio is a
setting's time over that of r = 1, no mask, in the same round. The mask is held, so that each step keeps the share r.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu_paper.reproduce.jobs import Row, commit, device_name
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.paired import LEVEL, Paired, corrected, paired, verdict
from adadpigu_paper.reproduce.retention_runs import RETENTIONS, preset

if TYPE_CHECKING:
    from adadpigu.training import Facts, Metrics, Run

BASELINE = None
"""stands for DP-SGD where a retention would"""
_FASTER = {
    "better": "slower",
    "worse": "faster",
    "no difference shown": "no difference shown",
    "not tested": "not tested",
}
"""what a difference of times means"""
_HELD = {"schedule": "constant", "importance_steps": 1}


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long is timed."""

    retentions: tuple[float, ...] = RETENTIONS
    batch: int = 2048
    rounds: int = 9
    warm_up: int = 60
    steps: int = 300


_FULL = Pace()
_ON_A_CPU = Pace(batch=512, rounds=15, warm_up=3, steps=6)
_QUICK = Pace(retentions=(0.2, 0.6, 1.0), batch=128, rounds=2, warm_up=3, steps=4)


def compute(scale: Scale) -> list[Row]:
    """A row for each round and setting, on a GPU where there is one; the machine has to be idle otherwise."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return timed(_QUICK if scale.quick else _FULL if device == "cuda" else _ON_A_CPU, device)


def timed(pace: Pace, device: str) -> list[Row]:
    """Milliseconds a step, round by round; within a round the order moves on."""
    import torch

    from adadpigu.accounting import library_versions

    facts = {
        "net": "mnist-cnn",
        "batch": pace.batch,
        "steps": pace.steps,
        "device": device_name(torch.device(device)),
        "commit": commit(),
        "torch": library_versions()["torch"],
    }
    settings: list[float | None] = [BASELINE, *pace.retentions]
    rows = []
    for number in range(pace.rounds):
        shift = number % len(settings)
        for retention in settings[shift:] + settings[:shift]:
            ms = _milliseconds(retention, pace, device)
            rows.append({"retention": retention, "round": number, "ms": ms, **facts})
    return rows


def _milliseconds(retention: float | None, pace: Pace, device: str) -> float:
    from adadpigu.methods import make_method
    from adadpigu.training import train_prepared
    from adadpigu_bench.contestants import CLIP_NORM, Task
    from adadpigu_bench.ours import prepared

    task = Task(net="mnist-cnn", batch=pace.batch, device=device, steps=pace.warm_up + pace.steps)
    options: dict[str, Any] = {**preset()["method_options"], "retention": retention, **_HELD}
    method = (
        make_method("dpsgd", {"clip_norm": CLIP_NORM}) if retention is BASELINE else make_method("adadpigu", options)
    )
    clock = _Clock(device, warm_up=pace.warm_up)
    train_prepared(prepared(task, method, "auto"), observers=[clock])
    return 1000 * (clock.times[1] - clock.times[0]) / pace.steps


@dataclass
class _Clock:
    """The observer that looks at the time when the first steps are taken, and at the end."""

    device: str
    warm_up: int
    times: list[float] = field(default_factory=list)

    def begin(self, facts: Facts) -> None:
        return None

    def update(self, metrics: Metrics) -> None:
        from adadpigu_bench.contestants import synchronise

        if metrics.step in (self.warm_up, metrics.steps):
            synchronise(self.device)
            self.times.append(time.perf_counter())

    def end(self, run: Run) -> None:
        return None


def times(rows: Sequence[Row]) -> list[Row]:
    """For DP-SGD and each retention: the median ms of a step, the median, least and largest ratio to r = 1, its p.

    Logarithms of the ratios are tested over the rounds, with Holm's correction over all masks.
    """
    by_round: dict[float | None, dict[int, float]] = {}
    for row in rows:
        by_round.setdefault(row["retention"], {})[row["round"]] = row["ms"]
    whole = by_round.get(1.0, {})
    logs = {r: {n: math.log(ms) for n, ms in measured.items()} for r, measured in by_round.items()}
    family: dict[float | None, Paired | None] = {
        r: paired(its, logs.get(1.0, {})) for r, its in logs.items() if r not in (BASELINE, 1.0)
    }
    p = corrected(family)
    found: list[Row] = []
    for retention in sorted(by_round, key=lambda r: (r is not BASELINE, r or 0.0)):
        measured = by_round[retention]
        ratios = [measured[number] / whole[number] for number in sorted(measured.keys() & whole.keys())]
        found.append(
            {
                "retention": retention,
                "ms": median(measured.values()),
                "rounds": len(measured),
                "ratio": median(ratios) if ratios else None,
                "least": min(ratios, default=None),
                "most": max(ratios, default=None),
                "p_holm": p.get(retention),
                "verdict": _FASTER[verdict(family.get(retention), p.get(retention))],
            }
        )
    return found


def draw(rows: Sequence[Row]) -> Drawn:
    """A table; the figure is that of `retention`, where accuracy stands beside it."""
    title = "# Time of a step by retention\n\n"
    if not rows:
        return Drawn(markdown=f"{title}Nothing was measured.\n", rows=[])
    found = times(rows)
    body = [[_name(row["retention"]), f"{row['ms']:.3f}", ratio_told(row)] for row in found]
    text = f"{title}{protocol(rows)}\n\n{tabled(['r', 'ms a step', 'times that of r = 1'], body)}\n\n- {cost(found)}\n"
    return Drawn(markdown=text, rows=found)


def _name(retention: float | None) -> str:
    return "DP-SGD" if retention is BASELINE else f"{retention:g}"


def ratio_told(row: Row) -> str:
    """A ratio with the least and the largest of the rounds."""
    if row["ratio"] is None:
        return "not measured"
    return f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"


def protocol(rows: Sequence[Row]) -> str:
    """How times were taken."""
    first, rounds = rows[0], len({row["round"] for row in rows})
    return (
        f"Time: steps of stage 2 of {first['net']} with a held mask, B = {first['batch']:,}, median of {rounds} rounds "
        f"of {first['steps']} steps in which settings take turns, one process on {first['device']}; ratios are within "
        "a round, their range in brackets."
    )


def cost(found: Sequence[Row]) -> str:
    """What the times say about the paper's claim that masks reduce cost."""
    masked = [row for row in found if row["retention"] not in (BASELINE, 1.0) and row["ratio"] is not None]
    if not masked:
        return "Whether a mask reduces the cost of a step is not measured."
    saving = [f"{row['retention']:g}" for row in masked if row["verdict"] == "faster"]
    word = "is not borne out"
    if saving:
        word = "is borne out" if len(saving) == len(masked) else f"is borne out for r = {', '.join(saving)} alone"
    fastest, slowest = (choose(masked, key=lambda row: float(row["ratio"])) for choose in (min, max))
    baseline = next((row for row in found if row["retention"] is BASELINE and row["ratio"] is not None), None)
    beside = (
        "" if baseline is None else f" A step of DP-SGD takes {ratio_told(baseline)} times as long as one at r = 1."
    )
    return (
        f"The paper's claim that the mask reduces cost {word} (paired t-test over the rounds, p < {LEVEL:g} after "
        "Holm's correction). "
        f"At best, at r = {fastest['retention']:g}, a step takes {ratio_told(fastest)} times as long as without one; "
        f"at worst, at r = {slowest['retention']:g}, {ratio_told(slowest)}.{beside} A mask that grows to all weights, "
        "as the method's does, costs between that of its r and that of r = 1."
    )


RETENTION_TIME = Artefact(
    name="retention-time",
    about="time of a step against the share of weights that the mask keeps, on an idle device",
    rows="paper/retention-time.jsonl",
    draw=draw,
    compute=compute,
)
