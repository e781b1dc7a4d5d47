"""Whether two data sets hold some of the same records, however each is wrapped: scores on training records are exact.

Random splits of one data set are two that share no record; a `Subset` of the training set is training records. So
records are told apart by where they lie (a row of memory, an object, a position of a data set), and no value is
compared: equal copies are for `checking`. By the same places a record is found that stands in one data set several
times: each would be drawn by itself, and bounded by itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from adadpigu.data.datasets import TensorRecords
from adadpigu.errors import InputError

Positions = NDArray[np.int64]
_VALUES = (bool, int, float, complex, str, bytes, type(None))
"""of these Python may hold one object for many that are equal"""


@dataclass(frozen=True)
class Place:
    """Where some records of a data set lie."""

    holder: Hashable
    """what holds them"""
    where: Positions
    """their places in it"""
    which: Positions
    """their positions in the data set"""
    main: bool = True
    """whether a record is known by this place; of several arrays, it is by the first"""


def refuse_shared_records(train: object, other: object, name: str) -> None:
    """Refuses a data set to be evaluated on that holds a record of the training set."""
    if share_records(train, other):
        raise InputError(
            f"{name}: there are training records among its records, and scores on them are exact; allowed: others, "
            "such as the other part of a random split"
        )


def share_records(train: object, other: object) -> bool:
    """Whether a record of one data set lies where one of the other does."""
    trained = places_of(train)
    chosen = [_shared(_main(held), trained) for held in _held(other)]  # by a class of the user's: which is not known
    return bool(_shared(places_of(other), trained).any()) or any(shared.size and shared.all() for shared in chosen)


def refuse_repeated(dataset: object, name: str) -> None:
    """Refuses a data set to be trained on that holds a record several times, by a list of indices or of data sets."""
    places = _main(dataset)
    for holder in dict.fromkeys(place.holder for place in places):
        where, which = (np.concatenate(each) for each in zip(*_of(holder, places), strict=True))
        _, first, counts = np.unique(where, return_index=True, return_counts=True)
        repeated = first[counts > 1]
        if repeated.size:
            one = np.sort(which[where == where[repeated[np.argmin(which[repeated])]]])
            raise InputError(
                f"{name}: its items {one[0]} and {one[1]} are the same record, which would be drawn and bounded as if "
                "it were several; allowed: each record once, since the unit of privacy is a record (for rare classes, "
                "a loss with declared class weights)"
            )


def _of(holder: Hashable, places: list[Place]) -> list[tuple[Positions, Positions]]:
    return [(place.where, place.which) for place in places if place.holder == holder]


def _shared(found: list[Place], trained: list[Place]) -> NDArray[np.bool_]:
    """For each place that was found, whether a record there is trained on."""
    known = {
        holder: np.concatenate([np.zeros(0, np.int64), *(where for where, _ in _of(holder, trained))])
        for holder in {place.holder for place in found}
    }
    return np.concatenate([np.zeros(0, np.bool_), *(np.isin(place.where, known[place.holder]) for place in found)])


def places_of(dataset: object) -> list[Place]:
    """Where each record of a data set lies; of records that were made from a data set (`origin`), where it has them.

    >>> whole = TensorDataset(torch.zeros(3, 2))
    >>> chosen, same = places_of(Subset(Subset(whole, [2, 0]), [1])), places_of(Subset(whole, [0]))
    >>> chosen[0].holder == same[0].holder and chosen[0].where == same[0].where
    array([ True])
    """
    dataset = origin_of(dataset)
    if isinstance(dataset, Sized) and not isinstance(dataset, IterableDataset):
        everything = np.arange(len(dataset))
        return [*_places(dataset, everything, everything)]
    return [Place("itself", np.array([id(dataset)]), np.zeros(1, np.int64))]  # no positions: it is itself or another


def origin_of(dataset: object) -> object:
    """What the records of a population were made from, as far as it says so; else itself."""
    inner = getattr(dataset, "origin", None)
    return dataset if inner is None else origin_of(inner)


def _main(dataset: object) -> list[Place]:
    """One place for each record, as far as it has one."""
    return [place for place in places_of(dataset) if place.main]


def _places(dataset: Any, wanted: Positions, which: Positions) -> Iterator[Place]:
    """Where the records of these positions lie; `which` are the positions that they have for whoever asked first."""
    if isinstance(dataset, Subset):
        yield from _places(dataset.dataset, np.asarray(dataset.indices, dtype=np.int64)[wanted], which)
        return
    wanted = wanted % max(len(dataset), 1)  # counted from the end, where they are below 0
    if isinstance(dataset, ConcatDataset):
        ends = np.array(dataset.cumulative_sizes)
        numbers = np.searchsorted(ends, wanted, side="right")
        for number in np.unique(numbers):
            chosen, before = numbers == number, ends[number - 1] if number else 0
            yield from _places(dataset.datasets[number], wanted[chosen] - before, which[chosen])
    elif isinstance(dataset, list | tuple):
        values = np.array([isinstance(dataset[position], _VALUES) for position in wanted], np.bool_)
        ids = np.array([id(dataset[position]) for position in wanted], np.int64)
        yield Place("objects", ids[~values], which[~values])
        yield Place("values", ids[values], which[values], main=False)
    elif not isinstance(dataset, TensorDataset) and (inner := _wrapped(dataset)) is not None:
        yield from _places(inner, wanted, which)
    else:
        yield from _rows(dataset, wanted, which)


def _rows(dataset: Any, wanted: Positions, which: Positions) -> Iterator[Place]:
    """Of a data set that holds its records itself: rows of its arrays, or else its positions."""
    arrays: Any = getattr(dataset, "__dict__", {}).values()
    if isinstance(dataset, TensorDataset | TensorRecords):
        arrays = [dataset.inputs] if isinstance(dataset, TensorRecords) else dataset.tensors[:1]
    found = [memory for memory in map(_memory, arrays) if memory is not None and memory[3] == len(dataset)]
    for number, (device, start, step, _) in enumerate(found):
        yield Place(("memory", device), start + step * wanted, which, main=number == 0)
    if not found:
        yield Place(("positions", id(dataset)), wanted, which)


def _memory(array: object) -> tuple[str, int, int, int] | None:
    """Device, first address, bytes from row to row, and rows; None for what has no rows in memory of their own."""
    found = None
    if isinstance(array, Tensor) and array.layout is torch.strided and array.device.type != "meta" and array.dim():
        found = str(array.device), array.data_ptr(), array.stride(0) * array.element_size(), len(array)
    elif isinstance(array, np.ndarray) and array.ndim:
        found = "cpu", int(array.__array_interface__["data"][0]), array.strides[0], len(array)
    return found if found is not None and found[1] and found[2] else None


def _wrapped(dataset: Any) -> Any:
    """The one data set, as long as this one, that it holds: a wrapper that changes records one by one has it so."""
    held = _held(dataset)
    return held[0] if len(held) == 1 and len(held[0]) == len(dataset) else None


def _held(dataset: object) -> list[Any]:
    """The data sets, other than none, that one of the user's own classes has as attributes."""
    dataset = origin_of(dataset)
    if isinstance(dataset, Subset | ConcatDataset | TensorDataset):
        return []
    values = getattr(dataset, "__dict__", {}).values()
    return [value for value in values if isinstance(value, Dataset) and isinstance(value, Sized) and len(value)]
