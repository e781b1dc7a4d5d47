"""Logs hold what the run tells, and nothing else; read back with the libraries that people read them with."""

from __future__ import annotations

import getpass
import pickle
import socket
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch
from logged_runs import (
    CANARY,
    Series,
    mlflow_client,
    mlflow_series,
    records,
    tensorboard_series,
    trained,
    wandb_records,
    wandb_series,
    wandb_summary,
)
from torch import nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.loggers import (
    LOGGERS,
    Facts,
    Metrics,
    MLflowLogger,
    Run,
    TensorBoardLogger,
    WandbLogger,
    make_logger,
)


def expected(run: ad.Run) -> Series:
    """The run's metrics by hand."""
    told: Series = {}
    for m in run.metrics:
        assert m.epsilon is not None
        assert m.test_accuracy is not None
        shares = {f"mask/{layer}": share for layer, share in m.mask.items()}
        told[m.step] = {"epsilon": m.epsilon, "test_accuracy": m.test_accuracy, "active": m.active, **shares}
    return told


def finals(run: ad.Run) -> dict[str, float]:
    assert run.accuracy is not None
    claims = {"final/epsilon": run.epsilon, "final/epsilon_spent": run.privacy.epsilon_spent}
    return {"final/test_accuracy": run.accuracy, "final/steps_done": 6.0, **claims}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ad.Run, Path]]:
    """One run, followed by all three at once; the environment asks for more than the loggers give."""
    folder = tmp_path_factory.mktemp("logged") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "online")
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        yield trained(*(make_logger(name, folder) for name in LOGGERS), out=folder), folder


@pytest.mark.slow
def test_tensorboard_reads_the_metrics_of_the_run_to_the_last_digit(logged: tuple[ad.Run, Path]) -> None:
    run, folder = logged
    series, texts = tensorboard_series(folder / "tensorboard")
    wanted = expected(run)
    wanted[6] |= finals(run)
    assert len(wanted) == 6
    assert series == wanted
    assert [line.removeprefix("    ") for line in texts["privacy"].splitlines()] == run.privacy.statement().splitlines()
    assert "    method: dpsgd" in texts["settings"].splitlines()


