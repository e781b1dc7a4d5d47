"""Whoever records what a device is told to do, to have it done again: what a draw and a step need of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Recording(Protocol):
    """Something a device has recorded."""

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Whoever records."""

    name: str

    def record(self, work: Callable[[], None]) -> Recording:
        """Runs the Python of `work` once; the device does nothing yet."""
        ...

    def apart(self) -> Recorder:
        """Another one, whose recordings may run at the same time."""
        ...
