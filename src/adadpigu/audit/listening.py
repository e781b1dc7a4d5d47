"""Hears the noise of runs: a tape between the sums and the releases keeps what was added, over what is claimed.

    z = (release − sum) / (σ_k · sensitivity),   σ_k = σ/√share by the claim's plan, whatever the release says of itself

Sums without noise are looked at, so that public records or stand-ins alone come here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadpigu.accounting import PlannedDraw
from adadpigu.audit.laws import Numbers
from adadpigu.audit.result import Progress
from adadpigu.audit.subject import Subject, trained
from adadpigu.audit.watching import announced, run_length, so_many_records
from adadpigu.bounding import BoundedSum, GradientSum, Query
from adadpigu.errors import InputError
from adadpigu.layout import Layout
from adadpigu.mechanism import Release
from adadpigu.randomness import Randomness, Tier, choose_randomness
from adadpigu.sensitive import unseal
from adadpigu.training import train_prepared
from adadpigu.training.preparation import Preparation
from adadpigu.training.run import Facts, Metrics, Run

_BATCH = 64
"""records in a draw, on average: noise does not depend on them"""
_SHORT_RUN = 20
"""steps of the first run, which tells how many numbers a step gives, and of the two that are heard for a reason"""
_KEPT = 4
"""times as many numbers as were asked for are kept, of releases that have more"""
_SAMPLE = 4096
"""numbers whose digits are looked at"""
_HEAD = 64
"""first coordinates of every tensor, which are always kept: whether tensors begin alike is looked at"""


@dataclass(frozen=True)
class Part:
    """The noise of one release, over what is claimed."""

    draw: PlannedDraw
    name: str
    share: float
    z: Numbers
    """0 where no noise is due"""
    due: NDArray[np.bool_]
    places: NDArray[np.int64] | None = None
    """of a gradient: which coordinates these are"""


class Listener:
    """A tape that keeps the noise of every release, and counts what should have been silent and was not."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: numbers of a release that are kept (`_places`); None: all."""
        self._most = most
        self._kept = np.arange(0)
        self._draw: PlannedDraw | None = None
        self.parts: list[Part] = []
        self.count = 0
        """numbers of noise that are kept"""
        self.planned = self.charged = self.released = 0
        """draws"""
        self.disturbed = 0
        """coordinates that are frozen and not exactly 0 in a release"""
        self.bare = 0
        """numbers that are active and released as they were, but for rounding"""
        self.rounded = 0.0
        """at most how many of those are expected"""
        self.odd = 0
        """numbers of noise that are not finite"""
        self.loud = 0
        """sums that are not 0"""

    def begin(self, layout: Layout) -> None:
        """A run begins: which coordinates of its gradients are kept is drawn anew."""
        self._kept = _places(layout, self._most)

    def announce(self, draw: PlannedDraw) -> None:
        self._draw = draw
        self.charged += 1

    def asked(self, queries: Sequence[Query]) -> None:
        return None

    def releases(self, sums: Sequence[BoundedSum]) -> dict[str, Release] | None:
        return None

    def record(self, sums: Sequence[BoundedSum], releases: dict[str, Release]) -> None:
        self.released += 1
        for total in sums:
            self._hear(total.query, unseal(total).detach().double().cpu(), releases[total.name].value.cpu())

    def _hear(self, query: Query, content: Tensor, released: Tensor) -> None:
        assert self._draw is not None
        due = torch.ones(len(content), dtype=torch.bool)
        if isinstance(query, GradientSum) and query.active is not None:
            due = query.active.cpu()
        value, digits = released.double(), torch.finfo(released.dtype)
        noise = value - content
        finite = torch.isfinite(noise)
        scale = self._draw.noise_multiplier / math.sqrt(query.share) * query.clip_norm
        self.disturbed += int((value[~due] != 0).sum())
        # a release has only so many digits, and noise below the last one is lost: a density of at most 0.4/scale
        last = digits.eps * content[due].abs() + digits.tiny
        self.bare += int((noise[due].abs() <= last).sum())
        self.rounded += float((2 * last / scale).clamp(max=1.0).nansum())
        self.odd += int((~finite[due]).sum())
        self.loud += bool((content != 0).any())
        z = torch.where(due & finite, noise / scale, 0.0).numpy()
        self._keep(query, z, due.numpy())

    def _keep(self, query: Query, z: Numbers, due: NDArray[np.bool_]) -> None:
        assert self._draw is not None
        places = self._kept if isinstance(query, GradientSum) else None
        kept = slice(self._most) if places is None else places
        self.parts.append(Part(self._draw, query.name, query.share, z[kept], due[kept], places))
        self.count += int(self.parts[-1].due.sum())