@pytest.mark.slow
def test_mlflow_reads_metrics_settings_statement_and_report(
    logged: tuple[ad.Run, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = logged
    client = mlflow_client(folder / "mlruns", monkeypatch)
    (experiment,) = [e.experiment_id for e in client.search_experiments() if e.name == "adadpigu"]
    (found,) = client.search_runs([experiment])
    wanted = expected(run)
    wanted[6] |= finals(run)
    assert mlflow_series(client, found.info.run_id) == wanted
    assert found.info.status == "FINISHED"
    assert found.data.params["method"] == "dpsgd"
    assert float(found.data.params["epsilon"]) == run.epsilon
    assert found.data.tags["privacy"] == run.privacy.statement().splitlines()[0]
    (statement,) = (folder / "mlruns").rglob("artifacts/statement.txt")
    assert statement.read_text() == (folder / "statement.txt").read_text()


def test_wandb_holds_the_metrics_offline(logged: tuple[ad.Run, Path]) -> None:
    run, folder = logged
    series = {s: {k: v for k, v in row.items() if not k.startswith("_")} for s, row in wandb_series(folder).items()}
    assert series == expected(run)
    summary = wandb_summary(folder)
    assert {key: summary[key] for key in finals(run)} == finals(run)
    assert summary["statement"] == run.privacy.statement()


def test_no_log_tells_of_the_machine_or_its_user(logged: tuple[ad.Run, Path]) -> None:
    _, folder = logged
    (run,) = [r.run for r in wandb_records(folder) if r.WhichOneof("record_type") == "run"]
    assert (run.host, run.git.remote_url, run.git.commit) == ("", "", "")
    kinds = {record.WhichOneof("record_type") for record in wandb_records(folder)}
    assert not kinds & {"stats", "environment", "output", "output_raw", "files"}
    places = [folder / name for name in ("tensorboard", "mlruns", "wandb")]
    names = [path.name for place in places for path in place.rglob("*") if path.is_file()]
    assert not any(socket.gethostname() in name.split(".") for name in names)
    assert not {"requirements.txt", "wandb-metadata.json", "config.yaml"} & set(names)
    assert not any(name.endswith(".py") for name in names)
    owners = [p for p in (folder / "mlruns").rglob("meta.yaml") if f"user_id: {getpass.getuser()}" in p.read_text()]
    assert owners == []


def test_no_log_tells_a_path_of_the_machine_but_where_mlflow_keeps_its_artifacts(logged: tuple[ad.Run, Path]) -> None:
    """MLflow finds artifacts by an absolute path, which stands in its meta.yaml; nothing else does, nor any link."""
    _, folder = logged
    words = [str(path).encode() for path in (folder.resolve(), Path.home(), sys.executable, sys.argv[0], __file__)]
    found = [path for name in ("tensorboard", "mlruns", "wandb") for path in (folder / name).rglob("*")]
    files = [path for path in found if path.is_file() and not path.is_symlink()]
    assert [path for path in found if path.is_symlink()] == []
    assert len(files) > 10
    telling = {path.name for path in files if any(word in path.read_bytes() for word in words)}
    assert telling == {"meta.yaml"}
    assert [path.name for path in (folder / "wandb").rglob("*.log")] == []


def test_no_log_tells_when_a_step_was_taken(logged: tuple[ad.Run, Path]) -> None:
    """How long steps take depends on how many records were drawn, which nothing has noised."""
    _, folder = logged
    events = [e for _, row in wandb_series(folder).items() for e in [row["_timestamp"]]]
    assert len(set(events)) == 1
    lines = [p.read_text().split() for p in (folder / "mlruns").rglob("metrics/epsilon")]
    assert len({moment for words in lines for moment in words[::3]}) == 1
    loader = __import__("tensorboard.backend.event_processing.event_file_loader", fromlist=["EventFileLoader"])
    (path,) = (folder / "tensorboard").iterdir()
    assert len({event.wall_time for event in loader.EventFileLoader(str(path)).Load()}) == 1


class Greedy:
    """An observer that keeps all it is given, and tries to change it."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def begin(self, facts: Facts) -> None:
        self.kept.append(facts)
        with pytest.raises(FrozenInstanceError):
            facts.epsilon = 0.1  # type: ignore[misc]

    def update(self, metrics: Metrics) -> None:
        self.kept.append(metrics)
        with pytest.raises(FrozenInstanceError):
            metrics.epsilon = 0.1  # type: ignore[misc]
        metrics.mask["0"] = 7.0

    def end(self, run: Run) -> None:
        self.kept.append(run)
        with pytest.raises(FrozenInstanceError):
            run.accuracy = 1.0  # type: ignore[misc]


def test_an_observer_is_given_frozen_public_values_of_its_own(tmp_path: Path) -> None:
    """Whatever can be reached from what it is given: no record, no loss, no batch size; and the run stays as it is."""
    greedy = Greedy()
    run = trained(greedy, out=tmp_path / "run", randomness=ReproducibleRandomness(5), diagnostics=True)
    assert {type(value) for value in greedy.kept} == {Facts, Metrics, Run}
    seen = [torch.tensor(CANARY).numpy().tobytes(), str(CANARY).encode()]
    losses = (tmp_path / "run" / "diagnostics.jsonl").read_text()
    assert "batch_size" in losses or "loss_mean" in losses
    whole = b"".join(pickle.dumps(value) for value in greedy.kept)
    assert not any(secret in whole for secret in seen)
    assert {field for value in greedy.kept[1:-1] for field in vars(value)} == set(Metrics.__dataclass_fields__)
    assert all(m.mask == {"0": 1.0, "2": 1.0} for m in run.metrics)
    assert '"mask": {"0": 1.0, "2": 1.0}' in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_logs_of_a_run_with_diagnostics_hold_what_the_quiet_run_logs(tmp_path: Path) -> None:
    """The same noise and draws; un-noised values go to diagnostics.jsonl alone."""
    logs = []
    for name, loud in (("quiet", False), ("loud", True)):
        trained(TensorBoardLogger(tmp_path / name), randomness=ReproducibleRandomness(5), diagnostics=loud)
        logs.append(tensorboard_series(tmp_path / name)[0])
    assert logs[0] == logs[1]


def test_what_has_no_guarantee_is_logged_without_an_epsilon(tmp_path: Path) -> None:
    trained(TensorBoardLogger(tmp_path / "sgd"), method="sgd", noise_multiplier=None)
    trained(TensorBoardLogger(tmp_path / "fixed"), randomness=ReproducibleRandomness(5))
    for name in ("sgd", "fixed"):
        series, texts = tensorboard_series(tmp_path / name)
        assert not any("epsilon" in key for row in series.values() for key in row)
        assert "private: False" in texts["settings"]
        assert "epsilon" not in texts["settings"]
        assert texts["privacy"].startswith("    NOT PRIVATE")


def test_a_run_that_goes_on_replaces_what_is_made_again(tmp_path: Path) -> None:
    """Steps 5 and 6 were logged by a process that had kept a checkpoint of step 4 only."""
    facts = Facts(
        dataset="d",
        method="m",
        parameters=1,
        steps=6,
        noise_multiplier=1.0,
        sample_rate=0.5,
        epsilon=1.0,
        delta=1e-5,
        engine="e",
        warnings=(),
    )
    for first, accuracy in ((0, 0.25), (4, 0.75)):
        logger = TensorBoardLogger(tmp_path)
        logger.begin(Facts(**{**vars(facts), "steps_done": first}))
        for step in range(first + 1, 7):
            logger.update(Metrics(step=step, steps=6, stage="s", epsilon=0.5, test_accuracy=accuracy))
    series, _ = tensorboard_series(tmp_path)
    assert [series[step]["test_accuracy"] for step in range(1, 7)] == [0.25] * 4 + [0.75] * 2


@pytest.mark.parametrize("kind", [TensorBoardLogger, MLflowLogger, WandbLogger])
def test_nothing_is_written_before_the_run_begins(kind: Any, tmp_path: Path) -> None:
    kind(tmp_path / "log")
    assert list(tmp_path.iterdir()) == []


def test_a_layer_of_any_name_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = nn.Sequential()
    model.add_module("größe = 1; x: y/z", nn.Linear(4, 3))
    logger = MLflowLogger(tmp_path / "mlruns")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *a, **k: pytest.fail(str(a)))
        ad.train(
            model, records(), records=24, batch_size=12, steps=2, noise_multiplier=1.0, loss=F.cross_entropy,
            method=ad.DPSGD(), observers=[logger],
        )  # fmt: skip
    client = mlflow_client(tmp_path / "mlruns", monkeypatch)
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert run.data.metrics["mask/gr__e _ 1_ x_ y_z"] == 1.0
