"""Canaries: an auditor's own records, each with a gradient on one coordinate of a dummy block that no data touches.

The block is a layer beside the model and goes through everything that the model does: sampler, engine, clip, mask,
noise, optimiser. A canary's loss is linear in the block, so that its gradient is known exactly,

    g = α + (√β + μ) ⊙ a C e_j      standardised:  a C e_j,  clipped to  C e_j  where a ≥ 1

and every other record's is α there, standardised 0. So ⟨e_j, release⟩ / C is N(0, σ²) without canary j in the batch
and N(1, σ²) with it. The auditor looks at releases alone, and at public state: α, β, the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.bounding import BoundedSum, GradientSum, Query
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.errors import ModelError
from adadpigu.gradients import Loss
from adadpigu.mechanism import Release
from adadpigu.randomness import Randomness

DRAW = "gradient"
"""the draw that canaries take part in"""
LOUD = 100.0
"""a of every other canary, so that the clip has something to do; 1 of the others"""


class WithBlock(nn.Module):
    """A model with a dummy block beside it: its outputs, then the block's weights, the same for every record."""

    def __init__(self, body: nn.Module, coordinates: int) -> None:
        super().__init__()
        self.body = body
        self.block = nn.Linear(1, coordinates, bias=False)
        with torch.no_grad():  # from large to small, for methods that freeze by magnitude
            self.block.weight.copy_(torch.linspace(1, 0, coordinates)[:, None])

    def forward(self, inputs: Tensor) -> Tensor:
        weight = self.block.weight
        ones = torch.ones(len(inputs), 1, dtype=weight.dtype, device=weight.device)
        return torch.cat([self.body(inputs), self.block(ones)], dim=1)


class CanaryLoss:
    """The model's loss for ordinary records; ⟨g, block⟩ for canary i, whose target is `classes + i`."""

    def __init__(self, classes: int, coordinates: int, count: int) -> None:
        self.classes = classes
        self.center = torch.zeros(coordinates)
        """α on the block: what every record's gradient is there"""
        self.place = torch.arange(count)
        """the coordinate of each canary"""
        self.signal = torch.zeros(count)
        """what a canary adds to α on its coordinate"""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        scores, block = outputs[:, : self.classes], outputs[:, self.classes :]
        canary = (targets - self.classes).clamp(min=0)
        ordinary = F.cross_entropy(scores, targets.clamp(max=self.classes - 1), reduction="none")
        place = self.place.to(canary)[canary]
        own = block.gather(1, place[:, None])[:, 0] * self.signal.to(block)[canary]
        return torch.where(targets < self.classes, ordinary, own) + block @ self.center.to(block)


class Canaries:
    """A dummy block of so many coordinates, with one canary each unless told otherwise, to be attached to a run.

    As a tape it sees what is asked before a record is looked at, sets the canaries' gradients accordingly, lets
    `choose` say which of them are drawn, and hands `observe` the released coordinates of the block.
    """

    def __init__(self, coordinates: int, count: int | None = None) -> None:
        self.coordinates = coordinates
        self.count = coordinates if count is None else count
        self.loss = CanaryLoss(1, coordinates, self.count)
        self._amount = torch.where(torch.arange(self.count) % 2 == 1, LOUD, 1.0)
        self._query: GradientSum | None = None

    def attach(self, body: nn.Module, data: DataSet) -> tuple[WithBlock, DataSet, Loss]:
        """The model with the block, and the data with the canaries, in this order, behind the other records."""
        if not isinstance(data.train, TensorRecords) or data.classes is None:
            raise ModelError("the dummy block needs records held as tensors and class labels: it cannot be attached")
        self.loss = CanaryLoss(data.classes, self.coordinates, self.count)
        blank = data.train.inputs.new_zeros(self.count, *data.train.inputs.shape[1:])
        labels = data.classes + torch.arange(self.count)
        records = TensorRecords(
            torch.cat([data.train.inputs, blank]),
            torch.cat([data.train.targets, labels.to(data.train.targets)]),
            name=data.train.name,
        )
        return WithBlock(body, self.coordinates), replace(data, train=records, classes=None), self.loss

    def asked(self, queries: Sequence[Query]) -> None:
        """Aims the canaries at what is about to be released."""
        asked = [query for query in queries if isinstance(query, GradientSum)]
        self._query = asked[0] if asked else None
        if self._query is not None:
            query, zero = self._query, torch.zeros(self.coordinates)
            scale = zero + 1 if query.scale is None else query.scale[-self.coordinates :].cpu()
            # Next to a large a it does not matter that a canary's gradient on the model itself is 0, not α, and
            # automatic clipping brings only large gradients near C.
            least = 1.0 if query.center is None and query.stability is None else 1e5
            self.loss.center = zero if query.center is None else query.center[-self.coordinates :].cpu()
            self.loss.place = self.places(self.active)
            self.loss.signal = scale[self.loss.place] * query.clip_norm * least * self._amount

    def releases(self, sums: Sequence[BoundedSum]) -> dict[str, Release] | None:
        return None

    def record(self, sums: Sequence[BoundedSum], releases: dict[str, Release]) -> None:
        query, self._query = self._query, None
        if query is None:
            return
        release = releases[query.name]
        value = release.value[-self.coordinates :].double().cpu() / query.clip_norm
        active = release.active
        self.observe(value, None if active is None else active[-self.coordinates :].cpu())

    def places(self, active: Tensor | None) -> Tensor:
        """The coordinate of each canary in the draw that is about to be made. May be overridden by an audit."""
        return torch.arange(self.count)

    def drawn(self, coins: Tensor, active: Tensor | None) -> Tensor:
        """The canaries' coins, uniform in [0, 1): below q a canary is drawn. Overridden by an audit."""
        return coins

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        """The block's released coordinates over C, and which of them are active (None: all). Overridden."""

    @property
    def active(self) -> Tensor | None:
        """The mask on the block in the draw that is being made; None: all are active."""
        mask = None if self._query is None else self._query.active
        return None if mask is None else mask[-self.coordinates :].cpu()

    def coins(self, inner: Randomness) -> CanaryCoins:
        """Randomness under which the canaries are drawn as the audit chooses."""
        return CanaryCoins(inner, self)


class CanaryCoins:
    """Draws as `inner` does, except for the canaries' inclusion coins."""

    description = "the canaries' coins are chosen by an auditor: not private"
    tier: Literal["reproducible"] = "reproducible"
    private = False

    def __init__(self, inner: Randomness, canaries: Canaries) -> None:
        self._inner, self._canaries = inner, canaries

    def uniform(self, count: int) -> Tensor:
        coins = self._inner.uniform(count)
        m = self._canaries.count
        if self._canaries._query is None:  # a draw without gradients: canaries have nothing to show there
            coins[-m:] = 1.0
        else:
            coins[-m:] = self._canaries.drawn(coins[-m:], self._canaries.active).to(coins)
        return coins

    def normal(self, count: int) -> Tensor:
        return self._inner.normal(count)

    def words(self, count: int) -> Tensor:
        return self._inner.words(count)
