"""Per-record values -> a bounded sum that knows its own sensitivity. Everything here is before the noise: sensitive.

For gradients (design: stage 2, steps 2 to 4), with mask m, centre α and scale √β + μ, all learned from releases:

    z_i = m ⊙ (g_i − α) / scale,   optionally the top-k of each record,   z̄_i = z_i · min(1, C/‖z_i‖₂),   Σ z̄_i

A sum, never a mean. Norms and sums run in float64, and a record whose norm is not finite contributes exactly zero,
so no input, however odd, contributes more than C.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, final, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from adadpigu.core import exact, kernels
from adadpigu.core.perturbation import perturbed
from adadpigu.core.sensitive import PerRecordLosses, PerSampleGradients, Records, Sensitive, unseal
from adadpigu.core.standardising import Standardised, Standardiser, weighted_total, where_or_zero
from adadpigu.errors import InputError, PrivacyLineError

LEAST_CLIP = 1e-30  # below it, rounding is coarser than the bound, and noise in proportion could round to nothing

Part = Literal["gradient", "loss", "input"]  # what a query may look at of a record


class BoundedSum(Sensitive[Tensor]):
    """Σ z̄_i in float64, and what adding or removing one record can change in it (L2). The noise reads it from here."""

    __slots__ = ("dtype", "query", "size")

    def __init__(self, total: Tensor, query: "Query", *, size: int, dtype: torch.dtype) -> None:
        """`dtype` is what the release is rounded to; the sum and the noise are float64."""
        self._content, self.query, self.size, self.dtype = total, query, size, dtype

    @property
    def sensitivity(self) -> float:
        return self.query.sensitivity


@dataclass(frozen=True, kw_only=True, eq=False)
class _Query:
    """What every query says of the sum that it asks for."""

    name: str
    clip_norm: float
    share: float = 1.0
    grid: float | None = None
    """of tier `exact`: contributions, sum and noise are whole multiples of it"""
    per_owner: int = 1
    """how many records of one unit of privacy a draw may hold; the run's sampler sets it"""

    def __post_init__(self) -> None:
        if not self.clip_norm >= LEAST_CLIP:
            raise InputError(f"clip_norm={self.clip_norm} of {self.name!r} is not at least {LEAST_CLIP:g}")
        if not 0 < self.share <= 1:
            raise InputError(f"share={self.share} of {self.name!r} is not in (0, 1]")

    @property
    def sensitivity(self) -> float:
        """What adding or removing one unit of privacy changes in the sum, at most (L2)."""
        return self.clip_norm * self.per_owner

    def aim(self, length: int) -> float:
        """What the norm of a row of `length` entries is brought to, before the margin for rounding in float64."""
        return self.clip_norm if self.grid is None else exact.rounded_below(self.clip_norm, self.grid, length)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class GradientSum(_Query):
    """Asks for Σ clip(m ⊙ (g_i − α) / scale): the query every gradient method makes.

    `active` is the mask m, [d] of bool (None: all), `center` α and `scale` √β + μ are [d] tensors (None: 0 and 1),
    `top_k` ρ keeps the ⌊ρ·|m|⌋ largest entries of each record. `share` is this query's part of the draw's privacy cost.
    """

    name: str = "gradient"
    active: Tensor | None = None
    center: Tensor | None = None
    scale: Tensor | None = None
    top_k: float = 1.0
    stability: float | None = None
    """γ of automatic clipping, C·z/(‖z‖ + γ); None: only what exceeds C is scaled"""
    perturbation: float = 0.0
    """κ of perturbed clipping: z + ζ is clipped in place of z, with E‖ζ‖² = (κC)²; 0: z is"""
    trained: frozenset[int] | None = None
    """the parameters, by number in the layout, of which the mask leaves anything; None: the mask is looked through"""
    top_k_count: Tensor | None = None
    """⌊ρ·|m|⌋ as a number that stays on the device, for a mask that grows there; None: the mask is counted"""
    needs: ClassVar[frozenset[Part]] = frozenset({"gradient"})
    """what an engine must compute for this query"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.top_k <= 1:
            raise InputError(f"top_k={self.top_k} is not in (0, 1]")
        if self.active is not None and self.active.dtype != torch.bool:
            raise InputError(f"active is a mask of bool, one entry a coordinate, not {self.active.dtype}")
        if self.stability is not None and not (0 < self.stability < math.inf and math.isfinite(self.clip_norm)):
            told = f"stability={self.stability} with clip_norm={self.clip_norm}"
            raise InputError(f"{told}: automatic clipping needs both above 0 and finite")

    @property
    def tosses(self) -> int:
        """How many uniform numbers of its own a record needs for this query."""
        return int(self.perturbation > 0)

    def rows(self, gradients: Tensor, coins: Tensor | None = None) -> Tensor:
        """What is clipped of each record, [b, d] in float64: z, or z + ζ with `coins` [b, tosses]."""
        z = Standardiser(self, gradients.shape[1], device=gradients.device).widened(gradients)
        return _perturbed(z, self, coins)

    def restore(self, total: Tensor, batch_size: int) -> Tensor:
        """ĝ = m ⊙ ((S/B) ⊙ scale + α): the way back from the standardised sum, for a released S of size d."""
        scale = None if self.scale is None else self.scale.to(total)
        if scale is not None and self.center is not None:
            mean = torch.addcmul(self.center.to(total), total, scale, value=1 / batch_size)
        else:
            mean = total / batch_size
            mean = mean if scale is None else mean * scale
            mean = mean if self.center is None else mean + self.center.to(mean)
        return mean if self.active is None else where_or_zero(self.active, mean)


@dataclass(frozen=True)
class Record:
    """What a `RecordSum` may look at of one record; what it did not ask for (`needs`) is an empty tensor."""

    gradient: Tensor
    loss: Tensor
    losses_at: Tensor  # its losses at other parameters
    input: Tensor  # [k, ...]: its k copies as the model takes them; of several parts, the first


@final
@dataclass(frozen=True, kw_only=True)
class RecordSum(_Query):
    """Asks for Σ clip(of(record)): any vector a record, clipped to `clip_norm` whatever `of` returns.

    `torch.func.vmap` runs `of` on one record at a time. `losses_at` are public parameter vectors at which the record's
    loss is wanted; `needs` says what else `of` looks at, so that an engine computes nothing else.
    """

    of: Callable[[Record], Tensor]
    losses_at: tuple[Tensor, ...] = ()
    needs: frozenset[Part] = frozenset({"gradient", "loss"})
    active: ClassVar[None] = None
    """all entries are released"""
    tosses: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        odd = self.needs - frozenset(get_args(Part))
        if odd:
            raise InputError(f"needs={sorted(odd)} of {self.name!r}: allowed are {', '.join(get_args(Part))}")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class MappedSum(_Query):
    """Asks for Σ clip(of(g_i)): a public map of every gradient before the clip, [b, d] -> [b, k], each row by itself.

    Projections, carriers of low rank, bounds by block: whatever `of` makes of a row, its norm is at most `clip_norm`
    in the sum. `learned` names the tensors that `of` goes by, functions of releases or of public records.

    With `coin` the map is random: it also takes one uniform number in [0, 1) for each record, [b] in float64, which no
    other record and no micro-batch has a part in. It is a record's own and never shown, and counts as no noise.

    With `given`, the name of another release of the same draw, the map goes by that one: `of(value)` makes the map.
    Bound and share are settled with the others' and paid with them; when that release is there, the batch is looked at
    once more.
    """

    of: Callable[..., Any]
    coin: bool = False
    given: str | None = None
    learned: Mapping[str, Tensor] = field(default_factory=dict)
    stability: float | None = None
    perturbation: float = 0.0
    needs: ClassVar[frozenset[Part]] = frozenset({"gradient"})
    losses_at: ClassVar[tuple[Tensor, ...]] = ()
    active: ClassVar[None] = None
    """all entries are released"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.given is not None and self.coin:
            raise InputError(f"{self.name!r} is given {self.given!r} and takes a coin; allowed: one of them")

    def knowing(self, released: Tensor) -> "MappedSum":
        """The same with the map that what was released makes."""
        return replace(self, of=self.of(released.clone()), given=None)

    @property
    def tosses(self) -> int:
        """As of a `GradientSum`; the map's coin is the first, that of ζ the last."""
        return int(self.coin) + int(self.perturbation > 0)

    def rows(self, gradients: Tensor, coins: Tensor | None = None) -> Tensor:
        """[b, d] -> [b, k] in float64. On a CPU it is computed in float64 too, so that no row depends on its place."""
        wide = gradients.double() if gradients.device.type == "cpu" else gradients
        made: Tensor = self.of(wide, _tossed(self, coins)[:, 0]) if self.coin else self.of(wide)
        if made.dim() != 2 or len(made) != len(gradients):
            found = f"{self.name!r} makes {list(made.shape)} of gradients {list(gradients.shape)}"
            raise PrivacyLineError(f"{found}; allowed: [b, k], a row for each")
        return _perturbed(made.to(torch.float64, copy=True), self, coins)


