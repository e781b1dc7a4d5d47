"""What a person sees of a fetch, on standard error: a line for each thing done, and on a terminal a moving bar.

Only public facts pass through here: names, addresses and byte counts of published files.
"""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Watcher(Protocol):
    """Is told what is being done."""

    def say(self, text: str) -> None:
        """One line."""

    def begin(self, what: str, total: int | None) -> None:
        """Something long begins, of `total` bytes where that is known."""

    def advance(self, count: int) -> None:
        """So many bytes more."""

    def end(self) -> None:
        """It is over, well or not."""


class Silent:
    """Says nothing."""

    def say(self, text: str) -> None:
        pass

    def begin(self, what: str, total: int | None) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def end(self) -> None:
        pass


class OnScreen:
    """Lines on standard error, and a bar where that is a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = Console(stderr=True, highlight=False) if console is None else console
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)

    def begin(self, what: str, total: int | None) -> None:
        if not self._console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            *(() if total is None else (DownloadColumn(),)),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(what, total=total)
        self._bar.start()

    def advance(self, count: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, count)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
