"""The report says what is claimed and the statement says it in words, in every special case."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from adadpigu.accounting import (
    Plan,
    PlannedDraw,
    PlannedStage,
    PrivacyReport,
    draw_event,
    epsilon,
    epsilons,
    privacy_report,
)
from adadpigu.accounting.events import compose
from adadpigu.accounting.ledger_reading import ReleaseSummary
from adadpigu.accounting.membership import membership_bounds
from adadpigu.accounting.shared import SharedTotal
from adadpigu.accounting.statement import _GUESSES, delta_warnings
from adadpigu.errors import InputError

RATE = 256 / 60_000


def plan(sigma: float = 1.3) -> Plan:
    draw = PlannedDraw(name="batch", sample_rate=RATE, noise_multiplier=sigma)
    return Plan(
        stages=(
            PlannedStage(name="importance", steps=16, draws=(draw,)),
            PlannedStage(name="training", steps=500, draws=(draw,)),
        )
    )


def report(sigma: float = 1.3, **changes: Any) -> PrivacyReport:
    facts: dict[str, Any] = {
        "plan": plan(sigma),
        "spent": plan(sigma).event(),
        "delta": 1e-5,
        "target_epsilon": 1.0,
        "method": "adadpigu",
        "records": 60_000,
        "expected_batch_size": 256,
        "noise_multiplier": sigma,
        "clip_norm": 1.0,
        "steps_done": {"importance": 16, "training": 500},
        "releases": (ReleaseSummary(name="gradient", dimension=26_010, sensitivity=1.0, noise_multiplier=sigma),),
        "randomness": "keyed by the operating system",
        "randomness_private": True,
        **changes,
    }
    return privacy_report(**facts)


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_the_claim_is_the_whole_plan_under_every_accountant() -> None:
    found = report()
    expected = epsilons(plan().event(), 1e-5)
    assert (found.epsilon_pld, found.epsilon_rdp, found.epsilon_rdp_classic) == tuple(expected.values())
    assert found.epsilon_spent == found.epsilon_pld
    assert found.private
    assert found.sample_rate == RATE


def test_the_events_in_the_report_replay_to_the_claim() -> None:
    assert epsilon(report().event(), 1e-5) == report().epsilon_pld


@pytest.mark.parametrize("changes", [{}, {"sigma": 0.0, "clip_norm": None, "target_epsilon": None}])
def test_a_report_survives_strict_json(changes: dict[str, Any]) -> None:
    found = report(**changes)
    text = json.dumps(found.to_json(), allow_nan=False)
    assert PrivacyReport.from_json(json.loads(text)) == found


def test_null_is_read_as_infinity_only_where_a_number_must_stand() -> None:
    release = ReleaseSummary(name="gradient", dimension=None, sensitivity=math.inf, noise_multiplier=0.0)
    total = SharedTotal(epsilon=math.inf, budget=8.0, delta=1e-5, order=4.0, runs=2)
    found = report(sigma=0.0, clip_norm=None, target_epsilon=None, releases=(release,), shared=total)
    read = PrivacyReport.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert (read.epsilon_pld, read.releases[0].sensitivity, read.shared) == (math.inf, math.inf, total)
    assert (read.clip_norm, read.target_epsilon, read.releases[0].dimension) == (None, None, None)


def test_infinity_becomes_null_in_json() -> None:
    data = report(sigma=0.0).to_json()
    assert data["epsilon_pld"] is None
    assert data["private"] is False


@pytest.mark.parametrize(
    "broken", [{}, {"format": "adadpigu-privacy-1"}, {"format": "adadpigu-privacy-1", "stages": 3}]
)
def test_what_is_not_a_report_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(InputError):
        PrivacyReport.from_json(broken)


def test_json_names_everything_an_auditor_asks_for() -> None:
    data = report().to_json()
    assert data["unit_of_privacy"] == "one record"
    assert data["relation"] == "add or remove one"
    assert data["sampler"] == "Poisson"
    assert data["stages"] == [
        {"name": "importance", "planned": 16, "done": 16},
        {"name": "training", "planned": 500, "done": 500},
    ]
    assert data["events"] == [
        {
            "event": {
                "event": "PoissonSampled",
                "sample_rate": RATE,
                "of": {"event": "Gaussian", "noise_multiplier": 1.3},
            },
            "count": 516,
        }
    ]
    versions = data["versions"]
    assert isinstance(versions, dict)
    assert {"python", "torch", "dp-accounting", "adadpigu"} <= set(versions)


def test_the_statement_names_the_numbers_the_assumptions_and_what_is_not_covered() -> None:
    found = report()
    words = one_line(found.statement())
    assert words.startswith("PRIVATE: epsilon = ")
    assert "NOT PRIVATE" not in words
    for part in (
        "one record",
        "60,000",
        "delta = 1e-05",
        "1 in 100,000",
        f"e^epsilon = {math.exp(found.epsilon_pld):.3g}",
        "add or remove one",
        "Poisson",
        "multiplier 1.3",
        "importance 16, training 500",
        "test records",
        "hyper-parameters",
        "ledger.log",
        "keyed by the operating system",
    ):
        assert part in words, part
    for absent in ("Diagnostics were exposed", "Interrupted", "Warning"):
        assert absent not in words


def test_the_epsilon_in_words_is_never_below_the_one_claimed() -> None:
    found = report()
    shown = float(found.statement().splitlines()[0].split()[3])
    assert found.epsilon_pld <= shown <= found.epsilon_pld * 1.002


def test_the_statement_tells_what_a_guess_gains_rounded_up() -> None:
    found, bounds = report(sigma=0.62), membership_bounds(plan(0.62).event())
    assert found.membership == bounds
    words = one_line(found.statement())
    right, named = bounds.best_accuracy["0.5"], bounds.true_positive_rates["0.001"]
    told = [float(word) / 100 for word in re.findall(r"at most ([\d.]+) %", words)]
    assert told[0] == pytest.approx(right, rel=0.005)
    assert told[1] == pytest.approx(named, rel=0.01)
    assert told[0] >= right
    assert told[1] >= named
    assert "coin toss" in words
    assert " sure" not in words


def test_a_report_of_an_earlier_version_claims_no_more_than_it_did() -> None:
    data = {key: value for key, value in report().to_json().items() if key not in _GUESSES}
    old = PrivacyReport.from_json(data)
    assert old.membership is None
    assert old.epsilon_pld == report().epsilon_pld
    assert "guess" not in old.statement()


@pytest.mark.parametrize("broken", [{"advantage": 0.1}, {"best_accuracy": {"0.5": "much"}}, {"precision": 3}])
def test_bounds_that_no_run_has_written_are_refused(broken: dict[str, object]) -> None:
    data = {key: value for key, value in report().to_json().items() if key not in _GUESSES}
    rest = {} if "advantage" in broken else {key: report().to_json()[key] for key in _GUESSES}
    with pytest.raises((InputError, TypeError, KeyError, AttributeError)):
        PrivacyReport.from_json({**data, **rest, **broken}).statement()


def test_an_interrupted_run_still_claims_the_full_budget() -> None:
    spent = compose({draw_event(RATE, [1.3]): 20})
    found = report(spent=spent, steps_done={"importance": 16, "training": 4}, interrupted=True)
    assert found.epsilon_spent == epsilon(spent, 1e-5) < found.epsilon_pld == report().epsilon_pld
    words = one_line(found.statement())
    assert "Interrupted: 20 of 516 steps" in words
    assert "The claim stays the full" in words


def test_exposed_diagnostics_stand_in_the_headline_and_in_a_paragraph() -> None:
    found = report(diagnostics_exposed=True)
    assert "BUT diagnostics were exposed" in found.statement().splitlines()[0]
    assert "Diagnostics were exposed" in one_line(found.statement())
    assert any("diagnostics" in item for item in found.not_covered)


@pytest.mark.parametrize(("delta", "warned"), [(1e-5, False), (1 / 60_000, True), (1e-3, True)])
def test_a_delta_of_one_over_n_or_more_is_warned_about(delta: float, warned: bool) -> None:
    found = report(delta=delta)
    assert bool(found.warnings) is warned
    assert ("Warning: delta=" in found.statement()) is warned


def test_a_delta_warning_from_the_caller_is_not_repeated() -> None:
    usual = delta_warnings(1e-3, 60_000)
    assert report(delta=1e-3, warnings=[*usual, "another"]).warnings == (*usual, "another")


def test_no_noise_is_called_not_private() -> None:
    found = report(sigma=0.0)
    assert found.statement().startswith("NOT PRIVATE")
    assert "infinite" in found.statement()


def test_noise_that_can_be_repeated_is_called_not_private() -> None:
    found = report(randomness="fixed by a seed", randomness_private=False)
    assert not found.private
    assert found.statement().startswith("NOT PRIVATE")
    assert "fixed by a seed" in found.statement()


@pytest.mark.slow
def test_a_large_epsilon_is_said_to_mean_little() -> None:
    assert "says little" in one_line(report(sigma=0.3).statement())
    assert "says little" not in one_line(report().statement())


def test_the_statement_fits_a_screen() -> None:
    longest = report(delta=1e-3, diagnostics_exposed=True, interrupted=True, not_covered=["a public constant"])
    lines = longest.statement().splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100


def test_further_uncovered_facts_are_listed_once() -> None:
    found = report(not_covered=["the pixel range, declared public", "the pixel range, declared public"])
    assert found.statement().count("the pixel range, declared public") == 1
