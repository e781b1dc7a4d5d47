"""Captures the noise of real runs: a release of a draw without records is noise alone.

    z = release / (σ_k · sensitivity),   σ_k = σ/√share by the claim's plan, whatever the release says of itself

The subject's own loop runs on one blank record out of so many declared ones that it is never drawn. In runs with
records, a dummy block that no record touches (`canaries`) has noise alone; where they touch a block only, all else.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadpigu.accounting import Plan, PlannedDraw
from adadpigu.audit.canaries import Canaries
from adadpigu.audit.outside import Answer, RunObserver, follows, grad_differs, plainly_prepared, secret_rng
from adadpigu.audit.p_values import FINEST, Numbers, rare_p
from adadpigu.audit.result import Progress
from adadpigu.audit.subject import Attach, Subject, held, trained
from adadpigu.core.bounding import GradientSum, Query
from adadpigu.core.layout import Layout
from adadpigu.core.randomness import Randomness, Tier, choose_randomness
from adadpigu.data.datasets import TensorRecords
from adadpigu.errors import InputError
from adadpigu.runs.run import Metrics
from adadpigu.training import train_prepared
from adadpigu.training.preparation import Preparation

_NEVER_DRAWN = 2**50  # declared records, of which one exists: a million draws of 10,000 take it with a chance < 1e-5
_BATCH = 64
"""records in a draw, on average, of a run that has any; no more than B, so that a recorded step has room for them"""
_BLOCK = 2048  # coordinates that no record touches
_SHORT_RUN = 20
"""steps of the first run, which tells how many numbers a step gives, and of the two others"""
_KEPT = 4  # times as many numbers as were asked for are kept, of releases that have more
_FINE = 2.0**-19  # of the noise, that the last digit of a weight may be, for the weight to tell it
_LARGE = 4  # times the release is a step in runs whose weights are to tell it
_UNLIKELY = 1e-9
_SAMPLE = 4096  # numbers whose digits are looked at
_HEAD = 64  # first coordinates of every tensor, which are always kept: whether tensors begin alike is looked at


@dataclass(frozen=True)
class Part:
    """The noise of one release, over what is claimed."""

    draw: PlannedDraw
    name: str
    share: float
    z: Numbers  # 0 where no noise is due
    due: NDArray[np.bool_]
    places: NDArray[np.int64] | None = None  # of a gradient: which coordinates these are


class Parts:
    """Noise that was captured, and what should have had none or should have been 0."""

    def __init__(self, claim: Plan) -> None:
        self._claimed = {(stage.name, draw.name): draw for stage in claim.stages for draw in stage.draws}
        self.parts: list[Part] = []
        self.count = 0  # numbers of noise that are kept
        self.disturbed = 0  # coordinates that are frozen and not exactly 0 in a release
        self._bare = 0  # numbers that are active and have no noise
        self._rounded_off = 0.0  # of them, how many are expected: whole multiples of a grid may be 0
        self.odd = 0  # numbers of noise that are not finite
        self._asked: dict[str, dict[tuple[object, ...], tuple[PlannedDraw, GradientSum]]] = {}
        """of each stage, draws and sums of gradients, one of those alike in these figures: with a mask, if any has"""
        self.digits, self.finest = 0.0, FINEST
        """relative distance of neighbouring numbers, as coarse as it was in any release, and the least distance"""

    def capture(
        self, stage: str, answer: Answer, query: Query, kept: NDArray[np.int64] | slice, block: slice = slice(None)
    ) -> None:
        """What was released of a sum that is 0 in this block of it."""
        released = answer.releases[query.name].value[block]
        active = query.active if isinstance(query, GradientSum) else None
        due = torch.ones(len(released), dtype=torch.bool) if active is None else active[block].cpu().clone()
        self.digits = max(self.digits, torch.finfo(released.dtype).eps)
        draw = self._claimed[stage, answer.draw]
        self.keep(draw, query, released.double().cpu(), due, kept)
        if isinstance(query, GradientSum):
            plain, alike = query.scale is query.center is None, self._asked.setdefault(stage, {})
            figures = draw, query.name, query.share, query.sensitivity, plain
            if query.active is not None or figures not in alike:
                alike[figures] = draw, query

    def told_by_weights(self, stage: str) -> tuple[PlannedDraw, GradientSum] | None:
        """The one sum of a stage, and its draw, where a step is lr/B of what is released of it, on what is active."""
        if len(self._asked.get(stage, ())) != 1:
            return None
        ((draw, query),) = self._asked[stage].values()
        return (draw, query) if query.scale is query.center is None else None

    def keep(self, draw: PlannedDraw, query: Query, value: Tensor, due: Tensor, at: NDArray[np.int64] | slice) -> None:
        """A release of a draw of the claim's plan, and where noise is due in it."""
        finite = torch.isfinite(value)
        self.disturbed += int((value[~due] != 0).sum())
        self._bare += int((value[due] == 0).sum())
        if query.grid is not None:
            step = query.grid / self.scale(draw, query)
            self.finest, self._rounded_off = max(self.finest, step), self._rounded_off + step * int(due.sum())
        self.odd += int((~finite[due]).sum())
        z = torch.where(due & finite, value / self.scale(draw, query), 0.0).numpy()
        places = at if isinstance(at, np.ndarray) else None
        self.parts.append(Part(draw, query.name, query.share, z[at], due.numpy()[at], places))
        self.count += int(self.parts[-1].due.sum())

    @property
    def bare(self) -> int:
        """Numbers that should have noise and have none, unless rounding explains them (p = 1e-9)."""
        explained = self._rounded_off > 0 and rare_p(self._bare, self._rounded_off) > _UNLIKELY
        return 0 if explained else self._bare

    @property
    def rounded(self) -> Numbers:
        """All numbers that were due, in the order in which they were drawn, as exact as they are known."""
        return np.round(np.concatenate([part.z[part.due] for part in self.parts]) / self.finest) * self.finest

    @staticmethod
    def scale(draw: PlannedDraw, query: Query) -> float:
        """The standard deviation that is claimed."""
        return draw.noise_multiplier / math.sqrt(query.share) * query.sensitivity


