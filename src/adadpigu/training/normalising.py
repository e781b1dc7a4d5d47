"""Normalisation constants of private records, released with noise and charged: two sums over one draw of all records.

With v_i the mean over positions of each channel of record i, and w_i the mean square:

    Σ clip_R(v_i) + N(0, σ²R² I)   and   Σ clip_R²(w_i) + N(0, σ²R⁴ I),   R and σ public

make mean = Σv/N and std = √(Σw/N − mean²), N the declared record count. Both sums come from one draw at q = 1, half
of its cost each.
"""

import math

import torch
from torch import Tensor

from adadpigu.core.bounding import Part, Record, RecordSum
from adadpigu.core.mechanism import Release, require_release
from adadpigu.features.front import ReleasedNorm
from adadpigu.methods.base import Batches, Draw, Stage

STAGE = "normalisation"
_FLOOR = 1e-3  # least standard deviation, as a share of the public bound R: noise can push the estimate below zero


def normalisation_stage(norm: ReleasedNorm, records: int) -> Stage:
    """One step that draws every record once; two releases at σ each cost as much as one at σ/√2."""
    draw = Draw(name=STAGE, batch_size=records, noise_multiplier=norm.noise_multiplier / math.sqrt(2))
    return Stage(name=STAGE, steps=1, draws=(draw,))


def release_normalisation(norm: ReleasedNorm, batches: Batches, records: int) -> None:
    """Asks for both moments and fills the normaliser."""
    norm.reset()
    needs: frozenset[Part] = frozenset({"input"})
    first = RecordSum(name="channel means", of=_means, clip_norm=norm.clip, needs=needs, share=0.5)
    second = RecordSum(name="channel squares", of=_squares, clip_norm=norm.clip**2, needs=needs, share=0.5)
    made = batches.release(first, second, draw=STAGE)
    norm.fill(*moments(made[first.name], made[second.name], records, floor=_FLOOR * norm.clip))


def moments(means: Release, squares: Release, records: int, *, floor: float) -> tuple[Release, Release]:
    """Mean and standard deviation a channel, from the two released sums."""
    mean = require_release(means).map(lambda total: total / records)
    public = mean.value
    std = require_release(squares).map(lambda total: (total / records - public.square()).clamp(min=floor**2).sqrt())
    return mean, std


def _means(record: Record) -> Tensor:
    return record.input.flatten(2).mean(dim=(0, 2)) if record.input.ndim > 2 else record.input.mean(dim=0)


def _squares(record: Record) -> Tensor:
    squared = torch.square(record.input)
    return squared.flatten(2).mean(dim=(0, 2)) if squared.ndim > 2 else squared.mean(dim=0)
