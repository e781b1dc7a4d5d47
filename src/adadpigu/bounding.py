"""Per-record values -> a bounded sum that knows its own sensitivity. Everything here is before the noise: sensitive.

For gradients (design: stage 2, steps 2 to 4), with mask m, centre α and scale √β + μ, all learned from releases:

    z_i = m ⊙ (g_i − α) / scale,   optionally the top-k of each record,   z̄_i = z_i · min(1, C/‖z_i‖₂),   Σ z̄_i

A sum, never a mean. Norms and sums run in float64, and a record whose norm is not finite contributes exactly zero,
so no input, however odd, contributes more than C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor

from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.records import PerRecordLosses, PerSampleGradients, Records
from adadpigu.sensitive import Sensitive, unseal

LEAST_CLIP = 1e-30
"""below it, rounding would be coarser than the bound, and noise in proportion to it could round to nothing"""

Part = Literal["gradient", "loss", "input"]
"""what a query may look at of a record"""


class BoundedSum(Sensitive[Tensor]):
    """Σ z̄_i in float64, and what adding or removing one record can change in it (L2). The noise reads it from here."""

    __slots__ = ("__dtype", "__query", "__size")

    def __init__(self, total: Tensor, query: Query, *, size: int, dtype: torch.dtype) -> None:
        super().__init__(total)
        self.__query, self.__size, self.__dtype = query, size, dtype

    @property
    def query(self) -> Query:
        """What was asked for: public."""
        return self.__query

    @property
    def name(self) -> str:
        return self.__query.name

    @property
    def sensitivity(self) -> float:
        return self.__query.clip_norm

    @property
    def active(self) -> Tensor | None:
        """Positions of the entries in a vector of `size`; None when every entry is there."""
        return self.__query.active if isinstance(self.__query, GradientSum) else None

    @property
    def size(self) -> int:
        return self.__size

    @property
    def dtype(self) -> torch.dtype:
        """What the release is rounded to; the sum and the noise are float64."""
        return self.__dtype


@final
@dataclass(frozen=True, kw_only=True)
class GradientSum:
    """Asks for Σ clip(m ⊙ (g_i − α) / scale): the query every gradient method makes.

    `active` holds the positions the mask keeps (None: all), `center` α and `scale` √β + μ are [d] tensors (None: 0
    and 1), `top_k` ρ keeps the ⌊ρ·|m|⌋ largest entries of each record. `share` is this query's part of the draw's
    privacy cost.
    """

    clip_norm: float
    name: str = "gradient"
    active: Tensor | None = None
    center: Tensor | None = None
    scale: Tensor | None = None
    top_k: float = 1.0
    stability: float | None = None
    """γ of automatic clipping, C·z/(‖z‖ + γ); None: only what exceeds C is scaled"""
    share: float = 1.0

    def __post_init__(self) -> None:
        _check_query(self.name, self.clip_norm, self.share)
        if not 0 < self.top_k <= 1:
            raise InputError(f"top_k={self.top_k} is not in (0, 1]")
        if self.stability is not None and not (0 < self.stability < math.inf and math.isfinite(self.clip_norm)):
            raise InputError(
                f"stability={self.stability} with clip_norm={self.clip_norm}: automatic clipping needs both "
                "above 0 and finite"
            )

    @property
    def needs(self) -> frozenset[Part]:
        """What an engine must compute for this query."""
        return frozenset({"gradient"})

    def transform(self, gradients: Tensor) -> Tensor:
        """[b, d] -> [b, |m|]: mask, standardise, keep the largest. Row by row; allocates, never changes its input."""
        z = gradients if self.active is None else gradients.index_select(1, self.active)
        if self.center is not None:
            z = torch.sub(z, self._select(self.center, z), out=None if z is gradients else z)
        if self.scale is not None:
            z = torch.div(z, self._select(self.scale, z), out=None if z is gradients else z)
        return keep_largest(z, self.top_k) if self.top_k < 1 else z

    def restore(self, total: Tensor, batch_size: int) -> Tensor:
        """ĝ = m ⊙ ((S/B) ⊙ scale + α): the way back from the standardised sum, for a released S of size d."""
        mean = total / batch_size
        if self.scale is not None:
            mean = mean * self.scale.to(mean)
        if self.center is not None:
            mean = mean + self.center.to(mean)
        if self.active is None:
            return mean
        return torch.zeros_like(mean).index_copy_(0, self.active, mean[self.active])

    def _select(self, values: Tensor, like: Tensor) -> Tensor:
        kept = values if self.active is None else values.index_select(0, self.active)
        return kept.to(dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class Record:
    """What a `RecordSum` may look at of one record; what it did not ask for (`needs`) is an empty tensor."""

    gradient: Tensor
    loss: Tensor
    losses_at: Tensor
    """its losses at other parameters"""
    input: Tensor
    """[k, ...]: its k copies as the model takes them"""


@final
@dataclass(frozen=True, kw_only=True)
class RecordSum:
    """Asks for Σ clip(of(record)): any vector a record, clipped to `clip_norm` whatever `of` returns.

    `of` is run by `torch.func.vmap` on one record at a time, so it cannot look at two records at once. `losses_at`
    names parameter vectors (public ones) at which the record's loss is wanted; `needs` says what else `of` looks at,
    so that an engine does no work for nothing.
    """

    name: str
    of: Callable[[Record], Tensor]
    clip_norm: float
    losses_at: tuple[Tensor, ...] = ()
    needs: frozenset[Part] = frozenset({"gradient", "loss"})
    share: float = 1.0

    def __post_init__(self) -> None:
        _check_query(self.name, self.clip_norm, self.share)
        odd = self.needs - frozenset(get_args(Part))
        if odd:
            raise InputError(f"needs={sorted(odd)} of {self.name!r}: allowed are {', '.join(get_args(Part))}")


Query = GradientSum | RecordSum


def _check_query(name: str, clip_norm: float, share: float) -> None:
    if not clip_norm >= LEAST_CLIP:
        raise InputError(f"clip_norm={clip_norm} of {name!r} is not at least {LEAST_CLIP:g}")
    if not 0 < share <= 1:
        raise InputError(f"share={share} of {name!r} is not in (0, 1]")


def keep_largest(z: Tensor, ratio: float) -> Tensor:
    """Zeroes all but the ⌊ratio·n⌋ largest magnitudes of each row; ties are broken, so exactly that many stay.

    >>> keep_largest(torch.tensor([[3.0, -4.0, 1.0, 2.0]]), 0.5)
    tensor([[ 3., -4.,  0.,  0.]])
    """
    count = math.floor(ratio * z.shape[1])
    if count < 1:
        raise InputError(
            f"top_k={ratio} keeps none of {z.shape[1]} active coordinates; allowed: at least 1/{z.shape[1]}"
        )
    kept = torch.topk(z.abs(), count, dim=1, sorted=False).indices
    return torch.zeros_like(z).scatter_(1, kept, z.gather(1, kept))


def clip_rows(z: Tensor, clip_norm: float, stability: float | None = None) -> Tensor:
    """Scales each row to an L2 norm of at most `clip_norm`; a row with a non-finite entry becomes zero.

    With `stability` γ every row is scaled, to C·‖z‖/(‖z‖ + γ) (automatic clipping), not only those above C.

    >>> clip_rows(torch.tensor([[3.0, 4.0], [0.3, 0.4], [float("inf"), 0.0]]), 1.0).round(decimals=3)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000],
            [0.0000, 0.0000]])
    """
    if z.dtype in (torch.float16, torch.bfloat16):
        z = z.float()
    norms = torch.linalg.vector_norm(z, dim=1, dtype=torch.float64)
    if stability is None:
        factors = (clip_norm * (1 - _margin(z)) / norms).clamp(max=1.0)
    else:
        largest = torch.finfo(z.dtype).max  # a zero row times an infinite factor would be no number
        factors = (clip_norm * (1 - _margin(z)) / (norms + stability)).clamp(max=largest)
    # A factor below the normal range would be rounded so coarsely that the norm could pass C.
    kept = torch.isfinite(norms) & (factors >= torch.finfo(z.dtype).tiny)
    scaled: Tensor = z * factors.to(z.dtype)[:, None]
    return scaled.masked_fill_(~kept[:, None], 0.0)


def _margin(z: Tensor) -> float:
    """How far below C the clip aims: rounding a row of this length must not push its norm past C."""
    rounding = torch.finfo(z.dtype).eps
    return 16 * rounding if z.dtype != torch.float64 else (16 + z.shape[1]) * rounding


class Bounder:
    """Adds up one query's clipped records over the micro-batches of a draw."""

    def __init__(self, query: Query, size: int) -> None:
        if type(query) not in (GradientSum, RecordSum):
            raise PrivacyLineError(f"a query is a GradientSum or a RecordSum, got {type(query).__name__}")
        self._query = query
        self._size = size
        self._total: Tensor | None = None
        self._dtype = torch.float32

    def add(self, gradients: PerSampleGradients) -> None:
        """Adds one micro-batch to a sum of gradients. Only an engine's output is taken, clipped record by record."""
        if not isinstance(gradients, PerSampleGradients):
            raise PrivacyLineError(f"expected PerSampleGradients from an engine, got {type(gradients).__name__}")
        if not isinstance(self._query, GradientSum):
            raise PrivacyLineError(f"{self._query.name!r} is not a sum of gradients: use add_records")
        self._add(self._query.transform(unseal(gradients).gradients), self._query.stability)

    def add_records(
        self,
        records: Records,
        *,
        gradients: PerSampleGradients | None = None,
        losses: PerRecordLosses | None = None,
        losses_at: PerRecordLosses | None = None,
    ) -> None:
        """Adds one micro-batch to a sum over records; what the query needs of them must be there."""
        if not isinstance(self._query, RecordSum):
            raise PrivacyLineError(f"{self._query.name!r} is a sum of gradients: use add")
        inputs, targets = unseal(records)
        count, blank = len(targets), torch.zeros(len(targets), 0, device=targets.device)
        parts = {
            "gradient": blank if gradients is None else unseal(gradients).gradients,
            "loss": blank if losses is None else unseal(losses),
            "losses_at": blank if losses_at is None else unseal(losses_at),
            "input": inputs.reshape(count, records.copies, *inputs.shape[1:])
            if "input" in self._query.needs
            else blank,
        }
        self._add(_per_record(self._query, parts, count), None)

    def _add(self, values: Tensor, stability: float | None) -> None:
        self._dtype = values.dtype if values.is_floating_point() else torch.float32
        total = clip_rows(values, self._query.clip_norm, stability).sum(dim=0, dtype=torch.float64)
        self._total = total if self._total is None else self._total + total

    def result(self) -> BoundedSum:
        """The bounded sum, with its sensitivity."""
        if self._total is None:
            raise PrivacyLineError(f"nothing was added to {self._query.name!r}, not even an empty batch")
        size = self._size if isinstance(self._query, GradientSum) else len(self._total)
        return BoundedSum(self._total, self._query, size=size, dtype=self._dtype)


def _per_record(query: RecordSum, parts: dict[str, Tensor], count: int) -> Tensor:
    """[b, k] values of `of` on each record alone; for an empty batch, a blank record gives the shape."""
    if count == 0:
        parts = {name: part.new_zeros(1, *part.shape[1:]) for name, part in parts.items()}

    def one(record: dict[str, Tensor]) -> Tensor:
        return query.of(Record(**record)).reshape(-1)

    values: Tensor = torch.func.vmap(one)(parts)
    return values[:count]
