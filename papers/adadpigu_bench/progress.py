"""Signs of life while a benchmark runs, on standard error."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

from rich.console import Console

from adadpigu.console import bar, can_redraw

_BETWEEN_LINES = 5.0  # seconds between two lines where nothing can move


@contextlib.contextmanager
def stage_progress(console: Console, what: str, stages: int | None = None) -> Iterator[Callable[[str], None]]:
    """A bar that says what goes on, one stage after the other; the time left is known where their number is."""
    last = -_BETWEEN_LINES

    def print_now_and_then(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _BETWEEN_LINES:
            last = time.monotonic()
            console.print(text, soft_wrap=True, markup=False)

    if not can_redraw(console):
        yield print_now_and_then
        return
    ended = itertools.count()  # a stage that begins ends the one before
    with bar(console) as moving:
        task = moving.add_task(what, total=stages)
        yield lambda text: moving.update(task, description=text, completed=next(ended))
