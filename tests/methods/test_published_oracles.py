"""The published methods against re-computations of their formulas in float64 numpy, from recorded releases.

As for AdaDPIGU, the oracles know the papers' formulas and nothing of the package's code: they walk each method from
release to release and recompute every sum by looped autograd.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from adadpigu.errors import InputError
from adadpigu.methods import (
    DPSGD,
    DPSUR,
    AdaCliP,
    Method,
    ParameterFreezing,
    QuantileClipping,
    RandomFreeze,
)
from adadpigu.methods.adaclip import least_noise_scale
from adadpigu.methods.random_freeze import Rise
from adadpigu.training import train_prepared
from float64_world import LR, SIGMA, B, N, Recorded, clipped_sum, gradients, losses, record
from trials import prepare_small, run_small, small_net, weights

START = weights(small_net()).double().numpy()
D = len(START)
CLIP = 0.3


def end_of(recorded: Recorded) -> np.ndarray:
    return weights(recorded.run.model).numpy()


def test_adaclip_standardises_restores_and_learns_as_published() -> None:
    h1, h2, clip, d1, d2 = 0.004, 0.012, 0.8, 0.7, 0.6
    method = AdaCliP(clip_norm=clip, mean_decay=d1, variance_decay=d2, floor=h1, ceiling=h2)
    recorded = record(method, steps=5)
    theta, a, squares, seen = START, np.zeros(D), np.full(D, h1 * h2), []
    for t in range(5):
        s = squares**0.5
        b = (s * s.sum()) ** 0.5
        rows = [(g - a) / b for g in gradients(theta, recorded.drawn(t))]
        np.testing.assert_allclose(recorded.total(t), clipped_sum(rows, clip), atol=1e-7)
        ghat = b * recorded.released(t) / B + a
        learned = (ghat - a) ** 2 - (b * SIGMA * clip / B) ** 2
        seen.append(learned)
        squares = d2 * squares + (1 - d2) * np.minimum(np.maximum(learned, h1**2), h2**2)
        a = d1 * a + (1 - d1) * ghat
        theta = theta - LR * ghat
    np.testing.assert_allclose(end_of(recorded), theta, atol=1e-9)
    all_seen = np.stack(seen)
    within = (all_seen > h1**2) & (all_seen < h2**2)
    assert min((all_seen < h1**2).mean(), within.mean(), (all_seen > h2**2).mean()) > 0.01  # both bounds matter


def test_adaclips_scale_puts_the_least_noise_on_a_record_of_expected_norm_one() -> None:
    """Any other b with Σ s²/b² = 1 has a larger Σ b²: far away, near by, and along single coordinates."""
    generator = np.random.default_rng(0)
    s = np.exp(generator.normal(0, 2, 40))
    b = least_noise_scale(torch.from_numpy(s)).numpy()
    assert (s**2 / b**2).sum() == pytest.approx(1.0)
    assert (b**2).sum() == pytest.approx(s.sum() ** 2)
    for size in (1e-3, 1e-1, 1.0):
        for direction in [*generator.normal(0, 1, (200, 40)), *np.eye(40), *-np.eye(40)]:
            other = b * np.exp(size * direction)
            other = other * ((s**2 / other**2).sum()) ** 0.5  # back onto the constraint
            assert (other**2).sum() > (b**2).sum()
    for exponent in (0.0, 0.25, 1.0):  # DP-SGD's flat scale, and two that look as natural
        other = s**exponent
        assert (other**2).sum() * (s**2 / other**2).sum() > (b**2).sum() * 1.01


def test_quantile_clipping_counts_centred_and_moves_the_bound_as_published() -> None:
    gamma, eta, noise = 0.8, 1.5, 3.0
    recorded = record(QuantileClipping(clip_norm=CLIP, quantile=gamma, clip_rate=eta, count_noise=noise), steps=6)
    theta, bound, bounds = START, CLIP, []
    for t in range(6):
        bounds.append(bound)
        rows = gradients(theta, recorded.drawn(t))
        within = sum((1.0 if np.linalg.norm(g) <= bound else 0.0) - 0.5 for g in rows)
        np.testing.assert_allclose(recorded.total(t), clipped_sum(rows, bound), atol=1e-7)
        np.testing.assert_allclose(recorded.total(t, query=1), [within], atol=1e-7)
        made = recorded.recorder.released[t]
        assert made["within"].noise_stddev == pytest.approx(noise)
        assert made["gradient"].noise_stddev == pytest.approx(bound * (SIGMA**-2 - (2 * noise) ** -2) ** -0.5)
        theta = theta - LR * recorded.released(t) / B
        share = recorded.released(t, "within").item() / B + 0.5
        bound = bound * math.exp(-eta * (share - gamma))
    np.testing.assert_allclose(end_of(recorded), theta, atol=1e-9)
    assert max(bounds) > 2 * min(bounds)


def test_the_count_gets_a_twentieth_of_the_batch_as_noise_unless_told_otherwise() -> None:
    recorded = record(QuantileClipping(), steps=1)
    assert recorded.recorder.released[0]["within"].noise_stddev == pytest.approx(B / 20)


def test_a_bound_that_follows_in_giant_steps_neither_vanishes_nor_overflows() -> None:
    recorded = record(QuantileClipping(clip_rate=1e6), steps=8)
    bounds = [calls[0].sensitivity for calls in recorded.recorder.calls]
    assert {round(math.log10(bound)) for bound in bounds[1:]} <= {-6, 6}
    assert np.isfinite(end_of(recorded)).all()


def test_count_noise_that_leaves_nothing_for_the_gradient_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"count_noise=0\.75 with noise_multiplier=1\.5 .*above 0\.75"):
        run_small(QuantileClipping(count_noise=0.75), sigma=1.5)
    assert run_small(QuantileClipping(count_noise=0.76), sigma=1.5, steps=1).steps == 1


def test_dpsur_keeps_what_its_own_test_calls_an_improvement_and_drops_the_momentum_of_the_rest() -> None:
    clip, size, noise, threshold, momentum = 0.02, 120, 40.0, 0.005, 0.9
    method = DPSUR(
        clip_norm=CLIP, test_batch_size=size, test_clip=clip, test_noise_multiplier=noise, threshold=threshold
    )
    recorded = record(method, steps=12, momentum=momentum)
    theta, velocity, verdicts, means = START, np.zeros(D), [], []
    for t in range(12):
        gradient, test = 2 * t, 2 * t + 1
        rows = gradients(theta, recorded.drawn(gradient))
        np.testing.assert_allclose(recorded.total(gradient), clipped_sum(rows, CLIP), atol=1e-7)
        faster = momentum * velocity + recorded.released(gradient) / B
        candidate = theta - LR * faster
        drawn = recorded.drawn(test, batch_size=size)
        change = np.clip(losses(candidate, drawn) - losses(theta, drawn), -clip, clip)
        np.testing.assert_allclose(recorded.total(test), [change.sum()], atol=1e-7)
        assert recorded.recorder.released[test]["loss change"].noise_stddev == pytest.approx(noise * clip)
        means.append(recorded.released(test, "loss change").item() / size)
        verdicts.append(means[-1] < -threshold)
        if verdicts[-1]:
            theta, velocity = candidate, faster
    np.testing.assert_allclose(end_of(recorded), theta, atol=1e-9)
    assert 2 < sum(verdicts) < 10
    assert any(verdicts[t + 1] for t in range(11) if not verdicts[t])  # momentum after a rejection matters
    assert any(-threshold < mean < 0 for mean in means)  # and so does the threshold
    assert [mean * size / B < -threshold for mean in means] != verdicts  # and whose batch size divides


def test_a_loss_test_computes_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_small(DPSUR(test_batch_size=20), steps=3)
    computed: list[str] = []

    def spy_on(name: str) -> None:
        genuine = getattr(prepared.engine, name)

        def spy(*given: object) -> object:
            computed.append(name)
            return genuine(*given)

        monkeypatch.setattr(prepared.engine, name, spy)

    spy_on("per_sample_gradients")
    spy_on("clipped_sum")
    train_prepared(prepared)
    assert computed == ["clipped_sum"] * 3


def walk_masked(recorded: Recorded, steps: int, masks: list[np.ndarray], batch_size: int = B) -> None:
    """DP-SGD on the coordinates of each step's mask, masked before the clip, from release to release."""
    theta = START
    for t in range(steps):
        mask = masks[t]
        rows = [g[mask] for g in gradients(theta, recorded.drawn(t, batch_size))]
        np.testing.assert_allclose(recorded.total(t)[mask], clipped_sum(rows, CLIP), atol=1e-7)
        assert set(np.flatnonzero(recorded.released(t))) == set(mask)
        theta = theta - LR * recorded.released(t) / batch_size
    np.testing.assert_allclose(end_of(recorded), theta, atol=1e-9)


