"""Weights & Biases, offline: a run in a folder, which its owner may upload later with `wandb sync`.

No network call is made. Of the machine nothing stays: system metrics, host and user, the list of packages, git and
code, and what the program prints are switched off; the library's notes on itself, which name paths, are taken away at
the end. It notes how long after the first row each row came, which the guarantee does not cover, and cannot be told
not to: so all rows are written at the end, at one moment.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadpigu.extras import extra
from adadpigu.loggers.logger import Beginning, Ending, Logger

_SETTINGS = {
    "mode": "offline",
    "silent": True,
    "console": "off",
    "reinit": "create_new",  # a run that the user has open stays as it is
    "host": "",
    "username": "",
    "email": "",
    "program": "",
    "symlink": False,  # to the notes on itself
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "sync_tensorboard": False,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


class WandbLogger(Logger):
    """Writes one offline run a process to `folder`/wandb."""

    name = "wandb"

    def __init__(self, folder: Path | str, *, project: str = "adadpigu") -> None:
        super().__init__()
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb = extra("wandb", group="wandb", purpose="the logger 'wandb'")
        self.folder = Path(folder)
        self._project = project
        self._run: Any = None
        self._moment = 0.0
        self._rows: list[tuple[int, Mapping[str, float]]] = []

    def _start(self, start: Beginning) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._moment, self._rows = time.time(), []
        settings = self._wandb.Settings(**_SETTINGS, root_dir=str(self.folder))
        self._run = self._wandb.init(
            project=self._project,
            name=start.title,
            dir=str(self.folder),
            config=dict(start.settings),
            settings=settings,
        )

    def _write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._rows.append((step, numbers))

    def _close(self, end: Ending) -> None:
        for step, numbers in self._rows:
            self._run.log({**numbers, "_timestamp": self._moment}, step=step)
        self._run.summary.update({**end.results, "privacy": end.headline, "statement": end.statement})
        notes = Path(self._run.settings.log_dir)
        self._run.finish()
        shutil.rmtree(notes)  # absolute paths, a link into the user's cache, and the moments of beginning and end
