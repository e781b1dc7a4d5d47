"""Follows a run draw by draw: which draw of the plan is being made, and which records have reached the engine in it.

Records carry their number in their label, so it can be read off where the engine takes them, whatever the sampler, the
gathering or the micro-batches do. That is the sensitive side: public records or stand-ins alone come here. On a GPU
steps are recorded and replayed as in training, since the numbers are counted on the device.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from adadpigu.accounting import PlannedDraw
from adadpigu.accounting.events import DpEvent
from adadpigu.audit.outside import RunObserver
from adadpigu.audit.p_values import Counts
from adadpigu.audit.result import Progress
from adadpigu.audit.subject import Subject, held, trained
from adadpigu.core.randomness import Randomness
from adadpigu.core.sampling import Coins, PoissonSampler, Population, Sampler
from adadpigu.core.sensitive import Records, unseal
from adadpigu.data.datasets import TensorRecords
from adadpigu.errors import InputError
from adadpigu.runs.run import Metrics
from adadpigu.training.micro_batches import View
from adadpigu.training.preparation import Preparation

_LABELS = 2**32  # a record's target is its label plus so many times its number, which counts from 1: 0 is no record
_OWNERS = 16  # with several records, where records have owners


def label_of(target: Tensor) -> Tensor:
    """Without the number of its record, if it has one."""
    return target.fmod(_LABELS)


@dataclass(frozen=True, kw_only=True)
class ObservedSampler(PoissonSampler):
    """A run's own sampler, which tells when its event is asked for, and when it tosses."""

    own: Sampler  # whose answers these are: what is audited
    asked: Callable[[], object] = lambda: None
    tossed: Callable[[], object] = lambda: None

    def event(self, noise_multipliers: list[float]) -> DpEvent:
        self.asked()
        return self.own.event(noise_multipliers)

    def toss(self, population: Population, randomness: Randomness) -> Coins:
        self.tossed()
        return self.own.toss(population, randomness)

    @property
    def per_owner(self) -> int:
        return self.own.per_owner


@dataclass(frozen=True, kw_only=True)
class ObservedPreparation(Preparation):
    """A run whose samplers an auditor spies on."""

    spied: Callable[[int, str, Sampler, float], ObservedSampler]
    """(stage, draw, the run's own sampler, σ): the same one, spied on"""

    def samplers(self, stage: int) -> dict[str, tuple[Sampler, float]]:
        own = super().samplers(stage)
        return {name: (self.spied(stage, name, sampler, sigma), sigma) for name, (sampler, sigma) in own.items()}