def _places(layout: Layout, most: int | None) -> NDArray[np.int64]:
    """Coordinates to keep, in order: all; or the head of every tensor, a stretch anywhere, and others at random.

    What repeats within a release does so in a stretch; what is wrong with some coordinates shows in others, too.
    """
    every = np.arange(layout.size)
    if most is None or layout.size <= most:
        return every
    chance, kept = np.random.default_rng(), np.zeros(layout.size, dtype=np.bool_)
    head = max(1, min(_HEAD, most // (4 * len(layout.slots))))
    for slot in layout.slots:
        kept[slot.start : min(slot.stop, slot.start + head)] = True
    start = int(chance.integers(layout.size - most // 2 + 1))
    kept[start : start + most // 2] = True
    rest = every[~kept]
    kept[chance.choice(rest, max(0, min(len(rest), most - int(kept.sum()))), replace=False)] = True
    return every[kept]


@dataclass(frozen=True, kw_only=True)
class Heard:
    """The noise of whole runs, of a run in which nobody is drawn, and of one that is interrupted and goes on."""

    whole: Listener
    empty: Listener
    lives: Listener
    layout: Layout
    device: torch.device
    single_precision: bool
    """whether the generator's numbers have no more digits than that"""


def listen(subject: Subject, numbers: int, randomness: Randomness | None, progress: Progress | None) -> Heard:
    """Runs the subject until so many numbers of noise were heard; then once without records, and once in two lives."""

    def tell(_: int) -> None:
        if progress is not None:
            progress(min(whole.count, numbers), numbers)

    drawn_by = subject.tier if randomness is None else randomness
    short = steps = run_length(subject, _SHORT_RUN)
    whole = Listener(math.ceil(_KEPT * numbers / steps))
    while whole.count < numbers:
        before = whole.count
        ready = _ready(subject, whole, steps)
        trained(ready, tape=whole, randomness=drawn_by, observers=[_After(tell)])
        if whole.count == before:
            raise InputError(f"{subject.label}: {steps} steps released nothing, so there is no noise to hear")
        rest = math.ceil((numbers - whole.count) * steps / (whole.count - before))
        steps = run_length(subject, min(max(rest, _SHORT_RUN), subject.plan.steps))
    source = choose_randomness(subject.tier, ready.device) if randomness is None else randomness
    sample = source.normal(_SAMPLE)
    empty = Listener()
    nobody = _ready(subject, empty, short)
    trained(nobody, tape=empty, randomness=Nobody(source))
    return Heard(
        whole=whole,
        empty=empty,
        lives=_two_lives(subject, short, drawn_by),
        layout=ready.engine.layout,
        device=ready.device,
        single_precision=torch.equal(sample.double(), sample.float().double()),
    )


def some_numbers(source: Randomness, count: int) -> tuple[list[float], list[float]]:
    """Normal and uniform numbers of a generator."""
    return source.normal(count).tolist(), source.uniform(count).tolist()


def _ready(subject: Subject, listener: Listener, steps: int, **changes: Any) -> Preparation:
    """A run of so many steps, on few records, whose draws the listener is told of."""
    few = so_many_records(subject, math.ceil(_BATCH / subject.sample_rate))
    ready = subject.prepare(data=few, steps=steps, evaluate_every=steps, **changes)
    listener.begin(ready.engine.layout)
    listener.planned += sum(stage.steps * len(stage.draws) for stage in ready.plan.stages)
    return announced(subject, ready, listener.announce)


def _two_lives(subject: Subject, steps: int, randomness: Randomness | Tier | None) -> Listener:
    """A run that is interrupted some steps after a checkpoint, and goes on from there: as another process would."""
    heard, every = Listener(), steps // 4

    def interrupt(step: int) -> None:
        if step == 2 * every - 1:
            raise KeyboardInterrupt

    with TemporaryDirectory() as folder:
        for resuming in (False, True):
            train_prepared(
                _ready(subject, heard, steps, checkpoint_every=every),
                out=Path(folder) / "run",
                tape=heard,
                randomness=randomness,
                observers=[] if resuming else [_After(interrupt)],
                resuming=resuming,
            )
    return heard


class _After:
    """Does something after each step: an observer."""

    def __init__(self, what: Callable[[int], None]) -> None:
        self._what = what

    def begin(self, facts: Facts) -> None:
        return None

    def update(self, metrics: Metrics) -> None:
        self._what(metrics.step)

    def end(self, run: Run) -> None:
        return None


class Nobody:
    """Draws as `inner` does, but for the coins: nobody is ever taken."""

    description = "coins under which nobody is drawn: not private"
    tier: Literal["reproducible"] = "reproducible"
    private = False

    def __init__(self, inner: Randomness) -> None:
        self._inner = inner

    def uniform(self, count: int) -> Tensor:
        return torch.ones_like(self._inner.uniform(count))

    def normal(self, count: int) -> Tensor:
        return self._inner.normal(count)

    def words(self, count: int) -> Tensor:
        return self._inner.words(count)
