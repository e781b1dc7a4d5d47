"""MLflow: a run of public numbers and settings, with the statement and the privacy report as its artifacts.

By default a store of files in a folder, without a server. MLflow is told neither user nor source file nor how long
steps took: every number bears the moment at which the log was opened. Its own telemetry is switched off.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadpigu.errors import check
from adadpigu.extras import extra
from adadpigu.loggers.logger import Beginning, Ending, Logger

_MOST = 250
"""characters of a name or value that MLflow takes everywhere"""


class MLflowLogger(Logger):
    """Writes one MLflow run a process: to a folder, or wherever a tracking URI leads."""

    name = "mlflow"

    def __init__(
        self, folder: Path | str | None = None, *, uri: str | None = None, experiment: str = "adadpigu"
    ) -> None:
        super().__init__()
        one = (folder is None) != (uri is None)
        check("folder", repr(folder), one, f"beside uri={uri!r}; allowed: one of them, where the runs are kept")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a store of files needs neither server nor database
        self._tracking = extra("mlflow.tracking", group="mlflow", purpose="the logger 'mlflow'")
        self._entities = extra("mlflow.entities", group="mlflow", purpose="the logger 'mlflow'")
        self._folder = None if folder is None else Path(folder)
        self._uri = uri
        self._experiment = experiment
        self._client: Any = None
        self._run = ""
        self._moment = 0

    def _start(self, start: Beginning) -> None:
        self._moment = int(time.time() * 1000)
        self._client = self._connected()
        found = self._client.get_experiment_by_name(self._experiment)
        number = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        made = self._client.create_run(number, start_time=self._moment, run_name=start.title)
        self._run = made.info.run_id
        settings = [self._entities.Param(name, str(value)[:_MOST]) for name, value in start.settings.items()]
        self._client.log_batch(self._run, params=settings)

    def _connected(self) -> Any:
        if self._folder is None:
            return self._tracking.MlflowClient(tracking_uri=self._uri)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._tracking.MlflowClient(tracking_uri=self._folder.resolve().as_uri())

    def _write(self, step: int, numbers: Mapping[str, float]) -> None:
        made = [self._entities.Metric(_key(name), value, self._moment, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=made)

    def _close(self, end: Ending) -> None:
        self._write(end.step, end.results)
        self._client.set_tag(self._run, "privacy", end.headline)
        self._client.log_text(self._run, end.statement + "\n", "statement.txt")
        self._client.log_text(self._run, end.privacy + "\n", "privacy.json")
        self._client.set_terminated(self._run)


def _key(name: str) -> str:
    """A name as MLflow allows it; layers are called as the user calls them.

    >>> _key("mask/net.0"), _key("mask/größe=1"), _key("mask/a/b"), _key("mask/..")
    ('mask/net.0', 'mask/gr__e_1', 'mask/a_b', 'mask/__')
    """
    kind, slash, layer = name.partition("/")
    plain = "_" * len(layer) if set(layer) == {"."} else re.sub(r"[^A-Za-z0-9_\-. ]", "_", layer)
    return (kind + slash + plain)[:_MOST]
