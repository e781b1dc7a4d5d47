"""What `adadpigu train` shows at its end: a short table and where to look next. All public."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from adadpigu.accounting.wording import number as rounded_up
from adadpigu.cli.output import table
from adadpigu.console import number, print_line, screen
from adadpigu.runs.run import Run


def print_summary(run: Run) -> None:
    privacy = run.privacy
    rows = [
        ["test accuracy", "—" if run.accuracy is None else f"{run.accuracy:.2%}"],
        ["ε (PLD, the one to cite)", rounded_up(privacy.epsilon_pld) if privacy.private else "∞: NOT PRIVATE"],
        ["ε (RDP)", rounded_up(privacy.epsilon_rdp) if privacy.private else "—"],
        ["δ", f"{privacy.delta:g}"],
        ["noise multiplier σ", number(privacy.noise_multiplier)],
        ["steps", f"{run.steps}" if run.steps_done == run.steps else f"{run.steps_done} of {run.steps}"],
        ["seconds", f"{run.seconds:.1f}"],
    ]
    if run.steps_done < run.steps and not run.interrupted:
        charged = f"{privacy.steps_charged} steps were charged"
        rows.insert(1, ["STOPPED before the budget: steps that a crash had cost could not be repeated", charged])
    if run.interrupted:
        rows.insert(1, ["INTERRUPTED: ε spent so far (the claim stays the plan's)", rounded_up(privacy.epsilon_spent)])
    folder = run.folder
    screen().print(table(["", ""], rows))
    quoted = shlex.quote(str(folder))  # commands are copied into a shell
    program = "adadpigu" if shutil.which("adadpigu") else sys.argv[0]
    if Path(program).name == "__main__.py":
        program = "python -m adadpigu"
    for line in (
        f"\nThe run is in {folder}. Look next at",
        f"  {folder}/statement.txt  what the model gives away, in plain words",
        *(f"  {path}  all of it, in a browser" for path in (folder or Path()).glob("report.html")),
        *(f"  {path}" for path in sorted((folder or Path()).glob("figures/*.png"))),
        f"  {program} predict {quoted} FILE" if run.accuracy is None else f"  {program} evaluate {quoted}",
        *([f"  {program} train --resume {quoted}  to go on"] if run.interrupted else []),
    ):
        print_line(line)
