"""Writes the presets of the accuracy frontier from their held-out scores, by a rule that is fixed before the runs.

    python experiments/choose_best.py results/tuning/frontier.jsonl --seeds 2

Of the settings of a cell with at least so many seeds the highest mean wins; of equals the one that takes fewer records
in all. A cell without such settings keeps its preset, and is told on standard error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adadpigu.config import to_toml
from adadpigu.errors import InputError
from adadpigu_paper.reproduce.frontier import preset_of
from adadpigu_paper.reproduce.frontier_published import BEST
from adadpigu_paper.reproduce.keeping import read_rows
from adadpigu_paper.reproduce.tuned import settings_of

FOLDER = Path(__file__).parents[1] / "src" / "adadpigu" / "presets"


def best(rows: Sequence[Mapping[str, Any]], seeds: int) -> tuple[dict[str, Any], int] | None:
    """The config that wins a cell, and how many settings were scored; None where none has so many seeds."""
    found: dict[str, dict[int, float]] = {}
    configs: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = settings_of(row["config"])
        found.setdefault(key, {})[row["seed"]] = row["accuracy"]
        configs[key] = dict(row["config"])
    means = {key: statistics.fmean(scores.values()) for key, scores in found.items() if len(scores) >= seeds}
    if not means:
        return None
    cost = {key: configs[key]["steps"] * configs[key]["batch_size"] for key in means}
    return configs[max(means, key=lambda key: (means[key], -cost[key]))], len(found)


def text_of(config: Mapping[str, Any], settings: int) -> str:
    """A preset file."""
    method = {"name": config["method"], **config.get("method_options", {})}
    kept = {key: value for key, value in config.items() if key not in ("method", "method_options")}
    head = f"# Our best recipe: DP-SGD on features, ε = {config['epsilon']:g}\n"
    head += f"# {config['model']} on {config['features']}, best of {settings} settings on held-out training records\n"
    return head + to_toml({**kept, "method": method})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="scores of experiments/tune.py")
    parser.add_argument("--seeds", type=int, default=1, help="runs that settings need to be chosen")
    parser.add_argument("--out", type=Path, default=FOLDER, help="[the presets of the package]")
    given = parser.parse_args()
    try:
        rows = [row for path in given.rows for row in read_rows(path) if row.get("score") == "held-out"]
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    lost = []
    for name in (preset_of(*place) for place in BEST):
        chosen = best([row for row in rows if row["name"].split()[0].startswith(name)], given.seeds)
        if chosen is None:
            lost.append(name)
            continue
        (given.out / f"{name}.toml").write_text(text_of(*chosen), encoding="utf-8")
        print(json.dumps({"preset": name, "settings": chosen[1], **chosen[0]}))
    if lost:
        sys.stderr.write(f"no settings with {given.seeds} seeds: {', '.join(lost)}\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
