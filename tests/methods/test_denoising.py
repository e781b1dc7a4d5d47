"""Denoisers on known means: their error, what they leave alone, and what a run makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adadpigu.core.layout import Layout
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.errors import InputError
from adadpigu.methods import DPSGD, AdaCliP, AdaDPIGU
from adadpigu.methods.denoising import james_stein, soft_threshold
from adadpigu.training import train_prepared
from float64_world import LR, SIGMA, B, clipped_sum, gradients, record
from replays import breaches, neighbours
from trials import prepare_small, small_net, weights

START = weights(small_net()).double().numpy()
CLIP = 0.3


def layers() -> list[slice]:
    slots = Layout.of(small_net()).layers().values()
    return [slice(found[0].start, found[-1].stop) for found in slots]


def numpy_james_stein(v: np.ndarray, count: int, s: float) -> np.ndarray:
    return v if count < 3 else v * max(0.0, 1 - (count - 2) * s**2 / float((v**2).sum()))


def numpy_soft(v: np.ndarray, count: int, s: float) -> np.ndarray:
    return v if count < 3 else np.sign(v) * np.maximum(np.abs(v) - s * np.sqrt(2 * np.log(count)), 0)


@pytest.mark.parametrize("norm", [0.0, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("count", [3, 10, 200])
def test_james_stein_is_nearer_to_the_mean_than_what_was_released(count: int, norm: float) -> None:
    """E‖James–Stein − mean‖² < k·s², by 4,000 draws: the mean of paired differences is 4 standard errors below 0.

    The theorem has no exception, so a failure is a false alarm of a draw at most; the seed is fixed, so there is none
    from one run to the next. Where the gain is below what so many draws can show (‖mean‖ far above s√k), the difference
    must not be 4 standard errors above 0: false-alarm rate 3e-5 a case, 12 cases, seeds fixed.
    """
    rng, s, draws = torch.Generator().manual_seed(count), 0.7, 4_000
    mean = torch.randn(count, dtype=torch.float64, generator=rng)
    mean *= norm / mean.norm()
    released = mean + s * torch.randn(draws, count, dtype=torch.float64, generator=rng)
    made = torch.stack([james_stein(row, torch.tensor(count), s) for row in released])
    gain = (made - mean).square().sum(1) - (released - mean).square().sum(1)
    error = gain.std() / draws**0.5
    visible = (count - 2) ** 2 * s**4 / (norm**2 + count * s**2)  # about what is gained
    assert gain.mean() < (-4 * error if visible > 8 * error else 4 * error)


def test_what_is_within_the_noise_becomes_zero_and_never_turns() -> None:
    v = torch.tensor([0.1, -0.1, 0.05, 0.0])
    assert not james_stein(v, torch.tensor(4), 10.0).any()
    assert not soft_threshold(v, torch.tensor(4), 10.0).any()
    assert not james_stein(torch.zeros(5), torch.tensor(5), 1.0).any()


class FewEntries(nn.Module):
    """A layer of 64 × 10, and one of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.scale = nn.Linear(64, 10, bias=False), Scale()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.scale(self.body(x.flatten(1)))
        return made


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor([1.0, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, :5] * self.values[0], x[:, 5:] * self.values[1]], dim=1)


@pytest.mark.parametrize("kind", ["james-stein", "soft"])
def test_a_layer_of_two_entries_moves_as_without_denoising(kind: str) -> None:
    ends = []
    for denoise in ("none", kind):
        ready = prepare_small(DPSGD(), net=FewEntries, steps=1, momentum=0.0, denoise=denoise, engine="functional")
        ends.append(weights(train_prepared(ready, randomness=ReproducibleRandomness(1)).model))
    torch.testing.assert_close(ends[0][-2:], ends[1][-2:], atol=0, rtol=0)
    assert not torch.equal(ends[0], ends[1])


@pytest.mark.parametrize(("kind", "made"), [("james-stein", numpy_james_stein), ("soft", numpy_soft)])
def test_a_run_denoises_its_releases_layer_by_layer(kind: str, made: Any) -> None:
    recorded, theta = record(DPSGD(clip_norm=CLIP), steps=3, denoise=kind), START
    for t in range(3):
        np.testing.assert_allclose(recorded.total(t), clipped_sum(gradients(theta, recorded.drawn(t)), CLIP), atol=1e-9)
        total = recorded.released(t)
        clearer = np.concatenate([made(total[place], len(total[place]), SIGMA * CLIP) for place in layers()])
        assert not np.array_equal(clearer, total)
        theta = theta - LR * clearer / B
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-9)


def test_standardised_releases_are_denoised_before_they_are_restored_and_learning_sees_them_as_they_are() -> None:
    """AdaCliP: a and s² follow the release; the weights follow the denoised one."""
    options: dict[str, Any] = {"clip_norm": 0.8, "mean_decay": 0.7, "variance_decay": 0.6}
    plain = record(AdaCliP(**options), steps=1)
    recorded = record(AdaCliP(**options), steps=2, denoise="soft")
    np.testing.assert_array_equal(plain.total(0), recorded.total(0))
    public = recorded.recorder.calls[1][0].public
    total, b0 = recorded.released(0), recorded.recorder.calls[0][0].public["scale"].numpy()
    np.testing.assert_allclose(public["center"].numpy(), 0.3 * b0 * total / B, rtol=1e-6, atol=1e-12)
    clearer = np.concatenate([numpy_soft(total[place], len(total[place]), SIGMA * 0.8) for place in layers()])
    theta = START - LR * b0 * clearer / B
    rows = [(g - public["center"].numpy()) / public["scale"].numpy() for g in gradients(theta, recorded.drawn(1))]
    np.testing.assert_allclose(recorded.total(1), clipped_sum(rows, 0.8), atol=1e-7)


def test_masked_entries_count_for_nothing() -> None:
    """James–Stein's d_l is the number of a layer's active entries, and the others stay where they are."""
    method = AdaDPIGU(importance_steps=1, retention=0.3, clip_norm=CLIP, mean_decay=1.0, variance_decay=1.0)
    recorded = record(method, steps=2, denoise="james-stein")
    active = recorded.recorder.calls[1][0].public["active"].numpy()
    assert 0 < active.sum() < len(active)
    first, second = recorded.released(0), recorded.released(1)
    step = np.zeros(len(active))
    for place in layers():
        step[place] += numpy_james_stein(first[place], len(first[place]), SIGMA * CLIP)
        step[place] += numpy_james_stein(second[place], int(active[place].sum()), SIGMA * CLIP)
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), START - LR * step / B, atol=1e-5)


def test_no_record_moves_what_is_denoised_but_through_its_release() -> None:
    """Replay on adversarial neighbours: all that is public is the same after the same releases."""
    assert breaches(neighbours(DPSGD(), denoise="james-stein")) == {}


def test_an_unknown_denoiser_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="denoise 'wiener'") as caught:
        prepare_small(DPSGD(), denoise="wiener")
    assert "\n" not in str(caught.value)
