"""The figures of the README: each digits preset, five seeds, as the command line runs it, on the test records.

python experiments/measure_digits.py [--seeds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

METHODS = ("adadpigu", "dpsgd", "sgd")


def main() -> None:
    """Prints one JSON line a method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    for method in METHODS:
        runs = [train(method, seed) for seed in range(seeds)]
        scores = [run["test_accuracy"] for run in runs]
        row = {
            "method": method,
            "median": round(statistics.median(scores), 4),
            "mean": round(statistics.mean(scores), 4),
            "deviation": round(statistics.stdev(scores), 4),
            "scores": [round(score, 4) for score in scores],
            "epsilon": runs[0]["epsilon"],
            "slowest_seconds": max(run["wall"] for run in runs),
        }
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def train(method: str, seed: int) -> dict[str, float]:
    """One run of the command line, timed from outside."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "adadpigu", "train", "--json", "--method", method, "--seed", str(seed)]
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "--out", str(Path(folder) / "run")], capture_output=True, text=True, check=True
        )
        return {**json.loads(done.stdout), "wall": round(time.perf_counter() - start, 1)}


if __name__ == "__main__":
    main()
