"""Ctrl-C and SIGTERM during a run: the step is finished, what was reached is saved, then the run ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_REPLACED: dict[int, tuple[Any, ...]] = {
    signal.SIGINT: (signal.default_int_handler,),
    signal.SIGTERM: (signal.SIG_DFL,),
}
"""signals that are caught, and the handlers for which that is done: a program's own ones stay in place"""


class StopRequest:
    """Within it a first signal is only noted (`asked`); a second one interrupts wherever the program is."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # the only one that may set handlers
            for number, replaced in _REPLACED.items():
                if signal.getsignal(number) in replaced:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
