"""Checks of records before training, for `train`, loops and integrations.

No test record may be a training record, since scores on it are exact; no record may stand in the training set twice,
since each copy is bounded by itself. Records are compared by where they lie (a row of memory, an object, a position),
copies by Python's hashes, keyed by this process and never written. A refusal names the record to its holder.
"""

import math
import mimetypes
import os
import warnings
from collections.abc import Hashable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from adadpigu.core.sampling import Population, bytes_of
from adadpigu.core.trees import Tree, named_leaves
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.mixing import PLAIN_VALUES, refuse_mixed_items
from adadpigu.errors import InputError, require

Positions = NDArray[np.int64]
Places = dict[Hashable, tuple[Positions, Positions]]
"""by what holds some records of a data set: their places in it, and their positions in the data set"""


_SCORED = "scores on them are exact; allowed: others, such as the other part of a random split"
UNPROTECTED = "nothing would protect them; allowed: records that are public, such as processes:2000"
_BIASED = "scores on them would be too high; allowed: others"
"""why these records may not be among others"""


def refuse_shared_records(train: object, other: object, name: str, why: str = _SCORED) -> None:
    """Refuses a data set that holds a record of the training set."""
    trained, found = places_of(train), places_of(other)
    shared = any(np.isin(where, trained[holder][0]).any() for holder, (where, _) in found.items() if holder in trained)
    require(not shared, f"{name}: there are training records among its records, and {why}")


def refuse_repeated(dataset: object, name: str) -> None:
    """Refuses a data set to be trained on that holds a record several times, by a list of indices or of data sets."""
    for where, which in places_of(dataset).values():
        _, first, counts = np.unique(where, return_index=True, return_counts=True)
        repeated = first[counts > 1]
        if repeated.size:
            one = np.sort(which[where == where[repeated[np.argmin(which[repeated])]]])
            told = (
                f"{name}: its items {one[0]} and {one[1]} are the same record, which would be drawn and bounded as if"
            )
            once = "each record once, since the unit of privacy is a record"
            remedy = "for rare classes, a loss with declared class weights"
            raise InputError(f"{told} it were several; allowed: {once} ({remedy})")


def places_of(dataset: object) -> Places:
    """Where each record of a data set lies; of records that were made from a data set (`origin`), where it has them."""
    dataset = origin_of(dataset)
    if not isinstance(dataset, Sized) or isinstance(dataset, IterableDataset):
        return {"itself": (np.array([id(dataset)]), np.zeros(1, np.int64))}  # it is itself or another
    found: dict[Hashable, list[tuple[Positions, Positions]]] = {}
    everything = np.arange(len(dataset))
    for holder, where, which in _places(dataset, everything, everything):
        found.setdefault(holder, []).append((where, which))
    return {holder: (*map(np.concatenate, zip(*parts, strict=True)),) for holder, parts in found.items()}  # type: ignore[misc]


def origin_of(dataset: object) -> object:
    """What the records of a population were made from, as far as it says so; else itself."""
    inner = getattr(dataset, "origin", None)
    return dataset if inner is None else origin_of(inner)


def _places(dataset: Any, wanted: Positions, which: Positions) -> Iterator[tuple[Hashable, Positions, Positions]]:
    """Where the records of these positions lie; `which` are their positions in the outermost data set."""
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
        # of plain values Python may hold one object for many that are equal
        objects = np.array([not isinstance(dataset[position], PLAIN_VALUES) for position in wanted], np.bool_)
        yield "objects", np.array([id(dataset[position]) for position in wanted], np.int64)[objects], which[objects]
    elif (inner := _wrapped(dataset)) is not None:
        yield from _places(inner, wanted, which)
    elif (files := _files(dataset)) is not None:
        yield files[0], files[1][wanted], which
    else:
        rows = next(filter(None, map(_memory, _arrays(dataset))), None)
        if rows is None or rows[3] != len(dataset):
            yield ("positions", id(dataset)), wanted, which
        else:
            device, start, step, _ = rows
            yield ("memory", device), start + step * wanted, which