class NoiseRecorder(RunObserver, Parts):
    """Captures every release of runs in which nobody is drawn."""

    def __init__(self, claim: Plan, after: Callable[[int], None], most: int | None = None) -> None:
        """`after` is told the number of every step; `most`: numbers of a release that are kept (None: all)."""
        RunObserver.__init__(self, after)
        Parts.__init__(self, claim)
        self._most = most
        self.planned = self.released = 0  # draws

    def follow(self, ready: Preparation) -> None:
        """Draws anew which coordinates of its gradients are kept."""
        super().follow(ready)
        self._kept = _places(ready.engine.layout, self._most)
        self.planned += sum(stage.steps * len(stage.draws) for stage in ready.plan.stages)

    def on_draw(self, answer: Answer, stage: str) -> None:
        self.released += 1
        for query in answer.queries:
            kept = self._kept if isinstance(query, GradientSum) else slice(self._most)
            self.capture(stage, answer, query, kept)


class UnwatchedNoise(RunObserver, Parts):
    """Reads noise off the weights of a run without a watch, as its user can: z = −Δθ B / (lr σ_k · sensitivity)."""

    def __init__(self, watched: Parts, claim: Plan, ready: Preparation, kept: NDArray[np.int64]) -> None:
        RunObserver.__init__(self)
        Parts.__init__(self, claim)
        self.follow(ready)
        self._watched, self._kept, self.finest, self.run = watched, kept, 4 * _FINE, ready
        self.untold: set[str] = set()  # stages in which the weights do not tell it

    def update(self, metrics: Metrics) -> None:
        before, eps = self._before.double(), torch.finfo(self._before.dtype).eps
        super().update(metrics)
        moves, options, told = before - self._before, self.run.options, self._watched.told_by_weights(metrics.stage)
        moved, draws = moves != 0, sum(stage == metrics.stage for stage, _ in self._claimed)
        any_moved, seen = bool(moved[self._kept].any()), follows(self.run)
        if seen and any_moved:
            self.followed += 1
            self.astray += grad_differs(self.run, moves, eps * (before.abs() + moves.abs()))
        if told is None or not seen:
            self.untold.add(metrics.stage)
        elif any_moved or draws == 1:  # else a later draw may have rejected an update
            (draw, query), a_weight, self.digits = told, options.batch_size / options.lr, 16 * eps
            due = eps * before.abs() * a_weight < _FINE * self.scale(draw, query)
            due = due & moved if query.active is not None and any_moved else due
            self.keep(draw, query, (moves * a_weight).cpu(), due.cpu(), self._kept)


class UntouchedBlock(Canaries):
    """Captures the noise of draws that have taken records, on a block that none of them touches."""

    def __init__(self, claim: Plan) -> None:
        super().__init__(_BLOCK, 0)
        self.noise = Parts(claim)
        self._kept = np.arange(_BLOCK)

    def on_draw(self, answer: Answer, stage: str) -> None:
        for query in answer.queries:
            if isinstance(query, GradientSum):
                self.noise.capture(stage, answer, query, self._kept, slice(-_BLOCK, None))


