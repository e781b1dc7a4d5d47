"""One AdaDPIGU step on a CPU stays as short as it is: what a reader has to follow, and what Python has to run."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "experiments" / "count_calls.py"


def test_a_step_takes_at_most_250_calls_through_20_files() -> None:
    """Counted, so without chance: `sys.setprofile` in a process of its own."""
    done = subprocess.run([sys.executable, SCRIPT, "--json"], capture_output=True, text=True, check=True)
    counted = json.loads(done.stdout)
    assert 100 < counted["calls"] <= 250
    assert 10 < counted["files"] <= 20, counted["names"]