def _files(dataset: Any) -> tuple[Hashable, Positions] | None:
    """Of a data set that lists files, one a record: where they are, and each by its entry; None of an entry twice.

    Of files that are not on this disk (names in an archive), whatever else two data sets hold must be the same.
    """
    plain = (*PLAIN_VALUES, np.generic, os.PathLike)
    told = {k: v for k, v in getattr(dataset, "__dict__", {}).items() if v is not None and not callable(v)}
    folders = ["", *(v for v in told.values() if isinstance(v, str | os.PathLike))]
    lists = {k: v for k, v in told.items() if isinstance(v, list | tuple) or (isinstance(v, np.ndarray) and v.ndim)}
    first = {k: tree_leaves(v[0]) for k, v in lists.items() if 0 < len(v) == len(dataset)}
    others = [(k, str(v) if isinstance(v, plain) else id(v)) for k, v in sorted(told.items())]
    others = [(k, v) for k, v in others if k not in first or not all(isinstance(leaf, plain) for leaf in first[k])]
    for key, leaves in first.items():
        name = next((leaf for leaf in leaves if isinstance(leaf, str | os.PathLike)), "")
        where = [folder for folder in folders if os.path.isfile(Path(folder, name))]  # noqa: PTH113 (texts are long)
        files = np.array([hash(str(each)) for each in told[key]], np.int64)
        media = (mimetypes.guess_type(name)[0] or "").startswith(("image/", "audio/", "video/"))
        if (where or media) and len(np.unique(files)) == len(files):
            return ("files", Path(where[0]).resolve()) if where else ("names", type(dataset), *others), files
    return None


def _arrays(dataset: Any) -> Iterable[Any]:
    """The arrays of a data set that holds its records itself; a record is known by its row of the first."""
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[:1]
    return tree_leaves(dataset.inputs) if isinstance(dataset, TensorRecords) else _attributes(dataset)


def _memory(array: object) -> tuple[str, int, int, int] | None:
    """Device, first address, bytes from row to row, and rows; None for what has no rows in memory of their own."""
    found = None
    if isinstance(array, Tensor) and array.layout is torch.strided and array.device.type != "meta" and array.dim():
        found = str(array.device), array.data_ptr(), array.stride(0) * array.element_size(), len(array)
    elif isinstance(array, np.ndarray) and array.ndim:
        found = "cpu", int(array.__array_interface__["data"][0]), array.strides[0], len(array)
    return found if found is not None and found[1] and found[2] else None


def _wrapped(dataset: Any) -> Any:
    """The one data set of the same length that this one holds, as a wrapper that changes each record does."""
    values = [] if isinstance(dataset, TensorDataset) else _attributes(dataset)
    held = [value for value in values if isinstance(value, Dataset) and isinstance(value, Sized)]
    return held[0] if len(held) == 1 and len(held[0]) == len(dataset) else None


def _attributes(dataset: Any) -> Iterable[Any]:
    return getattr(dataset, "__dict__", {}).values()


Digests = NDArray[np.int64]

_FRESH = 0.6  # of the test records that should be new to training: where no more of them are, about half are copies
_COPIES, _DISTINCT, _NUMBERS = 0.1, 0.25, 8
"""the caller is warned where so large a share of rows are copies, so many distinct, and rows have so many numbers"""
_CHANCE = 1000  # public records, of which one may be known by chance
_LOOKED_AT = 64  # of fewer distinct rows: so few differ in some column of whole bytes too, as in images
_ALARM = 1e-6  # with at most this probability an honest test set is refused


def check_data(
    data: DataSet, classes: int | None, ignored: int | None = None, public: Tensor | None = None
) -> tuple[str, ...]:
    """Refuses records that cannot be trained on, and test records that are training records.

    Labels are 0 … classes − 1, or `ignored`; `public` inputs are neither. Returns what could not be seen, for the
    statement.
    """
    refuse_repeated(data.train, data.name)
    told = refuse_mixed_items(origin_of(data.train), data.name)
    trained = check_records(data.train, classes, ignored, name=data.name)
    warn_of_copies(trained, data)
    if public is not None:
        refuse_known(public, trained, "training", UNPROTECTED)
    if data.test is not None:
        refuse_other_kind(data.train, data.test, "test")
        refuse_shared_records(data.train, data.test, "test")
        tested = check_records(data.test, classes, ignored, name=f"{data.name} test")
        refuse_copies(trained, tested, len(data.test), "test")
        if public is not None:
            refuse_known(public, tested, "test", _BIASED)
    return told


