"""Gradients of low rank, clipped and released as carriers: RGP and private PowerSGD. Sees releases only.

G [n, m] is a record's gradient of one weight matrix (of a convolution: out × in·k²); L [n, r] and R [m, r] have
orthonormal columns. A record's carriers of all matrices and its gradients of all else are one vector, clipped to C:

    G R             →  ∂W = (G R) Rᵀ                               RGP `left_only`, odd steps of PowerSGD
    Lᵀ G            →  ∂W = L (Lᵀ G)                               even steps of PowerSGD
    G R and Lᵀ G    →  ∂W = (G R) Rᵀ + L (Lᵀ G) − L Lᵀ (G R) Rᵀ    RGP

Formal guarantee: the clip stands after the map, so a record moves the sum by at most C whatever L and R are, and each
step is one event at σ. L and R are functions of released weights (RGP) or of earlier releases (PowerSGD).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum, MappedSum
from adadpigu.core.layout import Layout
from adadpigu.core.mechanism import Release, require_release
from adadpigu.core.state import State
from adadpigu.methods.base import Batches, Method, MethodState, Positive, RunContext, Stage, mean_gradient, register

Count = Annotated[int, "at least 1"]


@dataclass(frozen=True)
class Matrix:
    """A compressed weight matrix: its place in the flat vector, n, m and r."""

    place: slice
    n: int
    m: int
    rank: int


def matrices_of(layout: Layout, rank: int, *, saving: float, but_last: bool = False) -> tuple[Matrix, ...]:
    """The matrices that carriers of rank r, or of the largest rank below it, make more than `saving` times smaller."""
    wide = [slot for slot in layout.slots if len(slot.shape) >= 2]
    found = []
    for slot in wide:
        n, m = slot.shape[0], slot.shape[1:].numel()
        r = min(rank, math.ceil(n * m / (saving * (n + m))) - 1)
        if r >= 1 and not (but_last and slot.layer == wide[-1].layer):
            found.append(Matrix(slice(slot.start, slot.stop), n, m, r))
    return tuple(found)


def orth(matrix: Tensor) -> Tensor:
    """Orthonormal columns with the span of the given ones, in float64."""
    basis: Tensor = torch.linalg.qr(matrix.double())[0]
    return basis


@dataclass(frozen=True, kw_only=True)
class Carriers:
    """The public map from gradients to carriers, and back: L and R of every matrix; one of them may be empty."""

    matrices: tuple[Matrix, ...]
    left: tuple[Tensor, ...] = ()
    right: tuple[Tensor, ...] = ()

    def of(self, rows: Tensor) -> Tensor:
        """What is not compressed, then G R and Lᵀ G of each matrix: [b, d] -> [b, k]."""
        parts = list(self._others(rows))
        for number, matrix in enumerate(self.matrices):
            gradient = rows[:, matrix.place].reshape(len(rows), matrix.n, matrix.m)
            parts += [(gradient @ r.to(rows)).flatten(1) for r in self.right[number : number + 1]]
            parts += [(lt.T.to(rows) @ gradient).flatten(1) for lt in self.left[number : number + 1]]
        return torch.cat(parts, dim=1)

    def split(self, values: Tensor, size: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Carriers by kind: what is not compressed, G R and Lᵀ G of each matrix, in their shapes."""
        sizes = self.sizes(size)
        shapes = [shape for m in self.matrices for shape in self._shapes(m)]
        rest, *parts = torch.split(values, sizes)
        shaped = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        both = 2 if self.left and self.right else 1
        return rest, shaped[::both] if self.right else [], shaped[both - 1 :: both] if self.left else []

    def sizes(self, size: int) -> list[int]:
        """How many numbers each kind takes, in a row, of a gradient of `size`."""
        rest = size - sum(m.n * m.m for m in self.matrices)
        return [rest, *(math.prod(shape) for m in self.matrices for shape in self._shapes(m))]

    def rebuilt(self, values: Tensor, size: int) -> Tensor:
        """∂W of all matrices in their places, [k] -> [d]."""
        rest, by_right, by_left = self.split(values, size)
        made, taken = values.new_zeros(size), 0
        for view in self._others(made):
            view.copy_(rest[taken : taken + len(view)])
            taken += len(view)
        for number, matrix in enumerate(self.matrices):
            whole = values.new_zeros(matrix.n, matrix.m)
            if self.right:
                whole = by_right[number] @ self.right[number].T.to(values)
            if self.left:
                basis = self.left[number].to(values)
                whole = whole + basis @ (by_left[number] - basis.T @ whole)
            made[matrix.place] = whole.reshape(-1)
        return made

    def _shapes(self, matrix: Matrix) -> list[tuple[int, int]]:
        return [(matrix.n, matrix.rank)] * bool(self.right) + [(matrix.rank, matrix.m)] * bool(self.left)

    def _others(self, flat: Tensor) -> Iterator[Tensor]:
        """Views of what is not compressed of a [..., d] tensor, in order."""
        start = 0
        for matrix in self.matrices:
            yield flat[..., start : matrix.place.start]
            start = matrix.place.stop
        yield flat[..., start:]


