"""Signs of life on standard error: a moving bar with the time left on a terminal, a line now and then elsewhere.

All that is shown is public: counts of steps, rounds, runs and bytes, never how many records were drawn.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from adadpigu.console import bar, can_redraw, clock

_BETWEEN_LINES = 10.0  # seconds between two lines where nothing can move


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
def stage_progress(console: Console, what: str, stages: int | None = None) -> Iterator[Callable[[str], None]]:
    """A bar that says what goes on, one stage after the other; the time left is known where their number is."""
    last = -_BETWEEN_LINES

    def print_now_and_then(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _BETWEEN_LINES / 2:
            last = time.monotonic()
            console.print(text, soft_wrap=True, markup=False)

    if not can_redraw(console):
        yield print_now_and_then
        return
    ended = itertools.count()  # a stage that begins ends the one before
    with bar(console) as moving:
        task = moving.add_task(what, total=stages)
        yield lambda text: moving.update(task, description=text, completed=next(ended))


def search_progress(console: Console, what: str) -> contextlib.AbstractContextManager[Callable[[str], None]]:
    """Says on a terminal what is being tried, and for how long; nobody knows how many tries are left."""
    return stage_progress(console, what) if can_redraw(console) else contextlib.nullcontext(lambda _: None)
