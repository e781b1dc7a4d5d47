"""From the user's training loader to Poisson batches: its data set and its batch size are taken, its order is not.

Records are on the sensitive side: none leaves but into the private loop. What the Trainer iterates over are handles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, default_collate

from adadpigu.core.randomness import SystemRandomness, isolated
from adadpigu.core.sampling import Population
from adadpigu.core.trees import describe_tree
from adadpigu.data.checking import digests, refuse_copies, refuse_shared_records
from adadpigu.data.datasets import DataSet, TensorRecords, as_whole, declare
from adadpigu.errors import InputError, first_line
from adadpigu.integrations.loaders import tell_ignored, validate_loader
from adadpigu.integrations.trainers import EpochBatches
from adadpigu.training.own_loop import PrivateBatch

_NAME = "train_dataloader"
_COMPARED = 1000
"""evaluation records that are compared with training records, by their values"""


class PrivateLoader:
    """What the Trainer iterates over in place of its loader: the batches of a private loop, which hold no record."""

    def __init__(self, loader: object, records: int, accumulated: int = 1) -> None:
        """`accumulated` batches of the user's make one logical batch."""
        checked, ignored = validate_loader(loader, _NAME)
        tell_ignored(ignored, _NAME)
        assert checked.batch_size is not None
        self.source: Dataset[Any] = checked.dataset
        self.data = DataSet(name="own data", train=_population(self.source, checked.collate_fn), records=records)
        self.batch_size = checked.batch_size * accumulated
        self._length = -(-records // self.batch_size)
        self.epochs: EpochBatches | None = None
        """set when the plan is fixed"""
        self.batch: PrivateBatch
        """the one that was handed out last"""

    def __len__(self) -> int:
        """Steps of an epoch: N/B of the *declared* N."""
        return self._length

    def __iter__(self) -> Iterator[PrivateBatch]:
        assert self.epochs is not None
        if self.epochs.used_up:
            raise InputError(
                f"the plan of {len(self.epochs.loop)} steps is used up, and it was made for max_epochs and max_steps "
                "as they were when fit began; allowed: leave them"
            )
        for batch in self.epochs:
            self.batch = batch
            yield batch

    def refuse_training_records(self, other: object, name: str) -> None:
        """Refuses a data set to be evaluated on that holds training records, or copies of about half its records."""
        refuse_shared_records(self.source, other, name)
        if not isinstance(other, Sized) or isinstance(other, IterableDataset) or not len(other):
            return
        places = torch.linspace(0, len(other) - 1, min(_COMPARED, len(other)), dtype=torch.float64).round().long()
        with isolated(SystemRandomness(), torch.device("cpu")):  # a data set may draw at random when a record is read
            try:
                compared = _population(Subset(other, places.tolist()), default_collate)  # type: ignore[arg-type]
            except (InputError, TypeError):  # records of another form
                return
            forms = [describe_tree(population.take(torch.arange(0))[0]) for population in (self.data.train, compared)]
            if forms[0] == forms[1]:
                refuse_copies(digests(self.data.train), digests(compared), len(compared), name)


def _population(dataset: Dataset[Any], collate: Callable[[list[Any]], Any]) -> Population:
    """Whole records of a data set: its tensors, if it consists of them, else its items as the loader collates them."""
    held = _held(dataset) if collate is default_collate else None
    if held is not None:
        return TensorRecords.of(held, name="own data", origin=dataset)
    try:
        return as_whole(declare(_Collated(dataset, collate), records=1).train)
    except TypeError as error:
        raise InputError(
            f"the training loader: items cannot be put into a batch: {first_line(error)}; allowed: tensors, arrays and "
            "numbers, and tuples, lists and dicts of them"
        ) from None


def _held(dataset: Dataset[Any]) -> tuple[torch.Tensor, ...] | None:
    """The tensors of a data set that consists of them, also behind a random split."""
    if type(dataset) is TensorDataset:
        return dataset.tensors
    if type(dataset) is Subset and (tensors := _held(dataset.dataset)) is not None:
        chosen = torch.as_tensor(dataset.indices, dtype=torch.long)
        return tuple(tensor[chosen] for tensor in tensors)
    return None


class _Collated(Dataset[Any]):
    """Items as a collate_fn makes them of one record; texts in dicts are left out, since no tensor holds them."""

    def __init__(self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate = dataset, collate

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        return _first(self._collate([self._dataset[index]]))


def _first(batch: Any) -> Any:
    """The one record of a batch."""
    if isinstance(batch, Mapping):
        texts = {key for key, part in batch.items() if isinstance(part, list | tuple) and isinstance(part[0], str)}
        return {key: _first(part) for key, part in batch.items() if key not in texts}
    return tuple(map(_first, batch)) if isinstance(batch, list | tuple) else batch[0]
