"""Two looks at gradients of training records: which values they take, and how much of their energy a mask keeps.

    energy kept = ‖m ⊙ u‖²/‖u‖²,   u = (1/n) Σ ∇ℓ_i(θ_t), the mean training gradient at the weights of step t

Gradients here carry no noise, so both work under Diagnostics alone. A run that is looked at trains as if it were not:
its method is followed, not changed, and nothing random is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.bounding import GradientSum, Query, record_factors
from adadpigu.core.layout import Layout
from adadpigu.core.mechanism import Release
from adadpigu.core.standardising import Standardiser
from adadpigu.errors import InputError
from adadpigu.methods.base import Batches, Method, MethodState, RunContext, Stage
from adadpigu.runs.run import Metrics
from adadpigu.training.preparation import Preparation
from adadpigu_paper.reproduce.jobs import Row
from adadpigu_paper.reproduce.looks import Look
from adadpigu_paper.theory.retained_energy import Numbers, even_share, retained_energy, top_k_mask

SMALL = 0.01
"""the paper's bound: values within ± that are called small"""
HELD_BY_FEW = 0.9
"""the share of the energy whose holders are counted"""
_DECADES, _BINS_A_DECADE = range(-7, 1), 4
_AT_ONCE = 250
"""records whose single gradients are held at once"""
_SUMMED_AT_ONCE = 2000


def bin_edges() -> list[float]:
    """Where one bin of gradient values ends and the next begins: the same for every run, from −10 to 10, ascending.

    Equal steps of the logarithm on either side of 0, one bin around 0, and what lies farther out in the end bins.

    >>> edges = bin_edges()
    >>> edges[0], edges[32], edges[33], edges[-1]
    (-10.0, -1e-07, 1e-07, 10.0)
    """
    exponents = [decade + step / _BINS_A_DECADE for decade in _DECADES for step in range(_BINS_A_DECADE)]
    upper = [10.0**exponent for exponent in (*exponents, _DECADES.stop)]
    return [-edge for edge in reversed(upper)] + upper


class Followed:
    """A method as it is, but that one can see what it does: its public state, and the sum it has asked for last."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.method_state: MethodState | None = None
        self.query: GradientSum | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def begin(self, context: RunContext) -> MethodState:
        method_state = self.method_state = self._method.begin(context)
        asks = method_state.step

        def step(batches: Batches, stage: Stage, index: int) -> Release:
            return asks(_Overheard(batches, self), stage, index)

        method_state.step = step  # type: ignore[method-assign]  # its class stays: the loop goes by that
        return method_state


class _Overheard:
    """Batches as they are, but that the query for gradients is remembered."""

    def __init__(self, batches: Batches, followed: Followed) -> None:
        self._batches, self._followed = batches, followed

    def release(self, *queries: Query, draw: str = "gradient") -> dict[str, Release]:
        for query in queries:
            if isinstance(query, GradientSum):
                self._followed.query = query
        return self._batches.release(*queries, draw=draw)

    def denoise(self, released: Release, sizes: Sequence[int] | None = None) -> Release:
        return self._batches.denoise(released, sizes)


class GradientLook(Look):
    """What both looks share: the records that are looked at, the weights, the method that is followed."""

    records: ClassVar[int | None]
    """how many are looked at, the first ones of the data set; None: all"""

    def __init__(self, prepared: Preparation) -> None:
        super().__init__(prepared)
        if prepared.view.front is not None or prepared.front is not None:
            raise InputError(f"{type(self).__name__} looks at gradients of whole nets; allowed: features='none'")
        self.followed = Followed(prepared.method)
        self.prepared = replace(prepared, method=cast(Method, self.followed))

    @property
    def layout(self) -> Layout:
        return self.prepared.engine.layout

    def weights(self) -> Tensor:
        """Those at which the model acts: a pruned weight is zero there."""
        assert self.followed.method_state is not None
        return self.followed.method_state.effective(self.layout.read(self.prepared.model))

    def taken(self, at_once: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The records that are looked at, so many at a time, as they are (no augmented copies)."""
        p = self.prepared
        count = len(p.data.train) if self.records is None else min(self.records, len(p.data.train))
        for start in range(0, count, at_once):
            inputs, targets = p.data.train.take(torch.arange(start, min(start + at_once, count)))
            yield inputs.to(p.device), targets.to(p.device)

    def facts(self, metrics: Metrics, count: int) -> Row:
        """Where in the run this is, and on how many records of how large a net."""
        return {
            "epoch": metrics.step * self.prepared.sample_rate,
            "stage": metrics.stage,
            "records": count,
            "parameters": self.layout.size,
        }


