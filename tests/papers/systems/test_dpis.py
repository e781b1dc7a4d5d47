"""Importance sampling by private coins: what a coin does to a row, a run in float64, and how often a record is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor
from torch.nn import functional as F

from adadpigu.audit.tapes import Recorder
from adadpigu.core.bounding import MappedSum
from adadpigu.core.randomness import seed_generator
from adadpigu.data import TensorRecords
from adadpigu.methods import make_method
from adadpigu_systems.dpis import DPIS, kept_at_bound
from float64_world import DATA, LR, B, N, clipped_sum, gradients, record
from replays import replay
from trials import prepare_small, run_small, small_digits, small_net, weights

C = 0.3
ROWS = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * torch.tensor(
    [[0.01], [0.05], [0.1], [0.14], [0.3], [2.0]], dtype=torch.float64
)


def test_the_mean_over_coins_is_the_clipped_sum() -> None:
    """10⁵ draws: each of 24 entries within 6 standard errors, a false alarm below 1e-7 in all."""
    draws, rng = 100_000, torch.Generator().manual_seed(1)
    coins = torch.rand(draws, len(ROWS), dtype=torch.float64, generator=rng)
    for row, own in zip(ROWS, coins.T, strict=True):
        made = kept_at_bound(row.expand(draws, -1), own, clip_norm=C)
        wanted = torch.from_numpy(clipped_sum([row.numpy()], C))
        error = (made.mean(0) - wanted).abs()
        assert bool((error <= 6 * made.std(0) / draws**0.5 + 1e-12).all())
        norm = min(float(row.norm()), C)
        spread = made.var(0, correction=0).sum()  # C‖ḡ‖ − ‖ḡ‖², as the docstring says
        assert float(spread) == pytest.approx(C * norm - norm**2, abs=6 * C**2 / draws**0.5)


def test_a_contribution_has_norm_zero_or_c() -> None:
    coins = torch.rand(len(ROWS), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    norms = kept_at_bound(ROWS, coins, clip_norm=C).norm(dim=1)
    kept = coins < ROWS.norm(dim=1) / C
    assert 0 < int(kept.sum()) < len(ROWS)
    torch.testing.assert_close(norms, C * kept.double(), atol=1e-12, rtol=0)
    assert not kept_at_bound(torch.zeros(3, 2), torch.zeros(3), clip_norm=C).any()


def coins_of(words: Tensor) -> np.ndarray:
    """One for each record, from the run's own privacy generator."""
    generator = torch.Generator()
    seed_generator(generator, words)
    return torch.rand(N, dtype=torch.float64, generator=generator).numpy()


def test_a_run_sums_the_records_that_their_coins_keep() -> None:
    recorded, theta, before = record(DPIS(clip_norm=C), steps=3), weights(small_net()).double().numpy(), None
    filled = [words for words in recorded.coins.filled if len(words) == 624]
    for t in range(3):
        drawn, coins = recorded.drawn(t), coins_of(filled[2 * t])  # the second 624 words of a draw are numpy's
        assert before is None or not np.array_equal(coins, before)
        before, wanted = coins, np.zeros(len(theta))
        for i, g in zip(drawn.tolist(), gradients(theta, drawn), strict=True):
            norm = float(np.linalg.norm(g))
            wanted += C * g / norm if coins[i] < norm / C else 0.0
        np.testing.assert_allclose(recorded.total(t), wanted, atol=1e-9)
        theta = theta - LR * recorded.released(t) / B
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-9)


def test_a_canary_of_half_the_bound_is_seen_half_as_often_as_it_is_drawn() -> None:
    """Alone it has a pixel that is on. 800 draws at q/2 = 1/12, two-sided: a false alarm below 1e-6."""
    own = small_digits(N).train
    assert isinstance(own, TensorRecords)
    inputs = own.inputs.double()
    assert not inputs[:, 0, 0, 0].any()
    inputs[-1, 0, 0, 0] = 5.0
    model = small_net().double()
    loss = F.cross_entropy(model(inputs[-1:]), own.targets[-1:])
    norm = float(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).norm())
    data, tape = replace(DATA, train=TensorRecords(inputs, own.targets), test=None), Recorder()
    chosen: dict[str, Any] = {"steps": 800, "lr": 1e-12, "momentum": 0.0, "batch_size": B, "evaluate_every": 800}
    run_small(DPIS(clip_norm=2 * norm), data=data, net=lambda: small_net().double(), tape=tape, **chosen)
    seen = sum(bool((call.total[: 12 * 64 : 64] != 0).any()) for (call,) in tape.calls)
    assert binom.ppf(5e-7, 800, B / N / 2) <= seen <= binom.ppf(1 - 5e-7, 800, B / N / 2) < 800 * B / N * 0.9


def test_a_coin_that_others_have_a_part_in_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: one coin for the whole batch, the mean of all."""
    assert not replay(prepared, small_digits(N), removed=3).breaches

    def together(rows: Tensor, coins: Tensor, *, clip_norm: float) -> Tensor:
        whole = coins.sum() * 1e3 % 1
        return kept_at_bound(rows, whole.expand(len(rows)), clip_norm=clip_norm)

    monkeypatch.setattr("adadpigu_systems.dpis.kept_at_bound", together)
    assert any("above its sensitivity" in breach for breach in replay(prepared, small_digits(N), removed=3).breaches)


def prepared(data: Any) -> Any:
    return prepare_small(DPIS(clip_norm=5.0), data, steps=4)


def test_what_is_charged_is_dpsgds_event() -> None:
    one, other = (prepare_small(make_method(name), small_digits(N)) for name in ("dpis", "dpsgd"))
    assert one.epsilons == other.epsilons


def test_a_map_has_a_coin_only_where_it_asks_for_one() -> None:
    assert MappedSum(name="x", of=kept_at_bound, clip_norm=1.0).coin is False
