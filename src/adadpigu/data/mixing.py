"""Whether each item of a data set is made of one record: an item that mixes records (mixup, cutmix, pairs) is refused.

One record would then stand in many items, each bounded by itself: with mixup in `__getitem__` one record moved a sum
by 38 C. So some items are made again by copies of the data set in which a random half of the entries of a container
(an array, a list or a data set with one entry a record) is changed, and then the other half. An item that changes
with both mixes records. Where not all that items read can be followed, the statement says what they must be.
"""

import copy
from collections.abc import Sized
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from adadpigu.core.randomness import preserve_rng_state, seed_cpu_rng
from adadpigu.errors import InputError

_PROBED = 32  # items that are made again, spread over the data set
_FEW = 16  # numbers that an array may hold as constants, such as a mean and a deviation for each channel
_LEVELS = 6  # from an attribute to what it holds: a list of a composed transform, the transform, what it closes over
_LARGE = 1 << 30  # bytes of an array that is not copied to be changed
PLAIN_VALUES = (bool, int, float, complex, str, bytes, type(None))


def refuse_mixed_items(dataset: object, name: str) -> tuple[str, ...]:
    """Refuses a data set of the user's own whose items are seen to mix records; what to say where that is not known."""
    if isinstance(dataset, Subset):
        return refuse_mixed_items(dataset.dataset, name)
    if isinstance(dataset, ConcatDataset):
        return tuple(dict.fromkeys(line for each in dataset.datasets for line in refuse_mixed_items(each, name)))
    if not _makes_items(dataset):
        return ()
    held = getattr(dataset, "__dict__", {}).values()
    inner = [v for v in held if isinstance(v, Dataset) or (_makes_items(v) and len(v) == len(dataset))]
    told = [line for each in inner for line in refuse_mixed_items(each, name)]
    own = (OWN_GENERATOR,) if _draws_by_its_own(dataset) else ()
    if told or _made_of_one(dataset, name):
        return (*told, *own)
    return (
        *own,
        f"items of your {type(dataset).__name__} that are made of several records (mixup, a mean over records): each "
        "must be made of one; that was not checked, because not all that they read can be followed",
    )


def _makes_items(value: object) -> TypeGuard[Sized]:
    """Whether it is a data set whose items are made by code: of torch's, or any class of the user's that has them."""
    read = getattr(type(value), "__getitem__", None)
    own = isinstance(value, Dataset) or not (hasattr(read, "__objclass__") or _of_library(read))
    return own and read is not None and type(value) is not TensorDataset and isinstance(value, Sized)


OWN_GENERATOR = (
    "what records draw from a generator of their data set's own (rng = default_rng(42), seed=…): if its seed is known, "
    "one record shifts what all later ones draw; torch's, NumPy's and Python's global generators are keyed in secret"
)


def _draws_by_its_own(dataset: Any) -> bool:
    """Whether an item changes from one reading to the next although the global generators stand where they stood."""
    places = map(int, np.linspace(0, len(dataset) - 1, min(len(dataset), _PROBED)))
    try:
        return any(not _equal(_item(dataset, place), _item(dataset, place)) for place in places)
    except Exception:  # items that cannot be read or compared: the checks that follow speak of them
        return False


def _made_of_one(dataset: Any, name: str) -> bool:
    """Whether items were seen to be made of one record; False: not all was seen. Refuses one that was seen to mix."""
    count = len(dataset)
    first = np.random.default_rng(0).permutation(count) < count // 2
    held = getattr(dataset, "__dict__", {})
    containers = {key: value for key, value in held.items() if _has_one_entry_a_record(value, count)}
    others = [value for key, value in held.items() if key not in containers]
    seen = False
    try:
        followed = not any(map(_may_hold_records, [*others, type(dataset).__getitem__]))
        changed = {key: [_changed(dataset, key, half) for half in (first, ~first)] for key in containers}
        for place in map(int, np.linspace(0, count - 1, min(count, _PROBED))):
            before = _item(dataset, place)
            if not _equal(before, _item(dataset, place)):
                return False  # chance of its own: no two items can be compared
            halves = {}
            for key, copies in changed.items():
                moved = [not _equal(before, _item(each, place)) for each in copies]
                if all(moved):
                    told = f"{name}: item {place} of {type(dataset).__name__} is made of several entries of its {key!r}"
                    allowed = "items made of one record each, augmented or not (or tensors made beforehand, if each row"
                    why = "so one record stands in several items (mixup?)"
                    raise InputError(f"{told}, {why}; allowed: {allowed} is one person's)")
                if any(moved) and not _holds_places(containers[key]):
                    halves[key] = moved[0]
            seen |= bool(halves)
            followed &= len({*halves.values()}) <= 1
    except InputError:
        raise
    except Exception:  # a class that cannot be copied, or items that cannot be compared
        return False
    return followed and seen


