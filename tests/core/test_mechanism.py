"""The privacy line: charge before noise, noise of the stated variance where it belongs and nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from adadpigu.core.bounding import GradientSum
from adadpigu.core.mechanism import CapturedReleases, GaussianMechanism, Receipt, Release, require_release
from adadpigu.core.randomness import ReproducibleRandomness, SystemRandomness
from adadpigu.core.sampling import PoissonSampler
from adadpigu.core.sensitive import Sensitive
from adadpigu.errors import BudgetError, PrivacyLineError
from conftest import bounded, one_draw_ledger, released

MakeRelease = Callable[..., Release]


def ask(mechanism: GaussianMechanism, query: GradientSum, rows: torch.Tensor, sigma: float) -> Release:
    return released(mechanism, rows, query, sigma=sigma)[query.name]


def test_noise_has_the_stated_variance_on_active_coordinates_and_is_absent_elsewhere(release: MakeRelease) -> None:
    """10⁶ draws: the sample variance has a relative standard deviation of √2·10⁻³, so 0.8 % is 5.6 of them, 2e-8."""
    size, sigma, clip = 1_250_000, 1.7, 0.3
    active = torch.arange(size) % 5 != 0
    query = GradientSum(clip_norm=clip, active=active)
    made = release(torch.zeros(0, size), query, sigma=sigma, randomness=SystemRandomness())
    noise = made.value.double()
    assert active.sum() == 1_000_000
    assert made.noise_stddev == pytest.approx(sigma * clip)
    assert noise[active].var().item() == pytest.approx((sigma * clip) ** 2, rel=0.008)
    assert abs(noise[active].mean().item()) < 6 * sigma * clip / 1000
    assert (noise[~active] == 0).all()
    assert (noise[active] != 0).all()


def test_the_ledger_is_charged_before_noise_is_drawn() -> None:
    ledger = one_draw_ledger(1.0)
    charged_at_draw: list[int] = []

    class Watching(ReproducibleRandomness):
        def normal(self, count: int) -> torch.Tensor:
            charged_at_draw.append(ledger.count)
            raise OSError("no entropy")

    with pytest.raises(OSError, match="no entropy"):
        ask(GaussianMechanism(ledger, Watching(0)), GradientSum(clip_norm=1.0), torch.ones(2, 3), 1.0)
    assert charged_at_draw == [1]
    assert ledger.count == 1


def test_no_noise_is_drawn_when_the_plan_is_spent() -> None:
    class Forbidden(ReproducibleRandomness):
        def normal(self, count: int) -> torch.Tensor:
            raise AssertionError("noise was drawn")

    ledger = one_draw_ledger(1.0, steps=1)
    mechanism = GaussianMechanism(ledger, ReproducibleRandomness(0))
    ask(mechanism, GradientSum(clip_norm=1.0), torch.ones(2, 3), 1.0)
    with pytest.raises(BudgetError):
        ask(GaussianMechanism(ledger, Forbidden(0)), GradientSum(clip_norm=1.0), torch.ones(2, 3), 1.0)


def test_several_releases_of_one_draw_are_one_event_at_the_draws_cost() -> None:
    ledger = one_draw_ledger(1.0)
    queries = [GradientSum(clip_norm=1.0, name="a", share=0.25), GradientSum(clip_norm=1.0, name="b", share=0.75)]
    made = released(GaussianMechanism(ledger, ReproducibleRandomness(0)), torch.ones(2, 4), *queries, sigma=1.0)
    assert ledger.count == 1
    assert made["a"].noise_stddev == pytest.approx(2.0)
    assert made["b"].noise_stddev == pytest.approx(0.75**-0.5)


def test_noise_of_two_draws_of_one_run_differs() -> None:
    mechanism = GaussianMechanism(one_draw_ledger(1.0, steps=2), ReproducibleRandomness(0))
    first, second = (ask(mechanism, GradientSum(clip_norm=1.0), torch.zeros(0, 500), 1.0).value for _ in range(2))
    assert not (first == second).any()


def charge(mechanism: GaussianMechanism, *queries: GradientSum, sigma: float = 1.0) -> Receipt:
    return mechanism.charge(
        queries,
        source=PoissonSampler(sample_rate=0.5),
        noise_multiplier=sigma,
        size=4,
        stage="s",
        step=0,
        draw="gradient",
    )


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        ([GradientSum(clip_norm=1.0, share=0.6), GradientSum(clip_norm=1.0, name="b", share=0.6)], "shares"),
        ([GradientSum(clip_norm=1.0, share=0.5), GradientSum(clip_norm=1.0, share=0.5)], "distinct names"),
        ([], "shares"),
        ([GradientSum(clip_norm=float("inf"))], "no finite sensitivity"),
        ([object()], "a query is"),
    ],
)
def test_queries_that_the_draw_cannot_pay_for_are_refused_and_not_charged(queries: Any, words: str) -> None:
    ledger = one_draw_ledger(1.0)
    with pytest.raises(PrivacyLineError, match=words):
        charge(GaussianMechanism(ledger, ReproducibleRandomness(0)), *queries)
    assert ledger.count == 0


@pytest.mark.parametrize("sigma", [float("nan"), float("inf"), -1.0])
def test_a_noise_multiplier_that_is_no_number_is_refused(sigma: float) -> None:
    with pytest.raises(PrivacyLineError, match="noise_multiplier"):
        charge(
            GaussianMechanism(one_draw_ledger(1.0), ReproducibleRandomness(0)), GradientSum(clip_norm=1.0), sigma=sigma
        )


def test_a_receipt_pays_once_and_only_for_what_it_names() -> None:
    mechanism = GaussianMechanism(one_draw_ledger(1.0), ReproducibleRandomness(0))
    query = GradientSum(clip_norm=1.0)
    receipt = charge(mechanism, query)
    with pytest.raises(PrivacyLineError, match="paid for"):
        mechanism.release([bounded(torch.ones(2, 4), GradientSum(clip_norm=1.0, name="other"))], receipt)
    fresh = GaussianMechanism(one_draw_ledger(1.0), ReproducibleRandomness(0))
    receipt = charge(fresh, query)
    fresh.release([bounded(torch.ones(2, 4), query)], receipt)
    with pytest.raises(PrivacyLineError, match="paid for"):
        fresh.release([bounded(torch.ones(2, 4), query)], receipt)


def test_a_recorded_step_is_replayed_only_for_a_receipt_of_its_own_noise() -> None:
    total = bounded(torch.ones(2, 4), GradientSum(clip_norm=1.0))
    recorded = CapturedReleases((total,), (1.5,), {})
    recorded.check_receipt(Receipt({"gradient": 1.5}))
    for paid in ({"gradient": 1.6}, {"gradient": 1.4}):
        with pytest.raises(PrivacyLineError, match="paid for with another noise"):
            recorded.check_receipt(Receipt(paid))
    with pytest.raises(PrivacyLineError, match="paid for the releases"):
        recorded.check_receipt(Receipt({}))


@pytest.mark.parametrize("sigma", [1e-278, 1e-300, 5e-324])
def test_noise_that_would_round_to_nothing_is_refused(sigma: float) -> None:
    mechanism = GaussianMechanism(one_draw_ledger(sigma), ReproducibleRandomness(0))
    with pytest.raises(PrivacyLineError, match="would round to nothing"):
        ask(mechanism, GradientSum(clip_norm=1e-30), torch.ones(2, 4), sigma)


def test_nobody_but_the_mechanism_makes_a_release(release: MakeRelease) -> None:
    raw = torch.ones(3)
    with pytest.raises(PrivacyLineError, match="by the mechanism alone"):
        Release(raw, name="gradient", noise_stddev=1.0, active=None)
    for candidate in (raw, None, 3.0, Sensitive(raw), bounded(raw[None], GradientSum(clip_norm=1.0))):
        with pytest.raises(PrivacyLineError, match="takes a Release"):
            require_release(candidate)
    genuine = release(torch.ones(1, 3))
    assert require_release(genuine) is genuine
    for copier in (copy.copy, copy.deepcopy):
        with pytest.raises(PrivacyLineError):
            copier(genuine)


def test_a_release_cannot_be_written_to(release: MakeRelease) -> None:
    made = release(torch.ones(1, 3))
    made.value.fill_(7.0)
    assert made.value.tolist() == [1.0, 1.0, 1.0]
    for name in ("name", "active", "noise_stddev", "_value"):
        with pytest.raises(PrivacyLineError):
            setattr(made, name, torch.zeros(3))


def test_post_processing_refuses_to_look_at_sensitive_boxes(release: MakeRelease) -> None:
    made, secret = release(torch.ones(1, 3)), Sensitive(torch.zeros(3))
    doubled = made.map(lambda value: value * 2)
    assert require_release(doubled).value.tolist() == [2.0, 2.0, 2.0]

    def leak(value: torch.Tensor) -> Any:
        return secret

    with pytest.raises(PrivacyLineError, match="may not look at a Sensitive"):
        made.map(leak)
    with pytest.raises(PrivacyLineError, match="must return a tensor"):
        made.map(lambda value: Sensitive(value))  # type: ignore[arg-type,return-value]


def test_the_mechanism_takes_nothing_but_bounded_sums() -> None:
    mechanism = GaussianMechanism(one_draw_ledger(1.0), ReproducibleRandomness(0))
    with pytest.raises(PrivacyLineError, match="expected BoundedSum, got Tensor"):
        mechanism.release([torch.ones(3)], charge(mechanism, GradientSum(clip_norm=1.0)))  # type: ignore[list-item]


def test_post_processing_looks_into_defaults_and_bound_methods(release: MakeRelease) -> None:
    made, secret = release(torch.ones(1, 3)), Sensitive(torch.zeros(3))

    def leak(value: torch.Tensor, box: Sensitive[torch.Tensor] = secret) -> torch.Tensor:
        return value

    with pytest.raises(PrivacyLineError, match="may not look"):
        made.map(leak)
    assert made.map(lambda value: value).noise_stddev is None
    kept: list[torch.Tensor] = []
    alias = made.map(lambda value: kept.append(value) or value)  # type: ignore[func-returns-value]
    kept[0].fill_(9.0)
    assert alias.value.tolist() == [1.0, 1.0, 1.0]