def warn_of_copies(trained: Digests, data: DataSet) -> None:
    """Warns of copies by value, as oversampling makes them. Equal rows may be honest: a table of few categories has
    few distinct ones, fewer values in each column, and is left alone. The warning goes to the caller, into no file."""
    size = sum(math.prod(leaf.shape[1:]) for leaf in tree_leaves(data.train.take(torch.arange(0))[0]))
    _, first = np.unique(trained, return_index=True)
    share = len(first) / max(1, len(trained))
    if size < _NUMBERS or share > 1 - _COPIES:
        return
    if share >= _DISTINCT or _has_unique_column(data.train, first[:_LOOKED_AT]):
        told = f"{data.name}: many rows are exact copies of others; if they are one record (oversampling), it counts as"
        remedy = "then give each record once, and weigh rare classes in the loss by declared weights"
        warnings.warn(f"{told} often as it stands there, and so does its epsilon; {remedy}", stacklevel=2)


def _has_unique_column(population: Population, rows: Positions) -> bool:
    """Whether some column has about as many values as these different rows are."""
    leaves = tree_leaves(population.take(torch.from_numpy(rows))[0]) if len(rows) >= _NUMBERS else []
    sorted_columns = [leaf.flatten(1).sort(dim=0).values for leaf in leaves if leaf.numel()]
    values = [1 + int((column[1:] != column[:-1]).sum(dim=0).max()) for column in sorted_columns]
    return max(values, default=0) >= (1 - _COPIES) * len(rows)


def check_records(population: Population, classes: int | None, ignored: int | None = None, *, name: str) -> Digests:
    """Reads every record once, refuses NaN, infinities and labels outside 0 … classes − 1, and returns `digests`."""
    found: list[int] = []
    for start, inputs, targets in _chunks(population):
        for what, tensor in (*named_leaves(inputs, "input"), *named_leaves(targets, "target")):
            record = _first(~torch.isfinite(tensor)) if tensor.is_floating_point() else None
            require(record is None, f"{name}: record {start + (record or 0)} has a NaN or infinite value in its {what}")
        found += map(hash, bytes_of(inputs))
        if classes is None:
            continue
        outside = (targets < 0) | (targets >= classes)
        record = _first(outside if ignored is None else outside & (targets != ignored))
        if record is not None:
            label = targets[record][outside[record]].flatten()[0].item()
            allowed = f"0 to {classes - 1}, one for each of the model's {classes} outputs"
            raise InputError(f"{name}: record {start + record} has label {label}; allowed: {allowed}")
    return np.array(found, np.int64)


def digests(population: Population) -> Digests:
    """A digest of each record's input."""
    return np.array([hash(row) for _, inputs, _ in _chunks(population) for row in bytes_of(inputs)], np.int64)


def _chunks(population: Population, size: int = 4096) -> Iterator[tuple[int, Tree, Tree]]:
    """All records, some at a time, with the position of the first."""
    for start in range(0, len(population), size):
        yield start, *population.take(torch.arange(start, min(start + size, len(population))))


def refuse_other_kind(train: Population, other: Population, name: str) -> None:
    """Refuses records to be evaluated on whose inputs have another type or shape."""
    rows = [tree_leaves(population.take(torch.arange(0))[0]) for population in (train, other)]
    kinds = [", ".join(str((leaf.dtype, tuple(leaf.shape[1:]))) for leaf in leaves) for leaves in rows]
    told = f"{name}: records are {kinds[1]} but the training records are {kinds[0]}"
    require(kinds[0] == kinds[1], f"{told}; allowed: the same")


