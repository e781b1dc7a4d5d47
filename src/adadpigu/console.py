"""What moves or is said on a terminal, whoever trains: consoles, lines, the bar of a run.

All that is shown is public: settings, counts of steps, ε, and scores on test records.
"""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from adadpigu.accounting.wording import number as rounded_up

if TYPE_CHECKING:
    from adadpigu.runs.run import Facts, Metrics, Run

_WIDE = 100  # columns from which there is room for more than what matters most
_MEMORY = 900.0  # seconds over which speed is averaged: a single run of `reproduce` may take minutes


def screen() -> Console:
    """For people: standard output."""
    return _console(stderr=False)


def notes() -> Console:
    """For progress and remarks: standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    """Colour on a terminal only; with NO_COLOR not even bold, which some terminals show as one."""
    return Console(stderr=stderr, highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")


def print_warning(message: str, console: Console | None = None) -> None:
    """A remark that must not be missed, on standard error; brackets in it stay brackets."""
    (console or notes()).print(f"[yellow]warning:[/] {escape(message)}", soft_wrap=True)


def print_line(text: str, console: Console | None = None) -> None:
    """One line as it is, for paths and commands that are copied: no markup, and the terminal alone breaks it."""
    (console or screen()).print(text, markup=False, emoji=False, soft_wrap=True)


def print_prose(text: str, console: Console | None = None, *, indent: str = "", style: str | None = None) -> None:
    """Sentences, broken between words at the width of the screen; a word that is wider stands alone."""
    to = console or screen()
    wrapped = textwrap.fill(
        text.replace(" = ", "\0=\0"),  # a value stays with its name
        to.width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    to.print(wrapped.replace("\0", " "), markup=False, emoji=False, soft_wrap=True, style=style)


def number(value: float | None, digits: int = 4) -> str:
    """A number for people; ∞ where there is no guarantee."""
    if value is None or value == float("inf"):
        return "∞"
    return f"{value:.{digits}g}"


def can_redraw(console: Console) -> bool:
    """Whether a line can be drawn over: on a terminal that knows how."""
    return console.is_terminal and not console.is_dumb_terminal


def wide(console: Console) -> bool:
    """Whether a bar may say more than fits into 80 columns."""
    return console.width >= _WIDE


def clock(seconds: float) -> str:
    """A time for people.

    >>> clock(7.4), clock(754), clock(7384)
    ('0:07', '12:34', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class TimeLeft(ProgressColumn):
    """The time left, or where that cannot be told, the time that has passed."""

    def render(self, task: Task) -> Text:
        left = None if task.finished else task.time_remaining
        return Text(clock(task.elapsed or 0.0) if left is None else f"{clock(left)} left")


def bar(console: Console, *columns: ProgressColumn, transient: bool = True) -> RichProgress:
    """A bar in one line of the terminal, however narrow: what it is, how far, and the time left."""
    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24 if wide(console) else None),  # None: as much as the rest leaves
        *columns,
        TimeLeft(Column(no_wrap=True)),
        console=console,
        transient=transient,
        speed_estimate_period=_MEMORY,
    )


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
