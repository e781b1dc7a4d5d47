"""The membership attack: scores and rates against plain oracles, a bound that holds, an attack that works."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import binom, binomtest, norm
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from adadpigu.accounting.closed_forms import gaussian_delta
from adadpigu.audit import membership
from adadpigu.audit.estimators import Scores, Trial, one_run_epsilon
from adadpigu.audit.membership import (
    Coins,
    Roc,
    _Attacked,
    _halved,
    allowed_rate,
    audit_membership,
    epsilon_of_guesses,
    guesses,
    likelihood_ratios,
    logit_confidence,
)
from adadpigu.audit.outside import Answer, RunObserver
from adadpigu.audit.result import AuditResult, picture
from adadpigu.audit.subject import Subject, subject_of
from adadpigu.config import merge, read_preset
from adadpigu.data import TensorRecords
from adadpigu.errors import InputError
from adadpigu.training import Preparation, Run, train_prepared
from adadpigu.training.evaluation import predict


@cache
def subject(method: str = "dpsgd", *, epsilon: float = 2.0, steps: int = 3, records: int = 400) -> Subject:
    """A run on a few digits, a third of them under a random label: nothing but memory tells these."""
    settings = {"epsilon": epsilon, "steps": steps, "method": method, "method_options": {}, "lr": 2.0, "ema": None}
    made = subject_of(merge(read_preset("digits-dpsgd"), settings), sample_rate=0.5)
    assert isinstance(made.data.train, TensorRecords)
    inputs, targets = made.data.train.inputs[:records], made.data.train.targets[:records].clone()
    random = torch.Generator().manual_seed(0)
    mislabelled = torch.rand(records, generator=random) < 1 / 3
    targets[mislabelled] = torch.randint(10, (int(mislabelled.sum()),), generator=random)
    data = replace(made.data, train=TensorRecords(inputs, targets), records=records)
    return replace(made, data=data, config=replace(made.config, batch_size=records // 2))


def coins(models: int, records: int, chance: np.random.Generator) -> Coins:
    """In pairs, as the audit tosses them."""
    tossed = chance.random((models // 2, records)) < 0.5
    return np.stack([tossed, ~tossed], axis=1).reshape(models, records)


def test_confidence_is_the_log_odds_of_the_label() -> None:
    chance = np.random.default_rng(0)
    outputs, labels = chance.normal(size=(50, 7)) * 3, chance.integers(7, size=50)
    odds = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    p = odds[np.arange(50), labels]
    found = logit_confidence(torch.from_numpy(outputs), torch.from_numpy(labels)).numpy()
    np.testing.assert_allclose(found, np.log(p / (1 - p)), rtol=1e-9, atol=1e-12)


def test_confidence_is_exact_where_a_probability_rounds_to_0_or_1() -> None:
    outputs = torch.tensor([[800.0, 0.0, 0.0], [-800.0, 0.0, 0.0]])
    found = logit_confidence(outputs, torch.tensor([0, 0]))
    torch.testing.assert_close(found, torch.tensor([800 - math.log(2), -800 - math.log(2)]).double())


def slow_ratio(confidences: Scores, members: Coins, target: int, record: int, *, pooled: bool) -> float:
    """One score by loops, with scipy's density."""
    shadows = [model for model in range(len(confidences)) if model // 2 != target // 2]
    sides = {}
    for present in (True, False):
        values = [[confidences[s, r] for s in shadows if members[s, r] == present] for r in range(members.shape[1])]
        sides[present] = [np.mean(v) for v in values], [np.var(v, ddof=1) for v in values]
    gaps = [a - b for a, b in zip(sides[True][0], sides[False][0], strict=True)]
    noise = (np.mean(sides[True][1]) + np.mean(sides[False][1])) / (len(shadows) / 2)
    kept = max(0.0, 1 - noise / np.var(gaps))
    gap = np.mean(gaps) + kept * (gaps[record] - np.mean(gaps))
    middle = (sides[True][0][record] + sides[False][0][record]) / 2
    score = 0.0
    for present, sign in ((True, 1), (False, -1)):
        variance = np.mean(sides[present][1]) if pooled else sides[present][1][record]
        score += sign * norm.logpdf(confidences[target, record], middle + sign * gap / 2, math.sqrt(variance))
    return score


@pytest.mark.parametrize(("models", "pooled"), [(8, True), (64, True), (66, False)])
def test_a_score_is_the_likelihood_ratio_under_the_shadows(models: int, pooled: bool) -> None:
    chance = np.random.default_rng(1)
    members = coins(models, 12, chance)
    confidences = chance.normal(size=members.shape) * (1 + np.arange(12)) + members * np.arange(12)
    found = likelihood_ratios(confidences, members)
    for target, record in [(0, 0), (1, 11), (models - 1, 5), (3, 7)]:
        expected = slow_ratio(confidences, members, target, record, pooled=pooled)
        assert found[target, record] == pytest.approx(expected, rel=1e-8)


def test_a_target_is_judged_by_neither_itself_nor_the_other_model_of_its_pair() -> None:
    chance = np.random.default_rng(2)
    members = coins(8, 20, chance)
    confidences = chance.normal(size=members.shape)
    before = likelihood_ratios(confidences, members)[4]
    confidences[5] += 100 * chance.normal(size=20)
    np.testing.assert_array_equal(likelihood_ratios(confidences, members)[4], before)
    confidences[4, 3] += 1.0
    changed = likelihood_ratios(confidences, members)[4] != before
    assert changed.nonzero()[0].tolist() == [3]


def test_models_that_tell_nothing_give_members_away_no_better_than_guessing() -> None:
    """Fixed seed; the AUC of 32,000 independent scores has a standard deviation of 0.0033."""
    chance = np.random.default_rng(3)
    members = coins(16, 2000, chance)
    scores = likelihood_ratios(chance.normal(size=members.shape), members)
    roc = Roc.of(scores[members], scores[~members])
    assert abs(roc.area - 0.5) < 0.01
    assert roc.at(0.01, 0.05)[1] < 0.02


def test_the_roc_is_the_one_that_scikit_learn_gives_ties_included() -> None:
    chance = np.random.default_rng(4)
    within, without = (chance.integers(12, size=size).astype(np.float64) + up for size, up in ((300, 2), (500, 0)))
    roc = Roc.of(within, without)
    labels, scores = np.repeat([1, 0], [300, 500]), np.concatenate([within, without])
    false_positives, true_positives, _ = roc_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(roc.false_positives, false_positives)
    np.testing.assert_allclose(roc.true_positives, true_positives)
    assert roc.area == pytest.approx(roc_auc_score(labels, scores))


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.05, 1.0])
def test_true_positives_are_those_of_the_lowest_threshold_that_keeps_the_rate(rate: float) -> None:
    chance = np.random.default_rng(5)
    within, without = chance.normal(size=700) + 1, chance.normal(size=1000)
    low, found, high = Roc.of(within, without).at(rate, 0.05)
    thresholds = np.append(np.concatenate([within, without]), -np.inf)
    best = max(int((within > t).sum()) for t in thresholds if (without > t).mean() <= rate)
    interval = binomtest(best, 700).proportion_ci(0.95, method="exact")
    assert found == best / 700
    assert (low, high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 8.0])
