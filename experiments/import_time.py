"""How long `import adadpigu` takes, as a multiple of `import torch`: fresh interpreters, taken in turns, medians.

python experiments/import_time.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

CODE = "import time; start = time.perf_counter(); import {0}; print(time.perf_counter() - start)"


def seconds(module: str) -> float:
    """One import in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", CODE.format(module)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Prints both medians and their ratio."""
    taken: dict[str, list[float]] = {"torch": [], "adadpigu": []}
    for _ in range(9):
        for module, values in taken.items():
            values.append(seconds(module))
    torch, ours = (statistics.median(values) for values in taken.values())
    print(json.dumps({"torch": round(torch, 3), "adadpigu": round(ours, 3), "ratio": round(ours / torch, 3)}))


if __name__ == "__main__":
    main()
