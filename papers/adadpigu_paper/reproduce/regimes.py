"""Where AdaDPIGU could beat DP-SGD: a net that starts from the prior, of which the head matters first.

All variants spend the same ε by the same steps and batches, see the same mirrored images and average over the same
views; each gets the same number of learning rates, on held-out training records with a seed that no test run has. Test
runs share seeds, so that differences are paired.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu_paper.reproduce.jobs import Job, Row
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.paired import LEVEL, Paired, corrected, paired, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, TUNING_SEED = 5, 1000
EPSILONS = (4.0, 8.0)
RATES = (0.06, 0.17, 0.5)
HEAD = 0.028
"""share of the weights of `prior-whole` that training begins with: its head (77,290 of 2,776,298), and a few more"""
_COMMON = {
    "dataset": "cifar10",
    "delta": 1e-5,
    "batch_size": 2048,
    "steps": 100,
    "momentum": 0.9,
    "flip": True,
    "views": "mirror",
    "ema": 0.95,
}
_WHOLE = {"model": "prior-whole", "physical_batch_size": 512}
_OPENING = {"retention": HEAD, "unfreeze_to": 0.2, "head_first": True, "schedule": "linear", "score": "public"}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way to spend the budget."""

    name: str
    about: str
    method: str = "dpsgd"
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=lambda: dict(_WHOLE))

    @property
    def of_adadpigu(self) -> bool:
        """Whether it is the method that is asked about, rather than something to compare it with."""
        return self.method == "adadpigu"

    def job_config(self, epsilon: float, rate: float) -> dict[str, Any]:
        """A run config."""
        options = {"clip_norm": 1.0, **self.options}
        return {
            **{**_COMMON, **self.config, "epsilon": epsilon, "lr": rate},
            **{"method": self.method, "method_options": options},
        }


_ALL = (
    Variant(name="all", about="DP-SGD on all layers"),
    Variant(
        name="head",
        about="DP-SGD on the head, the encoder fixed",
        config={"model": "linear", "features": "prior", "normalisation": "record"},
    ),
    Variant(
        name="random",
        about="the head, then weights by chance, a mask alone",
        method="masked",
        options={**_OPENING, "score": "random", "importance_steps": 1},
    ),
    Variant(
        name="masked",
        about="the head, then weights by their importance on process images, a mask alone",
        method="masked",
        options=_OPENING,
    ),
    Variant(
        name="adadpigu",
        about="AdaDPIGU: so, with moving statistics",
        method="adadpigu",
        options={**_OPENING, "mean_decay": 0.999},
    ),
    Variant(
        name="adadpigu-released",
        about="AdaDPIGU: importance from releases, stage 1 a tenth of the steps",
        method="adadpigu",
        options={**_OPENING, "score": "absolute", "mean_decay": 0.999, "importance_steps": 10},
    ),
)
VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _ALL}
"""in the order of the table; those of AdaDPIGU are compared with the others"""
YARDSTICKS = tuple(name for name, variant in VARIANTS.items() if not variant.of_adadpigu)


def job_name(epsilon: float, variant: str) -> str:
    """What rows are found by."""
    return f"eps{epsilon:g}/{variant}"


def tuning(scale: Scale) -> list[Job]:
    """A held-out run for each ε, rate and variant; quick: two variants on digits."""
    if scale.quick:
        return [Job(job_name(4.0, name), _quick(name), TUNING_SEED, "held-out") for name in ("all", "adadpigu")]
    return [
        Job(job_name(epsilon, name), variant.job_config(epsilon, rate), TUNING_SEED, "held-out")
        for epsilon in EPSILONS
        for rate in RATES
        for name, variant in VARIANTS.items()
    ]


def _quick(name: str) -> dict[str, Any]:
    options = {} if name == "all" else {"retention": 0.5, "head_first": True, "importance_steps": 2}
    method = {"method": VARIANTS[name].method, "method_options": {"clip_norm": 0.1, **options}}
    return {"dataset": "digits", "model": "digits-mlp", "epsilon": 4.0, "batch_size": 256, "steps": 30, **method}


def final(scale: Scale, rows: Sequence[Row]) -> list[Job]:
    """The test runs: of each variant whose whole grid was scored, at its best rate."""
    chosen = {name: config for name, config in best_of(rows).items() if config is not None}
    return [Job(name, config, seed) for seed in scale.runs(SEEDS) for name, config in chosen.items()]


