"""How long `import adadpigu` takes, against `import torch`: pairs of fresh processes, turn by turn.

python experiments/import_time.py --rounds 7

Prints one JSON object: medians of both in milliseconds, and the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time


def seconds(module: str) -> float:
    """Of a whole process that imports it and ends."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    for module in ("torch", "adadpigu"):
        seconds(module)  # files come into the cache
    pairs = [(seconds("torch"), seconds("adadpigu")) for _ in range(given.rounds)]
    theirs, ours = zip(*pairs, strict=True)
    print(
        json.dumps(
            {
                "ms_torch": round(1000 * statistics.median(theirs)),
                "ms_adadpigu": round(1000 * statistics.median(ours)),
                "ratio": round(statistics.median(b / a for a, b in pairs), 3),
                "rounds": given.rounds,
            }
        )
    )


if __name__ == "__main__":
    main()
