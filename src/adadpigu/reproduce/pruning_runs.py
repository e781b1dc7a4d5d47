"""Runs for the paper's figures of training on MNIST: what they share, and those over pruning rates with their means.

A pruning rate p is AdaDPIGU with retention r = 1 − p: a mask learned from the releases of stage 1 and then held, with
α = 0 and β = 1 held too. At p = 0 there is no mask and no stage 1, and what is left is DP-SGD: the difference between
those two is chance, since a seed fixes initial weights and never batches or noise. Rows hold public values alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from adadpigu.errors import InputError
from adadpigu.reproduce import paper
from adadpigu.reproduce.artefact import Scale
from adadpigu.reproduce.jobs import Job, Row
from adadpigu.reproduce.paired import Paired, corrected, paired, verdict
from adadpigu.reproduce.stand_in import quick_config

RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
QUICK_RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
RANKING = (0.4, 0.2, 0.3, 0.1)
"""the paper's, best first"""
CLIP_NORM = {"adadpigu": 0.5, "dpsgd": 0.5}
"""C by method: not in the paper; chosen by experiments/grids/paper-figures.toml"""
MOMENTUM = 0.9
"""not in the paper"""
EPOCHS = 200.0
LATE = 0.25
"""the last share of the epochs that the sweep averages over: 50 of 200"""
_QUICK_EPOCHS = {"mnist": 0.5, "digits": 10.0}
BASELINE = None
"""stands for DP-SGD where a pruning rate would"""

Runs = dict[float | None, dict[int, Row]]
"""runs by pruning rate (None: DP-SGD) and seed"""


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


def jobs(scale: Scale) -> list[Job]:
    """DP-SGD and every pruning rate, seed by seed, so that those that are done can be compared in pairs."""
    base = {**setting(scale), "lr": 0.1, "epsilon": 4.0, "evaluate_every": 20 if scale.quick else 60}
    methods = {"pruning-dpsgd": method_of("dpsgd")}
    for rate in QUICK_RATES if scale.quick else RATES:
        methods[f"pruning-{rate:g}"] = method_of("adadpigu", retention=round(1 - rate, 1))
    return [Job(name, {**base, **method}, seed) for seed in scale.runs(5) for name, method in methods.items()]


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


def sweep(runs: Runs) -> list[Row]:
    """For DP-SGD and each rate: the late mean over seeds, and how it differs from DP-SGD's."""
    means = {rate: late_means(found) for rate, found in runs.items()}
    family: dict[float | None, Paired | None] = {
        rate: paired(mean, means.get(BASELINE, {})) for rate, mean in means.items() if rate is not BASELINE
    }
    p = corrected(family)
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
        }
        for rate, mean in means.items()
    ]


def _compared(found: Paired | None, p: float | None) -> Row:
    return {
        "difference": None if found is None else found.mean,
        "low": None if found is None else found.low,
        "high": None if found is None else found.high,
        "p_holm": p,
        "verdict": verdict(found, p),
    }


def curves(runs: Runs) -> list[Row]:
    """For DP-SGD and each rate: test accuracy (%) over the epochs, and how much it moves in the late ones."""
    return [_curve(rate, list(found.values())) for rate, found in runs.items()]


def _curve(rate: float | None, runs: Sequence[Row]) -> Row:
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
        "late_fluctuation": statistics.fmean(statistics.pstdev(late_points(run)) for run in runs),
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


def protocol(rows: Sequence[Row]) -> str:
    """How runs were made; what differs between them as a span."""
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
        _span("seeds a setting", [len({row["seed"] for row in rows})]),
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
