"""A data set as the trainer sees it: records that can be gathered by position, and their public description.

What is declared is checked here, the records themselves by `checking`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sized
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from adadpigu.errors import InputError
from adadpigu.sampling import Population


class TensorRecords:
    """Records held as two tensors, inputs [n, ...] and targets [n, ...]."""

    def __init__(
        self, inputs: Tensor, targets: Tensor, *, name: str = "data", published: bool = False, origin: object = None
    ) -> None:
        for what, value in (("inputs", inputs), ("targets", targets)):
            if not isinstance(value, Tensor):
                raise InputError(
                    f"{name}: {what} are a {type(value).__name__}; allowed: a tensor (torch.as_tensor makes one)"
                )
        if len(inputs) != len(targets):
            raise InputError(f"{name}: {len(inputs)} inputs but {len(targets)} targets; allowed: one target a record")
        self.inputs, self.targets, self.name = inputs, targets, name
        self.published = published
        """of a published benchmark: features computed from them may be kept on disk"""
        self.origin = origin
        """the data set that the tensors were made from, record by record; None: themselves"""

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        where = indices.to(self.inputs.device)
        return self.inputs[where], self.targets[where]

    def to(self, device: torch.device) -> TensorRecords:
        """The same records on a device, as published as they were."""
        return TensorRecords(self.inputs.to(device), self.targets.to(device), name=self.name, published=self.published)


class IndexedRecords:
    """Records of a map-style `torch.utils.data.Dataset` whose items are (input, target)."""

    def __init__(self, dataset: Dataset[Any], *, name: str = "data") -> None:
        if not hasattr(dataset, "__getitem__") or not isinstance(dataset, Sized):
            raise InputError(f"{name}: a {type(dataset).__name__} has no length; allowed: a map-style Dataset")
        self.dataset = self.origin = dataset
        self._size = len(dataset)
        self._name = name
        if self._size:
            inputs, targets = self._collate([0])
            self._empty = inputs[:0], targets[:0]

    def __len__(self) -> int:
        return self._size

    def _collate(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        batch = default_collate([self.dataset[i] for i in indices])
        if not (isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(t, Tensor) for t in batch)):
            raise InputError(f"{self._name}: items must be pairs (input tensor, target)")
        return cast(Tensor, batch[0]), cast(Tensor, batch[1])

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        if not len(indices):
            return self._empty
        return self._collate(indices.tolist())


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Private training records with their public description; test records are outside the guarantee."""

    name: str
    train: Population
    records: int
    """N, the declared public record count"""
    test: Population | None = None
    classes: int | None = None
    shape: tuple[int, ...] | None = None
    public: tuple[str, ...] = ()
    """constants declared public, for the statement"""

    def __post_init__(self) -> None:
        if self.records < 1:
            raise InputError(f"records={self.records} is not at least 1")


Source = DataSet | Dataset[Any] | tuple[Tensor, Tensor]


def declare(
    source: Source, *, records: int | None = None, test: Source | None = None, name: str = "own data"
) -> DataSet:
    """A data set from two tensors or a `torch.utils.data.Dataset`, with its record count declared public.

    A `DataSet` is taken as it is. `test` gives test records to one that has none; one that has its own keeps them, and
    another `test` is refused rather than chosen between: `dataclasses.replace(data, test=None)` drops the first.
    """
    measured = None if test is None else _population(test, "test")
    if isinstance(source, DataSet):
        if records not in (None, source.records):
            raise InputError(f"records={records} contradicts the {source.records} that {source.name!r} declares")
        if measured is not None and source.test is not None:
            raise InputError(
                f"test: {source.name!r} has test records of its own; allowed: no others, or these after "
                "dataclasses.replace(data, test=None)"
            )
        return _refusing_empty_test(source if measured is None else replace(source, test=measured))
    if records is None:
        raise InputError(
            "records=None: own data needs its public record count, e.g. records=60_000 (it sets the sampling rate; the "
            "length of the data set is private, so it is never read for that)"
        )
    if records < 1:
        raise InputError(f"records={records} is not at least 1")
    train = _population(source, name)
    if len(train) == 0:
        raise InputError(f"{name}: there is no record; allowed: at least 1")
    return _refusing_empty_test(DataSet(name=name, train=train, records=records, test=measured))


def _refusing_empty_test(data: DataSet) -> DataSet:
    if data.test is not None and len(data.test) == 0:
        raise InputError(f"{data.name}: there is no test record; allowed: at least 1, or test=None")
    return data


def training_split(data: DataSet, held_out: int, seed: int = 0) -> DataSet:
    """The training records without about `held_out` of them, which take the place of the test records: for tuning.

    Each record goes by a hash of itself and the public seed, so no record decides where another one goes, and one
    record more or less in the whole is one more or less in one of the parts. Equal records go together. The official
    test records are out of reach of what is tuned.
    """
    if not isinstance(data.train, TensorRecords):
        raise InputError(f"{data.name}: records of a {type(data.train).__name__} cannot be split; allowed: two tensors")
    if not 0 < held_out < data.records:
        raise InputError(f"held_out={held_out} of {data.name!r}; allowed: 1 to {data.records - 1}")
    if not 0 <= seed < 2**32:
        raise InputError(f"seed={seed} is not from 0 to {2**32 - 1}")
    kept = _lots(data.train, seed) >= held_out / data.records
    records = data.records - held_out
    others = tuple(fact for fact in data.public if not fact.startswith(f"{data.records:,} records"))
    return replace(
        data,
        name=f"{data.name}-split",
        train=_some_of(data.train, kept.nonzero().flatten()),
        test=TensorRecords(*data.train.take((~kept).nonzero().flatten()), name=f"{data.name} held out"),
        records=records,
        public=(*others, f"{records:,} records (about {held_out:,} more held out by their hash, seed {seed})"),
    )


def _some_of(records: TensorRecords, kept: Tensor) -> TensorRecords:
    """Some of the records, as published as all of them."""
    return TensorRecords(*records.take(kept), name=records.name, published=records.published)


def _lots(records: TensorRecords, seed: int) -> Tensor:
    """For each record a number in [0, 1) that depends on that record and the seed alone."""
    lots = []
    for x, y in zip(records.inputs.cpu().numpy(), records.targets.cpu().numpy(), strict=True):
        digest = hashlib.sha256(seed.to_bytes(4, "little") + x.tobytes() + y.tobytes()).digest()
        lots.append(int.from_bytes(digest[:6], "little") / 2**48)
    return torch.tensor(lots, dtype=torch.float64)


def _population(source: Source, name: str) -> Population:
    if isinstance(source, DataSet):
        return source.train
    if isinstance(source, DataLoader):
        raise InputError(f"{name}: a DataLoader draws its own batches; allowed: its .dataset, or two tensors")
    if isinstance(source, tuple | list):
        if len(source) != 2:
            raise InputError(f"{name}: {len(source)} parts; allowed: two tensors (inputs, targets)")
        return TensorRecords(source[0], source[1], name=name)
    return IndexedRecords(source, name=name)
