"""The ablation's first phase: each variant's learning rate, chosen on held-out *training* records with equal effort.

Every variant of a net gets the same number of rates (`Net.rates`), one run each, with a seed that no test run has. What
scored best stands in `ablation_rates.toml`, which `experiments/choose_rates.py` writes and the test runs read. The
scores are un-noised: on private records such a choice would be outside the guarantee; these data sets are public.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources

from adadpigu.config import to_toml
from adadpigu.errors import InputError
from adadpigu_paper.reproduce.ablation_variants import NETS, VARIANTS, YARDSTICK, Net, quick_net
from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu_paper.reproduce.jobs import Job, Row
from adadpigu_paper.reproduce.keeping import tabled

TUNING_SEED = 1000
RATES_FILE = "ablation_rates.toml"
Rates = Mapping[str, Mapping[str, float]]
"""learning rates by net and variant"""


def tuning_jobs(scale: Scale) -> list[Job]:
    """A held-out run for each net, rate and variant, whole nets first; quick: DP-SGD at two rates, to see it work."""
    if scale.quick:
        net = quick_net()
        return [_job(net, YARDSTICK, rate) for rate in (net.rates[0], net.rates[0] / 2)]
    return [_job(net, variant, rate) for net in NETS.values() for rate in net.rates for variant in net.variants]


def _job(net: Net, name: str, rate: float) -> Job:
    variant = VARIANTS[name]
    config = net.job_config(variant, variant.lr(rate))
    return Job(name=job_name(net.name, name), config=config, seed=TUNING_SEED, score="held-out")


def job_name(net: str, variant: str) -> str:
    """What rows are found by."""
    return f"{net}/{variant}"


def parted(row: Row) -> tuple[str, str]:
    """The net and the variant of a row."""
    net, _, variant = str(row.get("name", "")).partition("/")
    if variant not in VARIANTS or (net != "quick" and net not in NETS):
        raise InputError(
            f"name={row.get('name')!r} is no row of the ablation; allowed: NET/VARIANT, with NET one of "
            f"{', '.join([*NETS, 'quick'])} and VARIANT one of {', '.join(VARIANTS)}"
        )
    return net, variant


def scores(rows: Sequence[Row]) -> dict[str, dict[str, dict[float, float]]]:
    """Held-out accuracy by net, variant and learning rate, in the order of tables; runs of one cell are averaged."""
    found: dict[tuple[str, str, float], list[float]] = {}
    for row in rows:
        if row.get("score") != "held-out":
            raise InputError(
                f"score={row.get('score')!r} of {row.get('name')!r}: rates are chosen by held-out rows only"
            )
        found.setdefault((*parted(row), float(row["config"]["lr"])), []).append(float(row["accuracy"]))
    ordered: dict[str, dict[str, dict[float, float]]] = {}
    for net in (*NETS, "quick"):
        for variant in VARIANTS:
            cells = {lr: sum(v) / len(v) for (n, name, lr), v in sorted(found.items()) if (n, name) == (net, variant)}
            if cells:
                ordered.setdefault(net, {})[variant] = cells
    return ordered


def choose(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The best rate of each variant whose whole grid was run, the smaller of equals; what is incomplete is left out."""
    chosen: dict[str, dict[str, float]] = {}
    for net, variants in scores(rows).items():
        if net not in NETS:
            continue
        for name, cells in variants.items():
            grid = _grid(net, name)
            if all(lr in cells for lr in grid):
                chosen.setdefault(net, {})[name] = best({lr: cells[lr] for lr in grid})
    return chosen


def _grid(net: str, name: str) -> list[float]:
    """The learning rates of a variant that a net asks for; the quick one asks for none."""
    return [VARIANTS[name].lr(rate) for rate in NETS[net].rates] if net in NETS else []


def written(rates: Rates) -> str:
    """The rates as the file's text."""
    head = "# The ablation's learning rates, chosen on held-out training records; made by experiments/choose_rates.py\n"
    return head + "".join(f"\n{to_toml({net: variants}).lstrip()}" for net, variants in rates.items())


def read_rates() -> dict[str, dict[str, float]]:
    """The rates that come with the package."""
    text = (resources.files("adadpigu_paper.reproduce") / RATES_FILE).read_text(encoding="utf-8")
    return {net: {name: float(lr) for name, lr in table.items()} for net, table in tomllib.loads(text).items()}


def draw(rows: Sequence[Row]) -> Drawn:
    """A table a net: held-out accuracy by variant and rate, the best one in bold, and how far its grids are run."""
    text = (
        "# Ablation, first phase: learning rates\n\n"
        "Accuracy in per cent on about 5,000 held-out training records by learning rate, one run each (the same seed "
        "for all, which no test run has); the best is bold. Every variant of a net is given the same number of rates; "
        "where the clipping bound differs from DP-SGD's, they are scaled so that a clipped step has the same length.\n"
    )
    told: list[Row] = []
    chosen = choose(rows)
    for net, variants in scores(rows).items():
        told += [
            {"net": net, "variant": name, "lr": lr, "accuracy": 100 * score, "best": lr == best(cells)}
            for name, cells in variants.items()
            for lr, score in cells.items()
        ]
        progress = f"{_progress(net, variants, chosen.get(net, {}))}\n\n" if net in NETS else ""
        text += f"\n## {NETS[net].title if net in NETS else 'quick'}\n\n{progress}{_table(net, variants)}\n"
    if not told:
        text += "\nNothing is measured.\n"
    return Drawn(markdown=text, rows=told)


def _progress(net: str, variants: Mapping[str, Mapping[float, float]], chosen: Mapping[str, float]) -> str:
    """How many grids are complete, and how many of the best rates are at the edge of what was tried."""
    edges = {"upper": 0, "lower": 0}
    for cells in variants.values():
        if len(cells) > 1 and best(cells) in (min(cells), max(cells)):
            edges["upper" if best(cells) == max(cells) else "lower"] += 1
    count = len(NETS[net].variants)
    waits = "" if len(chosen) == count else "; a grid that is not whole chooses no rate"
    return (
        f"Whole grids: {len(chosen)} of {count} variants{waits}. Best at the upper edge of what was tried: "
        f"{edges['upper']} of {len(variants)}; at the lower: {edges['lower']}."
    )


def best(cells: Mapping[float, float]) -> float:
    """The rate of the highest score, the smaller of equals."""
    return max(sorted(cells), key=cells.__getitem__)


def _table(net: str, variants: Mapping[str, Mapping[float, float]]) -> str:
    lines = {name: {**dict.fromkeys(_grid(net, name)), **cells} for name, cells in variants.items()}
    columns = max(len(line) for line in lines.values())
    body = []
    for name, line in lines.items():
        shown = [_cell(lr, line[lr], lr == best(variants[name])) for lr in sorted(line)]
        body.append([name, VARIANTS[name].about, *shown, *["not measured"] * (columns - len(shown))])
    return tabled(["variant", "what it is", *["lr: accuracy, %"] * columns], body)


def _cell(lr: float, score: float | None, bold: bool) -> str:
    if score is None:
        return f"{lr:g}: not measured"
    return f"{lr:g}: **{100 * score:.2f}**" if bold else f"{lr:g}: {100 * score:.2f}"


ABLATION_TUNING = Artefact(
    name="ablation-tuning",
    about="the ablation's learning rates, chosen on held-out training records",
    rows="paper/ablation-tuning.jsonl",
    draw=draw,
    jobs=tuning_jobs,
)