class _LowRank(MethodState):
    """What both have in common: a release of carriers, and a basis that is kept as it is."""

    def __init__(self, clip_norm: float, context: RunContext, matrices: tuple[Matrix, ...]) -> None:
        self._clip_norm, self._context, self._matrices = clip_norm, context, matrices
        self._bases: dict[str, tuple[Tensor, ...]] = {}

    def state(self) -> State:
        return {f"{side}.{k}": basis for side, bases in self._bases.items() for k, basis in enumerate(bases)}

    def load(self, state: State) -> None:
        sides = {key.partition(".")[0] for key in state}
        numbers = range(len(self._matrices))
        self._bases = {side: tuple(state[f"{side}.{k}"].to(self._context.device) for k in numbers) for side in sides}

    def _release(self, batches: Batches, carriers: Carriers) -> Release:
        """The noisy sum of the clipped carriers."""
        learned = {f"{side} {k}": basis for side, bases in self._bases.items() for k, basis in enumerate(bases)}
        query = MappedSum(name="carriers", of=carriers.of, clip_norm=self._clip_norm, learned=learned)
        return batches.release(query)["carriers"]

    def _rebuilt(self, batches: Batches, carriers: Carriers, released: Release) -> Release:
        size, batch_size = self._context.layout.size, self._context.batch_size
        clearer = batches.denoise(released, carriers.sizes(size))
        return clearer.map(lambda values: carriers.rebuilt(values, size) / batch_size)

    def _normal(self, rng: np.random.Generator, *shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape)).to(self._context.device)


@register
@dataclass(frozen=True, kw_only=True)
class RGP(Method):
    """Reparametrised gradient perturbation (Yu et al., ICML 2021): carriers along the weights' own directions.

    L = orth(U Ω) and R = orth(Uᵀ L) with U the weights, or from `history_from` on what training has changed in their
    direction, U = W/‖W‖ − W₀/‖W₀‖. The last layer is released as it is (the authors divide its gradient by 100).
    A matrix whose carriers of rank r would outnumber its entries gets the largest rank that saves.
    """

    name: ClassVar[str] = "rgp"
    source: ClassVar[str] = "Yu et al., ICML 2021"
    adds: ClassVar[str] = "gradients are projected on low-rank directions of the weights before the clip"
    costs: ClassVar[str] = "one event a step; the directions come from released weights"
    denoises: ClassVar[bool] = True

    clip_norm: Positive = 0.5
    """C, of all carriers of a record together"""
    rank: Count = 16
    """r"""
    left_only: bool = False
    """release G R alone, as the authors' later code does"""
    renew_every: Count = 1
    """steps from one L, R to the next"""
    history_from: Annotated[float, "in [0, 1]"] = 1.0
    """share of the steps after which L, R follow what training has changed; 1: never, as the authors' code"""

    def begin(self, context: RunContext) -> MethodState:
        return _FromWeights(self, context)


class _FromWeights(_LowRank):
    def __init__(self, options: RGP, context: RunContext) -> None:
        super().__init__(options.clip_norm, context, matrices_of(context.layout, options.rank, saving=1, but_last=True))
        self._options, self._start = options, context.weights

    def begin_step(self, stage: Stage, index: int, weights: Tensor) -> None:
        if index % self._options.renew_every and self._bases:
            return
        rng = self._context.public_rng(index)
        history = index >= self._options.history_from * stage.steps
        left, right = [], []
        for matrix in self._matrices:
            u, first = (flat[matrix.place].double().reshape(matrix.n, matrix.m) for flat in (weights, self._start))
            if history:
                u = u / u.norm().clamp(min=1e-12) - first / first.norm().clamp(min=1e-12)
            u = u if u.any() else self._normal(rng, matrix.n, matrix.m)  # weights that start at zero have no direction
            left.append(orth(u @ self._normal(rng, matrix.m, matrix.rank)))
            right.append(orth(u.T @ left[-1]))
        self._bases = {"right": tuple(right)} | ({} if self._options.left_only else {"left": tuple(left)})

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        carriers = Carriers(matrices=self._matrices, **self._bases)
        return self._rebuilt(batches, carriers, self._release(batches, carriers))

    def state(self) -> State:
        return super().state() | ({"start": self._start} if self._options.history_from < 1 else {})

    def load(self, state: State) -> None:
        bases = dict(state)
        self._start = bases.pop("start", self._start).to(self._start)
        super().load(bases)


