"""Canaries: an auditor's own records, each with a gradient on one coordinate of a dummy block that no data touches.

The block is a layer beside the model. A canary's loss is linear in it, and every other record's gradient there is α:

    g = α + (√β + μ) ⊙ a C e_j      standardised:  a C e_j,  clipped to  C e_j  where a ≥ 1

So ⟨e_j, release⟩ / C, e_j a coordinate or a direction, is N(0, σ²) without canary j in the batch, N(1, σ²) with it. An
owner as a canary has `cap` such records, and C is cap·C. Only the canaries' own inclusion coins are replaced.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.audit.outside import Answer, RunObserver, gradient_of
from adadpigu.core import mechanism
from adadpigu.core.bounding import GradientSum, Query
from adadpigu.core.gradients import Loss
from adadpigu.core.randomness import Randomness
from adadpigu.core.sensitive import unseal
from adadpigu.core.side_stream import join, side_stream
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.errors import ModelError
from adadpigu.runs.run import Metrics
from adadpigu.training.preparation import Preparation

DRAW = "gradient"  # the draw that canaries take part in
LOUD = 100.0  # a of every other canary, so that the clip has something to do; 1 of the others


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

    def __init__(self, classes: int, coordinates: int, count: int, spread: int = 1) -> None:
        self.classes, self.spread = classes, spread
        self.center = torch.zeros(coordinates)  # α on the block: what every record's gradient is there
        self.place = torch.arange(max(1, count) * spread)
        """the coordinates of each canary, `spread` of the first, then of the second, …"""
        self.signal = torch.zeros(max(1, count) * spread)  # what a canary adds to α on each of them

    def to(self, device: torch.device) -> None:
        self.center, self.place, self.signal = (t.to(device) for t in (self.center, self.place, self.signal))

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        scores, block = outputs[:, : self.classes], outputs[:, self.classes :]
        last = len(self.place) // self.spread - 1  # public scores draw their labels over all outputs
        canary = (targets - self.classes).clamp(0, last)
        ordinary = F.cross_entropy(scores, targets.clamp(max=self.classes - 1), reduction="none")
        place = self.place.to(canary).view(-1, self.spread)[canary]
        own = (block.gather(1, place) * self.signal.to(block).view(-1, self.spread)[canary]).sum(1)
        return torch.where(targets < self.classes, ordinary, own) + block @ self.center.to(block)


class Canaries(RunObserver):
    """A dummy block of so many coordinates, with one canary each unless told otherwise, to be attached to a run.

    Sets the canaries' gradients by what is asked, draws those that `choose` names, and hands the block's released
    coordinates to `observe`. `spread`: coordinates that a canary's gradient goes over.
    """

    def __init__(self, coordinates: int, count: int | None = None, spread: int = 1) -> None:
        super().__init__()
        self.coordinates = coordinates
        self.count = coordinates if count is None else count
        self.spread = spread
        self.loss = CanaryLoss(1, coordinates, self.count, spread)
        self._amount = torch.where(torch.arange(self.count) % 2 == 1, LOUD, 1.0).repeat_interleave(spread)
        self._coins = torch.ones(self.count, dtype=torch.float64)
        self._first, self._each = 0, 1  # the first canary's coin, and how many records a canary has
        self._active: Tensor | None = None
        self._bent = False  # whether a gradient of length C is not released as it is

    def attach(self, body: nn.Module, data: DataSet) -> tuple[WithBlock, DataSet, Loss]:
        """The model with the block, and the data with the canaries, in this order, behind the other records."""
        if not isinstance(data.train, TensorRecords) or data.classes is None:
            raise ModelError("the dummy block needs records held as tensors and class labels: it cannot be attached")
        owners, self._first = data.owners, len(data.train)
        if owners is not None:
            self._each, self._first = owners.cap, 1 + int(unseal(owners).max())
            owners = owners.followed_by([owners.cap] * self.count)
        self.loss = CanaryLoss(data.classes, self.coordinates, self.count, self.spread)
        blank = data.train.inputs.new_zeros(self.count * self._each, *data.train.inputs.shape[1:])
        labels = data.classes + torch.arange(self.count).repeat_interleave(self._each)
        records = TensorRecords(
            torch.cat([data.train.inputs, blank]),
            torch.cat([data.train.targets, labels.to(data.train.targets)]),
            name=data.train.name,
        )
        return WithBlock(body, self.coordinates), replace(data, train=records, classes=None, owners=owners), self.loss

    def follow(self, ready: Preparation) -> None:
        super().follow(ready)
        self._bent = ready.options.stability is not None or ready.options.perturbation > 0
        self.loss.to(ready.device)
        self._amount, self._coins = self._amount.to(ready.device), self._coins.to(ready.device)

    def before_draw(self, draw: str, queries: Sequence[Query]) -> None:
        """Aims the canaries at what is about to be released, and says who is drawn."""
        query = gradient_of(queries)
        with side_stream(self._amount.device):
            pass
        join(self._amount.device)  # a query's vectors may be in the making
        if not mechanism.capturing():  # of a replay the coins are written before it
            active = None if query is None or query.active is None else query.active[-self.coordinates :].cpu()
            self._decide(self.choose(active) if query is not None else torch.ones(self.count))
        if query is not None:
            self._aim(query)

    def on_draw(self, answer: Answer, stage: str) -> None:
        super().on_draw(answer, stage)
        query = answer.gradient
        if query is None:
            return
        release, block = answer.releases[query.name], slice(-self.coordinates, None)
        self._active = None if release.active is None else release.active[block].cpu()  # a copy: `active` is one
        self.observe(release.value[block].double().cpu() / (query.clip_norm * self._each), self._active)

    def update(self, metrics: Metrics) -> None:
        super().update(metrics)
        self._decide(self.choose(self._active))

    def places(self, active: Tensor | None) -> Tensor:
        """The coordinates of each canary in the draw that is about to be made. May be overridden by an audit."""
        return torch.arange(len(self._amount), device=self._amount.device)

    def choose(self, active: Tensor | None) -> Tensor:
        """The canaries' coins in the next draw: 0 is drawn, 1 is not, NaN is left to chance. Overridden by an audit.

        `active` is the block's mask (None: all), or that of the step before, where a step is replayed.
        """
        return torch.full((self.count,), torch.nan)

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        """The block's released coordinates over C, and which of them are active (None: all). Overridden."""

    def coins(self, inner: Randomness) -> Randomness:
        """A copy of `inner` that draws the canaries as the audit chooses, and all else as `inner` would."""
        made: Any = object.__new__(type(inner))
        told = "the canaries' coins are chosen by an auditor: not private"
        vars(made).update(vars(inner), description=told, tier="reproducible", private=False)

        def uniform(count: int) -> Tensor:
            coins: Tensor = type(made).uniform(made, count)
            own, chosen = coins[self._first : self._first + self.count], self._coins.to(coins)
            own.copy_(torch.where(chosen.isnan(), own, chosen))
            return coins

        made.uniform = uniform
        return cast(Randomness, made)

    def _aim(self, query: GradientSum) -> None:
        """In place, by operations that a device may record."""
        block, loss = slice(-self.coordinates, None), self.loss
        # Next to a large a it does not matter that a canary's gradient on the model itself is 0, not α, and
        # automatic and perturbed clipping bring only large gradients near C.
        least = 1.0 if query.center is None and not self._bent else 1e5
        scale = torch.ones_like(loss.center) if query.scale is None else query.scale[block].to(loss.center)
        loss.center.zero_() if query.center is None else loss.center.copy_(query.center[block])
        place, signal = loss.place[: len(self._amount)], loss.signal[: len(self._amount)]
        place.copy_(self.places(None if query.active is None else query.active[block]))
        signal.copy_(scale[place] * (query.clip_norm * least / self.spread**0.5) * self._amount)

    def _decide(self, coins: Tensor) -> None:
        self._coins.copy_(coins)
        if self._coins.is_cuda:  # a toss has a stream of its own
            torch.cuda.synchronize(self._coins.device)
