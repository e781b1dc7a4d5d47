"""Audits through the ways of others: a script for Opacus, and a loop of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

from adadpigu.audit.neighbours import Recording
from adadpigu.audit.replay import audit_replay
from adadpigu.audit.subject import Subject, subject_of, trained_through
from adadpigu.audit.white_box import audit_white_box
from adadpigu.compat.opacus import PrivacyEngine
from adadpigu.compat.opacus.script import HeldRecords
from adadpigu.compat.opacus.tracing import ScriptLoss
from adadpigu.config import merge
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.training.own_loop import PrivateLoop
from adadpigu.training.preparation import Preparation
from adadpigu.training.run import Run


def by_script(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready as a script for Opacus does, by what `make_private` gives it."""
    data, loss_of = ready.data, cast(Any, ready.engine).loss._loss
    optimizer = torch.optim.SGD(ready.model.parameters(), lr=ready.options.lr)
    options = replace(ready.options, optimizer=lambda _: optimizer, execution="eager")
    held = replace(ready, data=replace(data, train=HeldRecords(data.train)), options=options)
    nobody: DataLoader[Any] = DataLoader(TensorDataset(torch.zeros(1)))
    steps, engine = ready.plan.steps, PrivacyEngine()
    model, _, loader = engine._wrapped(held, optimizer, ScriptLoss(), nobody, steps, open_ended=False, **how)
    for given, target in loader:
        optimizer.zero_grad()
        loss: Any = loss_of(model(given), target).mean()
        loss.backward()
        optimizer.step()
    assert engine._training is not None
    return engine._training.loop.run


def made_of_a_loader(data: DataSet) -> Preparation:
    """What `make_private` makes ready of a loader whose records are padded by its collate_fn."""
    inputs, targets = data.train.take(torch.arange(len(data.train)))
    words = [
        (row[: 2 + number % 3], int(target)) for number, (row, target) in enumerate(zip(inputs, targets, strict=True))
    ]
    loader: DataLoader[Any] = DataLoader(cast(Any, words), batch_size=4, collate_fn=padded)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    engine = PrivacyEngine(records=12)
    engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=0.5,
        total_steps=3,
    )
    assert engine._training is not None
    engine._training.loop.finish()  # nothing was drawn; the model is free again
    return engine._training.prepared


def padded(batch: list[Any]) -> tuple[Tensor, Tensor]:
    return pad_sequence([x for x, _ in batch], batch_first=True), torch.tensor([y for _, y in batch])


def test_no_record_of_a_padding_loader_moves_a_release_farther_than_declared() -> None:
    """The longest record stays: its length is declared public."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(12, 4, generator=generator), torch.randint(2, (12,), generator=generator)
    inputs[9] *= 100
    data = DataSet(name="words", train=TensorRecords(inputs, targets), records=12)
    result = Recording(made_of_a_loader, data, share=0.5).without_last()
    assert not result.breaches
    assert 0 < result.largest <= 1 + 1e-6


def by_loop(ready: Preparation, **how: Any) -> Run:
    """Trains what was made ready by a loop of the user's own."""
    optimizer = torch.optim.SGD(ready.model.parameters(), lr=ready.options.lr)
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
