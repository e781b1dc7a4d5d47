"""Whether each item of a data set is made of one record: an item that mixes records (mixup, cutmix, pairs) is refused.

One record would then stand in many items, each bounded by itself: with mixup in `__getitem__` one record moved a sum
by 38 C. What an item is made of cannot be known of any code, but it can be watched: on a shallow copy of the data set,
whose arrays, lists and inner data sets of one entry a record say which entries are read. The user's object and the
values are left as they are. Two entries of one container are a mixture. Where no container is read that can be watched
(a data frame, a file, a service), nothing is known, and the statement says what the items must be.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from adadpigu.errors import InputError

_PROBED = 64
"""items that are looked at, spread over the data set"""


def refuse_mixed_items(dataset: object, name: str) -> tuple[str, ...]:
    """Refuses a data set of the user's own whose items are seen to mix records; what to say where none was seen."""
    if not isinstance(dataset, Dataset) or isinstance(dataset, TensorDataset):
        return ()
    count = len(dataset)  # type: ignore[arg-type]
    seen = [_made_of_one(dataset, int(place), name) for place in np.linspace(0, count - 1, min(count, _PROBED))]
    if all(seen):
        return ()
    return (
        f"items of {_inner(dataset)} that are made of several records (mixup, cutmix, statistics of a batch): what its "
        "items read was not seen, and each must be made of one record alone",
    )


def _made_of_one(dataset: Any, place: int, name: str) -> bool:
    """Whether an item was seen to be made of one record; False: nothing was seen. Refuses one that was seen to mix."""
    if isinstance(dataset, Subset):
        return _made_of_one(dataset.dataset, int(dataset.indices[place]), name)
    if isinstance(dataset, ConcatDataset):
        number = int(np.searchsorted(dataset.cumulative_sizes, place, side="right"))
        before = dataset.cumulative_sizes[number - 1] if number else 0
        return _made_of_one(dataset.datasets[number], place - before, name)
    if not isinstance(dataset, Dataset) or isinstance(dataset, TensorDataset):
        return True
    read = _entries_read(dataset, place)
    for container, entries in read.items():
        if len(entries) > 1:
            raise InputError(
                f"{name}: item {place} of {type(dataset).__name__} reads entries {', '.join(map(str, entries[:2]))} of "
                f"its {container!r}, so one record stands in several items (mixup?); allowed: items made of one record "
                "each, augmented or not (or tensors made beforehand, if each row is one person's)"
            )
    inner = [(getattr(dataset, key), entries[0]) for key, entries in read.items()]
    return bool(read) and all(_made_of_one(held, entry, name) for held, entry in inner)


def _entries_read(dataset: Any, place: int) -> dict[str, list[int]]:
    """For each attribute with one entry a record of which some were read, which; none where it cannot be watched."""
    read: dict[str, list[int]] = {}
    with contextlib.suppress(Exception):  # a class that cannot be copied, or is particular about its attributes
        watched = copy.copy(dataset)
        for key, value in vars(dataset).items():
            if key != "tensors" and (seen := _watched(value, len(dataset), read.setdefault(key, []))) is not None:
                vars(watched)[key] = seen
        watched[place]
    return {key: sorted(set(entries)) for key, entries in read.items() if entries}


def _watched(value: Any, count: int, read: list[int]) -> Any:
    """The value, telling which of its entries are read; None for what has not one entry a record."""
    if isinstance(value, Tensor) and value.dim() and len(value) == count and value.layout is torch.strided:
        tensor = value.detach().as_subclass(_WatchedTensor)
        tensor.read = read
        return tensor
    if isinstance(value, np.ndarray) and value.ndim and len(value) == count:
        array = value.view(_WatchedArray)
        array.read = read
        return array
    if type(value) is list and len(value) == count:
        listed = _WatchedList(value)
        listed.read = read
        return listed
    if isinstance(value, Dataset) and hasattr(value, "__len__") and len(value) == count:
        return _WatchedSet(value, read)
    return None


def _note(read: list[int], count: int, index: Any) -> None:
    """Adds the entries that an index means along the first axis."""
    first = index[0] if isinstance(index, tuple) and index else index
    with contextlib.suppress(IndexError, TypeError, ValueError):
        read.extend(np.atleast_1d(np.arange(count)[np.asarray(first) if isinstance(first, Tensor) else first]).tolist())


class _WatchedTensor(Tensor):
    read: list[int]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [value.as_subclass(Tensor) if isinstance(value, cls) else value for value in args]
        if func is Tensor.__getitem__ and isinstance(args[0], cls):
            _note(args[0].read, len(plain[0]), plain[1])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*plain, **(kwargs or {}))


class _WatchedArray(np.ndarray[Any, Any]):
    read: list[int]

    def __array_finalize__(self, _: object) -> None:
        self.read = []  # what is made of it is not watched

    def __getitem__(self, index: Any) -> Any:
        _note(self.read, len(self), index)
        return self.view(np.ndarray)[index]


class _WatchedList(list[Any]):
    read: list[int]

    def __getitem__(self, index: Any) -> Any:
        _note(self.read, len(self), index)
        return super().__getitem__(index)


class _WatchedSet(Dataset[Any]):
    def __init__(self, dataset: Any, read: list[int]) -> None:
        self._dataset, self._read = dataset, read

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        _note(self._read, len(self), index)
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


def _inner(dataset: Any) -> str:
    """The class that makes the items, behind `Subset`s."""
    return _inner(dataset.dataset) if isinstance(dataset, Subset) else f"your {type(dataset).__name__}"
