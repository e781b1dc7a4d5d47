"""The ablation's rows compared: accuracy of each variant, its difference to DP-SGD and to its base, paired by seed.

The comparisons of a net with DP-SGD are one family of Holm's correction, those with other bases another; the whole
method and its variants, asked about later, have two of their own. Where a chosen learning rate stands in its grid is
told by the held-out rows: by what was tried, not by what was planned.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

from adadpigu.errors import InputError
from adadpigu_paper.reproduce.ablation_tuning import choose, job_name, parted, scores
from adadpigu_paper.reproduce.ablation_variants import NETS, VARIANTS, YARDSTICK
from adadpigu_paper.reproduce.jobs import Row
from adadpigu_paper.reproduce.paired import Paired, corrected, paired, resolution, verdict

_ELSEWHERE = "rows at rates that are no longer chosen belong in another file"


def compared(rows: Sequence[Row], held_out: Sequence[Row] = ()) -> list[Row]:
    """What the test rows show, for each net and variant: accuracy in per cent, differences in points."""
    tried, best = scores(held_out), choose(held_out)
    found: list[Row] = []
    for net in (*NETS, "quick"):
        by_variant = _by_variant(rows, net)
        grids = tried.get(net, {}) if net in NETS else {}
        accuracy = {
            name: {seed: 100 * row["accuracy"] for seed, row in runs.items()} for name, runs in by_variant.items()
        }
        families = {whole: _families(accuracy, whole) for whole in (False, True)}
        p_holm = {whole: tuple(map(corrected, family)) for whole, family in families.items()}
        for name, runs in by_variant.items():
            against, parts = families[VARIANTS[name].whole]
            p_against, p_parts = p_holm[VARIANTS[name].whole]
            found.append(
                _summary(net, name, runs)
                | _placed(runs, grids.get(name, {}), best.get(net, {}).get(name))
                | _told("", against.get(name), p_against, name)
                | _told("base_", parts.get(name), p_parts, name)
            )
    return found


def _families(
    accuracy: Mapping[str, Mapping[int, float]], whole: bool
) -> tuple[dict[str, Paired | None], dict[str, Paired | None]]:
    """The comparisons with DP-SGD, and those with bases other than DP-SGD, of the whole method or of single parts."""
    yardstick = accuracy.get(YARDSTICK, {})
    asked = [name for name in accuracy if name != YARDSTICK and VARIANTS[name].whole == whole]
    against = {name: paired(accuracy[name], yardstick) for name in asked}
    bases = {name: VARIANTS[name].base for name in asked}
    parts = {
        name: paired(accuracy[name], accuracy.get(base, {}))
        for name, base in bases.items()
        if base is not None and base != YARDSTICK
    }
    return against, parts


def _by_variant(rows: Sequence[Row], net: str) -> dict[str, dict[int, Row]]:
    """A net's rows by variant and seed, in the order of tables."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        place, name = parted(row)
        if place != net:
            continue
        if row.get("score") != "test":
            raise InputError(f"score={row.get('score')!r} of {row['name']!r}: the ablation compares test rows only")
        there = found.setdefault(name, {}).get(row["seed"])
        if there is not None:
            raise InputError(
                f"name={row['name']!r}, seed={row['seed']} is there twice, at lr={there['config']['lr']:g} and "
                f"lr={row['config']['lr']:g}; allowed: one row a seed; {_ELSEWHERE}"
            )
        found[name][row["seed"]] = row
    for name, runs in found.items():
        if len({str(sorted(row["config"].items(), key=str)) for row in runs.values()}) > 1:
            raise InputError(
                f"name={job_name(net, name)!r} has rows of several configurations; allowed: one; {_ELSEWHERE}"
            )
    return {name: dict(sorted(found[name].items())) for name in VARIANTS if name in found}


def _summary(net: str, name: str, runs: dict[int, Row]) -> Row:
    values = [100 * row["accuracy"] for row in runs.values()]
    first = next(iter(runs.values()))
    return {
        "net": net,
        "dataset": first["config"]["dataset"],
        "model": first["config"]["model"],
        "epsilon": first["config"]["epsilon"],
        "variant": name,
        "part": VARIANTS[name].part,
        "base": VARIANTS[name].base,
        "of_adadpigu": VARIANTS[name].of_adadpigu,
        "whole": VARIANTS[name].whole,
        "lr": first["config"]["lr"],
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "seeds": len(values),
    }


def _placed(runs: Mapping[int, Row], tried: Collection[float], best: float | None) -> Row:
    """Where the rate of the test runs stands among those tried on held-out records, and whether it is their best."""
    lr = next(iter(runs.values()))["config"]["lr"]
    edge = None
    if len(tried) > 1 and lr in (min(tried), max(tried)):
        edge = "upper" if lr == max(tried) else "lower"
    return {"tried": sorted(tried), "edge": edge, "best_lr": best}


def _told(prefix: str, found: Paired | None, p_holm: Mapping[str, float | None], name: str) -> Row:
    p, family = p_holm.get(name), sum(value is not None for value in p_holm.values())
    values = {
        "difference": None if found is None else found.mean,
        "low": None if found is None else found.low,
        "high": None if found is None else found.high,
        "p": None if found is None else found.p,
        "p_holm": p,
        "pairs": 0 if found is None else found.pairs,
        "family": family,
        "resolution": None if found is None or p is None else resolution(found, family),
        "verdict": verdict(found, p),
    }
    return {prefix + key: value for key, value in values.items()}
