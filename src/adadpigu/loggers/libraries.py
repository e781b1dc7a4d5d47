"""The loggers that come with the package: TensorBoard, MLflow, Weights & Biases. Each writes public values to a folder.

How long steps take is not covered by the guarantee, so every number bears the moment at which the log was opened.
"""

import json
import os
import re
import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadpigu.errors import check
from adadpigu.extras import import_extra
from adadpigu.loggers.logger import Logger
from adadpigu.runs.run import Facts, Run

_MODULES = (
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.summary.writer.record_writer",
    "torch.utils.tensorboard.summary",
)


class TensorBoardLogger(Logger):
    """Writes to a folder that `tensorboard --logdir` shows: numbers, with the statement as text.

    Event files are written directly, record by record: TensorBoard's own writer puts the name of the machine into their
    names, and the moment of every number beside it.
    """

    name = "tensorboard"

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder)
        needed = (import_extra(name, group="tensorboard", purpose="the logger 'tensorboard'") for name in _MODULES)
        self._events, self._records, self._summaries = needed
        self._file = Path(folder)

    def _start(self, facts: Facts, settings: Mapping[str, Any]) -> None:
        assert self.folder is not None
        self._file = self.folder / f"events.out.tfevents.{self._moment:020.9f}"  # read in the order of their names
        self._append(file_version="brain.Event:2")
        if facts.steps_done:  # what a process before this one wrote after its last checkpoint is made again
            begun = self._events.SessionLog(status=self._events.SessionLog.START)
            self._append(session_log=begun, step=facts.steps_done + 1)
        lines = [f"    {name}: {value}" for name, value in settings.items()]
        self._append(summary=self._summaries.text("settings", "\n".join(lines)), step=facts.steps_done)

    def _write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            made = self._summaries.scalar(name, value, new_style=True, double_precision=True)
            self._append(summary=made, step=step)

    def _close(self, run: Run, results: Mapping[str, float]) -> None:
        self._write(run.steps_done, results)
        indented = textwrap.indent(run.privacy.statement(), "    ")  # Markdown shows it as it is
        self._append(summary=self._summaries.text("privacy", indented), step=run.steps_done)

    def _append(self, **content: Any) -> None:
        """One record more; the file is open no longer than that, so a crash leaves whole records."""
        event = self._events.Event(wall_time=self._moment, **content)
        with self._file.open("ab") as file:
            self._records.RecordWriter(file).write(event.SerializeToString())


_MOST = 250  # characters of a name or value that MLflow takes everywhere


class MLflowLogger(Logger):
    """Writes one MLflow run a process, to a folder or wherever a tracking URI leads; its artifacts hold the statement.

    MLflow is told neither user nor source file. Its own telemetry is switched off.
    """

    name = "mlflow"

    def __init__(
        self, folder: Path | str | None = None, *, uri: str | None = None, experiment: str = "adadpigu"
    ) -> None:
        super().__init__(folder)
        one = (folder is None) != (uri is None)
        check("folder", repr(folder), one, f"beside uri={uri!r}; allowed: one of them, where the runs are kept")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a store of files needs neither server nor database
        self._tracking = import_extra("mlflow.tracking", group="mlflow", purpose="the logger 'mlflow'")
        self._entities = import_extra("mlflow.entities", group="mlflow", purpose="the logger 'mlflow'")
        self._uri, self._experiment = uri, experiment
        self._client: Any = None
        self._run = ""

    def _start(self, facts: Facts, settings: Mapping[str, Any]) -> None:
        uri = self._uri if self.folder is None else self.folder.resolve().as_uri()
        self._client = self._tracking.MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(self._experiment)
        number = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        made = self._client.create_run(
            number, start_time=int(self._moment * 1000), run_name=f"{facts.method} on {facts.dataset}"
        )
        self._run = made.info.run_id
        params = [self._entities.Param(name, str(value)[:_MOST]) for name, value in settings.items()]
        self._client.log_batch(self._run, params=params)

    def _write(self, step: int, numbers: Mapping[str, float]) -> None:
        moment = int(self._moment * 1000)
        made = [self._entities.Metric(_key(name), value, moment, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=made)

    def _close(self, run: Run, results: Mapping[str, float]) -> None:
        self._write(run.steps_done, results)
        statement = run.privacy.statement()
        report = json.dumps(run.privacy.to_json(), indent=2, allow_nan=False)
        self._client.set_tag(self._run, "privacy", statement.splitlines()[0])
        self._client.log_text(self._run, statement + "\n", "statement.txt")
        self._client.log_text(self._run, report + "\n", "privacy.json")
        self._client.set_terminated(self._run)


def _key(name: str) -> str:
    """A name as MLflow allows it; layers are called as the user calls them.

    >>> _key("mask/net.0"), _key("mask/größe=1"), _key("mask/a/b"), _key("mask/..")
    ('mask/net.0', 'mask/gr__e_1', 'mask/a_b', 'mask/__')
    """
    kind, slash, layer = name.partition("/")
    plain = "_" * len(layer) if set(layer) == {"."} else re.sub(r"[^A-Za-z0-9_\-. ]", "_", layer)
    return (kind + slash + plain)[:_MOST]


_SETTINGS: dict[str, object] = {
    "mode": "offline",
    "console": "off",
    "reinit": "create_new",  # a run that the user has open stays as it is
    "symlink": False,  # to the notes on itself
    **dict.fromkeys(("host", "username", "email", "program"), ""),
    **dict.fromkeys(("silent", "disable_git", "disable_code"), True),
    **dict.fromkeys(("x_disable_meta", "x_disable_stats", "x_disable_machine_info"), True),
    **dict.fromkeys(("save_code", "sync_tensorboard", "x_save_requirements"), False),
}


class WandbLogger(Logger):
    """Writes one offline run a process to `folder`/wandb, which its owner may upload later with `wandb sync`.

    No network call is made. Of the machine nothing stays: system metrics, host and user, the list of packages, git and
    code, and what the program prints are switched off; the library's notes on itself, which name paths, are taken away
    at the end. It notes how long after the first row each row came, and cannot be told not to: so all rows are written
    at the end, at one moment.
    """

    name = "wandb"

    def __init__(self, folder: Path | str, *, project: str = "adadpigu") -> None:
        super().__init__(folder)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb = import_extra("wandb", group="wandb", purpose="the logger 'wandb'")
        self._project = project
        self._run: Any = None
        self._rows: list[tuple[int, Mapping[str, float]]] = []

    def _start(self, facts: Facts, settings: Mapping[str, Any]) -> None:
        self._rows = []
        self._run = self._wandb.init(
            project=self._project,
            name=f"{facts.method} on {facts.dataset}",
            dir=str(self.folder),
            config=dict(settings),
            settings=self._wandb.Settings(**_SETTINGS, root_dir=str(self.folder)),
        )

    def _write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._rows.append((step, numbers))

    def _close(self, run: Run, results: Mapping[str, float]) -> None:
        for step, numbers in self._rows:
            self._run.log({**numbers, "_timestamp": self._moment}, step=step)
        statement = run.privacy.statement()
        self._run.summary.update({**results, "privacy": statement.splitlines()[0], "statement": statement})
        notes = Path(self._run.settings.log_dir)
        self._run.finish()
        shutil.rmtree(notes)  # absolute paths, a link into the user's cache, and the moments of beginning and end
