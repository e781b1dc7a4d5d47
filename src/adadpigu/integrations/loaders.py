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


def validate_loader(loader: object, name: str) -> tuple[DataLoader[Any], tuple[str, ...]]:
    """The loader, if its records can be drawn by us, and which of its settings then have no effect.

    >>> validate_loader(DataLoader([1, 2, 3], shuffle=True, drop_last=True), "data_loader")[1]
    ('shuffle=True', 'drop_last=True')
    """
    if (refusal := _refusal(loader)) is not None:
        raise InputError(f"{name}: {refusal}")
    assert isinstance(loader, DataLoader)
    settings = {
        "shuffle=True": _is_shuffle(loader.sampler),
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


def _refusal(loader: object) -> str | None:
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        return f"a {type(loader).__name__} makes its own batches; allowed: a DataLoader"
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        kind = type(dataset).__name__
        return f"{kind} has no length or no positions to draw from; allowed: a map-style Dataset"
    if not len(dataset):
        return "there is no record; allowed: at least 1"
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        return "a batch_sampler of your own decides who comes together; allowed: batch_size"
    if not _is_shuffle(loader.sampler) and type(loader.sampler) is not SequentialSampler:
        return (
            f"sampler={type(loader.sampler).__name__} chooses records, but only Poisson draws are accounted; allowed: "
            "none of your own (weights and classes must not decide who is drawn)"
        )
    return None


def _is_shuffle(sampler: Any) -> bool:
    """Whether it is what `shuffle=True` makes: each record once, in random order."""
    return type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
