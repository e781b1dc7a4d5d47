"""Record and replay on neighbouring data sets catches planted bugs; that every method is clean: tests/methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adadpigu import bounding
from adadpigu.audit.replay import ReplayResult, replay
from adadpigu.errors import InputError
from adadpigu.methods import AdaDPIGU, Method, make_method
from adadpigu.methods.adadpigu import _Running
from adadpigu.statistics import Statistics
from adadpigu.training.micro_batches import MicroBatches
from trials import prepare_small, small_digits

RECORD = torch.full((1, 8, 8), 0.5)


def on_neighbours(method: Method, **options: Any) -> ReplayResult:
    """Replays a short run with one ordinary record removed."""
    return replay(lambda data: prepare_small(method, data, steps=6, **options), small_digits(), removed=3)


def test_replay_is_clean_with_micro_batches_and_a_convolution() -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 10))

    result = on_neighbours(AdaDPIGU(importance_steps=2), net=net, physical_batch_size=7)
    assert result.breaches == ()


def plant(monkeypatch: pytest.MonkeyPatch, factors: Callable[..., Tensor]) -> None:
    """Breaks the clip."""
    monkeypatch.setattr(bounding, "clip_factors", factors)


def unclipped(norms: Tensor, clip_norm: float, stability: float | None = None, *, length: int) -> Tensor:
    return torch.ones_like(norms)


def nan_passes(norms: Tensor, clip_norm: float, stability: float | None = None, *, length: int) -> Tensor:
    return (clip_norm / norms).clamp(max=1)


def clipped_as_one(norms: Tensor, clip_norm: float, stability: float | None = None, *, length: int) -> Tensor:
    return torch.full_like(norms, min(1.0, clip_norm * len(norms) / float(norms.norm())))


@pytest.mark.parametrize("planted", [unclipped, clipped_as_one])
def test_replay_catches_a_broken_clip(planted: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, planted)
    result = on_neighbours(make_method("dpsgd", {"clip_norm": 0.01}))
    assert result.breaches


def test_replay_catches_a_nan_that_passes_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, nan_passes)
    monkeypatch.setattr("adadpigu.training.preparation.check_records", lambda *_, **__: None)
    result = replay(
        lambda data: prepare_small(make_method("dpsgd"), data, steps=2),
        small_digits(),
        added=(torch.full((1, 8, 8), float("nan")), torch.tensor(1)),
    )
    assert result.breaches


def test_replay_catches_a_mask_learned_from_un_noised_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the ranking is taken from the raw sum of the last draw instead of from releases."""
    raw: list[Tensor] = []
    genuine = MicroBatches._bound

    def spy(self: MicroBatches, records: Any, queries: Any, bounders: Any) -> None:
        genuine(self, records, queries, bounders)
        raw.append(bounders[0]._total)

    def leaky(self: _Running) -> Any:
        made = begin(self)
        self._mask.rank(torch.argsort(raw[-1].abs(), descending=True))
        return made

    begin = _Running._begin_training
    monkeypatch.setattr(MicroBatches, "_bound", spy)
    monkeypatch.setattr(_Running, "_begin_training", leaky)
    result = on_neighbours(AdaDPIGU(importance_steps=2))
    assert any("another active" in breach for breach in result.breaches)


def test_replay_catches_statistics_learned_from_un_noised_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: α and β move with the raw sum of the draw instead of with its release."""
    raw: list[Tensor] = []
    genuine = MicroBatches._bound

    def spy(self: MicroBatches, records: Any, queries: Any, bounders: Any) -> None:
        genuine(self, records, queries, bounders)
        raw.append(bounders[0]._total)

    def leaky(self: Statistics, restored: Any, *, noise_variance: Tensor) -> None:
        self.mean += 0.1 * (raw[-1] / 40 - self.mean)

    monkeypatch.setattr(MicroBatches, "_bound", spy)
    monkeypatch.setattr(Statistics, "update", leaky)
    result = on_neighbours(AdaDPIGU(retention=1.0, importance_steps=0, mean_decay=0.9))
    assert any("another center" in breach for breach in result.breaches)


def test_replay_notices_a_run_that_asks_for_more_or_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def longer_without(data: Any) -> Any:
        return prepare_small(make_method("dpsgd"), data, steps=3 + (len(data.train) < 240))

    def shorter_without(data: Any) -> Any:
        return prepare_small(make_method("dpsgd"), data, steps=3 - (len(data.train) < 240))

    assert any("more draws" in b for b in replay(longer_without, small_digits(), removed=0).breaches)
    assert any("3 draws recorded, 2 replayed" in b for b in replay(shorter_without, small_digits(), removed=0).breaches)


def test_replay_catches_a_clip_that_is_a_tenth_of_a_percent_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = bounding.clip_factors

    def wide(norms: Tensor, clip_norm: float, stability: float | None = None, *, length: int) -> Tensor:
        return genuine(norms, clip_norm * 1.001, stability, length=length)

    plant(monkeypatch, wide)
    assert on_neighbours(make_method("dpsgd", {"clip_norm": 0.01})).breaches


@pytest.mark.parametrize("neighbours", [{}, {"removed": 1, "added": (RECORD, torch.tensor(1))}])
def test_a_replay_needs_exactly_one_neighbour(neighbours: Any) -> None:
    with pytest.raises(InputError, match="exactly one"):
        replay(lambda data: prepare_small(make_method("dpsgd"), data), small_digits(), **neighbours)


def test_replay_catches_a_divisor_or_rate_taken_from_the_records() -> None:
    """Planted: the expected batch size follows len(dataset), so the neighbour's clip norm (scaled by it) differs."""
    result = replay(
        lambda data: prepare_small(make_method("dpsgd", {"clip_norm": 100 / len(data.train)}), data, steps=3),
        small_digits(),
        removed=0,
    )
    assert any("other releases" in breach for breach in result.breaches)
