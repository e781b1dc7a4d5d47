"""From the user's training loader to Poisson batches: its data set and its batch size are taken, its order is not.

What a loader would decide by itself is judged by `compat.loaders`; what several records at once would be made of
(`collate_fn`) is refused here. Records are on the sensitive side: none leaves but into the private loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from adadpigu.compat.lightning.tracing import Leaf
from adadpigu.compat.loaders import DROP_LAST, judged, tell_ignored
from adadpigu.data.checking import digests, refuse_copies
from adadpigu.data.datasets import DataSet, TensorRecords, declare
from adadpigu.errors import InputError, PrivacyLineError, first_line
from adadpigu.isolation import isolated
from adadpigu.randomness import SystemRandomness
from adadpigu.sampling import Population
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop

_NAME = "train_dataloader"
_LOOKED_AT = 1000
"""evaluation records that are compared with training records, by their values"""


class PrivateLoader:
    """What the Trainer goes through in place of its loader: the batches of a private loop, which hold no record."""

    def __init__(self, loader: object, records: int) -> None:
        checked = _checked(loader)
        assert checked.batch_size is not None
        self.source: Dataset[Any] = checked.dataset
        self.batch_size = checked.batch_size
        self._length = -(-records // self.batch_size)
        self._loop: PrivateLoop | None = None
        self._batches: Iterator[PrivateBatch] = iter(())
        self.handed_out = 0
        self.batch: PrivateBatch | None = None
        """the one that was handed out last"""

    def __len__(self) -> int:
        """Steps of an epoch: N/B of the *declared* N."""
        return self._length

    def sample(self) -> Any:
        """A batch of one with zeros in place of its values: only its form is public."""
        try:
            batch = default_collate([self.source[0]])
        except (TypeError, RuntimeError, KeyError, IndexError) as error:
            raise InputError(
                f"train_dataloader: an item of its data set cannot be collated: {first_line(error)}; allowed: tensors, "
                "numbers, and tuples or dicts of them"
            ) from None
        return tree_map(lambda part: torch.zeros_like(part) if isinstance(part, torch.Tensor) else None, batch)

    def open(self, loop: PrivateLoop) -> None:
        """From here on there are batches."""
        self._loop, self._batches = loop, iter(loop)

    def close(self) -> None:
        """After the last batch: the loop ends as finished if all of them were handed out, else as interrupted."""
        assert self._loop is not None
        if self.handed_out < len(self._loop):
            self._loop.finish()
        else:
            next(self._batches, None)

    def __iter__(self) -> Iterator[PrivateBatch]:
        for _ in range(self._length):
            if self._loop is None:
                raise PrivacyLineError("a batch was asked for before the strategy's on_train_start: it was replaced")
            batch = next(self._batches, None)
            if batch is None:
                raise InputError(
                    f"the plan of {len(self._loop)} steps is used up, and it was made for max_epochs and max_steps as "
                    "they were when fit began; allowed: leave them"
                )
            self.batch, self.handed_out = batch, self.handed_out + 1
            yield batch


def data_of(dataset: Dataset[Any], records: int, inputs: Leaf, targets: Leaf) -> DataSet:
    """The records as pairs of what the model takes and what the loss compares with."""
    held = _held(dataset)
    if held is None:
        return declare(_Pairs(dataset, inputs, targets), records=records)
    pairs = TensorRecords(inputs.take(held), targets.take(held), name="own data", origin=dataset)
    return DataSet(name=pairs.name, train=pairs, records=records)


def _held(dataset: Dataset[Any]) -> tuple[torch.Tensor, ...] | None:
    """The tensors of a data set that consists of them, also behind a random split."""
    if type(dataset) is TensorDataset:
        return dataset.tensors
    if type(dataset) is Subset and (tensors := _held(dataset.dataset)) is not None:
        chosen = torch.as_tensor(dataset.indices, dtype=torch.long)
        return tuple(tensor[chosen] for tensor in tensors)
    return None


def refuse_copied(train: Dataset[Any], other: Any, inputs: Leaf, name: str) -> None:
    """Refuses records to be evaluated on of which half have the values of training records, however they are held.

    Where they are not held as tensors, items are read: all of the training set, and up to 1000 of the other.
    """
    if not isinstance(other, Sized) or isinstance(other, IterableDataset):
        return
    with isolated(SystemRandomness(), torch.device("cpu")):  # a data set may draw at random when a record is read
        looked_at = _inputs_of(other, inputs, most=_LOOKED_AT)
        refuse_copies(digests(_inputs_of(train, inputs, most=None)), digests(looked_at), len(looked_at), name)


def _inputs_of(dataset: Any, inputs: Leaf, most: int | None) -> Population:
    """What the model takes of records: all of those that are held as tensors, else at most so many."""
    held, like = _held(dataset), inputs.like
    assert like is not None
    with contextlib.suppress(IndexError, KeyError, TypeError):  # records of another form
        rows = None if held is None else inputs.take(held)
        if isinstance(rows, torch.Tensor) and (rows.dtype, rows.shape[1:]) == (like.dtype, like.shape[1:]):
            return TensorRecords(rows, rows)
    return _Inputs(dataset, inputs, like[0], len(dataset) if most is None else most)


class _Inputs:
    """What the model takes of the records of a data set; those of another form are left out."""

    def __init__(self, dataset: Any, inputs: Leaf, like: torch.Tensor, most: int) -> None:
        self._dataset, self._inputs, self._like = dataset, inputs, like
        spread = torch.linspace(0, len(dataset) - 1, min(most, len(dataset)), dtype=torch.float64)
        self._places = spread.round().long()

    def __len__(self) -> int:
        return len(self._places)

    def take(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = [self._row(int(place)) for place in self._places[indices]]
        rows = [self._like[None][:0], *(row[None] for row in found if row is not None)]
        return torch.cat(rows), torch.zeros(len(indices))

    def _row(self, place: int) -> torch.Tensor | None:
        item = self._dataset[place]
        try:
            part = item if isinstance(item, torch.Tensor) else self._inputs.take(item)
            row = part if isinstance(part, torch.Tensor) else default_collate([part])[0]
        except (IndexError, KeyError, TypeError, AttributeError):  # a record of another form
            return None
        alike = isinstance(row, torch.Tensor) and (row.dtype, row.shape) == (self._like.dtype, self._like.shape)
        return row.cpu() if alike else None


class _Pairs(Dataset[Any]):
    """Items of another data set, cut down to (input, target)."""

    def __init__(self, dataset: Dataset[Any], inputs: Leaf, targets: Leaf) -> None:
        self._dataset, self._inputs, self._targets = dataset, inputs, targets

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        item = self._dataset[index]
        return self._inputs.take(item), self._targets.take(item)


def _checked(loader: object) -> DataLoader[Any]:
    checked, ignored = judged(loader, _NAME)
    if DROP_LAST in ignored:
        raise InputError(f"{_NAME}: {DROP_LAST}, but Poisson batches have no last one; allowed: drop_last=False")
    if checked.collate_fn is not default_collate:
        raise InputError(
            f"{_NAME}: collate_fn={getattr(checked.collate_fn, '__name__', checked.collate_fn)!r} sees several records "
            "at once; allowed: the default one, and the rest of the work in the data set's __getitem__"
        )
    tell_ignored(ignored, _NAME)
    return checked
