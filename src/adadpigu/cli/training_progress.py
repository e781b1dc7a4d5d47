"""The live bar of `train`: step, ε so far of ε target, test accuracy, time left. It sees public values only.

How long steps take tells how many records they drew, so the time left is for the terminal of whoever holds the records:
it is averaged over many steps, and no line that could end in a file has it.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from adadpigu.accounting.wording import number as rounded_up
from adadpigu.cli.output import number, print_line, print_prose
from adadpigu.cli.progress import bar, moves, wide
from adadpigu.training.run import Facts, Metrics, Run


class _Rate(ProgressColumn):
    """Steps a second."""

    def __init__(self) -> None:
        super().__init__(table_column=Column(no_wrap=True))

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
        if moves(self._console):
            columns: list[ProgressColumn] = [
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[epsilon]}"),
                TextColumn("{task.fields[accuracy]}"),
                *([_Rate()] if wide(self._console) else []),
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
        print_prose(f"per-sample gradients by {facts.engine}", self._console, style="dim")
        if facts.steps_charged:
            told = f"goes on after step {facts.steps_done} of {facts.steps}; {facts.steps_charged} steps charged so far"
            print_prose(told, self._console)
            for warning in facts.warnings:
                self._console.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True)

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
