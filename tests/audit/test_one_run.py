"""One run with coin-flipped canaries: what is scored, what is guessed, and what follows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from adadpigu.audit import one_run
from adadpigu.audit.one_run import InOrOut, audit_one_run, guessed, log_ratio
from adadpigu.audit.outside import secret_rng
from adadpigu.audit.subject import Subject, subject_of
from adadpigu.config import merge, read_preset
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.errors import InputError

pytestmark = pytest.mark.usefixtures("coarse_cost")


def subject(method: str = "dpsgd", sigma: float = 0.7689) -> Subject:
    """A claim of about ε = 8: σ is given, since to calibrate takes longer than to audit."""
    chosen = {"noise_multiplier": sigma, "epsilon": None, "steps": 40, "method": method}
    return subject_of(merge(read_preset("digits-adadpigu"), chosen), sample_rate=0.1)


@pytest.mark.parametrize(("rate", "sigma"), [(0.02, 0.9), (1.0, 2.0), (0.5, 0.1)])
def test_a_score_is_the_logarithm_of_the_likelihood_ratio(rate: float, sigma: float) -> None:
    values = np.linspace(-3, 4, 50)
    with_canary = (1 - rate) * norm.pdf(values, 0, sigma) + rate * norm.pdf(values, 1, sigma)
    expected = np.log(with_canary) - norm.logpdf(values, 0, sigma)
    found = log_ratio(torch.from_numpy(values), rate, sigma**2)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_guesses_are_the_highest_and_the_lowest_scores() -> None:
    scores, present = torch.arange(10.0), torch.arange(10) >= 4
    assert guessed(scores, present, 6).right == 6
    assert guessed(-scores, present, 6).right == 0
    assert [guessed(scores, present, count).right for count in (1, 9, 10)] == [1, 9, 9]


def test_equal_scores_are_guessed_by_chance() -> None:
    """Scores that tell nothing: of 400 guesses half are right, within 5.5 standard deviations (1e-7)."""
    present = torch.arange(1000) < 500
    right = guessed(torch.zeros(1000), present, 400).right
    assert abs(right - 200) < 5.5 * 10


def test_a_canary_follows_the_mask_to_an_active_coordinate() -> None:
    flipped = InOrOut(6, 3, sample_rate=0.5, noise_multiplier=1.0)
    assert flipped.places(None).tolist() == [0, 1, 2]
    assert flipped.places(torch.tensor([False, True, False, True, True, True])).tolist() == [1, 3, 4]
    crowded = flipped.places(torch.tensor([False, False, False, False, True, False]))
    assert crowded[0] == 4
    assert len(set(crowded.tolist())) == 3


def test_only_canaries_that_are_in_are_ever_drawn() -> None:
    flipped = InOrOut(2000, 1000, sample_rate=0.5, noise_multiplier=1.0)
    flipped.enter(torch.from_numpy(secret_rng().random(1000) < 0.5))
    coins = flipped.choose(None)
    assert torch.equal(coins.isnan(), flipped.present)
    assert bool((coins[~flipped.present] == 1).all())
    assert 300 < int(flipped.present.sum()) < 700


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adadpigu", "dpsgd"])
def test_a_clean_run_is_not_refuted_and_the_coins_are_guessed_better_than_by_chance(method: str) -> None:
    """At ε = 8 some 270 of 300 guesses are right; fewer than 200 would be with a chance far below 1e-6."""
    result = audit_one_run(subject(method), canaries=600)
    assert result.passed
    assert result.details["right"] >= 200
    assert 0 < result.epsilon_certain < result.epsilon_lower
    assert 0 <= result.details["epsilon_lower_any"] <= result.details["epsilon_lower_f_dp"] < result.epsilon_lower
    assert result.observations == 300
    assert (result.reach or 0) > result.epsilon_certain


@pytest.mark.slow
def test_noise_of_a_tenth_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet(ReproducibleRandomness):
        def normal(self, count: int) -> Tensor:
            return 0.1 * super().normal(count)

    monkeypatch.setattr(one_run, "choose_randomness", lambda *_: Quiet(0))
    result = audit_one_run(subject(sigma=2.6853), canaries=600, guesses=200)
    assert result.details["right"] > 180
    assert not result.passed


@pytest.mark.parametrize(
    ("canaries", "guesses", "message"),
    [
        (1, 1, "canaries=1 is not at least 2"),
        (100, 101, "guesses=101 is not from 1 to 100"),
        (100, 0, "guesses=0 is not"),
        (100, 19, "guesses=19 are too few.*at least 20"),
    ],
)
def test_senseless_numbers_are_refused_in_one_line(canaries: int, guesses: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        audit_one_run(subject(), canaries=canaries, guesses=guesses)
