"""Many runs: scores and errors follow their laws, too little noise is refuted, runs do not touch each other."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import binom, norm
from torch import Tensor

from adadpigu.audit import many_runs, outside
from adadpigu.audit.many_runs import Worlds, audit_many_runs, choose
from adadpigu.audit.one_run import InOrOut
from adadpigu.audit.outside import Answer
from adadpigu.audit.result import AuditResult, picture
from adadpigu.audit.subject import Subject, subject_of
from adadpigu.config import merge, read_preset
from adadpigu.core import mechanism
from adadpigu.core.bounding import GradientSum
from adadpigu.core.mechanism import Release
from adadpigu.data import TensorRecords
from adadpigu.errors import InputError
from adadpigu.training import Preparation, Run, train_prepared

RUNS = 40
"""in each world, of an audit that finds nothing"""


@cache
def subject(
    method: str = "dpsgd",
    *,
    epsilon: float | None = 4.0,
    sigma: float | None = None,
    steps: int = 4,
    sample_rate: float = 1.0,
) -> Subject:
    """A short run. Few of the declared records are there, which makes it quick and changes neither q nor σ."""
    budget: dict[str, object] = {"epsilon": epsilon} if sigma is None else {"epsilon": None, "noise_multiplier": sigma}
    settings = {**budget, "steps": steps, "method": method, "method_options": {}, "model": "linear"}
    made = subject_of(merge(read_preset("digits-dpsgd"), settings), sample_rate=sample_rate)
    assert isinstance(made.data.train, TensorRecords)
    few = TensorRecords(made.data.train.inputs[:20], made.data.train.targets[:20])
    return replace(made, data=replace(made.data, train=few))


def lying(made: Subject) -> Subject:
    """The same claim with a thousandth of the noise."""
    return replace(made, config=replace(made.config, noise_multiplier=made.noise_multiplier / 1000))


def shown(canary: InOrOut, query: GradientSum, x: float) -> None:
    """One draw in which the canary's coordinate is released as x, and all others as something else."""
    canary.before_draw("gradient", [query])
    value = torch.full((canary.coordinates,), -77.0, dtype=torch.float64)
    value[canary.loss.place] = x * query.clip_norm
    canary.on_draw(Answer("gradient", (query,), {query.name: _release(value, query)}), "training")


def _release(value: Tensor, query: GradientSum) -> Release:
    whole = value if query.active is None else torch.cat([value.new_zeros(len(query.active) - len(value)), value])
    return Release(whole, name=query.name, noise_stddev=None, active=query.active, mint=mechanism._MINT)


def test_a_run_is_scored_by_ratio_sum_and_maximum_of_what_its_active_coordinate_shows() -> None:
    canary = InOrOut(64, 1, sample_rate=0.3, noise_multiplier=0.8)
    active = torch.zeros(100 + canary.coordinates, dtype=torch.bool)
    active[100 + 7] = True
    frozen = torch.zeros_like(active)
    shown(canary, GradientSum(clip_norm=0.5), 1.4)
    shown(canary, GradientSum(clip_norm=0.5, active=active), -0.6)
    shown(canary, GradientSum(clip_norm=0.5, active=frozen), 5.0)
    shown(canary, GradientSum(clip_norm=0.5, share=0.9), 0.2)

    def ratio(x: float, sigma: float) -> float:
        within = 0.7 * norm.pdf(x, 0, sigma) + 0.3 * norm.pdf(x, 1, sigma)
        return math.log(within / norm.pdf(x, 0, sigma))

    expected = ratio(1.4, 0.8) + ratio(-0.6, 0.8) + ratio(0.2, 0.8 / math.sqrt(0.9))
    assert float(canary.ratio) == pytest.approx(expected, rel=1e-12)
    assert float(canary.total) == pytest.approx(1.4 - 0.6 + 0.2)
    assert canary.largest == 1.4
    assert canary.looks == 3
    canary.enter(torch.tensor([True]))
    assert (float(canary.ratio), float(canary.total), float(canary.largest)) == (0.0, 0.0, -math.inf)