Query = GradientSum | RecordSum | MappedSum


def _tossed(query: GradientSum | MappedSum, coins: Tensor | None) -> Tensor:
    if coins is None:
        raise PrivacyLineError(f"{query.name!r} takes a coin for each record, and got none")
    return coins


def _perturbed(z: Tensor, query: GradientSum | MappedSum, coins: Tensor | None) -> Tensor:
    """Rows z, with ζ where the query asks for it."""
    if not query.perturbation:
        return z
    return perturbed(z, _tossed(query, coins)[:, -1], query.active, query.perturbation * query.clip_norm)


def aimed_norm(clip_norm: float, length: int) -> float:
    """What the norm of a row of `length` entries is brought to: C less a margin for the rounding of norm and sum."""
    return clip_norm * (1 - (16 + length) * torch.finfo(torch.float64).eps)


def clip_factors(norms: Tensor, clip_norm: float, stability: float | None = None, *, length: int) -> Tensor:
    """What each row is multiplied with so that its norm is at most `clip_norm`; zero for a norm that is not finite.

    With `stability` γ every row is scaled, to C·‖z‖/(‖z‖ + γ) (automatic clipping), not only those above C. `norms`
    are float64, of rows of `length` entries.

    >>> clip_factors(torch.tensor([5.0, 0.5, math.inf, 0.0]).double(), 1.0, length=2).round(decimals=6).tolist()
    [0.2, 1.0, 0.0, 1.0]
    """
    aim = aimed_norm(clip_norm, length)
    if stability is None:
        factors = (aim / norms).clamp(max=1.0)
    else:  # a zero row times an infinite factor would be no number
        factors = (aim / (norms + stability)).clamp(max=torch.finfo(torch.float64).max)
    # A factor below the normal range would be rounded so coarsely that the norm could pass C.
    return where_or_zero(torch.isfinite(norms) & (factors >= torch.finfo(torch.float64).tiny), factors)


