"""Runs on small data sets, recorded and replayed with one record more or less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from adadpigu.audit.adversarial import Record, adversarial_records
from adadpigu.audit.replay import Recording, ReplayResult, replay_all
from adadpigu.audit.subject import held
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.data import DataSet, TensorRecords
from adadpigu.methods import Method
from adadpigu.training import Preparation
from trials import prepare_small, small_digits


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


def neighbours(method: Method, *records: str, **options: Any) -> dict[str, ReplayResult]:
    """Four steps on sixteen digits, replayed on neighbours: all adversarial ones, or those that are named."""
    data = replace(small_digits(16), records=300, test=None)

    def prepare_on(held: DataSet) -> Preparation:
        return prepare_small(method, held, **({"batch_size": 60, "steps": 4, "evaluate_every": 4} | options))

    every = adversarial_records(data)
    return replay_all(prepare_on, data, records={name: every[name] for name in records or every}, share=0.5)


def breaches(found: dict[str, ReplayResult]) -> dict[str, tuple[str, ...]]:
    """What was found, by the neighbour where it was."""
    return {name: result.breaches for name, result in found.items() if result.breaches}
