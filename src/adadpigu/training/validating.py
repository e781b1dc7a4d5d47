"""Accuracy and loss on private records, released once with noise and charged: one draw of all of them.

    Σ (right_i, min(ℓ_i, L)/L, 1) + N(0, 3σ² I),    each entry in [0, 1], so that a record moves it by √3 at most

makes accuracy and loss, L a public bound. Nothing divides by the number of records, which is private: the third entry
is a noisy count of them. The records are `DataSet.test`, which then are scored by nothing else.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adadpigu.core.bounding import BoundedSum, Bounder, Part, Query, RecordSum
from adadpigu.core.mechanism import Release, require_release
from adadpigu.core.sampling import Population
from adadpigu.core.sensitive import PerRecordLosses, Records
from adadpigu.data.datasets import DataSet, training_split
from adadpigu.errors import require
from adadpigu.methods.base import Draw, Stage
from adadpigu.runs.run import Validation
from adadpigu.training.distributed.job import current
from adadpigu.training.evaluation import answers
from adadpigu.training.options import TrainingOptions
from adadpigu.training.task import Task

if TYPE_CHECKING:
    from adadpigu.training.preparation import Preparation

STAGE = "validation"
_ENTRIES = 3
_LOSS = 10.0  # L where the number of classes is not known


def validation_of(release: Release, bound: float) -> Validation:
    """Accuracy and loss from the released sum; noise can take neither out of its range."""
    right, loss, records = (float(value) for value in require_release(release).value)
    count = max(records, 1.0)
    return Validation(
        accuracy=min(max(right / count, 0.0), 1.0),
        loss=min(max(bound * loss / count, 0.0), bound),
        records=records,
        right=right,
        stddev=release.noise_stddev or 0.0,
    )


def with_validation(data: DataSet, options: TrainingOptions) -> DataSet:
    """The data set with private validation records as its test records: its own, or a share of those to train on.

    Which records are held out follows from a hash of each record alone, so that one record more or less is on one side.
    """
    share = options.private_validation
    if share is None:
        return data
    owned = f"private_validation={share!r} of records with owners: an owner's records may be on both sides"
    require(data.owners is None, f"{owned}; allowed: without it")
    if share == "test":
        none = f"private_validation='test': {data.name!r} has no test records"
        require(data.test is not None, f"{none}; allowed: a share of the records to train on")
        return data
    split = training_split(data, max(1, round(float(share) * data.records)))
    return replace(split, name=data.name)


def check_validation(task: Task) -> None:
    """Refuses records that have no score of their own."""
    scored = task.loss is not None and task.data.test is not None
    told = "private_validation: records have no accuracy and loss of their own"
    require(scored, f"{told}; allowed: labels, outputs [n, classes] and loss(outputs, targets), or leave it out")
    alone = current().size == 1
    require(alone, "private_validation in several processes: scores are made in one; allowed: without it")


def validation_stage(noise: float, records: int) -> Stage:
    """One step that takes every validation record once."""
    return Stage(name=STAGE, steps=1, draws=(Draw(name=STAGE, batch_size=records, noise_multiplier=noise),))


def validation_query() -> RecordSum:
    needs: frozenset[Part] = frozenset({"loss"})
    return RecordSum(name=STAGE, of=lambda record: record.loss, clip_norm=math.sqrt(_ENTRIES), needs=needs)


def loss_bound(data: DataSet) -> float:
    """L: twice the loss of guessing among so many classes."""
    return 2 * math.log(data.classes) if data.classes is not None and data.classes > 1 else _LOSS


def validation_sum(prepared: "Preparation", query: Query) -> BoundedSum:
    """The un-noised sum over all validation records, of the model as its weights are now."""
    assert prepared.data.test is not None
    bounder = Bounder(query, _ENTRIES)
    for targets, values in _values(prepared, prepared.data.test):
        bounder.add_records(Records((targets, targets)), losses=PerRecordLosses(values))
    return bounder.result()


def _values(prepared: "Preparation", population: Population) -> Iterator[tuple[Tensor, Tensor]]:
    """[b, 3] of some records at a time, an empty part first; no record decides about another's."""
    bound, loss = loss_bound(prepared.data), prepared.loss
    assert loss is not None
    yield torch.zeros(0), torch.zeros(0, _ENTRIES)
    for outputs, targets, right in answers(prepared.shown_model(), population, device=prepared.device):
        single = [loss(outputs[i : i + 1], targets[i : i + 1]).detach().mean() for i in range(len(targets))]
        losses = torch.nan_to_num(torch.stack(single).double().cpu(), bound, bound, bound).clamp(0, bound) / bound
        yield torch.zeros(len(targets)), torch.stack([right.double(), losses, torch.ones(len(targets)).double()], dim=1)
