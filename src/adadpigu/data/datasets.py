"""A data set as the trainer sees it: records that can be gathered by position, and their public description.

What is declared is checked here, the records themselves by `checking`.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only, tree_structure
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from adadpigu.core.sampling import HeldRecords, Owners, Population
from adadpigu.core.trees import Tree, check_tree, count_rows, named_leaves, select, to_device
from adadpigu.errors import InputError, first_line, require


class TensorRecords(HeldRecords):
    """Records held as tensors, inputs [n, ...] and targets [n, ...]; inputs may be a tree of tensors.

    Whole records (`TensorRecords.of`) have all their parts in `inputs`, and targets are [n, 0].
    """

    def __init__(
        self, inputs: Tree, targets: Any, *, name: str = "data", published: bool = False, whole: bool = False
    ) -> None:
        self.inputs = _as_tree(inputs, f"{name}: inputs", _as_tensor)
        self.targets = _as_tree(targets, f"{name}: targets", _as_label)
        rows = count_rows(self.inputs), count_rows(self.targets)
        require(rows[0] == rows[1], f"{name}: {rows[0]} inputs but {rows[1]} targets; allowed: one target a record")
        self.name = name
        self.device = tree_leaves(self.inputs)[0].device
        self.size = rows[0]
        self.whole = whole  # whether inputs hold all parts of a record
        self.published = published  # of a published benchmark: features computed from them may be kept on disk
        self.origin: object = None  # the data set that the tensors were made from, record by record; None: themselves

    @classmethod
    def of(cls, batch: Tree, *, name: str = "data", published: bool = False, origin: object = None) -> "TensorRecords":
        """Whole records from a tree of tensors or arrays."""
        batch = _as_tree(batch, name, _as_tensor)
        made = cls(batch, no_targets(batch), name=name, published=published, whole=True)
        made.origin = origin
        return made

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in tree_leaves(self.inputs))

    def to(self, device: torch.device) -> "TensorRecords":
        return self.replaced(to_device(self.inputs, device), to_device(self.targets, device))

    def replaced(self, inputs: Tree, targets: Tree) -> "TensorRecords":
        """Other tensors in the place of these."""
        return TensorRecords(inputs, targets, name=self.name, published=self.published, whole=self.whole)


class IndexedRecords:
    """Records of a map-style `torch.utils.data.Dataset`, or of a list: items are tensors, or trees of tensors.

    Items that are pairs are taken as (input, target); others are whole records.
    """

    def __init__(self, dataset: Dataset[Any], *, name: str = "data", double: torch.dtype | None = None) -> None:
        sized = hasattr(dataset, "__getitem__") and isinstance(dataset, Sized)
        require(sized, f"{name}: a {type(dataset).__name__} has no length; allowed: a map-style Dataset")
        self.dataset = self.origin = dataset
        self._size = len(dataset)  # type: ignore[arg-type]
        self._name, self._double = name, double
        self.whole = False
        if self._size:
            first = check_tree(_collated(dataset, [0], name), f"{name}: an item")
            self.whole = not (isinstance(first, tuple | list) and len(first) == 2)
            self._empty = tuple(select(part, slice(0)) for part in self._parts(first))

    def __len__(self) -> int:
        return self._size

    def _parts(self, batch: Tree) -> tuple[Tree, Tree]:
        batch = _without_double(batch, self._double)
        return (batch, no_targets(batch)) if self.whole else (batch[0], tree_map(_as_label, batch[1]))

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        return self._parts(_collated(self.dataset, indices.tolist(), self._name)) if len(indices) else self._empty


class WholeRecords:
    """Records (input, target) of any population as whole records."""

    whole = True

    def __init__(self, records: Population) -> None:
        self._records = self.origin = records

    def __len__(self) -> int:
        return len(self._records)

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        batch = self._records.take(indices)
        return batch, no_targets(batch)


def as_whole(records: Population) -> Population:
    """The same records, each with all its parts as one tree."""
    if getattr(records, "whole", False):
        return records
    if isinstance(records, TensorRecords):
        batch = records.inputs, records.targets
        return TensorRecords.of(batch, name=records.name, published=records.published, origin=records)
    return WholeRecords(records)


def no_targets(batch: Tree) -> Tensor:
    """[n, 0]: in the place of targets, where they are parts of the batch."""
    first: Tensor = tree_leaves(batch)[0]
    return first.new_zeros((len(first), 0), dtype=torch.float32)


def _collated(dataset: Any, indices: list[int], name: str) -> Tree:
    items = [dataset[i] for i in indices]
    try:
        if tree_structure(_with_arrays(items[0])) != tree_structure(items[0]):
            items = [_with_arrays(item) for item in items]
        return tree_map(_as_tensor, default_collate(items))
    except (RuntimeError, KeyError, ValueError):  # torch's own words tell the lengths of two records
        told = f"{name}: {_uneven_part(items)} has several lengths or shapes; allowed: one for all records; pad each to"
        raise InputError(f"{told} a public length in the Dataset, or in the collate_fn of a loader") from None
    except TypeError as error:
        raise unfit_items(name, error) from None


def _with_arrays(item: Any) -> Any:
    """A record in which lists of numbers are arrays."""
    return tree_map(_as_tensor, item, is_leaf=lambda part: part is not item and _is_numbers(part))


def unfit_items(name: str, error: TypeError) -> InputError:
    """For a data set whose items torch cannot put into a batch."""
    fault = f"{name}: items cannot be put into a batch: {first_line(error)}"
    return InputError(f"{fault}; allowed: tensors, arrays and numbers, and tuples, lists and dicts of them")


def _uneven_part(items: list[Any]) -> str:
    """The first part that has not one shape in all items."""

    def shape(part: Any) -> str:
        return str(len(part) if isinstance(part, list) else np.shape(part))

    first, *others = (dict(named_leaves(tree_map(shape, item, is_leaf=_is_numbers), "item")) for item in items)
    return next((place for place in first if any(other.get(place) != first[place] for other in others)), "an item")


def _as_tree(values: Any, name: str, convert: Callable[[Any], Any]) -> Tree:
    """A tree of tensors from tensors, arrays, data frames and lists of numbers."""
    try:
        made = tree_map(convert, values, is_leaf=_is_numbers)
    except (TypeError, ValueError):
        told = f"{name} are no numbers, or rows of several lengths; allowed: numbers"
        raise InputError(f"{told}, one row a record (encode text and categories, pad to a public length)") from None
    return check_tree(made, name)


def _is_numbers(value: Any) -> bool:
    """Whether a value is a list of numbers, or of such lists: an array, not a tree."""
    return isinstance(value, list) and all(isinstance(v, int | float | np.generic) or _is_numbers(v) for v in value)


def _as_tensor(value: Any) -> Any:
    """Arrays, data frames and lists of numbers as tensors; float64, NumPy's default, becomes torch's; int32 int64."""
    if isinstance(value, list) or hasattr(value, "to_numpy"):
        value = np.array(value)
        value = np.array(value.tolist()) if value.dtype == object else value  # columns of several types, or nullable
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value) if value.dtype.kind in "fiub" else torch.as_tensor(value)
        value = value.to(torch.get_default_dtype()) if value.dtype == torch.float64 else value
    return value.long() if isinstance(value, Tensor) and value.dtype == torch.int32 else value


def _without_double(tree: Any, dtype: torch.dtype | None) -> Any:
    """Tensors of float64, which tables become, in another type; None: as they are."""
    return tree_map_only(Tensor, lambda t: t.to(dtype if t.dtype == torch.double else None), tree, is_leaf=_is_numbers)


def _as_label(value: Any) -> Any:
    """Targets as tensors; whole numbers become int64, which is what torch's losses take."""
    value = _as_tensor(value)
    short = isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
    return value.long() if short and value.dtype != torch.bool else value


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
    owners: Owners | None = None
    """whose each training record is, where the unit of privacy is a person with several; None: one record"""
    files: tuple[Path, ...] = ()
    description: Path | None = None
    """where records of one's own were read, and the file that declares what is public about them"""
    encode: Callable[[Tensor], Tensor] | None = None
    """how an array of such a file becomes inputs; None: such arrays are inputs already"""

    def __post_init__(self) -> None:
        require(self.records >= 1, f"records={self.records} is not at least 1")
        if self.owners is not None:
            self.owners.check(len(self.train))

    def holding(self, train: Population, owned: Sequence[int] = ()) -> "DataSet":
        """The same declaration over other records.

        Where records have owners, each of these is another's, but for the last ones: of them, owners have so many.
        """
        if self.owners is None:
            return replace(self, train=train)
        single = Owners.of(range(len(train) - sum(owned)), cap=self.owners.cap)
        return replace(self, train=train, owners=single.followed_by(owned))


