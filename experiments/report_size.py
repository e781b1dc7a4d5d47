"""Size of a report of 50 runs with 10,000 steps each, and how long Chromium takes to open it.

python experiments/report_size.py --runs 50 --steps 10000 --layers 8

One short real run on the embedded digits is copied, and each copy gets curves with a point for every step. Opening is
measured in a browser of its own each time: from the start of the navigation until the page has drawn itself, and until
the frame after that. Prints one JSON object with the median of the rounds, and the slowest.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "browser")]

from chromium import MISSING, Chromium  # noqa: E402

from adadpigu.report.collecting import collect  # noqa: E402
from adadpigu.report.page import write_page  # noqa: E402
from run_folders import lengthened, trained  # noqa: E402

FRAME = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)))"


def made(place: Path, runs: int, steps: int, layers: int) -> Path:
    """The page."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        one = trained(place / "one")
    for number in range(runs):
        folder = Path(shutil.copytree(one, place / "runs" / f"run-{number:02d}"))
        lengthened(folder, steps=steps, layers=layers, seed=number)
    write_page(collect([place / "runs"]), place / "report.html")
    return place / "report.html"


def opened(page: Path, home: Path) -> tuple[float, float]:
    """Seconds until the page was drawn, and until the frame after that was shown."""
    with Chromium(home) as browser:
        browser.open(page.as_uri())
        drawn = browser.get("performance.getEntriesByName('drawn')[0].startTime")
        shown = browser.devtools("Runtime.evaluate", expression=FRAME, awaitPromise=True)["result"]["value"]
        assert browser.complaints() == []
    return drawn / 1000, shown / 1000


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser()
    for name, default in (("runs", 50), ("steps", 10_000), ("layers", 8), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    if MISSING:
        sys.exit(MISSING)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        page = made(place, asked.runs, asked.steps, asked.layers)
        times = [opened(page, place / f"browser-{number}") for number in range(asked.rounds)]
        found = {
            "bytes": page.stat().st_size,
            "seconds_until_drawn": round(statistics.median(drawn for drawn, _ in times), 3),
            "seconds_until_shown": round(statistics.median(shown for _, shown in times), 3),
            "slowest": round(max(shown for _, shown in times), 3),
        }
    print(json.dumps({**vars(asked), **found}))


if __name__ == "__main__":
    main()