class GradientValues(GradientLook):
    """How many gradient values lie in each bin, for three kinds of gradient at the same weights.

    `single`: those of single records; `mean`: their mean; `clipped`: the mean of what the run's own query makes of
    them (mask, standardisation, clip), on the coordinates that may change: what noise is added to.
    """

    records = 1000

    def look(self, metrics: Metrics) -> Row:
        query, weights, layout = self._query(), self.weights(), self.layout
        single, holding = Tally(), 0.0
        total, clipped = (torch.zeros(layout.size, dtype=torch.float64, device=weights.device) for _ in range(2))
        count = 0
        for inputs, targets in self.taken(_AT_ONCE):
            rows = record_gradients(self.prepared.model, layout, weights, inputs, targets)
            single.add(rows)
            holding += float(holders(rows).sum())
            total += rows.double().sum(dim=0)
            clipped += clipped_sum(rows, query)
            count += len(rows)
        mean = finite(total / count, metrics.step)
        restored = query.restore(clipped, count)
        noise = self.prepared.noise_multiplier * query.clip_norm / self.prepared.options.batch_size
        restored_noise = torch.full_like(restored, noise) if query.scale is None else noise * query.scale
        active = slice(None) if query.active is None else query.active
        return {
            **self.facts(metrics, count),
            "edges": bin_edges(),
            "noise": noise if self.prepared.method.private else None,
            "single": {**single.told(), "held_by": holding / count},
            "clipped": _told(restored[active], restored_noise[active]),
            "mean": _told(mean, restored_noise),
        }

    def _query(self) -> GradientSum:
        """The run's latest, under the run's way of clipping."""
        query, stability = self.followed.query, self.prepared.options.stability
        if query is None:
            raise InputError(f"method {self.prepared.method.name!r} has asked for no sum of gradients to look at")
        return query if stability is None else replace(query, stability=stability)


class Energy(GradientLook):
    """The share of the mean training gradient's energy that the run's own mask keeps, and what others would keep.

    `most`: the top-k of that very gradient; `held`: the top-k of the gradient as it was when last all could change;
    `layered`: a random mask with as many in each layer as the run's, on average; `chance`: any random mask, k/d.
    """

    records: ClassVar[int | None] = None

    def __init__(self, prepared: Preparation) -> None:
        super().__init__(prepared)
        self._before: Numbers | None = None

    def look(self, metrics: Metrics) -> Row:
        weights, count = self.weights(), 0
        total = torch.zeros(self.layout.size, dtype=torch.float64, device=weights.device)
        for inputs, targets in self.taken(_SUMMED_AT_ONCE):
            total += summed_gradient(self.prepared.model, self.layout, weights, inputs, targets)
            count += len(targets)
        mean: Numbers = finite(total / count, metrics.step).cpu().numpy()
        facts = {**self.facts(metrics, count), "norm": float(np.linalg.norm(mean))}
        assert self.followed.method_state is not None
        active = self.followed.method_state.active
        if active is None:
            self._before = mean
            return {**facts, "active": len(mean), "kept": 1.0, "most": 1.0, "held": 1.0, "layered": 1.0, "chance": 1.0}
        mask, kept = active.cpu().numpy(), int(active.sum())
        held = None if self._before is None else retained_energy(mean, top_k_mask(self._before, kept))
        return {
            **facts,
            "active": kept,
            "kept": retained_energy(mean, mask),
            "most": retained_energy(mean, top_k_mask(mean, kept)),
            "held": held,
            "layered": layered_energy(mean, active.cpu(), self.layout),
            "chance": even_share(kept, len(mean)),
        }


class SampledEnergy(Energy):
    """The same on few records: for a run of seconds."""

    records = 4000