Source = DataSet | Dataset[Any] | Tree
"""a declared data set, a map-style one, a list of records, or a tree of tensors or arrays with one row a record"""


def declare(
    source: Source,
    *,
    records: int | None = None,
    test: Source | None = None,
    owners: Iterable[Hashable] | Tensor | None = None,
    owner_cap: int | None = None,
    name: str = "own data",
    model: nn.Module | None = None,
) -> DataSet:
    """A data set from tensors, arrays, data frames or a `Dataset`, with its record count declared public.

    A `DataSet` is taken as it is. `test` gives test records to one that has none. `owners` names the owner of each
    record, and `owner_cap` says publicly how many records of one are trained on. float64 becomes the `model`'s type.
    """
    if owners is not None or owner_cap is not None:
        if owners is None or owner_cap is None:
            given = "not given" if owners is None else "given"
            raise InputError(f"owner_cap={owner_cap} and owners {given}; allowed: both")
        data = declare(source, records=records, test=test, name=name, model=model)
        public = (*data.public, Owners.declared(owner_cap))
        return replace(data, owners=Owners.of(owners, cap=owner_cap), public=public)
    double = torch.get_default_dtype() if model and torch.double not in {p.dtype for p in model.parameters()} else None
    measured = None if test is None else _population(test, "test", double)
    if isinstance(source, DataSet):
        check_agrees(source.name, records=(records, source.records))
        fault = f"test: {source.name!r} has test records of its own"
        remedy = "no others, or these after dataclasses.replace(data, test=None)"
        require(measured is None or source.test is None, f"{fault}; allowed: {remedy}")
        return _with_test(source, source.test if measured is None else measured)
    if records is None:
        told = "records=None: own data needs its public record count, e.g. records=60_000 (it sets the sampling rate"
        raise InputError(f"{told}; the length of the data set is private, so it is never read for that)")
    train = _population(source, name, double)
    require(len(train), f"{name}: there is no record; allowed: at least 1")
    return _with_test(DataSet(name=name, train=train, records=records), measured)


