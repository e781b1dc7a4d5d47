"""A data set of dicts as private records: packed rows and targets, read once. Sensitive; refusals go to its holder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from adadpigu.compat.transformers.encoding import COLUMNS, IDS, LABELS, MASK, Encoding
from adadpigu.compat.transformers.tasks import IGNORED, Task
from adadpigu.data.datasets import TensorRecords
from adadpigu.errors import InputError


def columns_of(dataset: Any, name: str, taken: Collection[str], drops_others: bool) -> tuple[str, ...]:
    """The columns of a data set: public facts. `taken` are those that the model's forward has.

    A column that the model would be given, and that records here do not have, is refused; others are dropped, where
    Trainer would drop them.
    """
    if not hasattr(dataset, "__getitem__") or not isinstance(dataset, Sized):
        raise InputError(
            f"{name}: a {type(dataset).__name__} has no length or no items by number; allowed: a map-style data set"
        )
    if len(dataset) == 0:
        raise InputError(f"{name}: there is no record; allowed: at least 1")
    first = cast(Any, dataset)[0]
    if not isinstance(first, Mapping):
        raise InputError(f"{name}: records are a {type(first).__name__}; allowed: dicts of a tokeniser's columns")
    known = {*COLUMNS, *LABELS}
    for column in first:
        if column not in known and (column in taken or not drops_others):
            raise InputError(f"{name}: column {column!r} cannot be packed; allowed: {', '.join(COLUMNS)} and a label")
    return tuple(column for column in first if column in known)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """From dicts to rows and targets."""

    encoding: Encoding
    task: Task

    def packed(self, dataset: Any, name: str) -> TensorRecords:
        """All records of a data set."""
        rows, targets = [], []
        for number in range(len(dataset)):
            row, target = self._pair(dataset[number], f"{name}: record {number}")
            rows.append(row)
            targets.append(target)
        return TensorRecords(torch.stack(rows), torch.stack(targets), name=name, origin=dataset)

    def unlabelled(self, dataset: Any, name: str) -> TensorRecords:
        """All records of a data set that need not have labels."""
        rows = [self.encoding.row(dataset[number], f"{name}: record {number}") for number in range(len(dataset))]
        return TensorRecords(torch.stack(rows), torch.zeros(len(rows)), name=name)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """A batch of evaluation records, padded as training records are: Trainer's collator."""
        rows = torch.stack([self.encoding.row(record, "evaluation: a record") for record in features])
        batch = self.encoding.columns(rows)
        if all(_label_of(record) is not None for record in features):
            batch["labels"] = torch.stack([self._pair(record, "evaluation: a record")[1] for record in features])
        return batch

    def _pair(self, record: Mapping[str, Any], where: str) -> tuple[Tensor, Tensor]:
        row = self.encoding.row(record, where)
        name = _label_of(record)
        if name is not None:
            return row, self.task.target(record[name], where)
        if not self.task.from_ids:
            raise InputError(f"{where} has no label; allowed: one of the columns {', '.join(LABELS)}")
        columns = self.encoding.columns(row[None])
        return row, columns[IDS][0].masked_fill(columns[MASK][0] == 0, IGNORED)


def _label_of(record: Mapping[str, Any]) -> str | None:
    return next((name for name in LABELS if name in record), None)
