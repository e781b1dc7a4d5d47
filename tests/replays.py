"""A run on a small data set, recorded and replayed with one record more or less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from adadpigu.audit.adversarial import Record
from adadpigu.audit.replay import Recording, ReplayResult
from adadpigu.audit.subject import held
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.data import DataSet, TensorRecords
from adadpigu.training import Preparation


def replay(
    prepare_on: Callable[[DataSet], Preparation],
    data: DataSet,
    *,
    removed: int | None = None,
    added: Record | None = None,
    seed: int = 0,
) -> ReplayResult:
    """Records a run on `data` and replays it without record `removed`, or with one record `added`.

    `prepare_on` makes the run ready on either data set, with a model initialised alike and the same seed both times.
    """
    assert (removed is None) != (added is None)
    if removed is not None:  # the record that differs is the last one
        records = held(data)
        order = torch.arange(len(records))
        order = torch.cat([order[order != removed], order[removed : removed + 1]])
        data = replace(data, train=TensorRecords(*records.take(order), name=records.name))
    recording = Recording(prepare_on, data, randomness=ReproducibleRandomness(seed))
    return recording.without_last() if added is None else recording.with_record(added)