def masks_of(recorded: Recorded) -> list[np.ndarray]:
    actives = [calls[0].public.get("active") for calls in recorded.recorder.calls]
    return [np.arange(D) if active is None else np.flatnonzero(active.numpy()) for active in actives]


RATES: dict[Rise, list[float]] = {"linear": [0.0, 0.4, 0.8], "constant": [0.8, 0.8, 0.8]}


@pytest.mark.parametrize("rise", RATES)
def test_random_freeze_draws_a_mask_an_epoch_and_freezes_more_and_more(rise: Rise) -> None:
    """N/B = 4.8 steps make an epoch: steps 0 to 4, 5 to 9, 10 to 14."""
    recorded = record(RandomFreeze(clip_norm=CLIP, final_rate=0.8, rise=rise), steps=14, batch_size=50)
    masks = masks_of(recorded)
    for t in range(14):
        epoch = math.floor(t * 50 / N)
        assert len(masks[t]) == D - math.floor(RATES[rise][epoch] * D + 1e-9)
        assert np.array_equal(masks[t], masks[[0, 5, 10][epoch]])
    walk_masked(recorded, 14, masks, batch_size=50)
    if rise == "constant":  # fresh ones: two random fifths of 922 share 37 on average
        assert len(np.intersect1d(masks[0], masks[5])) < 80
        assert len(np.intersect1d(masks[5], masks[10])) < 80


