"""What `adadpigu train` shows: a bar while it trains, then a short table and where to look next. All public."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from adadpigu.accounting.wording import rounded_up
from adadpigu.cli.output import number, print_line, print_prose, print_warning, screen, table
from adadpigu.cli.progress import bar, can_redraw, wide
from adadpigu.runs.run import Facts, Metrics, Run


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.0f} steps/s")


class Progress:
    """An observer that draws a bar on a terminal, and a line for each look at the test set elsewhere."""

    def __init__(self, console: Console, preset: str | None = None) -> None:
        self._console = console
        self._preset = preset
        self._target: float | None = None
        self._bar: RichProgress | None = None
        self._task = TaskID(0)
        self._fields: dict[str, Any] = {"epsilon": "", "accuracy": ""}

    def begin(self, facts: Facts) -> None:
        self._target = facts.epsilon
        self._introduce(facts)
        if can_redraw(self._console):
            columns: list[ProgressColumn] = [
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[epsilon]}"),
                TextColumn("{task.fields[accuracy]}"),
                *([_Rate(Column(no_wrap=True))] if wide(self._console) else []),
            ]
            self._bar = bar(self._console, *columns, transient=False)
            done = facts.steps_done
            self._task = self._bar.add_task("training", total=facts.steps, completed=done, **self._fields)
            self._bar.start()

    def _introduce(self, facts: Facts) -> None:
        """What is trained, how, and under which budget."""
        private = facts.epsilon is not None and facts.secret
        budget = f"(ε = {rounded_up(facts.epsilon or 0.0)}, δ = {facts.delta:g})" if private else "not private"
        print_prose(
            f"{facts.method} on {facts.dataset}: {facts.parameters:,} parameters, {facts.steps} steps, {budget}, "
            f"σ = {number(facts.noise_multiplier)}, q = {number(facts.sample_rate, 3)}",
            self._console,
        )
        if self._preset is not None:
            self._console.print(f"settings of the preset {self._preset}, where no flag says otherwise", style="dim")
        print_prose(f"gradients: {facts.engine}", self._console, style="dim")
        if facts.steps_charged:
            charged = f"{facts.steps_charged} steps charged so far"
            print_prose(f"goes on after step {facts.steps_done} of {facts.steps}; {charged}", self._console)
            for warning in facts.warnings:
                print_warning(warning, self._console)

    def update(self, metrics: Metrics) -> None:
        if metrics.epsilon is not None:
            self._fields["epsilon"] = f"ε {rounded_up(metrics.epsilon)} of {rounded_up(self._target or 0.0)}"
        if metrics.test_accuracy is not None:
            self._fields["accuracy"] = f"test {metrics.test_accuracy:.1%}"
        if self._bar is not None:
            self._bar.update(self._task, completed=metrics.step, description=metrics.stage, **self._fields)
        elif metrics.mask:
            words = [f"step {metrics.step}/{metrics.steps}", metrics.stage, *filter(None, self._fields.values())]
            print_line("  " + "  ".join(words), self._console)

    def end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.stop()


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
