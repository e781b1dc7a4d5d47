"""Counts the Python calls of one training step, and the files of the package that they pass through.

    python experiments/count_calls.py [--method adadpigu] [--folder] [--list] [--json]

Two linear layers on a CPU. A step is what happens from one step of the optimiser to the next; of all steps of the last
stage the median is printed. Counted are the 'call' events of `sys.setprofile` for functions that lie in src/adadpigu,
each resumption of a generator included; not comprehensions, which Python 3.12 runs within their function.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from types import FrameType

import torch
from torch import nn

import adadpigu as ad

PACKAGE = str(Path(ad.__file__).parent)
STEPS = 60
INLINED = {"<listcomp>", "<setcomp>", "<dictcomp>"}


class Counts:
    """The calls of each step, by file and function."""

    def __init__(self) -> None:
        self.steps: list[Counter[tuple[str, str]]] = []

    def observe(self, frame: FrameType, event: str, _: object) -> None:
        """What `sys.setprofile` calls."""
        code = frame.f_code
        if event == "call" and self.steps and code.co_filename.startswith(PACKAGE) and code.co_name not in INLINED:
            place = code.co_filename.removeprefix(PACKAGE + "/"), code.co_qualname
            self.steps[-1][place] += 1

    def optimiser(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Plain SGD whose every step begins a new count."""
        counts = self

        class Marking(torch.optim.SGD):
            def step(self, closure: object = None) -> None:  # type: ignore[override]
                counts.steps.append(Counter())
                super().step()

        return Marking(parameters, lr=0.1)


def count(method: str, *, folder: bool) -> list[Counter[tuple[str, str]]]:
    """The calls of each step of a run but its first and its last."""
    counts = Counts()
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(512, 20, generator=generator), torch.randint(3, (512,), generator=generator)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
    data = torch.utils.data.TensorDataset(inputs, targets)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.setprofile(counts.observe)
        try:
            ad.train(
                model,
                data,
                records=512,
                method=method,
                privacy=ad.Budget(epsilon=4.0, delta=1e-5),
                batch_size=64,
                steps=STEPS,
                optimizer=counts.optimiser,
                out=Path(place) / "run" if folder else None,
            )
        finally:
            sys.setprofile(None)
    return counts.steps[STEPS // 2 : -1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="adadpigu")
    parser.add_argument("--folder", action="store_true", help="with a run folder, hence a ledger on the disk")
    parser.add_argument("--list", action="store_true", help="also every function that is called")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    steps = count(arguments.method, folder=arguments.folder)
    calls = int(statistics.median(step.total() for step in steps))
    typical = next((step for step in steps if step.total() == calls), steps[0])
    files = sorted({file for file, _ in typical})
    if arguments.json:
        print(json.dumps({"method": arguments.method, "calls": calls, "files": len(files), "names": files}))
        return
    print(f"{arguments.method}: {calls} calls through {len(files)} files in one step")
    for file in files:
        print(f"  {sum(n for (place, _), n in typical.items() if place == file):4}  {file}")
        if arguments.list:
            for (place, name), number in sorted(typical.items()):
                if place == file:
                    print(f"        {number:4}  {name}")


if __name__ == "__main__":
    main()
