"""The table of what the presets reach, from the results that `measure.py` has kept.

    python experiments/table.py results/presets.jsonl

Mean ± standard deviation of test accuracy over seeds, last or averaged iterate; a preset measured several times under
other settings counts only with the settings it has now.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from adadpigu.config import all_presets, read_preset

SETS = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
METHODS = {"dpsgd": "DP-SGD", "ts": "DPSGD-TS", "hf": "DPSGD-HF", "dpsur": "DPSUR", "adadpigu": "AdaDPIGU"}


def scores(path: Path) -> dict[str, list[float]]:
    """Test accuracies in percent, by preset, of runs whose config is the preset's own today."""
    found: dict[str, dict[int, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        name = result["name"]
        if "accuracy" in result and name in all_presets() and result["config"] == read_preset(name):
            found.setdefault(name, {})[result["seed"]] = 100 * result["accuracy"]
    return {name: list(by_seed.values()) for name, by_seed in found.items()}


def cell(found: list[float] | None) -> str:
    """Mean ± standard deviation and how many seeds."""
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
