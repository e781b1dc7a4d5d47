"""Runs over the retention r: the whole method as tuned for MNIST at ε = 2, with more or less of it masked at first."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from adadpigu.config import read_preset
from adadpigu.errors import InputError
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.jobs import Job, Row
from adadpigu_paper.reproduce.paired import corrected, paired, verdict
from adadpigu_paper.reproduce.stand_in import quick_config

PRESET = "mnist-adadpigu-eps2"
"""the shortest of the presets of the whole method; tuned at r = 0.6"""
RETENTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
QUICK_RETENTIONS = (0.2, 0.6, 1.0)
SEEDS = 5


def preset() -> dict[str, Any]:
    """What all runs share but r."""
    return dict(read_preset(PRESET))


def jobs(scale: Scale) -> list[Job]:
    """Every retention, seed by seed; r = 1 has no mask."""
    base = preset()
    options = base["method_options"]
    if scale.quick:
        base |= {**quick_config("mnist", "mnist-cnn"), "steps": 60, "ema": 0.9}
    return [
        Job(f"retention-{r:g}", {**base, "method_options": {**options, "retention": r}}, seed)
        for seed in scale.runs(SEEDS)
        for r in (QUICK_RETENTIONS if scale.quick else RETENTIONS)
    ]


def accuracies(rows: Sequence[Row]) -> list[Row]:
    """For each retention, rising: test accuracy in per cent, and its difference from r = 1, paired by seed."""
    found: dict[float, dict[int, float]] = {}
    for row in rows:
        runs = found.setdefault(float(row["config"]["method_options"]["retention"]), {})
        if row["seed"] in runs:
            raise InputError(f"{row['name']}, seed {row['seed']} is there twice; allowed: runs of one setting a file")
        runs[row["seed"]] = 100 * row["accuracy"]
    family = {r: paired(runs, found.get(1.0, {})) for r, runs in found.items() if r != 1}
    p = corrected(family)
    return [
        {
            "retention": r,
            "mean": statistics.fmean(found[r].values()),
            "std": statistics.stdev(found[r].values()) if len(found[r]) > 1 else None,
            "seeds": len(found[r]),
            "difference": None if (compared := family.get(r)) is None else compared.mean,
            "low": None if compared is None else compared.low,
            "high": None if compared is None else compared.high,
            "p_holm": p.get(r),
            "verdict": verdict(compared, p.get(r)),
        }
        for r in sorted(found)
    ]
