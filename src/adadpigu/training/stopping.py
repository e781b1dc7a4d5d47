"""Ctrl-C and SIGTERM end a run after the step at hand, with what was reached saved. Public: signals only."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

_REPLACED: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""signals that are caught, and the handler for which that is done: a program's own one stays in place"""


class StopRequest:
    """Within it a first signal is only noted (`asked`); a second one interrupts wherever the program is.

    A loop of the user's own sets `end`, which ends the run and returns True unless a step is half made: the program is
    then interrupted at once. SIGTERM is left to the user there.
    """

    def __init__(self) -> None:
        self.asked = False
        self.end: Callable[[], bool] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # the only one that may set handlers
            for number, replaced in _REPLACED.items():
                if signal.getsignal(number) == replaced and (self.end is None or number == signal.SIGINT):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if (self.end is not None and self.end()) or self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """While the end of a run is written down, Ctrl-C and SIGTERM are ignored (the main thread alone gets them)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: the handler was not installed from Python, and cannot be put back
                signal.signal(number, handler)