def test_the_canary_is_sampled_as_a_record_in_one_world_and_never_in_the_other() -> None:
    canary = InOrOut(64, 1, sample_rate=0.3, noise_multiplier=1.0)
    canary.enter(torch.tensor([True]))
    assert bool(canary.choose(None).isnan().all())
    canary.enter(torch.tensor([False]))
    assert bool((canary.choose(None) >= 1).all())


def test_the_canary_moves_to_an_active_coordinate() -> None:
    active = torch.tensor([False, False, True, True])
    assert InOrOut(64, 1, sample_rate=0.3, noise_multiplier=1.0).places(active).tolist() == [2]


@pytest.fixture(scope="module")
def plain() -> AuditResult:
    """An audit of DP-SGD as it is."""
    return audit_many_runs(subject(), runs=RUNS)


def sigma_of(made: Subject) -> float:
    """Of what a canary shows in a step at q = 1, more where another release of the same batch has used up a share."""
    if made.config.method != "quantile":
        return made.noise_multiplier
    assert made.config.batch_size is not None
    return made.noise_multiplier / math.sqrt(1 - (made.noise_multiplier / (2 * made.config.batch_size / 20)) ** 2)


def above(details: Mapping[str, Any], steps: int, sigma: float, shown: float) -> float:
    """The chance that a run's score is above the threshold where each of its steps shows N(shown, σ²), at q = 1."""
    threshold = details["threshold"]
    if details["score"].startswith("most"):
        return float(1 - norm.cdf((threshold - shown) / sigma) ** steps)
    if details["score"].startswith("log"):  # Σ (x − ½)/σ²
        threshold = threshold * sigma**2 + steps / 2
    return float(norm.sf((threshold - steps * shown) / (sigma * math.sqrt(steps))))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpsgd", "adadpigu", "quantile"])
def test_the_worlds_differ_as_two_gaussians_where_every_record_is_in_every_batch(
    method: str, plain: AuditResult
) -> None:
    """At q = 1 a step shows N(1, σ²) or N(0, σ²): whatever the pilots chose, errors are binomial with a known rate.

    False alarms of all three methods together below 1e-6: both error counts, at 1.2e-7 each.
    """
    result = plain if method == "dpsgd" else audit_many_runs(subject(method), runs=RUNS)
    details, made = result.details, subject(method)
    wrong = {
        "false_alarms": above(details, made.plan.steps, sigma_of(made), 0.0),
        "misses": 1 - above(details, made.plan.steps, sigma_of(made), 1.0),
    }
    for name, rate in wrong.items():
        assert min(binom.cdf(details[name], RUNS, rate), binom.sf(details[name] - 1, RUNS, rate)) > 6e-8
    assert result.passed
    assert result.observations == RUNS


@pytest.mark.slow
def test_too_little_noise_is_refuted() -> None:
    """A thousandth of the noise: over a hundred standard deviations lie between the worlds, so no run errs."""
    result = audit_many_runs(lying(subject(epsilon=0.5)), runs=32)
    assert result.details["false_alarms"] == result.details["misses"] == 0
    assert result.epsilon_lower == result.details["reach"]
    assert result.epsilon_certain == result.details["reach_certain"] > 0.5
    assert result.details["epsilon_lower_gaussian"] > result.epsilon_lower
    assert not result.passed


@pytest.mark.slow
def test_the_canary_is_drawn_as_often_as_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """At q = ½ and with next to no noise, what a run shows is in how many of its 4 batches the canary was.

    The sum is above 1.5 from 2 on, so that misses are Bin(30, 5/16): false alarms below 1e-6.
    """
    monkeypatch.setattr(many_runs, "choose", lambda within, without: (1, 1.5))
    details = audit_many_runs(lying(subject(sample_rate=0.5)), runs=30).details
    assert details["false_alarms"] == 0
    below, above = binom.cdf(details["misses"], 30, 5 / 16), binom.sf(details["misses"] - 1, 30, 5 / 16)
    assert min(below, above) > 5e-7


