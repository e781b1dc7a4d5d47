"""Tier exact: integers from clip to release, and noise that is the rounded Gaussian to the last digit that counts."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import Tensor

import adadpigu as ad
from adadpigu.core import double_double as dd
from adadpigu.core.bounding import GradientSum, RecordSum, bounded_total
from adadpigu.core.exact import (
    FINEST_BITS,
    ExactRandomness,
    check_grid,
    grid_of,
    nearest_multiple,
    normal_pairs,
    sampler_delta,
    whole_bound,
)
from adadpigu.core.randomness import choose_randomness
from adadpigu.errors import InputError
from adadpigu.training import train_prepared
from trials import prepare_small, small_digits, small_net

PRECISION = 320  # bits of the oracle's interval arithmetic


def uniforms(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random bits, and those at every end."""
    rng = np.random.default_rng(seed)
    high, low = rng.integers(2**53, size=(2, count)), rng.integers(2**52, size=(2, count))
    high[:, :4] = [[0, 2**53 - 1, 1, 2**52], [0, 2**53 - 1, 2**53 - 1, 0]]
    low[:, :4] = [[0, 2**52 - 1, 0, 0], [0, 2**52 - 1, 2**52 - 1, 0]]
    return torch.from_numpy(high), torch.from_numpy(low), torch.from_numpy(rng.integers(8, size=count))


def rational_sampler(high: list[int], low: list[int], bits: int, scale: float) -> list[int]:
    """The same two numbers by interval arithmetic on the exact rationals: both ends round to the same whole number."""
    iv = mpmath.iv
    iv.prec = mpmath.mp.prec = PRECISION
    u, v = ((iv.mpf(2 * (a * 2**52 + b) + 1) / iv.mpf(2**106)) for a, b in zip(high, low, strict=True))
    radius, angle = iv.sqrt(-2 * iv.log(u)), v * iv.pi / 4
    parts = [iv.cos(angle), iv.sin(angle)]
    parts = parts[::-1] if bits & 1 else parts
    found = []
    for part, shift in zip(parts, (1, 2), strict=True):
        value = iv.mpf(scale) * radius * part * (-1 if (bits >> shift) & 1 else 1)
        low_end, high_end = (mpmath.floor(mpmath.mpf(end) + mpmath.mpf("0.5")) for end in (value.a, value.b))
        assert low_end == high_end
        found.append(int(low_end))
    return found


@pytest.mark.parametrize("scale", [1.0, 3.7, 2.0**21 * 0.937, 2.0**24 * 12.5])
def test_noise_has_the_known_answers_of_an_exact_rational_sampler(scale: float) -> None:
    high, low, bits = uniforms(300, seed=11)
    made = nearest_multiple(normal_pairs(high, low, bits), scale).view(2, -1).T
    for at in range(300):
        expected = rational_sampler(high[:, at].tolist(), low[:, at].tolist(), int(bits[at]), scale)
        assert made[at].tolist() == expected


def test_a_pair_of_float64_has_the_error_that_the_proof_takes() -> None:
    """Below 2⁻¹⁰³ of each value, where 2⁻¹⁰⁰ is taken for all of them together."""
    mpmath.mp.prec = PRECISION
    high, low, _ = uniforms(400, seed=12)
    x = dd.two_sum(high[0].double() * 2.0**-53, (low[0].double() + 0.5) * 2.0**-105)

    def value(pair: dd.Pair, at: int) -> Any:
        return mpmath.mpf(float(pair[0][at])) + mpmath.mpf(float(pair[1][at]))

    quarter = (torch.full_like(x[0], dd.QUARTER[0]), torch.full_like(x[0], dd.QUARTER[1]))
    angle = dd.multiply(x, quarter)
    cosine, sine = dd.cosine_and_sine(angle)
    checks: tuple[tuple[dd.Pair, Any], ...] = (
        (dd.logarithm(x), lambda at: mpmath.log(value(x, at))),
        (dd.square_root(x), lambda at: mpmath.sqrt(value(x, at))),
        (cosine, lambda at: mpmath.cos(value(angle, at))),
        (sine, lambda at: mpmath.sin(value(angle, at))),
        (dd.divide(x, dd.add_constant(x, (1.0, 0.0))), lambda at: value(x, at) / (1 + value(x, at))),
    )
    for found, expected in checks:
        for at in range(400):
            assert abs(value(found, at) / expected(at) - 1) < mpmath.mpf(2) ** -103


def test_rounded_noise_has_the_law_of_a_rounded_gaussian() -> None:
    """Each whole number's count is binomial; of 21 exact tests none has p < 1e-8."""
    drawn = ExactRandomness().rounded(200_000, 2.0).numpy()
    for whole in range(-10, 11):
        chance = norm.cdf((whole + 0.5) / 2) - norm.cdf((whole - 0.5) / 2)
        count = int((drawn == whole).sum())
        assert min(binom.cdf(count, len(drawn), chance), binom.sf(count - 1, len(drawn), chance)) > 1e-8
    assert np.array_equal(drawn, np.round(drawn))


