"""From the user's training loader to Poisson batches: its data set and its batch size are taken, its order is not.

Records are on the sensitive side: none leaves but into the private loop. What the Trainer iterates over are handles.
"""

import math
from collections.abc import Sized
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from adadpigu.core.randomness import SystemRandomness, isolated
from adadpigu.core.sampling import Population
from adadpigu.core.trees import describe_tree
from adadpigu.data.checking import digests, refuse_copies, refuse_shared_records
from adadpigu.data.datasets import DataSet, TensorRecords, tensors_of
from adadpigu.errors import InputError
from adadpigu.integrations.loaders import Collate, CollatedRecords, validate_loader
from adadpigu.integrations.shared import EpochBatches


class PrivateLoader(EpochBatches):
    """What the Trainer iterates over in place of its loader; an epoch is N/B steps of the *declared* N."""

    def __init__(self, loader: object, records: int, accumulated: int = 1) -> None:
        """`accumulated` batches of the user's make one logical batch."""
        checked = validate_loader(loader, "train_dataloader")
        assert checked.batch_size is not None
        self.batch_size = checked.batch_size * accumulated
        super().__init__(math.ceil(records / self.batch_size))
        self.source: Dataset[Any] = checked.dataset
        self.data = DataSet(name="own data", train=_population(self.source, checked.collate_fn), records=records)

    def refuse_training_records(self, other: object, name: str) -> None:
        """Refuses a data set to be evaluated on that holds training records, or copies of about half its records."""
        refuse_shared_records(self.source, other, name)
        if not isinstance(other, Sized) or isinstance(other, IterableDataset) or not len(other):
            return
        with isolated(SystemRandomness(), torch.device("cpu")):  # a data set may draw at random when a record is read
            try:
                compared = _population(other, default_collate)  # type: ignore[arg-type]
            except (InputError, TypeError):  # records of another form
                return
            forms = [describe_tree(population.take(torch.arange(0))[0]) for population in (self.data.train, compared)]
            if forms[0] == forms[1]:
                refuse_copies(digests(self.data.train), digests(compared), len(compared), name)


def _population(dataset: Dataset[Any], collate: Collate) -> Population:
    """Whole records of a data set: its tensors, if it consists of them, else its items as the loader collates them."""
    held = tensors_of(dataset) if collate is default_collate else None
    if held is not None:
        return TensorRecords.of(tuple(held), name="own data", origin=dataset)
    return CollatedRecords(dataset, collate, pairs=False)
