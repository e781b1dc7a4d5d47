"""Loggers: runs followed in TensorBoard, MLflow and Weights & Biases. Each is an `Observer` and sees public values.

A logger of your own is any object with `begin(facts)`, `update(metrics)` and `end(run)`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from adadpigu.errors import check_known
from adadpigu.loggers.libraries import MLflowLogger, TensorBoardLogger, WandbLogger
from adadpigu.loggers.logger import Logger
from adadpigu.runs.run import Facts, Metrics, Run

__all__ = ["Facts", "Logger", "MLflowLogger", "Metrics", "Run", "TensorBoardLogger", "WandbLogger", "make_logger"]

LOGGERS: Mapping[str, Callable[[Path], Logger]] = {
    TensorBoardLogger.name: lambda folder: TensorBoardLogger(folder / "tensorboard"),
    MLflowLogger.name: lambda folder: MLflowLogger(folder / "mlruns"),
    WandbLogger.name: WandbLogger,
}


def make_logger(name: str, folder: Path) -> Logger:
    """The logger of a name, for the run in `folder`. Nothing is written before the run begins."""
    check_known("logger", name, LOGGERS)
    return LOGGERS[name](folder)
