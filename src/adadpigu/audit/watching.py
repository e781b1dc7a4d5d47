"""Follows a run draw by draw: which draw of the plan is being made, and which records have reached the engine in it.

Records carry their number in their label, so it can be read off where the engine takes them, whatever the sampler, the
gathering or the micro-batches do. That is the sensitive side: public records or stand-ins alone come here. On a GPU
steps are recorded and replayed as in training, since the numbers are counted on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadpigu.accounting import PlannedDraw
from adadpigu.audit.laws import Counts
from adadpigu.audit.result import Progress
from adadpigu.audit.subject import Subject, held, trained
from adadpigu.core.randomness import Randomness
from adadpigu.core.sampling import PoissonSampler
from adadpigu.core.sensitive import Records, unseal
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.errors import InputError
from adadpigu.methods import make_method
from adadpigu.runs.run import Facts, Metrics, Run
from adadpigu.training.micro_batches import View
from adadpigu.training.preparation import Preparation

_LABELS = 2**32
"""a record's target is its label plus so many times its number, which counts from 1: 0 is no record"""


@dataclass(frozen=True, kw_only=True)
class Followed(Preparation):
    """A run whose samplers stand behind an auditor's."""

    wrapped: Callable[[int, str, PoissonSampler, float], BehindSampler]
    """(stage, draw, sampler, σ): the auditor's"""

    def samplers(self, stage: int) -> dict[str, tuple[PoissonSampler, float]]:
        return {
            name: (cast(PoissonSampler, self.wrapped(stage, name, sampler, sigma)), sigma)
            for name, (sampler, sigma) in super().samplers(stage).items()
        }


class BehindSampler:
    """A sampler as it is, but for what a subclass looks at."""

    def __init__(self, sampler: PoissonSampler) -> None:
        self._sampler = sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class _Announcing(BehindSampler):
    """Tells when its event is charged."""

    def __init__(self, sampler: PoissonSampler, announce: Callable[[], None]) -> None:
        super().__init__(sampler)
        self._announce = announce
        self._priced = False

    def event(self, noise_multipliers: list[float]) -> object:
        if self._priced:  # the loop asks for the price once, before a stage's first step
            self._announce()
        self._priced = True
        return self._sampler.event(noise_multipliers)


def run_length(subject: Subject, steps: int) -> int:
    """`steps`, and those of a method's first stages on top where it has fixed their number."""
    try:
        make_method(subject.config.method, subject.config.method_options).stages(steps)
    except InputError:
        return steps + sum(stage.steps for stage in subject.plan.stages[:-1])
    return steps


def so_many_records(subject: Subject, count: int) -> DataSet:
    """The subject's first records, over again where there are fewer, under its own description: no rate moves."""
    records = held(subject.data)
    inputs, targets = records.take(torch.arange(count) % len(records))
    return replace(subject.data, train=TensorRecords(inputs, targets, name=records.name))


@dataclass(frozen=True, kw_only=True)
class _Numbered(View):
    """Reads the numbers off the records that the engine is about to see, and gives it their labels."""

    seen: Tensor
    """how often each number was shown since the draw began; changed in place, by recorded steps too"""
    label_type: torch.dtype

    def __call__(self, records: Records) -> Records:
        shown = super().__call__(records)
        inputs, targets = unseal(shown)
        present = torch.ones_like(targets) if shown.present is None else unseal(shown.present).to(targets)
        self.seen.index_add_(0, targets // _LABELS, present)
        labels = (targets % _LABELS).to(self.label_type)
        return Records((inputs, labels), copies=shown.copies, present=shown.present)


class _Watcher:
    """Collects, draw by draw, which records were seen; an observer of the run."""

    def __init__(self, seen: Tensor, progress: Progress | None) -> None:
        self._seen, self._progress = seen, progress
        self._current: PlannedDraw | None = None
        self.draws: list[tuple[PlannedDraw, NDArray[np.uint8]]] = []
        """each with how often it has taken every record"""
        self.astray = 0
        """records that were looked at outside any draw that was charged"""

    def announce(self, draw: PlannedDraw) -> None:
        self._close()
        self._current = draw

    def _close(self) -> None:
        counts = self._seen[1:].cpu().numpy().clip(max=255).astype(np.uint8)
        self._seen.zero_()
        if self._current is None:
            self.astray += int(counts.sum())
        else:
            self.draws.append((self._current, counts))
        self._current = None

    def begin(self, facts: Facts) -> None: ...

    def update(self, metrics: Metrics) -> None:
        self._close()
        if self._progress is not None:
            self._progress(metrics.step, metrics.steps)

    def end(self, run: Run) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Taken:
    """All draws of one kind: which records each has taken."""

    draw: PlannedDraw
    """as claimed"""
    counts: NDArray[np.uint8]
    """[draws, records]: how often"""

    @property
    def taken(self) -> NDArray[np.bool_]:
        return self.counts > 0

    @property
    def sizes(self) -> Counts:
        """Of the draws."""
        return np.asarray(self.taken.sum(axis=1), dtype=np.int64)

    @property
    def by_record(self) -> Counts:
        """In how many draws each record is."""
        return np.asarray(self.taken.sum(axis=0), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What the draws of a run have taken, kind by kind, and in the order in which they were made."""

    kinds: tuple[Taken, ...]
    in_order: NDArray[np.bool_]
    """[draws, records]"""
    planned: int
    """draws"""
    astray: int
    """records that were looked at outside any of them"""

    @property
    def repeated(self) -> int:
        """How often a record was in a draw that had it already."""
        return sum(int(np.maximum(kind.counts, 1).sum(dtype=np.int64)) - kind.counts.size for kind in self.kinds)


def watch(
    subject: Subject,
    *,
    records: int,
    steps: int,
    randomness: Randomness | None = None,
    progress: Progress | None = None,
) -> Watched:
    """Runs so many steps of the subject on so many records, and keeps what its draws have taken."""
    ready = subject.prepare(data=so_many_records(subject, records), steps=steps, evaluate_every=steps)
    placed = ready.data.train
    assert isinstance(placed, TensorRecords)
    numbers = 1 + torch.arange(len(placed), device=placed.targets.device)
    coded = TensorRecords(placed.inputs, placed.targets.long() + _LABELS * numbers, name=placed.name)
    seen = torch.zeros(len(placed) + 1, dtype=torch.int64, device=ready.device)
    watcher = _Watcher(seen, progress)
    view = _Numbered(**vars(ready.view), seen=seen, label_type=placed.targets.dtype)
    facts: dict[str, Any] = {**vars(ready), "data": replace(ready.data, train=coded), "view": view}

    def announcing(stage: int, name: str, sampler: PoissonSampler, _: float) -> BehindSampler:
        claimed = next(draw for draw in subject.plan.stages[stage].draws if draw.name == name)
        return _Announcing(sampler, partial(watcher.announce, claimed))

    run = Followed(**facts, wrapped=announcing)
    trained(run, randomness=subject.tier if randomness is None else randomness, observers=[watcher])
    if not watcher.draws:
        raise InputError(f"{subject.label}: no batch was drawn in {steps} steps, so there is nothing to look at")
    kinds: dict[PlannedDraw, list[NDArray[np.uint8]]] = {}
    for draw, counts in watcher.draws:
        kinds.setdefault(draw, []).append(counts)
    return Watched(
        kinds=tuple(Taken(draw=draw, counts=np.stack(counts)) for draw, counts in kinds.items()),
        in_order=np.stack([counts > 0 for _, counts in watcher.draws]),
        planned=sum(stage.steps * len(stage.draws) for stage in ready.plan.stages),
        astray=watcher.astray,
    )