def record_factors(
    squares: Sequence[Tensor], query: GradientSum | MappedSum, present: Tensor | None, *, length: int
) -> Tensor:
    """What each record's gradient is multiplied with, [b], by squared norms in parts, each [b] or [parts, b]."""
    if (squares[0].is_cuda or kernels.INTERPRETED) and kernels.usable(squares[0]):
        from adadpigu.core.kernels.factors import record_factors as at_once

        return at_once(squares, present, aim=aimed_norm(query.aim(length), length), stability=query.stability)
    norms = functools.reduce(torch.add, [part if part.dim() == 1 else part.sum(dim=0) for part in squares]).sqrt()
    aim = query.clip_norm if query.grid is None else query.aim(length)
    factors = clip_factors(norms, aim, query.stability, length=length)
    return factors if present is None else where_or_zero(present, factors)


def total_of(z: Standardised, query: GradientSum | MappedSum, factors: Tensor) -> Tensor:
    """Σ_i factor_i z_i as a query asks for it: in whole numbers, or not."""
    if query.grid is None:
        return z.total(factors)
    return z.exact_total(factors, query.clip_norm, query.grid)


def clipped_total(z: Tensor, clip_norm: float, stability: float | None = None) -> Tensor:
    """Σ_i clip(z_i) of float64 rows, each to a norm of at most `clip_norm`. May overwrite z.

    >>> clipped_total(torch.tensor([[3.0, 4.0], [0.3, 0.4], [math.inf, 0.0]]).double(), 1.0).round(decimals=6).tolist()
    [0.9, 1.2]
    """
    return weighted_total(z, clip_factors(torch.linalg.vector_norm(z, dim=1), clip_norm, stability, length=z.shape[1]))


