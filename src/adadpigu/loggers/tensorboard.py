"""TensorBoard: event files of public numbers, with the statement as text.

Event files are written directly, record by record: TensorBoard's own writer puts the name of the machine into their
names, and the moment of every number beside it. How long steps take is not covered by the guarantee, so every number
bears the moment at which the log was opened.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadpigu.extras import extra
from adadpigu.loggers.logger import Beginning, Ending, Logger

_VERSION = "brain.Event:2"
"""how event files call their format"""


class TensorBoardLogger(Logger):
    """Writes to a folder that `tensorboard --logdir` shows."""

    name = "tensorboard"

    def __init__(self, folder: Path | str) -> None:
        super().__init__()
        self.folder = Path(folder)
        self._events = _module("tensorboard.compat.proto.event_pb2")
        self._records = _module("tensorboard.summary.writer.record_writer")
        self._summaries = _module("torch.utils.tensorboard.summary")
        self._file = self.folder
        self._moment = 0.0

    def _start(self, start: Beginning) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seconds, rest = divmod(time.time_ns(), 10**9)
        self._moment = float(seconds)
        self._file = self.folder / f"events.out.tfevents.{seconds:010d}.{rest:09d}"  # read in the order of their names
        self._append(file_version=_VERSION)
        if start.steps_done:  # what a process before this one wrote after its last checkpoint is made again
            begun = self._events.SessionLog(status=self._events.SessionLog.START)
            self._append(session_log=begun, step=start.steps_done + 1)
        lines = [f"    {name}: {value}" for name, value in start.settings.items()]
        self._append(summary=self._summaries.text("settings", "\n".join(lines)), step=start.steps_done)

    def _write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            made = self._summaries.scalar(name, value, new_style=True, double_precision=True)
            self._append(summary=made, step=step)

    def _close(self, end: Ending) -> None:
        self._write(end.step, end.results)
        indented = "\n".join(f"    {line}" for line in end.statement.splitlines())  # Markdown shows it as it is
        self._append(summary=self._summaries.text("privacy", indented), step=end.step)

    def _append(self, **content: Any) -> None:
        """One record more; the file is open no longer than that, so a crash leaves whole records."""
        event = self._events.Event(wall_time=self._moment, **content)
        with self._file.open("ab") as file:
            self._records.RecordWriter(file).write(event.SerializeToString())


def _module(name: str) -> Any:
    return extra(name, group="tensorboard", purpose="the logger 'tensorboard'")
