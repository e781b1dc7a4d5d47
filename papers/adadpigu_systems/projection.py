"""Projections on directions of public gradients: Projected DP-SGD, PCDP-SGD, GEP. Sees releases and public records.

V [d, k] has orthonormal columns, learned from gradients of public records at weights that were released, now and then.

    projected-dpsgd   ĝ = V Vᵀ (Σ clip_C(g_i) + N(0, σ²C² I_d)) / B          after the noise: free, DP-SGD's own event
    pcdp-sgd          ĝ = V (Σ clip_C(Vᵀg_i) + N(0, σ²C² I_k)) / B           noise in k dimensions instead of d
    gep               the same, and the rest: Σ clip_C₁(g_i − V Vᵀ g_i) + N(0, σ₁²C₁² I_d), of one draw

Formal guarantee: the clip stands after the projection, so a record moves each sum by at most its bound, whatever V is.
GEP's two sums have shares s and 1 − s of one event at σ: (σ₀⁻² + σ₁⁻²)^−½ = σ. V is a function of public records and
of released weights, so of releases alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum, MappedSum
from adadpigu.core.mechanism import Release
from adadpigu.core.state import State, as_tensor
from adadpigu.errors import require
from adadpigu.methods.base import (
    Batches,
    Method,
    MethodState,
    Positive,
    PublicRows,
    RunContext,
    Stage,
    mean_gradient,
    register,
)

Count = Annotated[int, "at least 1"]
_AT_ONCE = 2**18  # coordinates in one product


@dataclass(frozen=True)
class Basis:
    """V in blocks: of the coordinates from `start` on, orthonormal columns each; other coordinates have none."""

    blocks: tuple[tuple[slice, Tensor], ...]

    @property
    def size(self) -> int:
        """k."""
        return sum(columns.shape[1] for _, columns in self.blocks)

    @property
    def bytes(self) -> int:
        """What it takes to keep it."""
        return sum(columns.nbytes for _, columns in self.blocks)

    def stored(self, dtype: torch.dtype) -> Basis:
        """The same in the precision in which it is multiplied, so that no product converts it."""
        return Basis(tuple((place, columns.to(dtype)) for place, columns in self.blocks))

    def onto(self, rows: Tensor) -> Tensor:
        """Vᵀg of each row, [b, d] -> [b, k]."""
        return torch.cat([_coefficients(rows[:, place], columns) for place, columns in self.blocks], dim=1)

    def back(self, values: Tensor, size: int) -> Tensor:
        """V w, [k] -> [d]."""
        made = values.new_zeros(size)
        parts = torch.split(values, [columns.shape[1] for _, columns in self.blocks])
        for (place, columns), part in zip(self.blocks, parts, strict=True):
            _add_combined(made[None, place], part[None], columns)
        return made

    def beside(self, rows: Tensor) -> Tensor:
        """g − V Vᵀ g of each row."""
        rest = rows.clone()
        for place, columns in self.blocks:
            _add_combined(rest[:, place], -_coefficients(rows[:, place], columns), columns)
        return rest


def _coefficients(rows: Tensor, columns: Tensor) -> Tensor:
    """A V, a stretch of coordinates at a time: of a basis in bf16 only so much is added up, and kept, in bf16."""
    made = rows.new_zeros(len(rows), columns.shape[1])
    for part, v in zip(torch.split(rows, _AT_ONCE, dim=1), torch.split(columns, _AT_ONCE), strict=True):
        made += part.to(v.dtype) @ v if v.dtype == torch.bfloat16 else part @ v.to(rows.dtype)
    return made


def _add_combined(rows: Tensor, values: Tensor, columns: Tensor) -> None:
    """Adds W Vᵀ to rows in their place."""
    for part, v in zip(torch.split(rows, _AT_ONCE, dim=1), torch.split(columns, _AT_ONCE), strict=True):
        part += values.to(v.dtype) @ v.T if v.dtype == torch.bfloat16 else values @ v.to(rows.dtype).T


def leading(rows: Iterator[Tensor], rank: int) -> Basis:
    """The leading right singular vectors of all rows A: the eigenvectors of their second moment.

    Of AAᵀ, which is small, u = A v/s are eigenvectors, so v is Aᵀu but for its length.
    """
    whole = torch.cat(list(rows)).double()
    _, left = torch.linalg.eigh(whole @ whole.T)
    columns = (whole.T @ left[:, -rank:].flip(1)).contiguous()
    return Basis(((slice(0, whole.shape[1]), orthonormal(columns)),))


def orthonormal(columns: Tensor) -> Tensor:
    """Orthonormal columns with the span of the given ones, in their place; zero ones where that has fewer.

    V ← V U S^−½ with VᵀV = U S Uᵀ in float64, twice: the second round mends what rounding has left of the first. It is
    made a stretch of coordinates at a time, since a QR of a large net's would take as much memory again, or twice.
    """
    for _ in range(2):
        wide = (part.double() for part in torch.split(columns, _AT_ONCE))
        values, vectors = torch.linalg.eigh(sum((part.T @ part for part in wide), start=torch.zeros(())))
        there = values > values[-1] * torch.finfo(values.dtype).tiny ** 0.5
        turn = vectors * torch.where(there, values.clamp(min=torch.finfo(values.dtype).tiny).rsqrt(), 0.0)
        for part in torch.split(columns, _AT_ONCE):
            part.copy_(part.double() @ turn)
    return columns


def by_power(rows: Iterator[Tensor], ranks: list[int], places: list[slice], seed: int) -> Basis:
    """orth(Aᵀ(A Ω)) of each block's columns of the rows A, with Ω Gaussian: one power iteration, one pass."""
    starts: list[Tensor] = []
    sums: list[Tensor] = []
    for part in rows:
        if not starts:
            rng = torch.Generator(part.device).manual_seed(seed)  # drawn where it is used: Ω is as large as V
            how: dict[str, Any] = {"generator": rng, "device": part.device, "dtype": part.dtype}
            starts = [torch.randn(p.stop - p.start, k, **how) for p, k in zip(places, ranks, strict=True)]
            sums = [torch.zeros_like(start) for start in starts]
        for place, start, total in zip(places, starts, sums, strict=True):
            own = part[:, place]
            total.addmm_(own.T, own @ start)
    del starts
    return Basis(tuple((place, orthonormal(total)) for place, total in zip(places, sums, strict=True)))