def test_a_freezing_rate_rises_as_told() -> None:
    method = RandomFreeze(final_rate=0.8, rise="cosine", rise_by=0.5)
    assert [method.rate(epoch, 9) for epoch in range(9)] == pytest.approx(
        [0.8 * (1 - math.cos(math.pi * min(epoch / 4, 1))) / 2 for epoch in range(9)]
    )
    assert RandomFreeze().rate(0, 1) == 0.0


@pytest.mark.parametrize("method", [RandomFreeze(rise="constant"), ParameterFreezing(select="random")])
def test_random_masks_follow_the_public_seed_and_spread_over_the_model(method: Method) -> None:
    """A random mask of n of D coordinates holds a layer's share within 6 standard deviations: below 1e-8."""
    first, again, other, negative = (masks_of(record(method, steps=1, seed=seed))[0] for seed in (0, 0, 1, -1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, negative)
    n, layer = len(first), 64 * 12
    expected, spread = n * layer / D, (n * layer / D * (1 - layer / D) * (1 - n / D)) ** 0.5
    assert abs((first < layer).sum() - expected) < 6 * spread


@pytest.mark.parametrize("every", ["once", "step"])
def test_parameter_freezing_trains_the_largest_weights(every: str) -> None:
    method = ParameterFreezing(clip_norm=CLIP, retention=0.25, every=every)  # type: ignore[arg-type]
    recorded = record(method, steps=4)
    theta, masks = START, []
    for t in range(4):
        by = theta if every == "step" else START
        masks.append(np.sort(np.argsort(-np.abs(by), kind="stable")[: math.floor(0.25 * D)]))
        assert np.array_equal(masks_of(recorded)[t], masks[t])
        theta = theta - LR * recorded.released(t) / B
    walk_masked(recorded, 4, masks)
    assert np.array_equal(masks[0], masks[3]) == (every == "once")


def test_a_random_mask_is_drawn_once_or_every_step() -> None:
    for every in ("once", "step"):
        method = ParameterFreezing(clip_norm=CLIP, retention=0.25, select="random", every=every)
        recorded = record(method, steps=3)
        masks = masks_of(recorded)
        assert {len(mask) for mask in masks} == {math.floor(0.25 * D)}
        assert np.array_equal(masks[0], masks[1]) == np.array_equal(masks[1], masks[2]) == (every == "once")
        walk_masked(recorded, 3, masks)


def test_a_public_model_gives_its_magnitudes_and_nothing_else(tmp_path: Path) -> None:
    public = {name: tensor.detach() for name, tensor in small_net(seed=5).named_parameters()}
    file = tmp_path / "public.safetensors"
    save_file({**public, "a buffer": torch.full((2,), float("nan"))}, file)
    method = ParameterFreezing(clip_norm=CLIP, retention=0.25, select="public-model", public_model=str(file))
    recorded = record(method, steps=3)
    magnitudes = np.abs(weights(small_net(seed=5)).double().numpy())
    mask = np.sort(np.argsort(-magnitudes, kind="stable")[: math.floor(0.25 * D)])
    walk_masked(recorded, 3, [mask] * 3)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (None, "cannot be read as safetensors"),
        (b"\x80\x04 no safetensors", "cannot be read as safetensors"),
        ({"1.bias": None}, "has no '1.bias'"),
        ({"3.bias": torch.zeros(11)}, r"'3.bias' has shape \(11,\), not \(10,\)"),
        ({"3.bias": torch.full((10,), float("inf"))}, "'3.bias' of torch.float32 has values that are not finite"),
    ],
)
def test_an_odd_public_model_is_refused_by_name(
    file: bytes | dict[str, torch.Tensor | None] | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "public.safetensors"
    if isinstance(file, bytes):
        path.write_bytes(file)
    elif file is not None:
        public = {name: tensor.detach() for name, tensor in small_net().named_parameters()} | file
        save_file({name: tensor for name, tensor in public.items() if tensor is not None}, path)
    with pytest.raises(InputError, match=words) as caught:
        run_small(ParameterFreezing(select="public-model", public_model=str(path)), steps=1)
    assert "\n" not in str(caught.value)


def test_with_all_coordinates_the_masked_methods_are_dpsgd_to_the_bit() -> None:
    theirs = weights(run_small(DPSGD(clip_norm=CLIP), momentum=0.9).model)
    for method in (RandomFreeze(clip_norm=CLIP, final_rate=0.0), ParameterFreezing(clip_norm=CLIP, retention=1.0)):
        assert torch.equal(weights(run_small(method, momentum=0.9).model), theirs)
