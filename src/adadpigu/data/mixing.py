"""Whether each item of a data set is made of one record: an item that mixes records (mixup, cutmix, pairs) is refused.

One record would then stand in many items, each bounded by itself: with mixup in `__getitem__` one record moved a sum
by 38 C. What an item is made of cannot be known of any code, but it can be watched: on a shallow copy of the data set,
whose containers of one entry a record say which entries are read. The user's object and the values are left as they
are. Two entries of one container that both change the item are a mixture. Whatever else is done with a container (a
mean, an iteration, numpy's `take`), or with one of another kind (a dict of classes, a tuple, a data frame), is not
followed: then nothing is known, and the statement says what the items must be. So it does where no container is read:
a file, a service, a global.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from adadpigu.errors import InputError

_PROBED = 64
"""items that are looked at, spread over the data set"""
_FEW = 16
"""numbers that an array may hold as constants, such as a mean and a deviation for each channel"""
_VALUES = (bool, int, float, complex, str, bytes, type(None))
_FACTS = ("shape", "ndim", "dtype", "device", "size", "dim")
"""attributes of arrays that hold no record"""


def refuse_mixed_items(dataset: object, name: str) -> tuple[str, ...]:
    """Refuses a data set of the user's own whose items are seen to mix records; what to say where that is not known."""
    if not isinstance(dataset, Dataset) or type(dataset) is TensorDataset:
        return ()
    count = len(dataset)  # type: ignore[arg-type]
    seen = [_made_of_one(dataset, int(place), name) for place in np.linspace(0, count - 1, min(count, _PROBED))]
    if all(seen):
        return ()
    return (
        f"items of {_inner(dataset)} that are made of several records (mixup, a mean over records): each must be made "
        "of one; that was not checked, because not all that they read can be followed",
    )


def _made_of_one(dataset: Any, place: int, name: str) -> bool:
    """Whether an item was seen to be made of one record; False: not all was seen. Refuses one that was seen to mix."""
    if isinstance(dataset, Subset):
        return _made_of_one(dataset.dataset, int(dataset.indices[place]), name)
    if isinstance(dataset, ConcatDataset):
        number = int(np.searchsorted(dataset.cumulative_sizes, place, side="right"))
        before = dataset.cumulative_sizes[number - 1] if number else 0
        return _made_of_one(dataset.datasets[number], place - before, name)
    if not isinstance(dataset, Dataset) or type(dataset) is TensorDataset:
        return True
    reading = _reading(dataset, place)
    read = {key: sorted(set(entries)) for key, entries in reading.entries.items() if entries}
    for container, entries in read.items():
        if len(entries) > 1 and _mixes(dataset, place, container, entries[:2]):
            raise InputError(
                f"{name}: item {place} of {type(dataset).__name__} reads entries {', '.join(map(str, entries[:2]))} of "
                f"its {container!r}, so one record stands in several items (mixup?); allowed: items made of one record "
                "each, augmented or not (or tensors made beforehand, if each row is one person's)"
            )
    held = {key: getattr(dataset, key) for key in read}
    if any(len(entries) > 1 for entries in read.values()):
        return False
    places = {entries[0] for key, entries in read.items() if not _of_places(held[key])}
    inner = all(_made_of_one(held[key], entries[0], name) for key, entries in read.items())
    return inner and len(places) == 1 and not reading.lost


def _mixes(dataset: Any, place: int, key: str, entries: list[int]) -> bool:
    """Whether an item changes with each of two entries that it reads, and not with one alone.

    A shape or a block of neighbours may be read for one record's sake. Of containers that are no arrays it is believed.
    """
    held = getattr(dataset, key)
    if not isinstance(held, Tensor | np.ndarray):
        return True
    before = _item(dataset, place)
    return all(not _equal(before, _item(_altered(dataset, key, entry), place)) for entry in entries)


def _altered(dataset: Any, key: str, entry: int) -> Any:
    """A copy of a data set with another value at one entry of one of its arrays."""
    altered = copy.copy(dataset)
    values = copy.deepcopy(getattr(dataset, key))
    values[entry] = ~values[entry] if str(values.dtype).endswith("bool") else values[entry] + 1
    vars(altered)[key] = values
    return altered


def _item(dataset: Any, place: int) -> list[Any]:
    """The parts of an item, made with the same chance every time."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(place)
        np.random.seed(place)
        torch.manual_seed(place)
        try:
            return tree_leaves(dataset[place])
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(one, other, strict=True)
    )


@dataclass
class _Reading:
    """What an item was seen to read."""

    entries: dict[str, list[int]] = field(default_factory=dict)
    lost: bool = False
    """whether something was done that is not followed"""


def _reading(dataset: Any, place: int) -> _Reading:
    reading = _Reading()
    try:
        watched = copy.copy(dataset)
        for key, value in vars(dataset).items():
            if _holds_records(value, len(dataset)):
                vars(watched)[key] = _Watched(value, len(dataset), reading.entries.setdefault(key, []), reading)
        _item(watched, place)
        whole = [key for key, entries in reading.entries.items() if len({*entries}) == len(dataset) > 1]
        for key in whole:  # made into an array, entry by entry
            reading.entries[key], reading.lost = [], True
    except Exception:  # a class that cannot be copied, or code that takes no stand-in for its containers
        reading.lost = True
    return reading


def _holds_records(value: Any, count: int) -> bool:
    """Whether records may be in it; not in functions, settings, few constants and lists of names."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0 and (len(value) == count or int(np.prod(value.shape)) > _FEW)
    if isinstance(value, dict | list | tuple | set):
        inner = value.values() if isinstance(value, dict) else value
        return len(value) == count or not all(isinstance(each, _VALUES) for each in inner)
    kind = type(value)
    return isinstance(value, Dataset) or (hasattr(kind, "__getitem__") and not callable(value) and kind is not str)


def _of_places(value: Any) -> bool:
    """Whether a container holds whole numbers: labels, or where each record lies in another container."""
    if isinstance(value, Tensor):
        return value.ndim == 1 and not value.is_floating_point()
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iub"
    return isinstance(value, list | tuple | range) and all(isinstance(each, int) for each in value)


class _Watched(Dataset[Any]):
    """Stands for a container: notes entries that are read one by one, and that anything else was done."""

    def __init__(self, held: Any, count: int, read: list[int], reading: _Reading) -> None:
        self._held, self._read, self._reading = held, read, reading
        self._followed = not isinstance(held, dict | set) and hasattr(held, "__len__") and len(held) == count

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, index: Any) -> Any:
        first = index[0] if isinstance(index, tuple) and index else index
        try:
            plain = np.asarray(first) if isinstance(first, Tensor) else first
            self._read.extend(np.atleast_1d(np.arange(len(self))[plain]).tolist() if self._followed else [])
            self._reading.lost |= not self._followed
        except (IndexError, TypeError, ValueError):
            self._reading.lost = True
        return self._held[index]

    def __iter__(self) -> Any:
        self._reading.lost = True
        return iter(self._held)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of numpy and torch: without them they refuse, or read all entries
            raise AttributeError(name)
        self._reading.lost |= name not in _FACTS
        return getattr(self._held, name)


def _inner(dataset: Any) -> str:
    """The class that makes the items, behind `Subset`s."""
    return _inner(dataset.dataset) if isinstance(dataset, Subset) else f"your {type(dataset).__name__}"