class _Projection(MethodState):
    """A basis that is renewed every so many steps, and known again from the weights that it was made at."""

    def __init__(self, options: _Projected, context: RunContext) -> None:
        assert context.public is not None
        self._options, self._size, self._batch_size = options, context.layout.size, context.batch_size
        self._public: PublicRows = context.public
        self._rng = context.public_rng
        exact = torch.float64 if context.device.type == "cpu" else torch.float32  # in which rows are mapped there
        self._stored_as = torch.bfloat16 if options.basis_precision == "bf16" else exact
        _check_rank(f"rank={options.rank}", options.rank, min(self._size, self._public.count))
        blocks = options.basis == "power" or options.groups == 1
        require(blocks, f"groups={options.groups} with basis={options.basis!r}; allowed: basis='power', or 1 group")
        _groups(self._size, options.rank, options.groups)
        self._every = options.basis_every or max(1, round(context.records / context.batch_size))
        self._count, self._renewed = 0, -1
        self._at = context.weights
        self.basis: Basis | None = None

    def begin_step(self, stage: Stage, index: int, weights: Tensor) -> None:
        if self._count % self._every == 0:
            self._renew(weights.clone(), self._count // self._every)
        self._count += 1

    def _renew(self, weights: Tensor, number: int) -> None:
        self._at, self._renewed = weights, number
        rows, options = self._public.rows(weights, number), self._options
        if options.basis == "eigen":
            found = leading(rows, options.rank)
        else:
            ranks, places = _groups(self._size, options.rank, options.groups)
            found = by_power(rows, ranks, places, int(self._rng(number).integers(2**62)))
        self.basis = found.stored(self._stored_as)

    def state(self) -> State:
        return {"count": as_tensor(self._count), "renewed": as_tensor(self._renewed), "weights": self._at}

    def load(self, state: State) -> None:
        self._count = int(state["count"])
        if int(state["renewed"]) >= 0:
            self._renew(state["weights"].to(self._at), int(state["renewed"]))


def _groups(size: int, rank: int, groups: int) -> tuple[list[int], list[slice]]:
    """Coordinates in equal blocks in a row, with an equal share of the directions each."""
    blocks = f"rank={rank} with groups={groups} asks for blocks without a direction"
    require(groups <= rank, f"{blocks}; allowed: 1 to {rank} groups")
    edges = [round(size * number / groups) for number in range(groups + 1)]
    marks = [round(rank * number / groups) for number in range(groups + 1)]
    ranks = [b - a for a, b in pairwise(marks)]
    places = [slice(a, b) for a, b in pairwise(edges)]
    for width, place in zip(ranks, places, strict=True):
        _check_rank(f"rank={rank} with groups={groups}", width, place.stop - place.start)
    return ranks, places


def _check_rank(named: str, count: int, most: int) -> None:
    require(1 <= count <= most, f"{named} asks for {count} directions; allowed: 1 to {most}, what the basis can have")


@dataclass(frozen=True, kw_only=True)
class _Projected(Method):
    """What the three have in common."""

    needs_public: ClassVar[bool] = True
    denoises: ClassVar[bool] = True
    costs: ClassVar[str] = "one event a step; the public records are free"

    clip_norm: Positive = 0.5
    """C"""
    rank: Count = 50
    """k, directions of public gradients"""
    basis: Literal["eigen", "power"] = "power"
    """eigen: the leading directions exactly; power: by one power iteration"""
    basis_every: Annotated[int | None, "at least 1"] = None
    """steps from one basis to the next; unset: once an epoch"""
    groups: Count = 1
    """blocks of coordinates with a basis each (power)"""
    basis_precision: Literal["float32", "bf16"] = "float32"
    """bf16: half the memory, for large nets; the clip comes after the products, so it bounds them as they are"""


@register
@dataclass(frozen=True, kw_only=True)
class ProjectedDPSGD(_Projected):
    """Projected DP-SGD (Zhou, Wu and Banerjee 2021): DP-SGD's release, projected after the noise."""

    name: ClassVar[str] = "projected-dpsgd"
    source: ClassVar[str] = "Zhou et al. 2021"
    adds: ClassVar[str] = "each noisy update is projected on directions of public gradients"

    basis: Literal["eigen", "power"] = "eigen"
    project_from: Annotated[float, "in [0, 1)"] = 0.0
    """share of the steps that are made without the projection first"""

    def begin(self, context: RunContext) -> MethodState:
        return _AfterNoise(self, context)


class _AfterNoise(_Projection):
    def __init__(self, options: ProjectedDPSGD, context: RunContext) -> None:
        super().__init__(options, context)
        self._query, self._from = GradientSum(clip_norm=options.clip_norm), options.project_from

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        direction = mean_gradient(batches, self._query, self._batch_size)
        basis = self.basis
        if index < self._from * stage.steps or basis is None:
            return direction
        return direction.map(lambda g: basis.back(basis.onto(g[None])[0], len(g)))


@register
@dataclass(frozen=True, kw_only=True)
class PCDPSGD(_Projected):
    """Projection before the clip (Sha et al. 2023; its authors withdrew the paper in April 2025)."""

    name: ClassVar[str] = "pcdp-sgd"
    source: ClassVar[str] = "Sha et al. 2023 (withdrawn)"
    adds: ClassVar[str] = "gradients are projected on directions of public gradients before the clip"

    basis: Literal["eigen", "power"] = "eigen"

    def begin(self, context: RunContext) -> MethodState:
        return _BeforeClip(self, context, share=1.0)


class _BeforeClip(_Projection):
    def __init__(self, options: _Projected, context: RunContext, share: float) -> None:
        super().__init__(options, context)
        self._share = share

    def embedding(self) -> MappedSum:
        """Σ clip(Vᵀg_i)."""
        assert self.basis is not None
        return MappedSum(
            name="embedding",
            of=self.basis.onto,
            clip_norm=self._options.clip_norm,
            learned=self._learned(),
            share=self._share,
        )

    def _learned(self) -> dict[str, Tensor]:
        assert self.basis is not None
        return {f"basis {number}": columns for number, (_, columns) in enumerate(self.basis.blocks)}

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        return self._clear(batches, batches.release(self.embedding())["embedding"]).map(self._back)

    def _clear(self, batches: Batches, embedded: Release) -> Release:
        """Denoised, where the run asks for that: as many entries as directions, with equal noise."""
        assert self.basis is not None
        return batches.denoise(embedded, [columns.shape[1] for _, columns in self.basis.blocks])

    def _back(self, embedded: Tensor) -> Tensor:
        assert self.basis is not None
        return self.basis.back(embedded, self._size) / self._batch_size


@register
@dataclass(frozen=True, kw_only=True)
class GEP(_Projected):
    """Gradient embedding perturbation (Yu et al. 2021): the projection and the rest, each with a bound of its own."""

    name: ClassVar[str] = "gep"
    source: ClassVar[str] = "Yu et al., ICLR 2021"
    adds: ClassVar[str] = "gradients are split on directions of public gradients; both parts are released"
    costs: ClassVar[str] = "one event a step, shared by both parts; the public records are free"

    residual_clip: Positive = 0.2
    """C₁, of what the basis leaves"""
    residual_share: Annotated[float, "in (0, 1)"] = 0.5
    """of the event that the rest takes"""

    def begin(self, context: RunContext) -> MethodState:
        return _Both(self, context)


class _Both(_BeforeClip):
    def __init__(self, options: GEP, context: RunContext) -> None:
        super().__init__(options, context, share=1 - options.residual_share)
        self._rest = options

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        assert self.basis is not None
        options = self._rest
        residual = MappedSum(
            name="residual",
            of=self.basis.beside,
            clip_norm=options.residual_clip,
            learned=self._learned(),
            share=options.residual_share,
        )
        made = batches.release(self.embedding(), residual)
        embedded = self._clear(batches, made["embedding"])
        return batches.denoise(made["residual"]).map(
            lambda rest, values: self._back(values) + rest / self._batch_size, embedded
        )