@dataclass(frozen=True, kw_only=True)
class _Numbered(View):
    """Reads the numbers off the records that the engine is about to see, and gives it their labels."""

    seen: Tensor  # how often each number was shown since the draw began; changed in place, by recorded steps too
    label_type: torch.dtype

    def __call__(self, records: Records) -> Records:
        shown = super().__call__(records)
        parts, tree = tree_flatten(unseal(shown))  # where an integration has them, labels are the last one of its sort
        place = max(n for n, part in enumerate(parts) if part.dtype == torch.int64 and part.dim() == 1)
        coded = parts[place]
        present = torch.ones_like(coded) if shown.present is None else unseal(shown.present).to(coded)
        self.seen.index_add_(0, coded // _LABELS, present)
        parts[place] = label_of(coded).to(self.label_type)
        return Records(tree_unflatten(parts, tree), copies=shown.copies, present=shown.present)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """All draws of one kind: which records each has taken."""

    draw: PlannedDraw  # as claimed
    counts: NDArray[np.uint8]  # [draws, records]: how often

    @property
    def taken(self) -> NDArray[np.bool_]:
        return self.counts > 0

    @property
    def sizes(self) -> Counts:
        return np.asarray(self.taken.sum(axis=1), dtype=np.int64)

    @property
    def by_record(self) -> Counts:
        """In how many draws each record is."""
        return np.asarray(self.taken.sum(axis=0), dtype=np.int64)


class DrawnRecords(RunObserver):
    """Which records each draw of a run has taken, draw by draw."""

    def __init__(self, seen: Tensor, planned: int, owners: int = 0, cap: int = 1) -> None:
        """Of the last `owners`, each with a record more than the `cap`, the first record stands for all."""
        super().__init__()
        self._seen, self.planned = seen, planned
        self._owners, self._cap = owners, cap
        self.torn = 0  # owners whose records a draw has taken in part, or beyond the cap
        self._current: PlannedDraw | None = None
        self.draws: list[tuple[PlannedDraw, NDArray[np.uint8]]] = []  # each with how often it has taken every record
        self.stray = 0  # records that were looked at outside any draw that was charged

    def announce(self, draw: PlannedDraw) -> None:
        self._close()
        self._current = draw

    def _close(self) -> None:
        counts = self._seen[1:].cpu().numpy().clip(max=255).astype(np.uint8)
        self._seen.zero_()
        if self._owners:
            single = len(counts) - self._owners * (self._cap + 1)
            owned = counts[single:].reshape(self._owners, -1)
            whole = owned[:, :1] * (np.arange(self._cap + 1) < self._cap)
            self.torn += int((owned != whole).any(axis=1).sum())
            counts = np.concatenate([counts[:single], owned[:, 0]])
        if self._current is None:
            self.stray += int(counts.sum())
        else:
            self.draws.append((self._current, counts))
        self._current = None

    def update(self, metrics: Metrics) -> None:
        self._close()
        super().update(metrics)

    @cached_property
    def kinds(self) -> list[Taken]:
        found: dict[PlannedDraw, list[NDArray[np.uint8]]] = {}
        for draw, counts in self.draws:
            found.setdefault(draw, []).append(counts)
        return [Taken(draw=draw, counts=np.stack(counts)) for draw, counts in found.items()]

    @property
    def in_order(self) -> NDArray[np.bool_]:
        """[draws, records], as draws were made"""
        return np.stack([counts > 0 for _, counts in self.draws])

    @property
    def repeated(self) -> int:
        """How often a record was in a draw that had it already."""
        return sum(int(np.maximum(counts, 1).sum(dtype=np.int64)) - counts.size for _, counts in self.draws)


def watch(
    subject: Subject,
    *,
    records: int,
    steps: int,
    randomness: Randomness | None = None,
    progress: Progress | None = None,
) -> DrawnRecords:
    """Runs so many steps of the subject on so many records, and keeps what its draws have taken.

    Where records have owners, a few of them have several.
    """
    cap = 0 if subject.data.owners is None else subject.data.owners.cap
    owners = min(_OWNERS, records) if cap else 0
    data = subject.first(records + owners * cap)
    data = data.holding(data.train, [cap + 1] * owners)
    ready = subject.prepare(data=data, steps=steps, evaluate_every=steps)
    placed = held(ready.data)
    numbers = 1 + torch.arange(len(placed), device=placed.targets.device)
    coded = TensorRecords(placed.inputs, placed.targets.long() + _LABELS * numbers, name=placed.name)
    seen = torch.zeros(len(placed) + 1, dtype=torch.int64, device=ready.device)
    watched = DrawnRecords(seen, sum(stage.steps * len(stage.draws) for stage in ready.plan.stages), owners, cap)
    watched.tell(progress, ready.plan.steps)
    view = _Numbered(**vars(ready.view), seen=seen, label_type=placed.targets.dtype)
    facts: dict[str, Any] = {**vars(ready), "data": replace(ready.data, train=coded), "view": view}

    def announcing(stage: int, name: str, sampler: Sampler, _: float) -> ObservedSampler:
        claimed = next(draw for draw in subject.plan.stages[stage].draws if draw.name == name)
        before = count()  # the loop asks for the price once, before a stage's first step
        return ObservedSampler(
            sample_rate=sampler.sample_rate,
            own=sampler,
            asked=lambda: watched.announce(claimed) if next(before) else None,
        )

    run = ObservedPreparation(**facts, spied=announcing)
    trained(run, randomness=subject.tier if randomness is None else randomness, observers=[watched])
    if not watched.draws:
        raise InputError(f"{subject.label}: no batch was drawn in {steps} steps, so there is nothing to look at")
    return watched
