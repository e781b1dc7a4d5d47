"""The live bar of `train`: step, ε so far of ε target, test accuracy, steps a second. It sees public values only."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress
from rich.text import Text

from adadpigu.accounting.wording import number as rounded_up
from adadpigu.cli.output import number
from adadpigu.training.run import Facts, Metrics, Run


class _Rate(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.0f} steps/s")


@contextlib.contextmanager
def features_progress(console: Console) -> Iterator[Callable[[float | None], None]]:
    """A bar for the features of a data set, which are computed once; it appears with the first report.

    It shows a share, or for private records, whose number is nobody's business, only that work goes on.
    """
    bar = RichProgress(
        TextColumn("features, computed once"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("features", total=None)

    def report(share: float | None) -> None:
        if not bar.live.is_started:
            if not console.is_terminal:
                console.print("computing features of all records, once; this may take a few minutes", soft_wrap=True)
            bar.start()
        if share is not None:
            bar.update(task, completed=share, total=1.0)

    try:
        yield report
    finally:
        if bar.live.is_started:  # stopping a bar that never began would print an empty line
            bar.stop()


@contextlib.contextmanager
def counted(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work of which so much is done, of so much; elsewhere than on a terminal a line every ten seconds."""
    bar = RichProgress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task, last = bar.add_task(what, total=None), time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if console.is_terminal:
            bar.update(task, completed=done, total=total)
        elif time.monotonic() - last >= 10:
            last = time.monotonic()
            console.print(f"  {what}: {done:,} of {total:,}", soft_wrap=True)

    if not console.is_terminal:
        yield report
        return
    with bar:
        yield report


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
        private = facts.epsilon is not None and facts.secret
        budget = f"(ε = {rounded_up(facts.epsilon or 0.0)}, δ = {facts.delta:g})" if private else "not private"
        self._console.print(
            f"{facts.method} on {facts.dataset}: {facts.parameters:,} parameters, {facts.steps} steps, {budget}, "
            f"σ = {number(facts.noise_multiplier)}, q = {number(facts.sample_rate, 3)}",
            soft_wrap=True,
        )
        if self._preset is not None:
            self._console.print(f"settings of the preset {self._preset}, where no flag says otherwise", style="dim")
        self._console.print(f"per-sample gradients by {facts.engine}", style="dim", soft_wrap=True)
        if facts.steps_charged:
            told = f"goes on after step {facts.steps_done} of {facts.steps}; {facts.steps_charged} steps charged so far"
            self._console.print(told, soft_wrap=True)
            for warning in facts.warnings:
                self._console.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True)
        if self._console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[epsilon]}"),
                TextColumn("{task.fields[accuracy]}"),
                _Rate(),
                console=self._console,
            )
            done = facts.steps_done
            self._task = self._bar.add_task("training", total=facts.steps, completed=done, **self._fields)
            self._bar.start()

    def update(self, metrics: Metrics) -> None:
        if metrics.epsilon is not None:
            self._fields["epsilon"] = f"ε {rounded_up(metrics.epsilon)} of {rounded_up(self._target or 0.0)}"
        if metrics.test_accuracy is not None:
            self._fields["accuracy"] = f"test {metrics.test_accuracy:.1%}"
        if self._bar is not None:
            self._bar.update(self._task, completed=metrics.step, description=metrics.stage, **self._fields)
        elif metrics.mask:
            words = [f"step {metrics.step}/{metrics.steps}", metrics.stage, *filter(None, self._fields.values())]
            self._console.print("  " + "  ".join(words), soft_wrap=True)

    def end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.stop()
