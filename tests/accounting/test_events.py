"""One draw, one event; and events survive being written down."""

from __future__ import annotations

import json
import math

import dp_accounting as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadpigu.accounting import draw_event, event_from_json, event_to_json
from adadpigu.accounting.events import combined_noise_multiplier, leaves
from adadpigu.errors import InputError

multipliers = st.floats(min_value=1e-3, max_value=1e3)
rates = st.floats(min_value=0, max_value=1)


@given(rates, multipliers)
def test_a_single_release_keeps_its_multiplier_to_the_bit(rate: float, sigma: float) -> None:
    event = draw_event(rate, [sigma])
    assert (event.sampling_probability, event.event.noise_multiplier) == (rate, sigma)


@given(st.lists(multipliers, min_size=1, max_size=5))
def test_several_releases_of_a_draw_add_up_in_precision(sigmas: list[float]) -> None:
    combined = draw_event(0.1, sigmas).event.noise_multiplier
    assert combined**-2 == pytest.approx(sum(sigma**-2 for sigma in sigmas), rel=1e-9)
    assert combined <= min(sigmas) * (1 + 1e-12)


def test_a_release_without_noise_makes_the_draw_non_private() -> None:
    assert draw_event(0.1, [0.0]) == dp.NonPrivateDpEvent()
    assert draw_event(0.1, [2.0, 0.0]) == dp.NonPrivateDpEvent()


def test_an_infinite_multiplier_adds_nothing() -> None:
    assert combined_noise_multiplier([2.0, math.inf]) == pytest.approx(2.0)
    assert math.isinf(combined_noise_multiplier([math.inf, math.inf]))


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_a_rate_that_is_no_probability_is_named_and_refused(rate: float) -> None:
    with pytest.raises(InputError, match=f"sample_rate={rate}"):
        draw_event(rate, [1.0])


@pytest.mark.parametrize("sigma", [-1.0, math.nan])
def test_a_multiplier_that_is_no_amount_of_noise_is_named_and_refused(sigma: float) -> None:
    with pytest.raises(InputError, match=f"noise_multiplier={sigma}"):
        draw_event(0.1, [sigma])


def test_a_draw_without_a_release_is_refused() -> None:
    with pytest.raises(InputError, match="at least one release"):
        draw_event(0.1, [])


@given(rates, multipliers)
def test_every_event_survives_json(rate: float, sigma: float) -> None:
    for event in (draw_event(rate, [sigma]), dp.NonPrivateDpEvent(), dp.GaussianDpEvent(sigma)):
        assert event_from_json(json.loads(json.dumps(event_to_json(event), allow_nan=False))) == event


def test_an_unknown_event_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="LaplaceDpEvent"):
        event_to_json(dp.LaplaceDpEvent(1.0))
    with pytest.raises(InputError, match=r"'Laplace'.*known: PoissonSampled"):
        event_from_json({"event": "Laplace", "noise_multiplier": 1.0})


@pytest.mark.parametrize(
    "broken",
    [
        {"event": "Gaussian"},
        {"event": "Gaussian", "noise_multiplier": "1"},
        {"event": "Gaussian", "noise_multiplier": -1.0},
        {"event": "PoissonSampled", "sample_rate": 2.0, "of": {"event": "NonPrivate"}},
        {"event": "PoissonSampled", "sample_rate": 0.5, "of": None},
        {"event": "PoissonSampled", "sample_rate": 0.5, "of": {"event": "NonPrivate"}},
        {"event": "SelfComposed", "count": 1, "of": {"event": "NonPrivate"}},
    ],
)
def test_a_damaged_event_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(InputError):
        event_from_json(broken)


def test_leaves_multiply_nested_counts_and_drop_what_does_not_happen() -> None:
    inner, other = draw_event(0.1, [1.0]), draw_event(0.2, [1.0])
    twice = dp.SelfComposedDpEvent(dp.ComposedDpEvent([inner, dp.SelfComposedDpEvent(other, 3)]), 2)
    assert leaves(dp.ComposedDpEvent([twice, inner, dp.NoOpDpEvent(), dp.SelfComposedDpEvent(other, 0)])) == {
        inner: 3,
        other: 6,
    }