def _changed(dataset: Any, key: str, half: NDArray[np.bool_]) -> Any:
    """A copy of a data set whose container has other values at some entries: other numbers, or moved ones."""
    made = copy.copy(dataset)
    vars(made).update({k: copy.copy(v) for k, v in vars(dataset).items() if isinstance(v, dict | list | set)})
    held, places = vars(dataset)[key], np.arange(len(half))
    places[half] = np.roll(places[half], 1)
    if isinstance(held, list):
        vars(made)[key] = [
            _other(held[place]) if half[place] and isinstance(held[place], Tensor | np.ndarray) else held[to]
            for place, to in enumerate(places)
        ]
    elif not isinstance(held, Tensor | np.ndarray):
        vars(made)[key] = Subset(held, places.tolist())
    elif held.ndim == 1:
        vars(made)[key] = held[places]
    else:
        vars(made)[key] = values = copy.deepcopy(held)
        values[half] = _other(values[half])
    return made


def _other(values: Any) -> Any:
    return ~values if str(values.dtype).endswith("bool") else values + 1


def _item(dataset: Any, place: int) -> list[Any]:
    """The parts of an item, made with the same chance every time."""
    with preserve_rng_state(torch.device("cpu")):
        seed_cpu_rng(place)
        return tree_leaves(dataset[place])


def _equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(one, other, strict=True)
    )


def _has_one_entry_a_record(value: Any, count: int) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0 and len(value) == count and value.nbytes <= _LARGE
    return (isinstance(value, list | TensorDataset) or _makes_items(value)) and len(value) == count


def _may_hold_records(value: Any) -> bool:
    """Not settings, few constants, lists of names, and functions and objects that lead to nothing else."""
    if isinstance(value, dict | list | tuple | set):
        each = value.values() if isinstance(value, dict) else value
        return not all(isinstance(one, PLAIN_VALUES) for one in each)
    seen: dict[int, Any] = {}
    level: dict[int, Any] = {id(value): value}
    for _ in range(_LEVELS):
        seen |= level
        found = {id(part): part for each in level.values() for part in _parts(each)}
        level = {key: part for key, part in found.items() if key not in seen}
    return any(map(_holds_much, seen.values()))


def _holds_much(value: Any) -> bool:
    """Whether it is a data set, a store that is read by index, or many numbers."""
    if isinstance(value, Tensor | np.ndarray | dict | list | tuple):
        arrays = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor | np.ndarray)]
        return sum(int(np.prod(each.shape)) for each in arrays) > _FEW
    indexed = not callable(value) and hasattr(type(value), "__getitem__")
    return isinstance(value, Dataset) or (indexed and not isinstance(value, str | np.generic | np.dtype | range))


def _parts(value: Any) -> list[Any]:
    """What a container, a function or an object leads to, without what is a library's own."""
    if isinstance(value, Tensor | np.ndarray | type | ModuleType):
        return []
    parts: list[Any] = [getattr(value, name, None) for name in ("__self__", "__func__")]
    parts += getattr(value, "__dict__", {}).values()
    if isinstance(value, dict | list | tuple | set):
        parts += value.values() if isinstance(value, dict) else value
    elif isinstance(value, partial):
        parts += [value.func, value.args, value.keywords]
    elif isinstance(value, FunctionType):
        parts += [value.__defaults__, value.__kwdefaults__, *(cell.cell_contents for cell in value.__closure__ or ())]
        code = value.__code__
        codes = [] if _of_library(value) else [code, *(each for each in code.co_consts if isinstance(each, CodeType))]
        parts += [value.__globals__.get(name) for each in codes for name in each.co_names]
    else:
        parts += [getattr(type(value), name, None) for name in ("__call__", "forward")]
        if isinstance(value, torch.nn.Module) and _of_library(type(value).forward):
            parts = [part for part in parts if part is not value._buffers and part is not value._parameters]
    return [part for part in parts if not isinstance(part, PLAIN_VALUES)]


def _of_library(function: Any) -> bool:
    return "-packages" in getattr(getattr(function, "__code__", None), "co_filename", "")


def _holds_places(value: Any) -> bool:
    """Whether a container holds whole numbers: labels, or where each record lies in another container."""
    if isinstance(value, list):
        return all(isinstance(each, int) for each in value)
    return isinstance(value, Tensor | np.ndarray) and value.ndim == 1 and "int" in str(value.dtype)
