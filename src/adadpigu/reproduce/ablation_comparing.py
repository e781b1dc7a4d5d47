"""The ablation's rows compared: accuracy of each variant, its difference to DP-SGD and to its base, paired by seed.

The comparisons of a net with DP-SGD are one family of Holm's correction, those with other bases another.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from adadpigu.errors import InputError
from adadpigu.reproduce.ablation_tuning import job_name, parted
from adadpigu.reproduce.ablation_variants import NETS, VARIANTS, YARDSTICK
from adadpigu.reproduce.jobs import Row
from adadpigu.reproduce.paired import Paired, corrected, paired, verdict


def compared(rows: Sequence[Row]) -> list[Row]:
    """What the rows show, for each net and variant: accuracy in per cent, differences in points."""
    found: list[Row] = []
    for net in (*NETS, "quick"):
        by_variant = _by_variant(rows, net)
        scores = {
            name: {seed: 100 * row["accuracy"] for seed, row in runs.items()} for name, runs in by_variant.items()
        }
        yardstick = scores.get(YARDSTICK, {})
        against = {name: paired(runs, yardstick) for name, runs in scores.items() if name != YARDSTICK}
        bases = {name: VARIANTS[name].base for name in scores}
        parts = {
            name: paired(scores[name], scores.get(base, {}))
            for name, base in bases.items()
            if base is not None and base != YARDSTICK
        }
        p_against, p_parts = corrected(against), corrected(parts)
        for name, runs in by_variant.items():
            found.append(
                _summary(net, name, runs)
                | _told("", against.get(name), p_against.get(name))
                | _told("base_", parts.get(name), p_parts.get(name))
            )
    return found


def _by_variant(rows: Sequence[Row], net: str) -> dict[str, dict[int, Row]]:
    """A net's rows by variant and seed, in the order of tables."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        place, name = parted(row)
        if place != net:
            continue
        if row.get("score") != "test":
            raise InputError(f"score={row.get('score')!r} of {row['name']!r}: the ablation compares test rows only")
        if row["seed"] in found.setdefault(name, {}):
            raise InputError(f"name={row['name']!r}, seed={row['seed']} is there twice; allowed: one row a seed")
        found[name][row["seed"]] = row
    for name, runs in found.items():
        if len({str(sorted(row["config"].items(), key=str)) for row in runs.values()}) > 1:
            raise InputError(f"name={job_name(net, name)!r} has rows of several configurations; allowed: one")
    return {name: dict(sorted(found[name].items())) for name in VARIANTS if name in found}


def _summary(net: str, name: str, runs: dict[int, Row]) -> Row:
    values = [100 * row["accuracy"] for row in runs.values()]
    first = next(iter(runs.values()))
    lr = first["config"]["lr"]
    grid = [VARIANTS[name].lr(rate) for rate in NETS[net].rates] if net in NETS else []
    return {
        "net": net,
        "dataset": first["config"]["dataset"],
        "model": first["config"]["model"],
        "epsilon": first["config"]["epsilon"],
        "variant": name,
        "part": VARIANTS[name].part,
        "base": VARIANTS[name].base,
        "lr": lr,
        "edge": lr in (min(grid), max(grid)) if grid else None,
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "seeds": len(values),
    }


def _told(prefix: str, found: Paired | None, p: float | None) -> Row:
    values = {
        "difference": None if found is None else found.mean,
        "low": None if found is None else found.low,
        "high": None if found is None else found.high,
        "p": None if found is None else found.p,
        "p_holm": p,
        "pairs": 0 if found is None else found.pairs,
        "verdict": verdict(found, p),
    }
    return {prefix + key: value for key, value in values.items()}