@register
@dataclass(frozen=True, kw_only=True)
class PowerSGD(Method):
    """PowerSGD (Vogels et al. 2019) in a private form: one half of a power iteration a step, on released sides only.

    After a share of plain DP-SGD steps, odd steps release P = Σ clip(G R) and keep L = orth(P); even steps release
    Q = Σ clip(Lᵀ G)ᵀ and keep R = orth(Q), all matrices of a record clipped together.

    Proof that each step costs one event at σ: given all earlier releases, L and R are fixed, so a record changes the
    sum by at most C in L2 norm, whatever its gradient; the sum gets N(0, σ²C² I) once. Orth, ∂W and the weights are
    functions of releases. Steps compose adaptively, as those of DP-SGD. On a fixed M without noise the two halves are
    R ← orth(Mᵀ orth(M R)), orthogonal iteration: the span of R converges to M's leading right singular vectors where
    σ_r > σ_{r+1}, at the rate (σ_{r+1}/σ_r)² a pair of steps.

    With `both`, every step makes a whole iteration of its batch: P with half of the event, then, given L = orth(P), Q
    with the other half. One event at (σ_P⁻² + σ_Q⁻²)^−½ = σ, for L is a function of a release; ∂W = L Q.

    No error feedback: M − P Qᵀ of un-noised sums would carry private numbers past the noise into the next update.
    """

    name: ClassVar[str] = "powersgd"
    source: ClassVar[str] = "Vogels et al. 2019, made private"
    adds: ClassVar[str] = "gradients are projected on low-rank directions of earlier releases before the clip"
    costs: ClassVar[str] = "one event a step"
    denoises: ClassVar[bool] = True

    clip_norm: Positive = 0.5
    """C"""
    rank: Count = 4
    """r; less for a matrix where nm/((n + m)r) would not exceed 2"""
    start_after: Annotated[float, "in [0, 1]"] = 0.05
    """share of the steps that are plain DP-SGD first"""
    both: bool = False
    """release both sides of every batch, the second one given the first; else one side a step, in turn"""

    def begin(self, context: RunContext) -> MethodState:
        return _BothSides(self, context) if self.both else _FromReleases(self, context)


class _FromReleases(_LowRank):
    def __init__(self, options: PowerSGD, context: RunContext) -> None:
        super().__init__(options.clip_norm, context, matrices_of(context.layout, options.rank, saving=2))
        self._plain, self._after = GradientSum(clip_norm=options.clip_norm), options.start_after
        rng = context.public_rng(0)
        self._bases = {"right": tuple(orth(self._normal(rng, m.m, m.rank)) for m in self._matrices)}

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        if index < self._after * stage.steps:
            return mean_gradient(batches, self._plain, self._context.batch_size)
        carriers = Carriers(matrices=self._matrices, **self._bases)
        released = self._release(batches, carriers)
        self._follow(carriers, released)
        return self._rebuilt(batches, carriers, released)

    def _follow(self, carriers: Carriers, released: Release) -> None:
        """Keeps the side that was released, for the next step to release the other."""
        _, p, q = carriers.split(require_release(released).value, self._context.layout.size)
        self._bases = {"right": tuple(orth(side.T) for side in q)} if q else {"left": tuple(orth(side) for side in p)}


class _BothSides(_FromReleases):
    """Both halves of an iteration in every step."""

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        if index < self._after * stage.steps:
            return mean_gradient(batches, self._plain, self._context.batch_size)
        right = Carriers(matrices=self._matrices, **self._bases)
        size = self._context.layout.size
        learned = {f"right {k}": basis for k, basis in enumerate(self._bases["right"])}
        first = MappedSum(name="right", of=right.of, clip_norm=self._clip_norm, learned=learned, share=0.5)
        second = MappedSum(
            name="left", of=lambda p: self._left(right, p).of, clip_norm=self._clip_norm, given="right", share=0.5
        )
        made = batches.release(first, second)
        left = self._left(right, require_release(made["right"]).value)
        _, _, q = left.split(require_release(made["left"]).value, size)
        self._bases = {"right": tuple(orth(side.T) for side in q)}
        return self._rebuilt(batches, left, made["left"])

    def _left(self, right: Carriers, released: Tensor) -> Carriers:
        """L of the sides that were released."""
        _, p, _ = right.split(released, self._context.layout.size)
        return Carriers(matrices=self._matrices, left=tuple(orth(side) for side in p))
