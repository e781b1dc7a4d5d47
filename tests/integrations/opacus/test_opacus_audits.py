"""Audits through the ways of others: a script for Opacus, a loop of the user's own, `fit` of an estimator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from adadpigu.audit.accountant import audit_accountant
from adadpigu.audit.replay import Recording, audit_replay
from adadpigu.audit.result import AuditResult
from adadpigu.audit.sampler import audit_sampler
from adadpigu.audit.subject import Subject, subject_of
from adadpigu.audit.through import audit_through
from adadpigu.audit.white_box import audit_white_box
from adadpigu.config import merge
from adadpigu.core.sampling import Coins, Sampler
from adadpigu.core.sensitive import Records, unseal
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.integrations.opacus import PrivacyEngine
from adadpigu.training.micro_batches import ShownDraw
from adadpigu.training.preparation import Preparation
from adadpigu.training.step import Draws


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
        criterion=nn.CrossEntropyLoss(),
    )
    assert engine._loader is not None
    engine._loader.loop.finish()  # nothing was drawn; the model is free again
    return engine._loader.prepared


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


WAYS = ("opacus", "loop", "sklearn")


def subject(steps: int = 40) -> Subject:
    return subject_of(
        merge({"dataset": "digits", "model": "digits-mlp", "method": "dpsgd", "epsilon": 8.0, "steps": steps}),
        sample_rate=0.05,
    )


@pytest.mark.parametrize("way", WAYS)
def test_no_record_moves_a_release_farther_than_declared(way: str) -> None:
    result = audit_through(way, audit_replay, subject(), steps=3)
    assert not result.findings
    assert result.epsilon_lower <= result.epsilon_claimed
    assert result.details["largest_share"] == pytest.approx(1, rel=1e-4)  # a loud record moves it exactly so far


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_canaries_show_is_near_the_claim_and_not_above_it(way: str) -> None:
    """False alarm: at confidence 1 − 1e-6."""
    result = audit_through(way, audit_white_box, subject(), observations=8_000)
    assert not result.findings
    assert result.epsilon_certain is not None
    assert 0.5 * result.epsilon_claimed < result.epsilon_lower
    assert result.epsilon_certain <= result.epsilon_claimed


@pytest.mark.parametrize("audit", [partial(audit_sampler, draws=60), audit_accountant], ids=["sampler", "accountant"])
@pytest.mark.parametrize("way", ["opacus", "loop", pytest.param("sklearn", marks=pytest.mark.slow)])
def test_draws_and_charges_of_other_ways_are_as_claimed(way: str, audit: Callable[..., AuditResult]) -> None:
    """False alarm: 1e-6."""
    result = audit_through(way, audit, subject())
    assert not result.findings
    assert 0.5 * result.epsilon_claimed < result.epsilon_lower
    assert result.epsilon_certain <= result.epsilon_claimed


def test_draws_that_a_script_is_shown_and_that_unite_four_tosses_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: 4q. A sound sampler fails with a chance of 1e-6, this one passes with less."""
    ahead, toss = Draws.ahead, Draws._toss
    often = [1]

    def shown(self: Draws, *given: Any, **named: Any) -> Records:
        often[0] = 4
        try:
            return ahead(self, *given, **named)
        finally:
            often[0] = 1

    def tossed(self: Draws, sampler: Sampler) -> Coins:
        coins = [unseal(toss(self, sampler)) for _ in range(often[0])]
        return Coins(torch.stack(coins).any(dim=0))

    monkeypatch.setattr(Draws, "ahead", shown)
    monkeypatch.setattr(Draws, "_toss", tossed)
    result = audit_through("opacus", partial(audit_sampler, draws=20), subject())
    assert any("a record is drawn with probability" in line for line in result.findings)
    assert result.epsilon_certain > result.epsilon_claimed


def test_a_script_whose_records_are_not_clipped_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the last record of a draw pulls all others along."""
    monkeypatch.setattr(ShownDraw, "take", _doubled(ShownDraw.take))
    result = audit_through("opacus", audit_replay, subject(), steps=3)
    assert result.findings
    assert result.epsilon_lower > result.epsilon_claimed


def _doubled(take: Callable[..., Any]) -> Callable[..., Any]:
    def planted(self: ShownDraw, indices: torch.Tensor) -> Any:
        inputs, targets = take(self, indices)
        return (inputs + inputs[-1:].sum(dim=0), targets) if len(inputs) else (inputs, targets)

    return planted