@pytest.mark.slow
def test_runs_without_noise_are_refuted_where_a_record_is_in_few_batches() -> None:
    """At q = 0.3 and T = 14 a run is missed if the canary was never drawn, with 0.7^14 = 0.0068.

    The refutation takes fewer than 8 misses of 44, and a threshold above one draw takes pilots of 10 and more in the
    mean: together below 1e-6.
    """
    made = subject(sigma=8.2355, steps=14, sample_rate=0.3)
    assert made.epsilon == pytest.approx(0.5, abs=0.002)
    bare = replace(made, config=replace(made.config, noise_multiplier=made.noise_multiplier * 1e-9))
    result = audit_many_runs(bare, runs=44)
    assert not result.passed
    assert result.epsilon_certain > 0.5


@pytest.mark.parametrize("noise", [1.0, 1e-6, 0.0])
@pytest.mark.parametrize(("epsilon", "sigma"), [(1.0, 3.1634), (8.0, 0.8338)])
def test_runs_as_the_command_makes_them_are_told_apart_without_noise_and_not_refuted_with_it(
    epsilon: float, sigma: float, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """q = 0.1, T = 60, the releases from numpy with a fixed seed.

    At ε = 8 the likelihood ratio of the claimed noise takes a bare draw for noise: 0.5/σ² + log q is below 0.
    """
    made, random = subject(sigma=sigma, steps=60, sample_rate=0.1), np.random.default_rng(0)
    assert made.epsilon == pytest.approx(epsilon, rel=0.003)

    def runner(_: Subject, canary: InOrOut) -> Callable[[bool], list[float]]:
        def once(present: bool) -> list[float]:
            canary.enter(torch.tensor([present]))
            drawn = (random.random(60) < 0.1) & present
            for x in drawn + noise * made.noise_multiplier * random.normal(size=60):
                canary.observe(torch.full((canary.coordinates,), x, dtype=torch.float64), None)
            return [float(score) for score in (canary.ratio, canary.total, canary.largest)]

        return once

    monkeypatch.setattr(many_runs, "_runner", runner)
    result = audit_many_runs(made, runs=60)
    if noise == 1.0:
        assert result.passed
    else:
        assert result.details["false_alarms"] == 0
        assert result.details["misses"] <= 2
        assert result.passed == (epsilon == 8.0)  # 60 runs show no more than 1.3


def test_the_score_that_tells_the_pilots_apart_best_is_chosen_with_a_threshold_between_them() -> None:
    """Of the two with a gap of 4, the second spreads less; the first world spreads three times as much there."""
    within = np.array([[0.0, 9.0, 4.3], [1.0, 1.0, 3.7]])
    without = np.array([[0.0, 3.0, 0.1], [1.0, -1.0, -0.1]])
    assert choose(within, without) == pytest.approx((2, 1.0))


def test_a_threshold_keeps_its_distance_from_a_world_that_does_not_spread() -> None:
    assert choose(np.array([[4.0], [6.0]]), np.zeros((2, 1))) == pytest.approx((0, 0.5))
    assert choose(np.full((2, 1), 5.0), np.zeros((2, 1))) == (0, 2.5)


def test_pilots_that_are_no_numbers_choose_nothing() -> None:
    within = np.array([[np.nan, 1.0], [np.inf, 2.0], [3.0, 3.0]])
    assert choose(within, np.zeros((3, 2))) == pytest.approx((1, 0.2))
    assert choose(within[:, :1], np.zeros((3, 1))) is None


@pytest.mark.slow
def test_the_audit_says_what_it_could_have_shown_and_what_a_refutation_takes(plain: AuditResult) -> None:
    details = plain.details
    rate = 1 - 0.025 ** (1 / RUNS)
    assert details["reach"] == pytest.approx(math.log((1 - rate - 1e-5) / rate))
    needed = details["runs_to_refute"]
    rates = [1 - 5e-7 ** (1 / runs) for runs in (needed - 1, needed)]
    few, enough = (math.log((1 - rate - 1e-5) / rate) for rate in rates)
    assert few <= 4.0 < enough


@pytest.mark.slow
def test_every_run_starts_from_the_same_weights_with_the_worlds_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Tensor] = []
    worlds: list[bool] = []

    def watched(ready: Preparation, *, watch: Any, **options: Any) -> Run:
        starts.append(ready.engine.layout.read(ready.model))
        worlds.append(bool(watch.present))
        return train_prepared(ready, watch=watch, **options)

    monkeypatch.setattr(outside, "trained", watched)
    seen: list[tuple[int, int]] = []
    audit_many_runs(subject(), runs=21, progress=lambda done, total: seen.append((done, total)))
    assert all(torch.equal(start, starts[0]) for start in starts)
    assert worlds == [True, False] * 31
    assert seen == [(done, 62) for done in range(1, 63)]