def _places(layout: Layout, most: int | None) -> NDArray[np.int64]:
    """Coordinates to keep, in order: all; or the head of every tensor, a stretch anywhere, and others at random."""
    every = np.arange(layout.size)
    if most is None or layout.size <= most:
        return every
    drawn, kept = secret_rng(), np.zeros(layout.size, dtype=np.bool_)
    head = max(1, min(_HEAD, most // (4 * len(layout.slots))))
    for slot in layout.slots:
        kept[slot.start : min(slot.stop, slot.start + head)] = True
    start = int(drawn.integers(layout.size - most // 2 + 1))
    kept[start : start + most // 2] = True
    rest = every[~kept]
    kept[drawn.choice(rest, max(0, min(len(rest), most - int(kept.sum()))), replace=False)] = True
    return every[kept]


@dataclass(frozen=True, kw_only=True)
class CapturedNoise:
    """The noise of whole runs, watched or not, of draws that have taken records, and of a run that is interrupted."""

    whole: NoiseRecorder
    with_records: UntouchedBlock  # empty where no block can be attached to the model
    unwatched: UnwatchedNoise
    resumed: NoiseRecorder
    ready: Preparation  # of the latest of the whole runs
    single_precision: bool  # whether the generator's numbers have no more digits than that

    @property
    def disturbed(self) -> int:
        return sum(parts.disturbed for parts in (self.whole, self.resumed, self.with_records.noise))


def capture_noise(
    subject: Subject, numbers: int, randomness: Randomness | None, progress: Progress | None
) -> CapturedNoise:
    """Runs the subject until so many numbers of noise are captured; then once with records, and once with a resume."""

    def tell(_: int) -> None:
        if progress is not None:
            progress(min(whole.count, numbers), numbers)

    drawn_by = subject.tier if randomness is None else randomness
    short = steps = subject.run_length(_SHORT_RUN)
    most = math.ceil(_KEPT * numbers / steps)
    whole = NoiseRecorder(subject.plan, tell, most)
    while whole.count < numbers:
        before = whole.count
        ready = _ready(subject, steps)
        whole.train(ready, drawn_by)
        if whole.count == before:
            raise InputError(f"{subject.label}: {steps} steps released nothing, so there is no noise to hear")
        rest = math.ceil((numbers - whole.count) * steps / (whole.count - before))
        steps = subject.run_length(min(max(rest, _SHORT_RUN), subject.plan.steps))
    sample = (choose_randomness(subject.tier, ready.device) if randomness is None else randomness).normal(_SAMPLE)
    with_records = UntouchedBlock(subject.plan)
    if (drawing := _drawing(subject, short, with_records.attach)) is not None:
        with_records.train(drawing, drawn_by)
    return CapturedNoise(
        whole=whole,
        unwatched=_unwatched(subject, short, drawn_by, whole, with_records.noise, most),
        with_records=with_records,
        resumed=_resumed_run(subject, short, drawn_by),
        ready=ready,
        single_precision=torch.equal(sample.double(), sample.float().double()),
    )


def _ready(subject: Subject, steps: int, **changes: Any) -> Preparation:
    """A run of so many steps on one blank record that is never drawn; where everybody is, it adds nothing."""
    records = held(subject.data)
    blank = TensorRecords(torch.zeros_like(records.inputs[:1]), records.targets[:1], name=records.name)
    data = replace(subject.data.holding(blank), records=_NEVER_DRAWN)
    return plainly_prepared(subject, data=data, steps=steps, evaluate_every=steps, **{"lr": 1.0, **changes})


def _drawing(subject: Subject, steps: int, attach: Attach, **changes: Any) -> Preparation | None:
    """A run with records, as the subject's are, beside a block; None where none can be attached."""
    assert subject.config.batch_size is not None
    few = subject.first(math.ceil(min(_BATCH, subject.config.batch_size) / subject.sample_rate))
    short = {"steps": steps, "evaluate_every": steps, "perturbation": 0.0}  # ζ would touch what has noise alone
    try:
        return plainly_prepared(subject, data=few, attach=attach, **short, **changes)
    except InputError:
        return None


def _unwatched(
    subject: Subject, steps: int, randomness: Randomness | Tier | None, whole: Parts, with_records: Parts, most: int
) -> UnwatchedNoise:
    """A run with no watch in it: of records that touch a block of one coordinate and no other, or of none."""
    lr, block = _LARGE * float(subject.config.batch_size or 1), Canaries(1, 0)
    drawing = _drawing(subject, steps, lambda *made: (*block.attach(*made)[:2], lambda out, _: out[:, -1]), lr=lr)
    ready = drawing or _ready(subject, steps, lr=lr)
    kept = _places(ready.engine.layout, most)
    watched, kept = (with_records, kept[:-1]) if drawing else (whole, kept)
    noise = UnwatchedNoise(watched, subject.plan, ready, kept)
    trained(ready, randomness=randomness, observers=[noise])
    return noise


def _resumed_run(subject: Subject, steps: int, randomness: Randomness | Tier | None) -> NoiseRecorder:
    """A run that is interrupted some steps after a checkpoint, and goes on from there: as another process would."""
    every, resuming = steps // 4, False

    def interrupt(step: int) -> None:  # in a job, in every process, since it looks on in each
        if not resuming and step == 2 * every - 1:
            raise KeyboardInterrupt

    noise = NoiseRecorder(subject.plan, interrupt)
    with TemporaryDirectory() as folder:
        for resuming in (False, True):
            ready, out = _ready(subject, steps, checkpoint_every=every), Path(folder) / "run"
            noise.follow(ready)
            train_prepared(ready, out=out, watch=noise, observers=[noise], randomness=randomness, resuming=resuming)
    return noise
