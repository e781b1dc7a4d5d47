"""Whether two data sets hold some of the same records, however each is wrapped: scores on training records are exact.

Integrations are handed data sets of the user's own. Random splits of one set are two that share no record; a `Subset`
of the training set is training records. So records are told apart by where they lie (a row of memory, an object, a
position of a data set), and no value is compared: equal copies are for `refuse_unfit_test`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from adadpigu.errors import InputError

Positions = NDArray[np.int64]
Places = dict[Hashable, list[Positions]]
"""by what holds them, where the records of a data set lie"""


def refuse_shared_records(train: object, other: object, name: str) -> None:
    """Refuses a data set to be evaluated on that holds a record of the training set."""
    trained = places_of(train)
    chosen = [places_of(held) for held in _held(other)]  # by a class of the user's: which of them is not known
    if _shared(places_of(other), trained).any() or any(_shared(places, trained).all() for places in chosen):
        raise InputError(
            f"{name}: there are training records among its records, and scores on them are exact; allowed: others, "
            "such as the other part of a random split"
        )


def _shared(found: Places, trained: Places) -> NDArray[np.bool_]:
    """For each record that was found, whether it is trained on."""
    nobody = [np.zeros(0, np.int64)]
    return np.concatenate(
        [np.isin(np.concatenate(each), np.concatenate(trained.get(holder, nobody))) for holder, each in found.items()]
        or [np.zeros(1, np.bool_)]
    )


def places_of(dataset: object) -> Places:
    """Where each record of a data set lies.

    >>> from torch import zeros
    >>> whole = TensorDataset(zeros(3, 2))
    >>> str(places_of(Subset(Subset(whole, [2, 0]), [1]))) == str(places_of(Subset(whole, [0])))
    True
    """
    places: Places = {}
    if isinstance(dataset, Sized) and not isinstance(dataset, IterableDataset):
        _collect(dataset, np.arange(len(dataset)), places)
    else:  # no positions: it is itself or another
        places["itself"] = [np.array([id(dataset)])]
    return places


def _collect(dataset: Any, wanted: Positions, places: Places) -> None:
    """Adds where the records of these positions lie."""
    if isinstance(dataset, Subset):
        _collect(dataset.dataset, np.asarray(dataset.indices, dtype=np.int64)[wanted], places)
        return
    wanted = wanted % max(len(dataset), 1)  # counted from the end, where they are below 0
    if isinstance(dataset, ConcatDataset):
        ends = np.array(dataset.cumulative_sizes)
        numbers = np.searchsorted(ends, wanted, side="right")
        for number in np.unique(numbers):
            before = ends[number - 1] if number else 0
            _collect(dataset.datasets[number], wanted[numbers == number] - before, places)
    elif isinstance(dataset, TensorDataset) and dataset.tensors[0].stride(0):
        rows = dataset.tensors[0]
        places.setdefault(("memory", rows.device), []).append(
            rows.data_ptr() + rows.stride(0) * rows.element_size() * wanted
        )
    elif isinstance(dataset, list | tuple):
        places.setdefault("objects", []).append(np.array([id(dataset[position]) for position in wanted], np.int64))
    elif (inner := _wrapped(dataset)) is not None:
        _collect(inner, wanted, places)
    else:
        places.setdefault(("positions", id(dataset)), []).append(wanted)


def _wrapped(dataset: Any) -> Any:
    """The one data set, as long as this one, that it holds: a wrapper that changes records one by one has it so."""
    held = _held(dataset)
    return held[0] if len(held) == 1 and len(held[0]) == len(dataset) else None


def _held(dataset: object) -> list[Any]:
    """The data sets, other than none, that one of the user's own classes has as attributes."""
    if isinstance(dataset, Subset | ConcatDataset | TensorDataset):
        return []
    values = getattr(dataset, "__dict__", {}).values()
    return [value for value in values if isinstance(value, Dataset) and isinstance(value, Sized) and len(value)]
