"""What the scripts beside this one share: their arguments, and running jobs with every result saved as it comes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adadpigu_paper.reproduce.crew import Crew
from adadpigu_paper.reproduce.jobs import Job, run_job
from adadpigu_paper.reproduce.keeping import append

__all__ = ["Job", "flags", "run_all", "run_job", "tell"]


def run_all(
    jobs: list[Job], *, out: Path, device: str, workers: int, seconds: float, grace: float
) -> Iterator[dict[str, Any]]:
    """Yields results as they come and appends them to `out`; no job is begun `grace` seconds before the end."""
    crew = Crew(device=device, workers=workers, begin_within=seconds - grace, stop_after=seconds)
    for row in crew.run(jobs):
        append(out, row)
        yield row


def flags(parser: argparse.ArgumentParser, *, seeds: int) -> argparse.Namespace:
    """The arguments of a script that runs jobs: its own, and those all of them share."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--grace", type=float, default=60, help="begin no job so long before the end")
    return parser.parse_args()


def tell(result: dict[str, Any]) -> None:
    """One line about a result."""
    if "accuracy" in result:
        spent = "not private" if result["epsilon"] is None else f"at ε {result['epsilon']:.3f}"
        found = f"{100 * result['accuracy']:.2f} % {spent}, {result['seconds']} s"
    else:
        found = str(result.get("failed") or result.get("skipped"))
    sys.stderr.write(f"{result['name']} seed {result['seed']}: {found}\n")
    sys.stderr.flush()
