"""Runs for the paper's figures of training on MNIST: what they share, and those over pruning rates with their means.

A pruning rate p is AdaDPIGU, the whole method, with retention r = 1 − p: a mask from the releases of stage 1 that grows
linearly, moving α and β. At p = 0 there is no mask; α, β and stage 1 are left. A seed fixes initial weights and never
batches or noise. Rows hold public values alone.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from adadpigu.errors import InputError
from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.jobs import Job, Row
from adadpigu_paper.reproduce.paired import LEVEL, Paired, corrected, critical, excludes_zero, holm, paired, verdict
from adadpigu_paper.reproduce.stand_in import quick_config

RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
QUICK_RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
RANKING = (0.4, 0.2, 0.3, 0.1)
"""the paper's, best first"""
CLIP_NORM = {"adadpigu": 0.5, "dpsgd": 0.5}
"""C by method: not in the paper; experiments/grids/paper-figures.toml chose it for DP-SGD and for the mask alone"""
STATISTICS: dict[str, Any] = {
    "mean_decay": 0.999,
    "variance_start": "stage-1",
    "per_layer": True,
    "debias": True,
    "normalise": True,
    "floor": 1e-12,
}
"""how α and β move: as tuning chose it for the preset mnist-adadpigu-eps4; C stays in units of the gradient"""
LEARNING_RATE = 0.1
"""as the paper has it for the two figures on pruning"""
MOMENTUM = 0.9
"""not in the paper"""
EPOCHS = 200.0
SEEDS = 5
"""planned for each rate"""
LATE = 0.25
"""the last share of the epochs that the sweep averages over: 50 of 200"""
_QUICK_EPOCHS = {"mnist": 0.5, "digits": 10.0}
BASELINE = None
"""stands for DP-SGD where a pruning rate would"""

Runs = dict[float | None, dict[int, Row]]
"""runs by pruning rate (None: DP-SGD) and seed"""
Name = TypeVar("Name")


def setting(scale: Scale) -> dict[str, Any]:
    """What the paper's three figures of training on MNIST share; a quick run is short and takes what is cached."""
    if scale.quick:
        base = quick_config("mnist", "mnist-cnn")
        return {**base, "epochs": _QUICK_EPOCHS[base["dataset"]], "momentum": MOMENTUM, "delta": 1e-5}
    full = {"dataset": "mnist", "model": "mnist-cnn", "batch_size": 1000, "epochs": EPOCHS}
    return {**full, "momentum": MOMENTUM, "delta": 1e-5}


def method_of(name: str, **options: object) -> dict[str, Any]:
    """A method with the C that was chosen for it, as keys of a run config."""
    return {"method": name, "method_options": {"clip_norm": CLIP_NORM[name], **options}}


def whole(retention: float) -> dict[str, Any]:
    """AdaDPIGU with a retention: what the paper's figures train."""
    return method_of("adadpigu", retention=retention, **STATISTICS)


def jobs(scale: Scale) -> list[Job]:
    """DP-SGD and every pruning rate, seed by seed, so that those that are done can be compared in pairs."""
    base = {**setting(scale), "lr": LEARNING_RATE, "epsilon": 4.0, "evaluate_every": 20 if scale.quick else 60}
    methods = {"pruning-dpsgd": method_of("dpsgd")}
    for rate in QUICK_RATES if scale.quick else RATES:
        methods[f"pruning-{rate:g}"] = whole(round(1 - rate, 1))
    return [Job(name, {**base, **method}, seed) for seed in scale.runs(SEEDS) for name, method in methods.items()]


def rate_of(row: Row) -> float | None:
    """The pruning rate of a run; None for DP-SGD."""
    if row["config"]["method"] == "dpsgd":
        return BASELINE
    return round(1 - float(row["config"]["method_options"]["retention"]), 6)


