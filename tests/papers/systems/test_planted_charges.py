"""Faults of what is charged, planted in systems: each is refused by the line itself, before a record is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from adadpigu.accounting import read_ledger
from adadpigu.core.bounding import MappedSum
from adadpigu.core.mechanism import Release
from adadpigu.errors import AdaDPIGUError
from adadpigu.methods.base import Batches, Method, MethodState, RunContext, Stage
from adadpigu.training import train_prepared
from adadpigu_systems.projection import GEP, _Both
from trials import prepare_small


@dataclass(frozen=True, kw_only=True)
class Planted(Method):
    """A method of which one step is known."""

    step: Callable[[Batches, RunContext], Release]
    name, source, adds, costs = "planted", "tests", "a fault", "more than it says"

    def begin(self, context: RunContext) -> MethodState:
        return _Planted(self.step, context)


class _Planted(MethodState):
    def __init__(self, step: Callable[[Batches, RunContext], Release], context: RunContext) -> None:
        self._step, self._context = step, context

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        return self._step(batches, self._context)


class UnchargedResidual(_Both):
    """GEP whose second release is asked for apart, at no charge."""

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        assert self.basis is not None
        embedded = batches.release(self.embedding())["embedding"].map(self._back)
        rest = MappedSum(name="residual", of=self.basis.beside, clip_norm=0.1)
        return embedded.map(lambda a, b: a + b, batches.release(rest)["residual"])


class WithoutCharge(GEP):
    def begin(self, context: RunContext) -> MethodState:
        return UnchargedResidual(self, context)


def part(name: str, share: float) -> MappedSum:
    return MappedSum(name=name, of=lambda rows: rows, clip_norm=0.1, share=share)


def shares_over_one(batches: Batches, context: RunContext) -> Release:
    return batches.release(part("a", 1.0), part("b", 0.5))["a"]


def norms_summed_up(rows: Tensor) -> Tensor:
    """DPIS as published, with K = Σ ‖g‖ as it is: each record's weight tells of all others."""
    norms = rows.norm(dim=1, keepdim=True)
    weighted: Tensor = rows * norms / norms.sum().clamp(min=1e-12)
    return weighted


def k_without_noise(batches: Batches, context: RunContext) -> Release:
    return batches.release(MappedSum(name="gradient", of=norms_summed_up, clip_norm=0.1))["gradient"]


@pytest.mark.parametrize(
    ("method", "said", "charged"),
    [
        (WithoutCharge(rank=4), "has no draw 'gradient' left", 1),
        (Planted(step=shares_over_one), "add up to at most 1, got", 0),
        (Planted(step=k_without_noise), "changes with the gradients beside it", 0),
    ],
    ids=["two releases charged as none", "shares over 1", "K un-noised"],
)
def test_a_planted_fault_is_refused(method: Any, said: str, charged: int, tmp_path: Any) -> None:
    public: dict[str, Any] = {"public": "processes:20"} if method.needs_public else {}
    prepared = prepare_small(method, steps=3, reserve=1, **public)
    with pytest.raises(AdaDPIGUError, match=said):
        train_prepared(prepared, out=tmp_path / "run")
    assert read_ledger(tmp_path / "run" / "ledger.log").steps == charged


def test_the_same_step_within_its_charge_is_taken() -> None:
    made = Planted(step=lambda batches, _: batches.release(part("a", 0.5), part("b", 0.5))["a"])
    run = train_prepared(prepare_small(made, steps=2))
    assert run.steps_done == 2
    assert bool(torch.isfinite(torch.cat([p.flatten() for p in run.model.parameters()])).all())
