"""What is checked of records before they are trained on, whoever hands them in: `train`, a loop, an integration.

Every record is read once. A refusal names the record at fault, to the person who holds the data anyway. Digests of
records are Python's hashes, under a key of this process: they are compared in memory and never written.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadpigu.data.datasets import DataSet
from adadpigu.data.mixing import refuse_mixed_items
from adadpigu.data.overlap import origin_of, refuse_repeated, refuse_shared_records
from adadpigu.errors import InputError
from adadpigu.sampling import Population

Digests = NDArray[np.int64]

_FRESH = 0.6
"""of the test records that should be new to training: where no more of them are, about half are copies"""
_COPIES, _DISTINCT, _NUMBERS = 0.1, 0.25, 8
"""the caller is warned where so large a share of rows are copies, so many distinct, and rows have so many numbers"""
_ALARM = 1e-6
"""with at most this probability an honest test set is refused"""


def check_data(data: DataSet, classes: int | None) -> tuple[str, ...]:
    """Refuses records that cannot be trained on, and test records that are training records.

    Returns what could not be seen, for the statement.
    """
    refuse_repeated(data.train, data.name)
    told = refuse_mixed_items(origin_of(data.train), data.name)
    trained = check_records(data.train, classes, name=data.name)
    _warn_of_copies(trained, data)
    if data.test is not None:
        refuse_other_kind(data.train, data.test, "test")
        refuse_shared_records(data.train, data.test, "test")
        refuse_copies(trained, check_records(data.test, classes, name=f"{data.name} test"), len(data.test), "test")
    return told


def _warn_of_copies(trained: Digests, data: DataSet) -> None:
    """Warns of copies by value, as oversampling makes them. Equal rows may be honest: a table of few categories has
    few distinct ones, and is left alone. The warning goes to the caller, who holds the data, and into no file."""
    size = math.prod(data.train.take(torch.arange(0))[0].shape[1:])
    share = len(np.unique(trained)) / max(1, len(trained))
    if size >= _NUMBERS and _DISTINCT <= share <= 1 - _COPIES:
        warnings.warn(
            f"{data.name}: many rows are exact copies of others; if they are one record (oversampling), it counts as "
            "often as it stands there, and so does its epsilon; then give each record once, and weigh rare classes in "
            "the loss by declared weights",
            UserWarning,
            stacklevel=2,
        )


def check_records(population: Population, classes: int | None, *, name: str, chunk: int = 4096) -> Digests:
    """Reads every record once and refuses NaN, infinities and labels outside 0 … classes − 1, naming the record.

    The refusal goes to whoever holds the data, before anything is trained; it is outside the guarantee. Returns a
    digest of each record's input.
    """
    found: list[int] = []
    for start in range(0, len(population), chunk):
        inputs, targets = population.take(torch.arange(start, min(start + chunk, len(population))))
        for what, tensor in (("input", inputs), ("target", targets)):
            record = _first(~torch.isfinite(tensor)) if tensor.is_floating_point() else None
            if record is not None:
                raise InputError(f"{name}: record {start + record} has a NaN or infinite value in its {what}")
        found += _hashes(inputs)
        if classes is None:
            continue
        record = _first((targets < 0) | (targets >= classes))
        if record is not None:
            label = targets[record].flatten()[0].item()
            raise InputError(
                f"{name}: record {start + record} has label {label}; allowed: 0 to {classes - 1}, one for each of the "
                f"model's {classes} outputs"
            )
    return np.array(found, np.int64)


def digests(population: Population, chunk: int = 4096) -> Digests:
    """A digest of each record's input."""
    parts = [torch.arange(start, min(start + chunk, len(population))) for start in range(0, len(population), chunk)]
    return np.array([found for part in parts for found in _hashes(population.take(part)[0])], np.int64)


def refuse_other_kind(train: Population, other: Population, name: str) -> None:
    """Refuses records to be evaluated on whose inputs have another type or shape."""
    kinds = [(inputs.dtype, tuple(inputs.shape[1:])) for inputs, _ in (p.take(torch.arange(0)) for p in (train, other))]
    if kinds[0] != kinds[1]:
        raise InputError(f"{name}: records are {kinds[1]} but the training records are {kinds[0]}; allowed: the same")


def refuse_copies(trained: Digests, other: Digests, count: int, name: str) -> None:
    """Refuses `count` records to be evaluated on of which about half or more have the values of training records.

    Equal values are no proof: a table of few categories holds the same row many times, and rightly so. Of n training
    rows let n₁ occur once; then a fresh row is new to training with probability about n₁/n (Good and Turing). So test
    records are refused where far fewer than that are new. Where hardly any would be, they are refused if they are
    all training records in the same order (one file read twice), and else the caller is warned.
    """
    rows, counts = np.unique(trained, return_counts=True)
    known = np.isin(other, rows)
    fresh, once = count - int(known.sum()), int((counts == 1).sum()) / max(1, len(trained))
    unlikely = count * _divergence(fresh / max(1, count), once) > -math.log(_ALARM)
    if (fresh < count and unlikely and fresh <= _FRESH * once * count) or _is_the_same(trained, other, counts):
        raise InputError(
            f"{name}: these are the training records, about half of them or more, and scores on them would be exact; "
            "allowed: others, or none, and those scored after training"
        )
    if 2 * fresh < count:
        warnings.warn(
            f"{name}: most of these records have the values of training records, as those of a table of few categories "
            "do; if they are the same records, scores on them are exact and tell of training records",
            stacklevel=2,
        )


def _divergence(found: float, expected: float) -> float:
    """Kullback and Leibler's, of a coin that fell with share `found` from one of chance `expected`: Chernoff's bound
    on so few is exp(-n times this)."""
    if found >= expected:
        return 0.0
    if expected == 1:
        return math.inf
    tails = (1 - found) * math.log((1 - found) / (1 - expected))
    return tails + (found * math.log(found / expected) if found else 0.0)


def _is_the_same(trained: Digests, other: Digests, counts: NDArray[np.int64]) -> bool:
    """Whether the others are all training records in their order, and it would be a wonder if they were by chance."""
    chance = float((counts * np.log(counts / max(1, len(trained)))).sum())
    return chance < math.log(_ALARM) and np.array_equal(trained, other)


def _hashes(inputs: Tensor) -> list[int]:
    return [hash(row.tobytes()) for row in inputs.cpu().numpy()]


def _first(bad: Tensor) -> int | None:
    """The first record with a bad value."""
    rows = bad.reshape(len(bad), -1).any(dim=1).nonzero() if len(bad) else bad.nonzero()
    return int(rows[0]) if len(rows) else None