def check_agrees(name: str, **facts: tuple[int | None, int]) -> None:
    """Refuses a given number that is not the declared one; each fact is (given or None, declared)."""
    for key, (given, declared) in facts.items():
        require(given in (None, declared), f"{key}={given} contradicts the {declared} that {name!r} declares")


def _with_test(data: DataSet, test: Population | None) -> DataSet:
    require(test is None or len(test), f"{data.name}: there is no test record; allowed: at least 1, or test=None")
    return data if test is data.test else replace(data, test=test)


def training_split(data: DataSet, held_out: int, seed: int = 0) -> DataSet:
    """The training records without about `held_out` of them, which take the place of the test records: for tuning.

    Each record goes by a hash of itself and the public seed, so that no record decides where another one goes. Equal
    records go together.
    """
    if not isinstance(data.train, TensorRecords):
        raise InputError(f"{data.name}: records of a {type(data.train).__name__} cannot be split; allowed: two tensors")
    single = data.owners is None
    require(single, f"{data.name}: records with owners cannot be split; allowed: two data sets of your own")
    require(0 < held_out < data.records, f"held_out={held_out} of {data.name!r}; allowed: 1 to {data.records - 1}")
    require(0 <= seed < 2**32, f"seed={seed} is not from 0 to {2**32 - 1}")
    kept = _lots(data.train, seed) >= held_out / data.records
    records = data.records - held_out
    others = tuple(fact for fact in data.public if not fact.startswith(f"{data.records:,} records"))
    return replace(
        data,
        name=f"{data.name}-split",
        train=data.train.replaced(*data.train.take(kept.nonzero().flatten())),
        test=TensorRecords(*data.train.take((~kept).nonzero().flatten()), name=f"{data.name} held out"),
        records=records,
        public=(*others, f"{records:,} records (about {held_out:,} more held out by their hash, seed {seed})"),
    )


def _lots(records: TensorRecords, seed: int) -> Tensor:
    """For each record a number in [0, 1), from that record and the seed alone."""
    lots = []
    for x, y in zip(records.inputs.cpu().numpy(), records.targets.cpu().numpy(), strict=True):
        digest = hashlib.sha256(seed.to_bytes(4, "little") + x.tobytes() + y.tobytes()).digest()
        lots.append(int.from_bytes(digest[:6], "little") / 2**48)
    return torch.tensor(lots, dtype=torch.float64)


def tensors_of(dataset: object) -> list[Tensor] | None:
    """The tensors of a data set that consists of them, also behind a random split."""
    if type(dataset) is TensorDataset:
        return list(dataset.tensors)
    if type(dataset) is Subset and (tensors := tensors_of(dataset.dataset)) is not None:
        chosen = torch.as_tensor(dataset.indices, dtype=torch.long)
        return [tensor[chosen] for tensor in tensors]
    return None


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray) or hasattr(value, "to_numpy")


def _population(source: Source, name: str, double: torch.dtype | None) -> Population:
    if isinstance(source, DataSet):
        return source.train
    loader = isinstance(source, DataLoader)
    require(not loader, f"{name}: a DataLoader draws its own batches; allowed: its .dataset, or two tensors")
    pair = isinstance(source, tuple | list) and len(source) == 2
    if pair and (isinstance(source, tuple) or _is_array(source[1])):  # else a list of records
        return TensorRecords(*_without_double((source[0], source[1]), double), name=name)
    if isinstance(source, dict | tuple) or _is_array(source):
        return TensorRecords.of(_without_double(source, double), name=name)
    if (tensors := _without_double(tensors_of(source), double)) is not None:
        held = TensorRecords(*tensors, name=name) if len(tensors) == 2 else TensorRecords.of(tensors, name=name)
        held.origin = source
        return held
    return IndexedRecords(cast("Dataset[Any]", source), name=name, double=double)
