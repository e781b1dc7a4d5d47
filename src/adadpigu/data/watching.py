"""What a person sees of a fetch, on standard error: a line for each thing done, and on a terminal a moving bar.

Only public facts pass through here: names, addresses and byte counts of published files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # drawing is only for those who watch: the package is usable without loading rich
    from rich.console import Console
    from rich.progress import Progress, TaskID


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
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False) if console is None else console
        self._bar: tuple[Progress, TaskID] | None = None

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def begin(self, what: str, total: int | None) -> None:
        if not self._console.is_terminal:
            return
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            *(
                (TimeElapsedColumn(),)
                if total is None
                else (DownloadColumn(), TimeRemainingColumn(), TextColumn("left"))
            ),
            console=self._console,
            transient=True,
        )
        self._bar = bar, bar.add_task(what, total=total)
        bar.start()

    def advance(self, count: int) -> None:
        if self._bar is not None:
            bar, task = self._bar
            bar.advance(task, count)

    def end(self) -> None:
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None
