"""A training loader of the user's own, judged: its data set and its batch size are taken, its order is not.

A loader decides which records come together, and accounting holds for Poisson draws alone. So whatever decides that
besides the batch size is refused by name, but what has no say where every draw is Poisson; that is told.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from adadpigu.errors import InputError

DROP_LAST = "drop_last=True"


def judged(loader: object, name: str) -> tuple[DataLoader[Any], tuple[str, ...]]:
    """The loader, if its records can be drawn by us, and which of its settings then have no effect.

    >>> judged(DataLoader([1, 2, 3], shuffle=True, drop_last=True), "data_loader")[1]
    ('shuffle=True', 'drop_last=True')
    """
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        raise InputError(f"{name}: a {type(loader).__name__} makes its own batches; allowed: a DataLoader")
    _refuse_records(loader.dataset, name)
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise InputError(f"{name}: a batch_sampler of your own decides who comes together; allowed: batch_size")
    shuffles = _is_shuffle(loader.sampler)
    if not shuffles and type(loader.sampler) is not SequentialSampler:
        raise InputError(
            f"{name}: sampler={type(loader.sampler).__name__} chooses records, but only Poisson draws are accounted; "
            "allowed: none of your own (weights and classes must not decide who is drawn)"
        )
    settings = {
        "shuffle=True": shuffles,
        DROP_LAST: loader.drop_last,
        f"num_workers={loader.num_workers}": loader.num_workers > 0,
    }
    return loader, tuple(setting for setting, there in settings.items() if there)


def tell_ignored(ignored: tuple[str, ...], name: str) -> None:
    """Warns of settings of a loader that have no effect."""
    if ignored:
        warnings.warn(
            f"{name}: {' and '.join(ignored)} has no effect: each batch is a Poisson draw, every record by itself with "
            "probability batch_size/records, read in this process; none is the last",
            stacklevel=4,
        )


def _refuse_records(dataset: Any, name: str) -> None:
    positions = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not positions:
        raise InputError(
            f"{name}: {type(dataset).__name__} has no length or no positions, so nobody can draw from it; allowed: a "
            "map-style Dataset with __len__ and __getitem__"
        )
    if not len(dataset):
        raise InputError(f"{name}: there is no record; allowed: at least 1")


def _is_shuffle(sampler: Any) -> bool:
    """Whether it is what `shuffle=True` makes: each record once, in random order."""
    return type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