def best_of(rows: Sequence[Row]) -> dict[str, dict[str, Any] | None]:
    """The config of the highest held-out score, the smaller rate of equals; None where the grid is not whole."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["score"] == "held-out":
            found.setdefault(row["name"], []).append(row)
    whole = {
        name: runs[0].get("quick") or len({r["config"]["lr"] for r in runs}) == len(RATES)
        for name, runs in found.items()
    }

    def rank(row: Row) -> tuple[float, float]:
        return row["accuracy"], -row["config"].get("lr", 0.0)

    return {name: dict(max(runs, key=rank)["config"]) if whole[name] else None for name, runs in found.items()}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """AdaDPIGU beside a yardstick, over the seeds that both have."""

    epsilon: float
    variant: str
    yardstick: str
    found: Paired
    p: float | None

    @property
    def verdict(self) -> str:
        return verdict(self.found, self.p)


def accuracies(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """In percent, by name and seed, of the test runs at the rate that the held-out rows choose."""
    chosen = best_of(rows)
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["score"] == "test" and row["config"] == chosen.get(row["name"]):
            found.setdefault(row["name"], {})[row["seed"]] = 100 * row["accuracy"]
    return found


def comparisons(rows: Sequence[Row]) -> list[Compared]:
    """Each variant of AdaDPIGU against each yardstick; one family of Holm's correction in all."""
    found = accuracies(rows)
    pairs = {}
    for epsilon in EPSILONS:
        for name in (name for name, variant in VARIANTS.items() if variant.of_adadpigu):
            for other in YARDSTICKS:
                ours, theirs = (found.get(job_name(epsilon, one), {}) for one in (name, other))
                if (difference := paired(ours, theirs)) is not None:
                    pairs[epsilon, name, other] = difference
    adjusted = corrected(pairs)
    return [
        Compared(epsilon=key[0], variant=key[1], yardstick=key[2], found=pairs[key], p=adjusted[key]) for key in pairs
    ]


def draw(rows: Sequence[Row]) -> Drawn:
    """A table of accuracies, one of differences, the answer in words, and a figure."""
    found, compared = accuracies(rows), comparisons(rows)
    text = "# Does AdaDPIGU beat DP-SGD where a net starts from the prior?\n\n" + _protocol(rows) + "\n\n"
    body = []
    told: list[Row] = []
    for name, scores in found.items():
        epsilon, _, variant = name.partition("/")
        values = list(scores.values())
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        lr = str(next(row["config"].get("lr", "") for row in rows if row["name"] == name and row["score"] == "test"))
        shown = f"{statistics.mean(values):.2f}{spread}, {len(values)} seeds"
        body.append([epsilon.removeprefix("eps"), variant, VARIANTS[variant].about, lr, shown])
        told.append({"name": name, "mean": statistics.mean(values), "seeds": len(values)})
    text += tabled(["ε", "variant", "what it is", "lr", "accuracy, %"], body) + "\n\n"
    if compared:
        head = ["ε", "variant", "against", "difference, points [95 %]", "p (Holm)", "verdict"]
        text += tabled(head, [_line(one) for one in compared]) + "\n\n"
    text += "## In short\n\n" + _answer(compared)
    return Drawn(markdown=text, rows=told, figures={"frontier-regimes": _figure(compared)})


def _protocol(rows: Sequence[Row]) -> str:
    tests = [row for row in rows if row["score"] == "test"]
    if any(row.get("quick") for row in rows):
        return "**A quick version: a few steps on the digits, to see that all works; figures mean nothing.**"
    devices = ", ".join(sorted({str(row["device"]) for row in tests})) or "no device yet"
    return (
        f"CIFAR-10; B = {_COMMON['batch_size']}, T = {_COMMON['steps']}, C = 1, records mirrored by chance, outputs "
        f"averaged over both mirror images; each variant's learning rate is the best of {len(RATES)} on held-out "
        f"training records. Differences are paired by seed; p is two-sided, after Holm's correction over all of them. "
        f"Test runs on {devices}."
    )


def _line(one: Compared) -> list[str]:
    found = one.found
    interval = "" if found.low is None or found.high is None else f" [{found.low:+.2f}, {found.high:+.2f}]"
    chance = "" if one.p is None else "< 0.001" if one.p < 0.001 else f"{one.p:.3f}"
    return [f"{one.epsilon:g}", one.variant, one.yardstick, f"{found.mean:+.2f}{interval}", chance, one.verdict]


def _answer(compared: Sequence[Compared]) -> str:
    """In words, for each yardstick."""
    lines = []
    for other in YARDSTICKS:
        own = [one for one in compared if one.yardstick == other]
        won = [f"{one.variant} at ε = {one.epsilon:g}" for one in own if one.verdict == "better"]
        told = (
            f"better by {', '.join(won)}" if won else "no difference in its favour is shown" if own else "not measured"
        )
        lines.append(f"- AdaDPIGU against {VARIANTS[other].about}: {told} (level {LEVEL:g}).\n")
    return "".join(lines)


def _figure(compared: Sequence[Compared]) -> Figure:
    """The differences with their intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.4 + 0.3 * max(1, len(compared))), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    colours = {"better": "#1b6ca8", "worse": "#c8553d"}
    for place, one in enumerate(compared):
        colour = colours.get(one.verdict, "#7a7a7a")
        if one.found.low is not None and one.found.high is not None:
            axes.plot([one.found.low, one.found.high], [place, place], color=colour, linewidth=1.4)
        axes.plot([one.found.mean], [place], "o", color=colour, markersize=5)
    labels = [f"ε = {one.epsilon:g}: {one.variant} − {one.yardstick}" for one in compared]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("difference, points (95 % interval each; colour: after Holm's correction)", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


REGIMES = Artefact(
    name="frontier-regimes",
    about="AdaDPIGU against DP-SGD on all layers, on the head and in random order, from the prior's weights",
    rows="paper/frontier-regimes.jsonl",
    draw=draw,
    jobs=tuning,
    then=final,
)