def told(monkeypatch: pytest.MonkeyPatch, scores: Iterable[float], looks: int = 1, broken: int = 0) -> None:
    """Instead of training, runs have these scores, each as all of its scores."""
    scores = iter(scores)

    def runner(_: Subject, canary: InOrOut) -> Callable[[bool], list[float]]:
        canary.looks, canary.broken = looks, broken
        return lambda present: [next(scores)] * 3

    monkeypatch.setattr(many_runs, "_runner", runner)


def test_the_threshold_is_chosen_on_runs_that_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pilots at 5 and 1 set it to 3; all later runs are below."""
    told(monkeypatch, [*[5.0, 1.0] * 10, *[2.5, 2.0] * 21])
    details = audit_many_runs(subject(), runs=21).details
    assert details["threshold"] == 3.0
    assert (details["false_alarms"], details["misses"]) == (0, 21)


def test_a_score_that_is_no_number_is_an_error_in_either_world() -> None:
    nothing = np.array([np.nan, np.inf, 1.0])
    errors = Worlds(within=nothing, without=nothing, threshold=0.0).errors
    assert (errors.misses, errors.false_alarms) == (2, 3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_releases_that_are_not_finite_are_a_finding_and_no_number_of_the_result(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, [value] * 62, broken=7)
    result = audit_many_runs(subject(), runs=21)
    assert not result.passed
    assert any("7 releases hold numbers that are not finite" in finding for finding in result.findings)
    assert (result.epsilon_lower, result.details["mean_within"]) == (0.0, None)
    json.dumps(result.to_json(), allow_nan=False)
    json.dumps(dict(result.details), allow_nan=False)
    assert picture(result).startswith(b"\x89PNG")


@pytest.mark.slow
def test_every_release_that_is_not_finite_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One coordinate of the model, of the first release of each run: not the canary's."""
    on_draw = InOrOut.on_draw

    def spoilt(self: InOrOut, answer: Answer, stage: str) -> None:
        def with_nan(value: Tensor) -> Tensor:
            return torch.cat([torch.full((1,), math.nan), value[1:]])

        released = {name: release.map(with_nan) for name, release in answer.releases.items()}
        on_draw(self, replace(answer, releases=released), stage)

    monkeypatch.setattr(InOrOut, "on_draw", spoilt)
    result = audit_many_runs(subject(), runs=21)
    assert result.details["releases_not_finite"] == 2 * 31 * subject().plan.steps
    assert not result.passed


def test_runs_that_diverge_after_finite_releases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, [math.nan] * 62)
    with pytest.raises(InputError, match="not finite"):
        audit_many_runs(subject(), runs=21)


def test_a_block_that_is_frozen_throughout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, [0.0] * 62, looks=0)
    with pytest.raises(InputError, match="froze the whole dummy block"):
        audit_many_runs(subject(), runs=21)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"runs": 20}, r"runs=20 .* at least 21"),
        ({"runs": 24, "confidence": 0.9999999}, r"runs=24 .* confidence 0.9999999; allowed: at least 25"),
        ({"confidence": 1.0}, r"confidence=1.0"),
    ],
)
def test_bad_input_is_refused_with_what_is_allowed(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        audit_many_runs(subject(), **options)


def test_findings_about_the_claim_fail_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, [0.0] * 62)
    result = audit_many_runs(replace(subject(), findings=("the ledger is damaged",)), runs=21)
    assert not result.passed


def test_the_figure_shows_every_run_and_the_threshold(plain: AuditResult) -> None:
    assert plain.draw is not None
    figure = Figure()
    plain.draw(figure)
    heights = [bar.get_height() for bar in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert sum(heights) == 2 * RUNS
    marked = [list(line.get_xdata()) for line in figure.axes[0].lines]  # type: ignore[arg-type]
    assert marked == [[plain.details["threshold"]] * 2]
    assert len(picture(plain)) > 10_000