def runs_by_rate(rows: Sequence[Row]) -> Runs:
    """The runs in order: DP-SGD, then by rising rate; within, by seed. Two of the same rate and seed are refused."""
    found: Runs = {}
    for row in sorted(rows, key=lambda row: (rate_of(row) is not None, rate_of(row) or 0.0, int(row["seed"]))):
        runs = found.setdefault(rate_of(row), {})
        if row["seed"] in runs:
            raise InputError(f"{row['name']}, seed {row['seed']} is there twice; allowed: runs of one setting a file")
        runs[row["seed"]] = row
    return found


def late_points(row: Row) -> list[float]:
    """Test accuracies (%) over the last share of a run's epochs."""
    accuracies = [100 * float(point["accuracy"]) for point in row["curve"]]
    return accuracies[-max(1, round(LATE * len(accuracies))) :]


def late_means(runs: Mapping[int, Row]) -> dict[int, float]:
    """The mean of the late epochs, by seed."""
    return {seed: statistics.fmean(late_points(row)) for seed, row in runs.items()}


def late_fluctuations(runs: Mapping[int, Row]) -> dict[int, float]:
    """The standard deviation over the late epochs, points, by seed."""
    return {seed: statistics.pstdev(late_points(row)) for seed, row in runs.items()}


def not_told_apart(values: Mapping[Name, Mapping[int, float]], chosen: Name) -> list[Name]:
    """Those whose paired difference from the chosen one has a 95 % interval with 0 in it, or has none; not corrected.

    >>> not_told_apart({"a": {0: 1.0, 1: 2.0}, "b": {0: 1.1, 1: 1.9}, "c": {0: 5.0, 1: 6.01}}, "a")
    ['b']
    """
    found = {name: paired(value, values[chosen]) for name, value in values.items() if name != chosen}
    return [name for name, difference in found.items() if not excludes_zero(difference)]


def shown_from(family: Mapping[Name, Paired | None]) -> dict[Name, float | None]:
    """The least |mean difference| that Holm's test would show of each comparison, at its spread and the others' p.

    With k of the other m − 1 shown it is held to LEVEL/(m − k). None where there is no spread, with one pair.
    """
    tested = {name: found.p for name, found in family.items() if found is not None and found.p is not None}
    bounds: dict[Name, float | None] = dict.fromkeys(family)
    for name in tested:
        found = family[name]
        if found is None or found.low is None or found.high is None:
            continue
        others = holm([1.0 if other == name else p for other, p in tested.items()])
        left = len(tested) - sum(p < LEVEL for p in others)
        bounds[name] = (found.high - found.low) / 2 * critical(found.pairs, left) / critical(found.pairs, 1)
    return bounds


def sweep(runs: Runs) -> list[Row]:
    """For DP-SGD and each rate: the late mean over seeds, and how it differs from DP-SGD's."""
    means = {rate: late_means(found) for rate, found in runs.items()}
    family: dict[float | None, Paired | None] = {
        rate: paired(mean, means.get(BASELINE, {})) for rate, mean in means.items() if rate is not BASELINE
    }
    p, bounds = corrected(family), shown_from(family)
    return [
        {
            "method": "dpsgd" if rate is BASELINE else "adadpigu",
            "pruning_rate": rate,
            "mean": statistics.fmean(mean.values()),
            "std": _std(list(mean.values())),
            "seeds": len(mean),
            "clip_norm": _clip_norm(runs[rate]),
            "noise_multiplier": max(row["noise_multiplier"] for row in runs[rate].values()),
            "claim": paper.PRUNING_BASELINE if rate is BASELINE and _on_mnist(runs[rate]) else None,
            **_compared(family.get(rate), p.get(rate)),
            "shown_from": bounds.get(rate),
        }
        for rate, mean in means.items()
    ]


def _compared(found: Paired | None, p: float | None) -> Row:
    return {
        "pairs": 0 if found is None else found.pairs,
        "difference": None if found is None else found.mean,
        "low": None if found is None else found.low,
        "high": None if found is None else found.high,
        "p_holm": p,
        "excludes_zero": excludes_zero(found),
        "verdict": verdict(found, p),
    }


