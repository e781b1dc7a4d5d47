"""From the user's training loader to Poisson batches: its data set and its batch size are taken, its order is not.

A loader decides which records come together, and accounting holds for Poisson draws alone. So whatever decides that
besides the batch size is refused by name, but shuffling, which has no say where every draw is Poisson.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from adadpigu.compat.lightning.tracing import Leaf
from adadpigu.data.datasets import Source
from adadpigu.errors import InputError, PrivacyLineError, first_line
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop


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


def source_of(dataset: Dataset[Any], inputs: Leaf, targets: Leaf) -> Source:
    """The records as pairs of what the model takes and what the loss compares with."""
    held = _held(dataset)
    if held is None:
        return _Pairs(dataset, inputs, targets)
    one, other = inputs.take(held), targets.take(held)
    return one, other


def _held(dataset: Dataset[Any]) -> tuple[torch.Tensor, ...] | None:
    """The tensors of a data set that consists of them, also behind a random split."""
    if type(dataset) is TensorDataset:
        return dataset.tensors
    if type(dataset) is Subset and (tensors := _held(dataset.dataset)) is not None:
        chosen = torch.as_tensor(dataset.indices, dtype=torch.long)
        return tuple(tensor[chosen] for tensor in tensors)
    return None


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
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        raise InputError(f"train_dataloader={type(loader).__name__} makes its own batches; allowed: a DataLoader")
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError(
            f"train_dataloader: {type(dataset).__name__} has no length or no positions, so nobody can draw from it; "
            "allowed: a map-style Dataset with __len__ and __getitem__"
        )
    if not len(dataset):
        raise InputError("train_dataloader: there is no record; allowed: at least 1")
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise InputError(
            "train_dataloader: a batch_sampler of your own decides who comes together; allowed: batch_size"
        )
    if loader.drop_last:
        raise InputError(
            "train_dataloader: drop_last=True, but Poisson batches have no last one; allowed: drop_last=False"
        )
    if loader.collate_fn is not default_collate:
        raise InputError(
            f"train_dataloader: collate_fn={getattr(loader.collate_fn, '__name__', loader.collate_fn)!r} sees several "
            "records at once; allowed: the default one, and the rest of the work in the data set's __getitem__"
        )
    _check_sampler(loader)
    return loader


def _check_sampler(loader: DataLoader[Any]) -> None:
    sampler = loader.sampler
    if type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None:
        warnings.warn(
            "train_dataloader: shuffle=True has no effect, each batch is a Poisson draw: every record by itself with "
            "probability batch_size/records",
            stacklevel=2,
        )
    elif type(sampler) is not SequentialSampler:
        raise InputError(
            f"train_dataloader: sampler={type(sampler).__name__} chooses records, but only Poisson draws are "
            "accounted; allowed: none of your own (weights and classes must not decide who is drawn)"
        )
    if loader.num_workers:
        warnings.warn(
            f"train_dataloader: num_workers={loader.num_workers} has no effect, drawn records are read in this process",
            stacklevel=2,
        )