def test_what_a_claim_allows_is_never_exceeded_by_a_gaussian_that_keeps_it_and_is_touched(epsilon: float) -> None:
    """The best test against N(1, σ²) has Φ(1/σ − z) true positives at Φ(−z) false ones."""
    sigma = 1.3
    delta, z = gaussian_delta(sigma, epsilon), np.linspace(-12, 12, 20_001)
    rates = norm.sf(z)
    slack = np.array([allowed_rate(rate, epsilon, delta) for rate in rates]) - norm.sf(z - 1 / sigma)
    assert slack.min() > -1e-12
    assert slack[rates < 0.5].min() < 1e-6
    assert slack[rates > 0.5].min() < 1e-6


def test_the_bound_from_guesses_holds_for_a_mechanism_whose_epsilon_is_known() -> None:
    """Randomised response at ε = 1: of 60 audits at 90 %, at most 22 may exceed it (false alarm below 1e-6)."""
    chance, epsilon, exceeded, found = np.random.default_rng(6), 1.0, 0, 0.0
    assert binom.sf(22, 60, 0.1) < 1e-6
    for _ in range(60):
        members = coins(6, 400, chance)
        told = members ^ (chance.random(members.shape) < 1 / (1 + math.exp(epsilon)))
        scores = likelihood_ratios(told + 0.1 * chance.normal(size=members.shape), members)
        shown = epsilon_of_guesses(guesses(scores, members), 0.0, 0.1)
        exceeded += shown > epsilon
        found = max(found, shown)
    assert exceeded <= 22
    assert found > 0.5  # or it would hold for want of guesses


