"""Replay through a Trainer: what is audited is the fit that users run, not a copy of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import adadpigu as ad
from adadpigu.audit.accountant import audit_accountant
from adadpigu.audit.coins import NeighbourCoins, RecordedCoins, ReplayError
from adadpigu.audit.sampler import audit_sampler
from adadpigu.audit.subject import subject_of
from adadpigu.audit.tapes import TOLERANCE, Recorder, TraceReplayer, public_state
from adadpigu.audit.through import audit_through
from adadpigu.config import merge
from adadpigu.core.bounding import BoundedSum
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sensitive import unseal
from adadpigu.training import own_loop
from adadpigu.training.earlier import earlier_runs
from adadpigu.training.optimiser import MaskedOptimiser
from adadpigu.training.train import session
from lightning_cases import STEPS, Classifier, N, loader, records, strategy, trainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
MASKED = ad.AdaDPIGU(retention=0.5, importance_steps=2, clip_norm=0.5, mean_decay=0.9, offset=0.1)


@contextlib.contextmanager
def audited(**how: Any) -> Iterator[None]:
    """Within, a private loop has an auditor's mechanism, or is watched."""
    with mock.patch.object(own_loop, "session", partial(session, **how)), earlier_runs.isolated_history():
        yield


def fit(data: tuple[Tensor, Tensor], module: Classifier, tape: Any, randomness: Any, method: ad.Method) -> None:
    with audited(mechanism=tape.mechanism):
        private = strategy(method=method, randomness=randomness, observers=[tape])
        trainer(private).fit(module, loader(data))


def replayed(
    method: ad.Method, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], removed: int | None
) -> TraceReplayer:
    """A fit on D is recorded, and played again on a neighbour."""
    module, (x, y) = Classifier(), records()
    recorder = Recorder(partial(public_state, module.net))
    coins = RecordedCoins(ReproducibleRandomness(0), always=N - 1, share=0.3, empty=frozenset({1}))
    fit((x, y), module, recorder, coins, method)
    assert recorder.breaches == []
    assert len(recorder.calls) == STEPS
    other = Classifier()
    player = TraceReplayer(recorder, partial(public_state, other.net))
    try:
        fit(change(x, y), other, player, NeighbourCoins(coins, removed), method)
    except ReplayError as breach:
        player.expose(str(breach))
    return player


def with_record(value: float) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return lambda x, y: (torch.cat([x, torch.full((1, 5), value)]), torch.cat([y, y[:1]]))


def without_last(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x[:-1], y[:-1]


@pytest.mark.parametrize("method", [ad.DPSGD(clip_norm=0.5), MASKED], ids=["dpsgd", "adadpigu"])
@pytest.mark.parametrize(
    ("change", "removed"), [(with_record(-1e3), None), (with_record(1e30), None), (without_last, N - 1)]
)
def test_one_record_moves_no_sum_by_more_than_its_sensitivity_and_nothing_else_at_all(
    method: ad.Method, change: Any, removed: int | None
) -> None:
    found = replayed(method, change, removed)
    assert found.breaches == []
    assert 0 < found.largest <= 1 + TOLERANCE


def test_replay_catches_an_un_noised_sum_in_the_gradients_of_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what the optimiser is handed has the sum before the noise in it."""
    sums: list[Tensor] = []
    release, expose = GaussianMechanism.release, MaskedOptimiser.expose

    def spied(self: GaussianMechanism, totals: list[BoundedSum], receipt: Any) -> dict[str, Release]:
        sums[:] = [unseal(total) for total in totals]
        return release(self, totals, receipt)

    def heavier(self: MaskedOptimiser, direction: Release) -> None:
        expose(self, direction.map(lambda value: value + sums[0].to(value)))

    monkeypatch.setattr(GaussianMechanism, "release", spied)
    monkeypatch.setattr(MaskedOptimiser, "expose", heavier)
    found = replayed(ad.DPSGD(clip_norm=0.5), without_last, N - 1)
    assert "of the model is another on the neighbour, after the same releases" in found.breaches[0]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["lightning", "transformers"])
def test_what_a_trainer_draws_and_charges_is_as_claimed(way: str) -> None:
    """False alarm: 1e-6."""
    pytest.importorskip(way)
    asked = {"dataset": "digits", "model": "digits-mlp", "method": "dpsgd", "noise_multiplier": 1.0, "steps": 40}
    subject = subject_of(merge(asked), sample_rate=0.05)
    for audit in (partial(audit_sampler, draws=60), audit_accountant):
        result = audit_through(way, audit, subject)
        assert result.passed, result.findings
        assert 0.5 * result.epsilon_claimed < result.epsilon_lower