def curves(runs: Runs) -> list[Row]:
    """For DP-SGD and each rate: test accuracy (%) over the epochs, and how much it moves in the late ones."""
    return [_curve(rate, found) for rate, found in runs.items()]


def _curve(rate: float | None, by_seed: Mapping[int, Row]) -> Row:
    runs = list(by_seed.values())
    first = runs[0]
    steps = [point["step"] for point in first["curve"]]
    if any([point["step"] for point in run["curve"]] != steps for run in runs):
        raise InputError(f"runs of {first['name']} look after different steps; allowed: runs of one setting a file")
    found = list(zip(*([100 * point["accuracy"] for point in run["curve"]] for run in runs), strict=True))
    return {
        "method": first["config"]["method"],
        "pruning_rate": rate,
        "seeds": len(runs),
        "epochs": [step * first["config"]["epochs"] / first["steps"] for step in steps],
        "mean": [statistics.fmean(values) for values in found],
        "std": [_std(values) for values in found],
        "late_fluctuation": statistics.fmean(late_fluctuations(by_seed).values()),
        "claim": None,
    }


def _std(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _clip_norm(runs: Mapping[int, Row]) -> float:
    return max(float(row["config"]["method_options"]["clip_norm"]) for row in runs.values())


def _on_mnist(runs: Mapping[int, Row]) -> bool:
    return all(row["config"]["dataset"] == "mnist" for row in runs.values())


def shortened(rows: Sequence[Row]) -> bool:
    """Whether runs are shorter than the paper's, so that its figures are no measure for them."""
    return any(row["config"]["epochs"] < EPOCHS for row in rows)


def seeds_told(rows: Sequence[Row], planned: int | None) -> str:
    """How many seeds a setting (a name) has, least to most, and how many were planned where one has fewer.

    >>> seeds_told([{"name": "a", "seed": 0}, {"name": "a", "seed": 1}, {"name": "b", "seed": 1}], 3)
    '1 to 2 of 3 planned'
    """
    counts = Counter(name for name, _ in {(row["name"], row["seed"]) for row in rows}).values()
    least, most = min(counts), max(counts)
    told = f"{least}" if least == most else f"{least} to {most}"
    return told if planned is None or least >= planned else f"{told} of {planned} planned"


def protocol(rows: Sequence[Row], planned: int) -> str:
    """How runs were made; what differs between them as a span. Of seeds so many were planned, if not for quick runs."""
    configs = [row["config"] for row in rows]
    facts = [
        _span("B", [config["batch_size"] for config in configs]),
        _span("lr", [config["lr"] for config in configs]),
        _span("momentum", [config["momentum"] for config in configs]),
        _span("C", [config["method_options"]["clip_norm"] for config in configs]),
        _span("σ", [row["noise_multiplier"] for row in rows]),
        _span("ε", [row["epsilon"] for row in rows]) + " by PLD",
        _span("δ", [config["delta"] for config in configs]),
        _span("epochs", [config["epochs"] for config in configs]),
        _span("steps of all stages", [row["steps"] for row in rows]),
        f"seeds a setting = {seeds_told(rows, None if shortened(rows) else planned)}",
    ]
    nets = ", ".join(sorted({f"{config['dataset']}, net {config['model']}" for config in configs}))
    devices = ", ".join(sorted({row["device"] for row in rows}))
    return (
        f"Protocol: {nets}; {'; '.join(facts)}; Poisson sampling, add or remove one record; last iterate, weights not "
        f"averaged; trained on {devices}. The paper gives neither C nor momentum: both are ours."
        + (
            f" **Shorter than the paper's {EPOCHS:g} epochs: its figures are no measure here.**"
            if shortened(rows)
            else ""
        )
    )


def _span(name: str, values: Sequence[float]) -> str:
    low, high = (f"{value:,}" if isinstance(value, int) else f"{value:.4g}" for value in (min(values), max(values)))
    return f"{name} = {low}" if low == high else f"{name} from {low} to {high}"