def test_all_targets_share_the_significance() -> None:
    trials = [Trial(canaries=400, guesses=80, right=right) for right in (50, 70, 64)]
    assert epsilon_of_guesses(trials, 1e-6, 0.06) == one_run_epsilon(trials[1], 1e-6, 0.02)


def test_guesses_are_right_about_members_on_top_and_others_at_the_bottom() -> None:
    members = np.array([[True, False] * 20])
    trials = guesses(np.where(members, 1.0, -1.0) + np.arange(40) / 100, members)
    assert [(trial.canaries, trial.guesses, trial.right) for trial in trials] == [(40, 8, 8)]
    trials = guesses(np.where(members, -1.0, 1.0) + np.arange(40) / 100, members)
    assert trials[0].right == 0


@pytest.mark.parametrize(("batch", "records"), [(1024, 1437), (29, 1450), (1, 100), (3, 7), (200, 400), (500, 500)])
def test_half_the_records_are_sampled_at_the_rate_that_is_claimed_and_never_above(batch: int, records: int) -> None:
    made = subject()
    made = replace(made, config=replace(made.config, batch_size=batch), data=replace(made.data, records=records))
    half, declared = _halved(made)
    assert half == max(1, round(batch / 2))
    assert batch / records * (1 - 1 / declared) <= half / declared <= batch / records


def test_every_record_is_in_half_of_the_models_and_these_train_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Tensor] = []
    starts: list[Tensor] = []

    def watched(ready: Preparation, **options: Any) -> Run:
        trained.append(ready.data.train.take(torch.arange(len(ready.data.train)))[0])
        starts.append(ready.engine.layout.read(ready.model))
        assert ready.noise_multiplier == subject().noise_multiplier
        assert ready.plan.steps == subject().plan.steps
        return train_prepared(ready, **options)

    monkeypatch.setattr(membership, "trained", watched)
    seen, told = _Attacked(subject(), 6), list[tuple[int, int]]()
    seen.train_all(lambda done, total: told.append((done, total)))
    assert seen.members.sum(axis=0).tolist() == [3] * 400
    assert bool((seen.members[0::2] != seen.members[1::2]).all())
    records = subject().data.train
    assert isinstance(records, TensorRecords)
    for half, inputs in zip(seen.members, trained, strict=True):
        assert torch.equal(inputs, records.inputs[torch.from_numpy(half)])
    assert all(torch.equal(start, starts[0]) for start in starts)
    assert told == [(done, 18) for done in range(1, 19)]


@pytest.fixture(scope="module")
def quick() -> AuditResult:
    """An audit of three steps."""
    return audit_membership(subject(), models=6)


def test_an_attack_refutes_nothing_and_says_so(quick: AuditResult) -> None:
    assert quick.passed
    assert quick.epsilon_certain == 0.0
    assert any("an attack, not a bound" in sentence for sentence in quick.assumed)
    assert not quick.exposed
    assert quick.observations == 6 * 400 / 2
    rates = quick.details["true_positive_rates"]
    assert [rate["false_positive_rate"] for rate in rates] == [0.001, 0.01]
    assert [rate["allowed"] for rate in rates] == [allowed_rate(rate, 2.0, 1e-5) for rate in (0.001, 0.01)]
    assert all(rate["lower"] <= rate["true_positive_rate"] <= rate["upper"] for rate in rates)


def test_the_figure_has_the_attack_the_claim_and_guessing_on_logarithmic_axes(
    quick: AuditResult,
) -> None:
    assert quick.draw is not None
    figure = Figure()
    quick.draw(figure)
    axes = figure.axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    claim, attack, guessing, *marks = axes.lines
    rates, allowed = (np.asarray(values) for values in claim.get_data())
    assert allowed.tolist() == pytest.approx([allowed_rate(rate, 2.0, 1e-5) for rate in rates.tolist()])
    assert np.array_equal(*guessing.get_data())
    assert np.max(np.asarray(attack.get_ydata())) == 1.0
    found = [rate["true_positive_rate"] for rate in quick.details["true_positive_rates"]]
    marked = [np.asarray(mark.get_ydata()).item() for mark in marks]
    assert marked == pytest.approx([max(rate, 0.5 / 1200) for rate in found])
    assert len(picture(quick)) > 10_000


