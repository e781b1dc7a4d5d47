"""Clipped sums against their sensitivity, for any input, and against float64 numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from adadpigu.core.bounding import LEAST_CLIP, Bounder, GradientSum, Record, RecordSum, clipped_total
from adadpigu.core.sensitive import PerRecordLosses, Records, unseal
from adadpigu.errors import InputError, PrivacyLineError
from conftest import bounded, gradients
from trials import mask_of


def contributions(rows: Tensor, clip: float, stability: float | None = None) -> Tensor:
    """What each row adds to a clipped sum, in float64."""
    each = [clipped_total(row[None].to(torch.float64, copy=True), clip, stability) for row in rows]
    return torch.stack(each) if each else torch.zeros(0, rows.shape[1], dtype=torch.float64)


anything = hnp.arrays(
    np.float32,
    st.tuples(st.integers(0, 5), st.integers(1, 9)),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True),
)


@given(rows=anything, clip=st.floats(1e-6, 1e6), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_record_contributes_more_than_the_clip_norm(rows: np.ndarray, clip: float, dtype: torch.dtype) -> None:
    clipped = contributions(torch.from_numpy(rows).to(dtype), clip)
    norms = torch.linalg.vector_norm(clipped, dim=1)
    assert torch.isfinite(clipped).all()
    assert (norms <= clip).all()


def test_a_row_so_long_that_its_factor_has_few_digits_stays_within_the_clip_norm() -> None:
    """From norms of about 1e278 on, C/‖z‖ is subnormal for the least C, rounded to a few digits or to one."""
    lengths = torch.logspace(276, 294, 2000, dtype=torch.float64)
    assert bool((contributions(lengths[:, None], LEAST_CLIP) <= LEAST_CLIP).all())
    assert contributions(lengths[:1, None], LEAST_CLIP).item() == pytest.approx(LEAST_CLIP)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [1e-3, 0.5, 10.0])
@pytest.mark.parametrize("size", [7, 26_010, 550_570])
def test_wide_and_huge_rows_stay_within_the_clip_norm(dtype: torch.dtype, clip: float, size: int) -> None:
    largest = torch.finfo(dtype).max
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1, size, generator=generator, dtype=torch.float64)
    top = torch.full((1, size), largest, dtype=torch.float64)
    rows = torch.cat([noise * scale for scale in (1e-3, 1.0, 1e3, largest / 8)] + [top])
    clipped = contributions(rows.to(dtype), clip)
    assert torch.isfinite(clipped).all()
    assert (torch.linalg.vector_norm(clipped, dim=1) <= clip).all()


@given(rows=anything, data=st.data())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_sum_moves_by_at_most_its_sensitivity_when_a_record_leaves(rows: np.ndarray, data: st.DataObject) -> None:
    if not len(rows):
        return
    size = rows.shape[1]
    active = data.draw(st.one_of(st.none(), st.just(torch.arange(size) % 2 == 0)))
    query = GradientSum(
        clip_norm=data.draw(st.sampled_from([0.1, 1.0, 50.0])),
        active=active,
        center=torch.linspace(-1, 1, size),
        scale=torch.linspace(0.1, 3, size),
        top_k=data.draw(st.sampled_from([1.0, 1.0 if size < 4 else 0.5])),
    )
    everybody = torch.from_numpy(rows)
    gone = data.draw(st.integers(0, len(rows) - 1))
    others = torch.cat([everybody[:gone], everybody[gone + 1 :]])
    with_all, without = bounded(everybody, query), bounded(others, query)
    assert with_all.sensitivity == query.clip_norm
    moved = torch.linalg.vector_norm(unseal(with_all) - unseal(without))
    assert moved <= query.clip_norm * (1 + 1e-9)


def test_standardised_clip_equals_float64_numpy() -> None:
    rng = np.random.default_rng(1)
    g, alpha, scale = rng.normal(size=(7, 20)), rng.normal(size=20), rng.uniform(0.2, 2, 20)
    kept = np.sort(rng.choice(20, 12, replace=False))
    clip = 1.5
    z = ((g - alpha) / scale)[:, kept]
    expected = (z * np.minimum(1, clip / np.linalg.norm(z, axis=1))[:, None]).sum(0)
    query = GradientSum(clip_norm=clip, active=mask_of(kept, 20), center=torch.tensor(alpha), scale=torch.tensor(scale))
    total = bounded(torch.tensor(g), query)
    np.testing.assert_allclose(unseal(total).numpy()[kept], expected, rtol=1e-10)
    restored = query.restore(unseal(total), 4)
    by_hand = np.zeros(20)
    by_hand[kept] = expected / 4 * scale[kept] + alpha[kept]
    np.testing.assert_allclose(restored.numpy(), by_hand, rtol=1e-10)


def test_micro_batches_are_clipped_record_by_record_and_change_nothing() -> None:
    rows = torch.randn(13, 30, generator=torch.Generator().manual_seed(0)) * 5
    query = GradientSum(clip_norm=1.0)
    whole = bounded(rows, query)
    bounder = Bounder(query, 30)
    for part in torch.split(rows, 4):
        bounder.add(gradients(part))
    torch.testing.assert_close(unseal(bounder.result()), unseal(whole), rtol=1e-12, atol=1e-12)


def test_an_empty_batch_sums_to_zero_with_the_same_sensitivity() -> None:
    total = bounded(torch.empty(0, 6), GradientSum(clip_norm=2.0, active=mask_of([1, 3], 6)))
    assert unseal(total).tolist() == [0.0] * 6
    assert total.sensitivity == 2.0
    assert total.size == 6


def test_a_record_sum_clips_whatever_the_function_returns_and_sees_one_record_at_a_time() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.1], [math.nan, 1.0]])
    seen: list[torch.Size] = []

    def of(record: Record) -> torch.Tensor:
        seen.append(record.gradient.shape)
        return torch.stack([record.gradient.norm() * 1000, record.losses_at[0]])

    bounder = Bounder(RecordSum(name="mine", of=of, clip_norm=0.5), 2)
    three = Records((torch.zeros(3, 1), torch.zeros(3)))
    bounder.add_records(three, gradients=gradients(rows), losses_at=PerRecordLosses(torch.zeros(3, 1)))
    total = bounder.result()
    assert seen == [torch.Size([2])]
    assert unseal(total)[0] == pytest.approx(1.0, rel=1e-5)
    assert total.sensitivity == 0.5
    empty = Bounder(RecordSum(name="mine", of=of, clip_norm=0.5), 2)
    none = Records((torch.zeros(0, 1), torch.zeros(0)))
    empty.add_records(none, gradients=gradients(torch.empty(0, 2)), losses_at=PerRecordLosses(torch.zeros(0, 1)))
    assert unseal(empty.result()).tolist() == [0.0, 0.0]


def test_only_an_engines_output_is_taken() -> None:
    with pytest.raises(PrivacyLineError, match="PerSampleGradients"):
        Bounder(GradientSum(clip_norm=1.0), 3).add(torch.ones(2, 3))  # type: ignore[arg-type]


@given(rows=anything, clip=st.floats(1e-6, 1e6), stability=st.floats(1e-9, 1e3))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_automatic_clipping_keeps_the_bound_and_scales_every_record(
    rows: np.ndarray, clip: float, stability: float
) -> None:
    clipped = contributions(torch.from_numpy(rows), clip, stability)
    norms = clipped.norm(dim=1)
    assert bool((norms <= clip).all())
    exact = np.linalg.norm(rows.astype(np.float64), axis=1)
    for found, norm in zip(norms.tolist(), exact, strict=True):
        wanted = clip * norm / (norm + stability) if math.isfinite(norm) else 0.0
        if 1e-30 < norm < 1e30:
            assert found == pytest.approx(wanted, rel=1e-4, abs=1e-30)
        elif not math.isfinite(norm):
            assert found == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_zero_record_stays_zero_under_the_smallest_stability(dtype: torch.dtype) -> None:
    assert contributions(torch.zeros(2, 3, dtype=dtype), 1e6, 1e-310).tolist() == [[0.0] * 3] * 2


def test_automatic_clipping_without_a_finite_bound_is_refused() -> None:
    with pytest.raises(InputError, match="stability"):
        GradientSum(clip_norm=math.inf, stability=0.01)
    with pytest.raises(InputError, match="stability"):
        GradientSum(clip_norm=1.0, stability=0.0)


def test_a_record_sum_gets_what_it_asks_for_and_nothing_else() -> None:
    records = Records((torch.arange(12.0).reshape(6, 2), torch.zeros(3)), copies=2)
    seen: list[tuple[torch.Size, ...]] = []

    def of(record: Record) -> torch.Tensor:
        seen.append((record.input.shape, record.gradient.shape, record.loss.shape, record.losses_at.shape))
        return record.input.mean(dim=0)

    bounder = Bounder(RecordSum(name="inputs", of=of, clip_norm=100.0, needs=frozenset({"input"})), 5)
    bounder.add_records(records)
    assert unseal(bounder.result()).tolist() == [1.0 + 5.0 + 9.0, 2.0 + 6.0 + 10.0]
    assert seen == [(torch.Size([2, 2]), torch.Size([0]), torch.Size([0]), torch.Size([0]))]
    with pytest.raises(InputError, match="allowed are gradient, loss, input"):
        RecordSum(name="odd", of=of, clip_norm=1.0, needs=frozenset({"label"}))  # type: ignore[arg-type]


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, 5e-324, 1e-31])
def test_a_clip_norm_that_bounds_nothing_is_refused(clip: float) -> None:
    with pytest.raises(InputError, match="clip_norm"):
        GradientSum(clip_norm=clip)


def test_a_sum_cannot_be_given_another_sensitivity() -> None:
    total = bounded(torch.ones(1, 2), GradientSum(clip_norm=1.0))
    with pytest.raises(AttributeError):
        total.sensitivity = 0.0  # type: ignore[misc]
    with pytest.raises(PrivacyLineError, match="nothing was added"):
        Bounder(GradientSum(clip_norm=1.0), 2).result()
