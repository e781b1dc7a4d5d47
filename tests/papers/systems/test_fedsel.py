"""FedSel's reports: exact probabilities, the local guarantee by enumeration, and a statement of its own kind."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from adadpigu.accounting import PrivacyReport
from adadpigu.core.randomness import ReproducibleRandomness, SystemRandomness
from adadpigu.errors import InputError
from adadpigu.methods import all_methods
from adadpigu.methods.standalone import Standalone
from adadpigu_systems.fedsel import FedSel, LocalStatement, largest, simulate

DRAWS = 1_000_000
SMALL = FedSel(select_epsilon=0.7, value_epsilon=1.3, top_share=0.5, bound=2.0)
MEMORY = np.array([0.5, -3.0, 1.5, -0.2])


def by_hand(memory: np.ndarray, options: FedSel, k: int) -> np.ndarray:
    """The card's formulas, entry by entry, [2, d]."""
    d, e1, e2 = len(memory), math.exp(options.select_epsilon), math.exp(options.value_epsilon)
    top = sorted(range(d), key=lambda j: (-abs(memory[j]), j))[:k]
    rows = []
    for j in range(d):
        chosen = (e1 if j in top else 1.0) / (d - k + k * e1)
        x = min(max(memory[j] / options.bound, -1.0), 1.0)
        plus = 0.5 + x * (e2 - 1) / (2 * (e2 + 1))
        rows.append((chosen * (1 - plus), chosen * plus))
    return np.array(rows).T


def test_reports_have_exactly_the_probabilities_that_they_should() -> None:
    """χ² of 10⁶ draws over the 8 reports there are; false alarms: 1e-6."""
    exact = SMALL.probabilities(MEMORY)
    np.testing.assert_allclose(exact, by_hand(MEMORY, SMALL, 2), rtol=1e-12)
    assert exact.sum() == pytest.approx(1, rel=1e-12)
    index, values = SMALL.report(np.tile(MEMORY, (DRAWS, 1)), SystemRandomness())
    found = np.bincount(index + 4 * (values > 0), minlength=8).reshape(2, 4)
    expected = DRAWS * exact
    assert (np.square(found - expected) / expected).sum() < chi2.isf(1e-6, 7)


@pytest.mark.parametrize("x", [-1.0, -0.3, 0.0, 0.8])
def test_the_value_is_unbiased(x: float) -> None:
    """Exactly, and in 10⁶ draws to 5 standard errors; false alarms: 6e-7."""
    memory = np.array([x])
    options = FedSel(value_epsilon=0.9, bound=1.0)
    minus, plus = options.probabilities(memory)[:, 0]
    assert (plus - minus) * options.magnitude == pytest.approx(x, abs=1e-12)
    _, values = options.report(np.tile(memory, (DRAWS, 1)), SystemRandomness())
    assert abs(values.mean() - x) < 5 * options.magnitude / math.sqrt(DRAWS)


def test_the_largest_log_ratio_over_all_pairs_is_the_sum_of_both_epsilons() -> None:
    """Every pair of memories with entries from −4 to 4 in steps of 2, clipped at 2, and every report."""
    entries = [-4.0, -2.0, 0.0, 2.0, 4.0]
    tables = [SMALL.probabilities(np.array(memory)) for memory in itertools.product(entries, repeat=4)]
    logs = np.log(np.array(tables)).reshape(len(tables), -1)
    most = (logs.max(axis=0) - logs.min(axis=0)).max()
    assert most == pytest.approx(SMALL.epsilon_a_report, rel=1e-12)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_memory_that_is_not_finite_gets_no_other_guarantee(odd: float) -> None:
    ratio = np.log(SMALL.probabilities(np.array([odd, 1.0, 2.0, 3.0]))) - np.log(SMALL.probabilities(MEMORY))
    assert np.abs(ratio).max() <= SMALL.epsilon_a_report + 1e-12
    SMALL.report(np.array([[odd, 1.0, 2.0, 3.0]]), SystemRandomness())


def test_exactly_k_entries_are_the_largest_whatever_ties_there_are() -> None:
    assert largest(np.array([[1.0, -1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 5.0]]), 2).tolist() == [
        [True, True, False, False],
        [True, False, False, True],
    ]


def adult_like(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A table of 12 columns from −1 to 1, three of which decide."""
    rng = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(count, 12, generator=rng) - 1
    return x, (x[:, 0] - x[:, 1] + 0.5 * x[:, 2] > 0).long()


def test_a_regression_learns_from_one_report_a_user() -> None:
    """ε = 4 a report, under fixed coins. Chance is 50 %; other coins gave 87 to 92 %."""
    x, y = adult_like(25_000)
    options = FedSel(select_epsilon=2.0, value_epsilon=2.0, top_share=0.2)
    coins = ReproducibleRandomness(0)
    made = simulate(x[:20_000], y[:20_000], classes=2, options=options, rounds=100, lr=0.3, randomness=coins)
    assert float((made.scores(x[20_000:]).argmax(1) == y[20_000:]).float().mean()) > 0.8


def test_the_guarantee_is_local_and_takes_no_place_on_the_central_axis() -> None:
    x, y = adult_like(200)
    made = simulate(x, y, classes=2, rounds=10, reports_a_user=3).privacy
    assert (made.epsilon_a_report, made.epsilon_a_user) == (2.0, 6.0)
    assert not hasattr(made, "epsilon")
    assert not isinstance(made, PrivacyReport)
    assert made.to_json()["kind"] == "local"
    assert made.statement().startswith("LOCAL privacy, ε = 2 a report")
    told = all_methods()["fedsel"]
    assert issubclass(told, Standalone)
    assert "epsilon" not in told.settings
    fixed = simulate(x, y, classes=2, rounds=10, randomness=ReproducibleRandomness(0)).privacy
    assert fixed.statement().startswith("NOT PRIVATE")


def test_no_user_reports_more_often_than_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    right = FedSel.report

    def counted(self: FedSel, memories: np.ndarray, randomness: SystemRandomness) -> tuple[np.ndarray, np.ndarray]:
        seen.append(len(memories))
        return right(self, memories, randomness)

    monkeypatch.setattr(FedSel, "report", counted)
    x, y = adult_like(50)
    stated: LocalStatement = simulate(x, y, classes=2, rounds=7, reports_a_user=2).privacy
    assert sum(seen) <= stated.users * stated.reports_a_user


def test_the_largest_epsilons_that_are_taken_hold_exactly() -> None:
    """No probability is rounded to 0, and none to a ratio beyond e^ε."""
    options = FedSel(select_epsilon=30.0, value_epsilon=30.0, top_share=0.5)
    one, other = map(options.probabilities, (np.array([9.0, 9.0, 1.0, 1.0]), np.array([1.0, 1.0, -9.0, -9.0])))
    assert min(one.min(), other.min()) > 0
    assert np.abs(np.log(one) - np.log(other)).max() == pytest.approx(60.0, abs=0.01)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"select_epsilon": 0.0}, "select_epsilon=0.0 is not a finite number above 0"),
        ({"value_epsilon": math.inf}, "value_epsilon=inf is not"),
        ({"select_epsilon": 40.0}, "select_epsilon=40.0: must be at most 30"),
        ({"value_epsilon": 31.0}, "value_epsilon=31.0: must be at most 30"),
        ({"top_share": 1.0}, r"top_share=1.0 is not in \(0, 1\)"),
        ({"bound": -1.0}, "bound=-1.0 is not"),
    ],
)
def test_odd_options_are_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        FedSel(**wrong)
