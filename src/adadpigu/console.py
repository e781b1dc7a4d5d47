"""Results on standard output; warnings, errors and signs of life on standard error.

All that is shown is public: settings, ε, scores on test records, and counts of steps, rounds, runs and bytes, never how
many records were drawn.
"""

import contextlib
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column, Table
from rich.text import Text

from adadpigu.accounting.wording import rounded_up
from adadpigu.runs.run import Facts, Metrics, Run

_BETWEEN_LINES = 10.0  # seconds between two lines where nothing can move
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


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object on standard output, nothing else."""
    sys.stdout.write(json.dumps(value, allow_nan=False, ensure_ascii=False) + "\n")


def print_error(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    sys.stderr.write("adadpigu: error: " + " ".join(message.split()) + "\n")


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


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, header: bool = True) -> Table:
    """A plain table; brackets in its cells stay brackets."""
    made = Table(box=None, pad_edge=False, show_edge=False, header_style="bold", show_header=header)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def number(value: float | None, digits: int = 4) -> str:
    """A number for people; ∞ where there is no guarantee."""
    if value is None or value == float("inf"):
        return "∞"
    return f"{value:.{digits}g}"


def can_redraw(console: Console) -> bool:
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


@contextlib.contextmanager
def features_progress(console: Console) -> Iterator[Callable[[float | None], None]]:
    """A bar that appears with the first report: a share done, or None for private records, whose number is secret."""
    shown = bar(console)
    task = shown.add_task("features, computed once", total=None)
    words = ["computing features of all records, once; this may take a few minutes"]

    def report(share: float | None) -> None:
        if can_redraw(console):
            shown.start()
        elif words:
            console.print(words.pop(), soft_wrap=True)
        if share is not None:
            shown.update(task, completed=share, total=1.0)

    try:
        yield report
    finally:
        if shown.live.is_started:  # stopping a bar that never began would print an empty line
            shown.stop()


class Counter:
    """Takes `(done, total)` as it comes, and shows it by a bar or by a line every ten seconds."""

    def __init__(self, console: Console, what: str, moving: RichProgress | None) -> None:
        self._console, self._what, self._moving = console, what, moving
        self._task = None if moving is None else moving.add_task(what, total=None)
        self._began: tuple[float, float] | None = None
        self._last = time.monotonic()

    def name(self, what: str) -> None:
        self._what = what
        if self._moving is not None and self._task is not None:
            self._moving.update(self._task, description=what)

    def __call__(self, done: float, total: float) -> None:
        now = time.monotonic()
        if self._moving is not None and self._task is not None:
            self._moving.update(self._task, completed=done, total=total)
        elif now - self._last >= _BETWEEN_LINES:
            self._last = now
            line = f"  {self._what}: {int(done):,} of {total:,}{self._left(done, total, now)}"
            self._console.print(line, soft_wrap=True, markup=False)
        if self._began is None:
            self._began = done, now

    def part(self, number: int, parts: int, done: int, total: int) -> None:
        """Takes `(done, total)` of one of several parts."""
        self(number + done / max(1, total), parts)

    def _left(self, done: float, total: float, now: float) -> str:
        """What is left, at the pace since the first report: what was there before took no time."""
        if self._began is None or done <= self._began[0]:
            return ""
        first, start = self._began
        return f", about {clock((total - done) * (now - start) / (done - first))} left"


@contextlib.contextmanager
def count_progress(console: Console, what: str) -> Iterator[Counter]:
    """A bar for work of which so much is done, of so much; elsewhere than on a terminal a line every ten seconds."""
    if not can_redraw(console):
        yield Counter(console, what, None)
        return
    with bar(console, MofNCompleteColumn(table_column=Column(no_wrap=True))) as moving:
        yield Counter(console, what, moving)


@contextlib.contextmanager
def search_progress(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Says on a terminal what is being tried, and for how long; nobody knows how many tries are left."""
    if not can_redraw(console):
        yield lambda _: None
        return
    with bar(console) as moving:
        task = moving.add_task(what, total=None)
        yield lambda text: moving.update(task, description=text)


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
            self._task = self._bar.add_task("training", total=facts.steps, completed=facts.steps_done, **self._fields)
            self._bar.start()

    def _introduce(self, facts: Facts) -> None:
        private = facts.epsilon is not None and facts.secret
        budget = f"(ε = {rounded_up(facts.epsilon or 0.0)}, δ = {facts.delta:g})" if private else "not private"
        print_prose(
            f"{facts.method} on {facts.dataset}: {facts.parameters:,} parameters, {facts.steps} steps, {budget}, "
            f"σ = {number(facts.noise_multiplier)}, q = {number(facts.sample_rate, 3)}",
            self._console,
        )
        if self._preset is not None:
            self._console.print(f"settings of the preset {self._preset}, where no flag says otherwise", style="dim")
        if facts.steps_charged:
            charged = f"{facts.steps_charged} steps charged so far"
            print_prose(f"goes on after step {facts.steps_done} of {facts.steps}; {charged}", self._console)

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