class Tally:
    """Counts values by bin, and those within the paper's bound, batch after batch."""

    def __init__(self) -> None:
        self._counts = torch.zeros(len(bin_edges()) + 1, dtype=torch.int64)
        self._small = self._zero = 0

    def add(self, values: Tensor) -> None:
        """Takes values of any shape; one that is equal to an edge counts below it."""
        edges = torch.tensor(bin_edges(), dtype=values.dtype, device=values.device)
        places = torch.bucketize(values.reshape(-1), edges)
        self._counts += torch.bincount(places, minlength=len(edges) + 1).cpu()
        self._small += int((values.abs() <= SMALL).sum())
        self._zero += int((values == 0).sum())

    def told(self) -> Row:
        """Counts, their number, and the shares of values that are small and that are exactly 0."""
        values = int(self._counts.sum())
        shares = {"within": self._small / values, "zero": self._zero / values}
        return {"counts": self._counts.tolist(), "values": values, **shares}


def _told(vector: Tensor, noise: Tensor) -> Row:
    """Of one gradient, and what share of its values is smaller than the deviation of the noise on each."""
    tally = Tally()
    tally.add(vector)
    return {
        **tally.told(),
        "held_by": float(holders(vector[None])[0]),
        "norm": float(torch.linalg.vector_norm(vector)),
        "below_noise": float((vector.abs() < noise).double().mean()),
    }


def record_gradients(model: nn.Module, layout: Layout, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """∇ℓ_i(θ) of the cross entropy for every record, [b, d]: un-noised."""
    parts = torch.func.vmap(_gradient(model), in_dims=(None, 0, 0))(_named(layout, weights), inputs, targets)
    return torch.cat([parts[slot.name].reshape(len(targets), -1) for slot in layout.slots], dim=1)


def summed_gradient(model: nn.Module, layout: Layout, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Σ ∇ℓ_i(θ) of the cross entropy, [d] in float64, without the single ones: un-noised."""

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, parameters, (inputs,)), targets, reduction="sum")

    parts = torch.func.grad(loss)(_named(layout, weights))
    return torch.cat([parts[slot.name].reshape(-1) for slot in layout.slots]).double()


def _gradient(model: nn.Module) -> Any:
    def loss(parameters: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, parameters, (record[None],)), target[None])

    return torch.func.grad(loss)


def _named(layout: Layout, weights: Tensor) -> dict[str, Tensor]:
    return {slot.name: part for slot, part in layout.split(weights)}


def clipped_sum(rows: Tensor, query: GradientSum) -> Tensor:
    """Σ clip(z_i), as the run bounds the gradients of single records before it adds noise: un-noised."""
    standardised = Standardiser(query, rows.shape[1], device=rows.device)(rows)
    factors = record_factors([standardised.squares()], query, None, length=rows.shape[1])
    return standardised.total(factors)


def holders(rows: Tensor) -> Tensor:
    """The least share of a row's entries that holds `HELD_BY_FEW` of its energy, [b]: small where it is sparse.

    >>> holders(torch.tensor([[0.0, 3.0, 0.0, 0.0], [1.0, -1.0, 1.0, -1.0]])).tolist()
    [0.25, 1.0]
    """
    energies = torch.sort(rows.double().square(), dim=1, descending=True).values.cumsum(dim=1)
    enough = HELD_BY_FEW * energies[:, -1:]
    return ((energies < enough).sum(dim=1) + 1).clamp(max=rows.shape[1]).double() / rows.shape[1]


def layered_energy(vector: Numbers, active: Tensor, layout: Layout) -> float:
    """E α(u, m) over random masks m with as many coordinates in each layer as `active`: Σ_l (k_l/d_l)·α_l."""
    index = layout.layer_index()
    shares = (torch.bincount(index, weights=active.double()) / torch.bincount(index)).numpy()[index.numpy()]
    squares = np.square(vector / max(float(np.abs(vector).max()), math.ulp(0.0)))
    return float((shares * squares).sum() / squares.sum()) if squares.any() else 1.0


def finite(vector: Tensor, step: int) -> Tensor:
    """The vector, refused where a run has diverged: there is no energy then, and JSON has no word for it."""
    if not bool(torch.isfinite(vector).all()):
        raise InputError(f"the training gradient after step {step} is not finite: the run has diverged; lower lr")
    return vector


LOOKS_HERE: dict[str, type[Look]] = {
    "gradient-values": GradientValues,
    "energy": Energy,
    "energy-sample": SampledEnergy,
}
