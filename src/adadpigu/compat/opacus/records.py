"""The records of a DataLoader, one at a time: what a record looks like must not depend on the others in its batch.

A `collate_fn` that pads to the longest of a batch would tell each record how long the others are. So every record is
padded to one length, the longest of the data set, which is then declared public. Sensitive: records before any draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from adadpigu.compat.loaders import judged
from adadpigu.data.datasets import DataSet, IndexedRecords
from adadpigu.errors import InputError, first_line
from adadpigu.sampling import Population

Collate = Callable[[list[Any]], Any]
_CHECKED = 8


class CollatedRecords:
    """Records of a map-style data set as its loader's `collate_fn` makes them, each one by itself."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self._dataset, self._collate = dataset, collate
        self.origin = dataset
        self._filler = _longest(dataset)
        self._empty = tuple(tensor[:0] for tensor in self._one(0))

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def declared(self) -> tuple[str, ...]:
        """What has become public by padding every record to the same length."""
        if self._filler is None:
            return ()
        return (f"the longest record has length {len(self._filler[0])}: all are padded to it",)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        if not len(indices):
            return self._empty[0], self._empty[1]
        inputs, targets = zip(*(self._one(index) for index in indices.tolist()), strict=True)
        return torch.cat(inputs), torch.cat(targets)

    def _one(self, index: int) -> tuple[Tensor, Tensor]:
        """A record as a batch of one, padded by collating it with a blank one of the greatest length."""
        items = [self._dataset[index]] + ([] if self._filler is None else [self._filler])
        batch = self._collate(items)
        if not (isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(t, Tensor) for t in batch)):
            raise InputError("collate_fn: a batch must be two tensors, (inputs, targets)")
        for tensor in batch:
            if len(tensor) != len(items):
                raise InputError(
                    f"collate_fn makes a tensor of {tuple(tensor.shape)} from {len(items)} records; allowed: one row "
                    "a record, first dimension the batch"
                )
        return batch[0][:1], batch[1][:1]


def records_of(loader: DataLoader[Any], records: int | None) -> DataSet:
    """The data set of a loader whose batches are to be drawn by us; `records` is its public count, None: its length."""
    dataset: Any = loader.dataset
    count = len(dataset) if records is None else records
    public = [
        f"{count:,} records" + (": the length of data_loader.dataset, as Opacus takes it" if records is None else "")
    ]
    population: Population
    if loader.collate_fn is default_collate:
        population = IndexedRecords(dataset, name="data_loader.dataset")
    else:
        collated = CollatedRecords(dataset, loader.collate_fn)
        _check_alone(dataset, collated, loader.collate_fn)
        population = collated
        public += collated.declared
    return DataSet(name="data_loader.dataset", train=population, records=count, public=tuple(public))


def unwrapped(loader: Any) -> DataLoader[Any]:
    """The user's loader, also where it was made private once; refuses one that draws in a way of its own."""
    return judged(getattr(loader, "original", loader), "data_loader")[0]


def _longest(dataset: Any) -> tuple[Any, ...] | None:
    """A blank record of the greatest length there is, where records have several; else None."""
    most, lengths = None, set()
    for index in range(len(dataset)):
        item = dataset[index]
        if not (isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], Tensor)):
            raise InputError("collate_fn: records must be pairs (input tensor, target)")
        size = len(item[0]) if item[0].ndim else 0
        lengths.add(size)
        if most is None or size > len(most[0]):
            most = item
    if len(lengths) < 2 or most is None:
        return None
    blank = torch.zeros_like(most[1]) if isinstance(most[1], Tensor) else type(most[1])()
    return torch.zeros_like(most[0]), blank


def _check_alone(dataset: Any, alone: CollatedRecords, collate: Collate) -> None:
    """A record must look the same whatever stands beside it, but for padding at its end."""
    count = min(len(dataset), _CHECKED)
    inputs, _ = alone.take(torch.arange(count))
    try:
        together = collate([dataset[index] for index in range(count)])[0]
    except Exception as error:
        raise InputError(f"collate_fn fails on {count} records: {first_line(error)}") from None
    shared = tuple(slice(0, min(sizes)) for sizes in zip(inputs.shape, together.shape, strict=False))
    if inputs.ndim != together.ndim or not torch.equal(inputs[shared], together[shared]):
        raise InputError(
            "collate_fn makes another record of a record when others stand beside it; allowed: stacking, or padding "
            "at the end of the first dimension"
        )
