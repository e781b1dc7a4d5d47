"""While a batch is looked at, nobody logs: what a hook of the user's would write then are un-noised values of records.

Within `batch.backward()` modules, loggers and metrics refuse what would write or keep a value, and what code of the
user's has left in attributes of the module is taken out again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torchmetrics
from lightning.fabric.loggers.logger import Logger

from adadpigu.compat.lightning.remembering import Memory
from adadpigu.compat.silence import Writes, named, refusing
from adadpigu.errors import PrivacyLineError

_REMEDY = (
    "allowed: to log in on_train_batch_end what follows from weights and p.grad, which are releases, or "
    "diagnostics=True with out=, which keeps losses in a file of its own, outside the guarantee"
)


@contextlib.contextmanager
def silenced(module: pl.LightningModule) -> Iterator[None]:
    """Within, logging is refused by name; afterwards the attributes of the module are as they were."""
    trainer: Any = module.trainer
    memory = Memory(module, besides=vars(trainer._logger_connector))
    learned = {name for name, _ in module.named_parameters()}  # a method may set weights
    try:
        with refusing(_FAMILIES, _REMEDY):
            yield
    finally:
        memory.put_back()
    for name in memory.rewritten():
        if name not in learned:
            raise PrivacyLineError(
                f"{name!r} was changed in place amid private records, by a hook or a layer: it would hold un-noised "
                "values of theirs; allowed: tensors that stay as they are"
            )


def _is_work(kind: type, name: str) -> bool:
    """Whether a logger is asked to do something, or for the writer behind it."""
    return not name.startswith("_") and (name == "experiment" or callable(getattr(kind, name, None)))


_FAMILIES: dict[type, Writes] = {
    pl.LightningModule: named("log", "log_dict", "print"),
    torchmetrics.Metric: named("update", "forward"),
    Logger: _is_work,
}
"""what writes or keeps values, and by which of its attributes"""
