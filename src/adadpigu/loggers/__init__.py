"""Loggers: runs followed in TensorBoard, MLflow and Weights & Biases. Each is an `Observer` and sees public values.

A logger of your own is any object with `begin(facts)`, `update(metrics)` and `end(run)`.
"""

from __future__ import annotations

from adadpigu.loggers.logger import Logger
from adadpigu.loggers.making import LOGGERS, make_logger
from adadpigu.loggers.mlflow import MLflowLogger
from adadpigu.loggers.tensorboard import TensorBoardLogger
from adadpigu.loggers.values import Beginning, Ending
from adadpigu.loggers.wandb import WandbLogger
from adadpigu.training.run import Facts, Metrics, Observer, Run

__all__ = [
    "LOGGERS",
    "Beginning",
    "Ending",
    "Facts",
    "Logger",
    "MLflowLogger",
    "Metrics",
    "Observer",
    "Run",
    "TensorBoardLogger",
    "WandbLogger",
    "make_logger",
]