def bounded_total(z: Tensor, query: Query, present: Tensor | None = None) -> Tensor:
    """Σ_i clip(z_i) of float64 rows as the query asks for it, over those that are `present` (None: all)."""
    stability, length = None if isinstance(query, RecordSum) else query.stability, z.shape[1]
    factors = clip_factors(torch.linalg.vector_norm(z, dim=1), query.aim(length), stability, length=length)
    factors = factors if present is None else where_or_zero(present, factors)
    if query.grid is not None:
        return exact.exact_total(z, query.clip_norm, query.grid, factors)
    return weighted_total(z, factors)


class Bounder:
    """Adds up one query's clipped records over the micro-batches of a draw."""

    def __init__(self, query: Query, size: int) -> None:
        self._query = query
        self._size = size
        self._total: Tensor | None = None
        self._dtype = torch.float32

    def add(self, gradients: PerSampleGradients, coins: Tensor | None = None) -> None:
        """Adds one micro-batch to a sum of gradients. Only an engine's output is taken, clipped record by record."""
        batch = unseal(gradients, PerSampleGradients)
        rows = batch.records_only().gradients
        assert isinstance(self._query, GradientSum | MappedSum)
        coins = coins if coins is None or batch.present is None else coins[batch.present]
        self._keep(bounded_total(self._query.rows(rows, coins), self._query), rows.dtype)

    def add_clipped(self, total: BoundedSum) -> None:
        """Adds one micro-batch that an engine has clipped record by record, to the bound of this very query."""
        if not isinstance(total, BoundedSum) or total.query is not self._query:
            raise PrivacyLineError(f"expected an engine's BoundedSum for {self._query.name!r}")
        self._keep(unseal(total), total.dtype)

    def add_records(
        self,
        records: Records,
        *,
        gradients: PerSampleGradients | None = None,
        losses: PerRecordLosses | None = None,
        losses_at: PerRecordLosses | None = None,
    ) -> None:
        """Adds one micro-batch to a sum over records; what the query needs of them must be there."""
        assert isinstance(self._query, RecordSum)
        inputs, targets = unseal(records)
        count, blank = len(targets), torch.zeros(len(targets), 0, device=targets.device)
        parts = {
            "gradient": blank if gradients is None else unseal(gradients).gradients,
            "loss": blank if losses is None else unseal(losses),
            "losses_at": blank if losses_at is None else unseal(losses_at),
            "input": blank,
        }
        if "input" in self._query.needs:
            first = tree_leaves(inputs)[0]
            parts["input"] = first.reshape(count, records.copies, *first.shape[1:])
        values = _per_record(self._query, parts, count)
        if records.present is not None:
            values = values[unseal(records.present)]
        self._keep(bounded_total(values.to(torch.float64, copy=True), self._query), values.dtype)

    def _keep(self, total: Tensor, dtype: torch.dtype) -> None:
        self._dtype = dtype if dtype.is_floating_point else torch.float32
        self._total = total if self._total is None else self._total + total

    def result(self) -> BoundedSum:
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