def overfitted() -> Subject:
    """Next to no noise, and steps enough to learn random labels by heart."""
    made = subject(steps=120)
    return replace(made, config=replace(made.config, noise_multiplier=made.noise_multiplier / 1000))


@pytest.mark.slow
def test_the_attack_finds_members_of_models_that_have_learnt_them_by_heart() -> None:
    """Twelve audits had AUC 0.938 ± 0.005, 0.39 ± 0.025 at 1 %, 0.20 ± 0.035 at 0.1 %: limits are 5 deviations off."""
    result = audit_membership(overfitted(), models=8)
    rare, one_percent = (rate["true_positive_rate"] for rate in result.details["true_positive_rates"])
    assert result.details["auc"] > 0.8
    assert one_percent > 0.15
    assert rare > 0.02
    assert result.epsilon_lower > 1.0


@pytest.mark.slow
def test_the_attack_finds_next_to_nobody_behind_noise() -> None:
    """Twenty-five audits had AUC 0.497 ± 0.013 and 0.0098 ± 0.0031 at 1 %: each limit is 8 deviations off."""
    result = audit_membership(subject(epsilon=0.3, steps=20), models=8)
    assert abs(result.details["auc"] - 0.5) < 0.1
    assert result.details["true_positive_rates"][1]["true_positive_rate"] < 0.05


@pytest.mark.slow
def test_no_bound_is_claimed_where_a_draw_has_a_higher_rate_than_is_claimed() -> None:
    """DPSUR tests its steps on batches of a size of their own: on half the records, at twice the rate."""
    made = subject("dpsur")
    made = replace(made, config=replace(made.config, method_options={"test_batch_size": 64}))
    stage = made.plan.stages[0]
    claimed = replace(stage, draws=(stage.draws[0], replace(stage.draws[1], sample_rate=64 / 400)))
    result = audit_membership(replace(made, plan=replace(made.plan, stages=(claimed,))), models=6)
    assert result.epsilon_lower == 0.0
    assert any("the draws test" in sentence and "higher rate" in sentence for sentence in result.assumed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"models": 5}, r"models=5; allowed: an even number of at least 6"),
        ({"models": 4}, r"models=4; allowed: an even number of at least 6"),
        ({"confidence": 0.4}, r"confidence=0.4"),
    ],
)
def test_bad_input_is_refused_with_what_is_allowed(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        audit_membership(subject(), **options)


def test_too_few_records_for_the_rate_that_is_told_are_refused() -> None:
    with pytest.raises(InputError, match=r"records=300: .*at least 334 with models=6"):
        audit_membership(subject(records=300), models=6)


def test_models_that_have_diverged_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "predict", lambda model, inputs, device: torch.full((len(inputs), 10), math.nan))
    with pytest.raises(InputError, match="not finite"):
        audit_membership(subject(), models=6)


def test_releases_that_are_not_finite_are_a_finding_and_no_number_of_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two models of six, whose outputs are no numbers either."""
    outputs = iter([math.nan, math.inf])

    def broken(ready: Preparation, **options: Any) -> Run:
        options["watch"].broken += 1
        return train_prepared(ready, **options)

    def spoilt(model: Any, inputs: Tensor, device: Any) -> Tensor:
        value = next(outputs, None)
        return predict(model, inputs, device=device) if value is None else torch.full((len(inputs), 10), value)

    monkeypatch.setattr(membership, "trained", broken)
    monkeypatch.setattr(membership, "predict", spoilt)
    result = audit_membership(subject(), models=6)
    assert not result.passed
    assert any("6 releases hold numbers that are not finite" in finding for finding in result.findings)
    json.dumps(dict(result.details), allow_nan=False)
    assert picture(result).startswith(b"\x89PNG")


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0])
def test_a_release_is_broken_if_one_of_its_numbers_is_not_finite(value: float) -> None:
    made, seen = subject(), RunObserver()

    class Spoiling(RunObserver):
        def on_draw(self, answer: Answer, stage: str) -> None:
            made = answer.releases.items()
            spoilt = {name: r.map(lambda v: torch.cat([v[1:], torch.tensor([value])])) for name, r in made}
            seen.on_draw(replace(answer, releases=spoilt), stage)

    watch = Spoiling()
    train_prepared(made.prepare(), watch=watch, observers=[watch])
    assert seen.broken == (0 if value == 1.0 else made.plan.steps)