def test_no_number_comes_again_in_a_later_call_or_in_a_forked_process() -> None:
    source = ExactRandomness()
    first, second = source.rounded(1000, 2.0**40), source.rounded(1000, 2.0**40)
    assert not set(first.tolist()) & set(second.tolist())
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, source.rounded(8, 2.0**40).numpy().tobytes())
        os._exit(0)
    theirs = np.frombuffer(os.read(reader, 64))
    assert not set(theirs.tolist()) & set(source.rounded(1000, 2.0**40).tolist())


@pytest.mark.parametrize("clip_norm", [1.0, 0.37, 5.0, 1e-3])
@pytest.mark.parametrize("length", [1, 10, 5000])
def test_a_contribution_is_whole_and_within_the_integer_bound(clip_norm: float, length: int) -> None:
    grid = grid_of(clip_norm)
    assert math.log2(grid) == round(math.log2(grid))
    query = GradientSum(clip_norm=clip_norm, grid=grid)
    chance = torch.Generator().manual_seed(length)
    rows = torch.randn(40, length, dtype=torch.float64, generator=chance) * torch.logspace(-6, 8, 40)[:, None]
    rows[-1] = clip_norm / math.sqrt(length)  # a norm of just C
    bound = whole_bound(clip_norm, grid)
    assert bound * grid < clip_norm
    total = torch.zeros(length, dtype=torch.float64)
    for row in rows:
        alone = bounded_total(row[None].clone(), query)
        whole = [int(value) for value in (alone / grid).tolist()]
        assert [value * grid for value in whole] == alone.tolist()
        assert sum(value * value for value in whole) <= bound**2  # in Python's whole numbers
        total += alone
    assert torch.equal(total, bounded_total(rows.clone(), query))
    near = rows[-1] * (1 - grid * (math.sqrt(length) / 2 + 3) / clip_norm)
    torch.testing.assert_close(bounded_total(rows[-1:].clone(), query), near, rtol=0, atol=0.51 * grid)


def test_rows_that_are_no_numbers_or_no_records_add_zero() -> None:
    query = RecordSum(name="x", of=lambda record: record.loss, clip_norm=1.0, grid=grid_of(1.0))
    rows = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [0.5, 0.5]], dtype=torch.float64)
    present = torch.tensor([True, True, False])
    assert bounded_total(rows.clone(), query, present).tolist() == [0.0, 0.0]
    assert bounded_total(rows.clone(), query).tolist() == [0.5, 0.5]


class Kept:
    """A watch that keeps what is released."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, Tensor]] = []

    def before_draw(self, draw: str, queries: Any) -> None: ...

    def after_draw(self, draw: str, queries: Any, releases: Any) -> None:
        self.seen += [(query.grid, releases[query.name].value.double()) for query in queries]


@pytest.mark.parametrize("method", ["dpsgd", "adadpigu", "quantile"])
def test_every_release_of_a_run_is_a_whole_multiple_of_its_grid(method: str) -> None:
    from adadpigu.methods import make_method

    options = {"adadpigu": {"importance_steps": 2}}.get(method, {})
    ready, kept = prepare_small(make_method(method, options), private_validation="test"), Kept()
    run = train_prepared(ready, randomness=ExactRandomness(), watch=kept)
    assert len(kept.seen) >= 9
    for grid, value in kept.seen:
        small = value[value.abs() < grid * 2**24]  # larger ones are rounded to float32 after the noise
        assert grid is not None
        assert torch.equal(torch.round(small / grid), small / grid)
    assert "rounded Gaussian noise" in run.privacy.randomness
    assert "adds at most" in run.privacy.randomness


def test_a_run_learns_as_with_real_noise() -> None:
    data = small_digits()
    plain, exact = (
        ad.train(
            small_net(),
            data,
            method=ad.DPSGD(),
            noise_multiplier=0.5,
            batch_size=80,
            steps=30,
            randomness=tier,
            quiet=True,
        )
        for tier in ("secure", "exact")
    )
    assert plain.accuracy is not None
    assert exact.accuracy is not None
    assert abs(plain.accuracy - exact.accuracy) < 0.25
    assert exact.epsilon == plain.epsilon


def test_a_grid_too_coarse_or_too_fine_for_the_bound_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"grid=0\.5 is too coarse for clip_norm=1 and 100 numbers; allowed: "):
        check_grid(1.0, 0.5, 100)
    with pytest.raises(InputError, match="too fine"):
        check_grid(1.0, 2.0**-FINEST_BITS / 4, 100)
    out = tmp_path / "run"
    with pytest.raises(InputError, match="too coarse"):
        ad.train(
            small_net(),
            small_digits(),
            method=ad.DPSGD(),
            noise_multiplier=2.0,
            batch_size=40,
            steps=2,
            grid=0.25,
            randomness="exact",
            out=out,
            quiet=True,
        )
    assert b'"charge"' not in (out / "ledger.log").read_bytes()


def test_a_device_that_lacks_the_tier_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adadpigu.core.randomness.installed", lambda: False)
    with pytest.raises(InputError, match="randomness='exact' on cuda without Triton: allowed there: secure, fast"):
        choose_randomness("exact", torch.device("cuda"))
    assert isinstance(choose_randomness("exact", torch.device("cpu")), ExactRandomness)


def test_what_the_sampler_adds_to_delta_is_far_below_it() -> None:
    assert sampler_delta(8.0, 1e6 * 1e4, 10.0, finer=False) < 1e-7
    assert sampler_delta(4.0, 1e5 * 1e3, 2.0, finer=True) < 1e-10
