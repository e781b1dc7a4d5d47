"""Audits through the ways of others: a script for Opacus, and a loop of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from adadpigu.audit.replay import audit_replay
from adadpigu.audit.subject import Subject, subject_of, trained_through
from adadpigu.audit.white_box import audit_white_box
from adadpigu.compat.opacus.engine import Training
from adadpigu.compat.opacus.script import HeldRecords, PrivateModule
from adadpigu.compat.opacus.tracing import ScriptLoss
from adadpigu.config import merge
from adadpigu.gradients.interface import SealedEngine
from adadpigu.training.own_loop import PrivateLoop
from adadpigu.training.preparation import Preparation
from adadpigu.training.run import Run


def by_script(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready as a script for Opacus does."""
    engine, data = cast(SealedEngine, ready.engine), ready.data
    records, loss_of = HeldRecords(data.train), cast(Any, engine.loss)._loss
    optimizer = torch.optim.SGD(ready.model.parameters(), lr=0.1)
    options = replace(ready.options, optimizer=lambda _: optimizer, execution="eager")
    held = replace(ready, data=replace(data, train=records), options=options)
    training = Training(held, optimizer, ScriptLoss(), length=ready.plan.steps, open_ended=False, **how)
    inputs, _ = data.train.take(torch.arange(0))
    with torch.no_grad():
        output = ready.model(torch.zeros((1, *inputs.shape[1:]), dtype=inputs.dtype))
    model: Any = PrivateModule(ready.model, (output.shape, output.dtype))
    for given, target in training.one_pass():
        optimizer.zero_grad()
        loss: Any = loss_of(model(given), target).mean()
        loss.backward()
        optimizer.step()
    return training.loop.run


def by_loop(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready by a loop of the user's own."""
    optimizer = torch.optim.SGD(ready.model.parameters(), lr=0.1)
    options = replace(ready.options, optimizer=lambda _: optimizer, execution="eager")
    loop = PrivateLoop.of(replace(ready, options=options), optimizer, **how)
    for batch in loop:
        optimizer.zero_grad()
        batch.backward()
        optimizer.step()
    return loop.run


WAYS: dict[str, Callable[..., Run]] = {"opacus": by_script, "own loop": by_loop}


def subject(steps: int = 40) -> Subject:
    return subject_of(
        merge({"dataset": "digits", "model": "digits-mlp", "method": "dpsgd", "epsilon": 8.0, "steps": steps}),
        sample_rate=0.05,
    )


@pytest.mark.parametrize("way", WAYS)
def test_no_record_moves_a_release_farther_than_declared(way: str) -> None:
    with trained_through(WAYS[way]):
        result = audit_replay(subject(), steps=3)
    assert not result.findings
    assert result.epsilon_lower <= result.epsilon_claimed
    assert result.details["largest_share"] == pytest.approx(1, rel=1e-4)  # a loud record moves it exactly so far


@pytest.mark.parametrize("way", WAYS)
def test_what_canaries_show_is_near_the_claim_and_not_above_it(way: str) -> None:
    """False alarm: at confidence 1 − 1e-6."""
    with trained_through(WAYS[way]):
        result = audit_white_box(subject(), observations=8_000)
    assert not result.findings
    assert result.epsilon_certain is not None
    assert 0.5 * result.epsilon_claimed < result.epsilon_lower
    assert result.epsilon_certain <= result.epsilon_claimed


def test_a_script_whose_records_are_not_clipped_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the last record of a draw pulls all others along."""
    monkeypatch.setattr(HeldRecords, "take", _doubled(HeldRecords.take))
    with trained_through(by_script):
        result = audit_replay(subject(), steps=3)
    assert result.findings
    assert result.epsilon_lower > result.epsilon_claimed


def _doubled(take: Callable[..., Any]) -> Callable[..., Any]:
    def planted(self: HeldRecords, indices: torch.Tensor) -> Any:
        inputs, targets = take(self, indices)
        return (inputs + inputs[-1:].sum(dim=0), targets) if len(inputs) else (inputs, targets)

    return planted