def refuse_copies(trained: Digests, other: Digests, count: int, name: str) -> None:
    """Refuses `count` records to be evaluated on of which about half or more have the values of training records.

    Equal values are no proof: a table of few categories holds the same row many times. If n₁ of n training rows occur
    once, a fresh row is new with probability about n₁/n (Good and Turing), and a copied one is among the n₁ with that
    probability. Refused: far fewer are new, and as many are among the n₁ as in half a copy; or all are the training
    records (a file read twice), in their order or with each row as often. That a fresh table has the same order, or the
    same counts, is likeliest where its shares are those counts (multinomial), and so bounds the false alarms by 1e-6.
    Else the caller is warned where most have values of training records.
    """
    rows, counts = np.unique(trained, return_counts=True)
    fresh, once = count - int(np.isin(other, rows).sum()), int((counts == 1).sum()) / max(1, len(trained))
    copied = len(np.intersect1d(rows[counts == 1], other))
    unlikely = count * _divergence(fresh / max(1, count), once) > -math.log(_ALARM)
    few = fresh <= _FRESH * once * count and copied >= (1 - _FRESH) * once * count
    fault = f"{name}: these are the training records, about half of them or more, and scores on them would be exact"
    copies = _is_the_same(trained, other, counts) or (fresh < count and unlikely and few)
    require(not copies, f"{fault}; allowed: others, or none, and those scored after training")
    if 2 * fresh < count:
        told = f"{name}: most of these records have the values of training records, as blank rows and those of a table"
        same = "if they are the same records, scores on them are exact and tell of training records"
        warnings.warn(f"{told} of few categories do; {same}", stacklevel=2)


def refuse_known(public: Tensor, known: Digests, kind: str, why: str) -> None:
    """Refuses public inputs among which are more known records, by their values, than chance explains.

    Whether any one private record is there is private itself, and the refusal can be seen: so one alone decides
    nothing, nor one in a thousand. Blank rows do not count, and equal ones count once. In a table of few categories a
    fresh row is known with a probability of about 1 − n₁/n (as in `refuse_copies`): far more than that are refused, or
    all in their order. What is refused is copies; a record that was changed is not found.
    """
    flat = public.reshape(len(public), -1)
    varied = (flat != flat[:, :1]).any(dim=1) if flat.shape[1] > 1 else torch.ones(len(flat), dtype=torch.bool)
    every = np.array([*map(hash, bytes_of(public))], np.int64)
    given, (rows, counts) = np.unique(every[varied.cpu().numpy()]), np.unique(known, return_counts=True)
    shared, once = len(np.intersect1d(given, rows)), int((counts == 1).sum()) / max(1, len(known))
    unlikely = len(given) * _divergence(1 - shared / max(1, len(given)), once) > -math.log(_ALARM)
    copies = (shared > max(1, len(given) // _CHANCE) and unlikely) or _is_the_same(known, every, counts)
    require(not copies, f"public: there are {kind} records among its records, by their values, and {why}")


def _divergence(found: float, expected: float) -> float:
    """KL divergence of two coins: by Chernoff, a share of at most `found` has probability exp(-n times this)."""
    from scipy.special import rel_entr

    return 0.0 if found >= expected else float(rel_entr(found, expected) + rel_entr(1 - found, 1 - expected))


def _is_the_same(trained: Digests, other: Digests, counts: NDArray[np.int64]) -> bool:
    """Whether the others are the training records, in their order or with each row as often, and not by chance."""
    chance = float((counts * np.log(counts / max(1, len(trained)))).sum())  # log-probability of this very order
    orders = math.lgamma(len(trained) + 1) - sum(map(math.lgamma, counts + 1))
    ordered = chance < math.log(_ALARM) and np.array_equal(trained, other)
    return ordered or (chance + orders < math.log(_ALARM) and np.array_equal(np.sort(trained), np.sort(other)))


def _first(bad: Tensor) -> int | None:
    rows = bad.reshape(len(bad), -1).any(dim=1).nonzero() if len(bad) else bad.nonzero()
    return int(rows[0]) if len(rows) else None
