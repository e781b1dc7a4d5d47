"""The table of what the presets reach, from the results that `measure.py` has kept.

    python experiments/table.py results/presets.jsonl

Mean ± standard deviation of test accuracy over all runs with a preset's present settings, last or averaged iterate: two
runs with one seed are two runs, since noise and batches are drawn afresh.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from adadpigu.config import all_presets, read_preset

SETS = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
METHODS = {
    "dpsgd": "DP-SGD",
    "ts": "DPSGD-TS",
    "hf": "DPSGD-HF",
    "dpsur": "DPSUR",
    "adadpigu": "AdaDPIGU",
    "best": "best recipe",
}


def scores(path: Path) -> dict[str, list[float]]:
    """Test accuracies in percent, by preset, of runs whose config is the preset's own today."""
    found: dict[str, list[float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        name = result["name"]
        config = {key: value for key, value in result["config"].items() if key != "engine"}
        if "accuracy" in result and name in all_presets() and config == read_preset(name):
            found.setdefault(name, []).append(100 * result["accuracy"])
    return found


def cell(found: list[float] | None) -> str:
    """Mean ± standard deviation and how many runs."""
    if not found:
        return "not measured"
    spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.2f}{spread} ({len(found)})"


def main() -> None:
    found = scores(Path(sys.argv[1]))
    print("| data set | preset | ε = 2 | ε = 4 |\n| --- | --- | --- | --- |")
    for short, title in SETS.items():
        for method, name in METHODS.items():
            row = [cell(found.get(f"{short}-{method}-eps{epsilon}")) for epsilon in (2, 4)]
            print(f"| {title} | {name} | {' | '.join(row)} |")
        print(f"| {title} | SGD, not private | {cell(found.get(f'{short}-sgd'))} | |")


if __name__ == "__main__":
    main()
