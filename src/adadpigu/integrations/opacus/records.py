"""The records of a DataLoader, one at a time: what a record looks like must not depend on the others in its batch.

A `collate_fn` that pads to the longest of a batch would tell each record how long the others are. So every record is
padded to one length, the longest of the data set, which is then declared public. Sensitive: records before any draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, default_collate

from adadpigu.core.sampling import Population
from adadpigu.core.trees import Tree, check_tree, select
from adadpigu.data.datasets import DataSet, IndexedRecords
from adadpigu.errors import InputError

Collate = Callable[[list[Any]], Any]
_CHECKED = 8
_PAIRS = "allowed: pairs (inputs, targets) with one row a record, as a collate_fn may make them of any records"


class CollatedRecords:
    """Records of a map-style data set as its loader's `collate_fn` makes them, each one by itself."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self._dataset, self._collate = dataset, collate
        self.origin = dataset
        self._filler = _longest(dataset)
        self._empty = select(self._one(0), slice(0))

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def declared(self) -> tuple[str, ...]:
        """What has become public by padding every record to the same length."""
        if self._filler is None:
            return ()
        return (f"the longest record has length {len(self._filler[0])}: all are padded to it",)

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        if not len(indices):
            inputs, targets = self._empty
        else:
            inputs, targets = tree_map(lambda *rows: torch.cat(rows), *(self._one(index) for index in indices.tolist()))
        return inputs, targets

    def _one(self, index: int) -> tuple[Tree, Tree]:
        """A record as a batch of one, padded by collating it with a blank one of the greatest length."""
        items = [self._dataset[index]] + ([] if self._filler is None else [self._filler])
        batch = check_tree(self._collate(items), "collate_fn: a batch")
        if not (isinstance(batch, list | tuple) and len(batch) == 2) or len(tree_leaves(batch)[0]) != len(items):
            raise InputError(f"collate_fn: a batch is not a pair, or has not a row a record; {_PAIRS}")
        inputs, targets = select(tuple(batch), slice(1))
        return inputs, targets


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
        if population.whole:
            raise InputError(f"data_loader.dataset: its records are no pairs; {_PAIRS}")
    else:
        collated = CollatedRecords(dataset, loader.collate_fn)
        _check_alone(dataset, collated, loader.collate_fn)
        population = collated
        public += collated.declared
    return DataSet(name="data_loader.dataset", train=population, records=count, public=tuple(public))


def _longest(dataset: Any) -> tuple[Any, ...] | None:
    """A blank record of the greatest length there is, where records have several; else None."""
    most, shapes = None, set()
    for index in range(len(dataset)):
        item = dataset[index]
        shapes.add(tuple(leaf.shape for leaf in tree_leaves(item) if isinstance(leaf, Tensor)))
        if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], Tensor) and item[0].ndim:
            most = item if most is None or len(item[0]) > len(most[0]) else most
    if len(shapes) < 2:
        return None
    if most is None:
        raise InputError("collate_fn: records of several lengths; allowed: pairs (input tensor, target), or one length")
    blank = torch.zeros_like(most[1]) if isinstance(most[1], Tensor) else type(most[1])()
    return torch.zeros_like(most[0]), blank


def _check_alone(dataset: Any, alone: CollatedRecords, collate: Collate) -> None:
    """A record must look the same whatever stands beside it, but for padding at its end."""
    count = min(len(dataset), _CHECKED)
    inputs = tree_leaves(alone.take(torch.arange(count))[0])
    together = tree_leaves(collate([dataset[index] for index in range(count)])[0])
    for one, other in zip(inputs, together, strict=True):
        shared = tuple(slice(0, min(sizes)) for sizes in zip(one.shape, other.shape, strict=False))
        if one.ndim != other.ndim or not torch.equal(one[shared], other[shared]):
            raise InputError(
                "collate_fn makes another record of a record when others stand beside it; allowed: stacking, or "
                "padding at the end of the first dimension"
            )
