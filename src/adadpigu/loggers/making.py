"""Loggers by name, for the command line: each writes into the folder of its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from adadpigu.errors import unknown
from adadpigu.loggers.logger import Logger
from adadpigu.loggers.mlflow import MLflowLogger
from adadpigu.loggers.tensorboard import TensorBoardLogger
from adadpigu.loggers.wandb import WandbLogger

LOGGERS: Mapping[str, Callable[[Path], Logger]] = MappingProxyType(
    {
        TensorBoardLogger.name: lambda folder: TensorBoardLogger(folder / "tensorboard"),
        MLflowLogger.name: lambda folder: MLflowLogger(folder / "mlruns"),
        WandbLogger.name: WandbLogger,
    }
)


def make_logger(name: str, folder: Path) -> Logger:
    """The logger of a name, for the run in `folder`. Nothing is written before the run begins."""
    if name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
    return LOGGERS[name](folder)
