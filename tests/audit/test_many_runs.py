"""Many runs: scores and errors follow their laws, too little noise is refuted, runs do not touch each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import binom, norm
from torch import Tensor

from adadpigu.audit import many_runs
from adadpigu.audit.figures import save_figure
from adadpigu.audit.many_runs import LoneCanary, WeightCanary, Worlds, audit_many_runs
from adadpigu.audit.result import AuditResult
from adadpigu.audit.subject import Subject, subject_of
from adadpigu.bounding import GradientSum
from adadpigu.config import merge, read_preset
from adadpigu.data import TensorRecords
from adadpigu.errors import InputError
from adadpigu.training import Preparation, Run, train_prepared

RUNS = 40
"""in each world, of an audit that finds nothing"""


@cache
def subject(method: str = "dpsgd", *, epsilon: float = 4.0, steps: int = 4, sample_rate: float = 1.0) -> Subject:
    """A short run. Few of the declared records are there, which makes it quick and changes neither q nor σ."""
    settings = {"epsilon": epsilon, "steps": steps, "method": method, "method_options": {}, "model": "linear"}
    made = subject_of(merge(read_preset("digits-dpsgd"), settings), sample_rate=sample_rate)
    assert isinstance(made.data.train, TensorRecords)
    few = TensorRecords(made.data.train.inputs[:20], made.data.train.targets[:20])
    return replace(made, data=replace(made.data, train=few))


def lying(made: Subject) -> Subject:
    """The same claim with a thousandth of the noise."""
    return replace(made, config=replace(made.config, noise_multiplier=made.noise_multiplier / 1000))


def shown(canary: LoneCanary, query: GradientSum, x: float) -> None:
    """One draw in which the canary's coordinate is released as x, and all others as something else."""
    canary.asked([query])
    value = torch.full((canary.coordinates,), -77.0, dtype=torch.float64)
    value[canary.loss.place] = x
    canary._query = None
    canary.observe(value, None if query.active is None else query.active[-canary.coordinates :])


def test_a_run_is_scored_by_the_likelihood_ratio_of_what_its_active_coordinate_shows() -> None:
    canary = LoneCanary(sample_rate=0.3, noise_multiplier=0.8)
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
    assert canary.score == pytest.approx(expected, rel=1e-12)
    assert canary.looks == 3
    canary.begin(True)
    assert canary.score == 0.0


def test_the_canary_is_sampled_as_a_record_in_one_world_and_never_in_the_other() -> None:
    canary, coins = LoneCanary(sample_rate=0.3, noise_multiplier=1.0), torch.tensor([0.29])
    canary.begin(True)
    assert torch.equal(canary.drawn(coins, None), coins)
    canary.begin(False)
    assert bool((canary.drawn(coins, None) >= 1).all())


def test_the_canary_moves_to_an_active_coordinate_unless_the_weights_are_all_that_is_seen() -> None:
    active = torch.tensor([False, False, True, True])
    assert LoneCanary(sample_rate=0.3, noise_multiplier=1.0).places(active).tolist() == [2]
    assert WeightCanary(sample_rate=0.3, noise_multiplier=1.0).places(active).tolist() == [0]


@pytest.fixture(scope="module")
def plain() -> AuditResult:
    """An audit of DP-SGD as it is."""
    return audit_many_runs(subject(), runs=RUNS)


def mu_of(made: Subject) -> float:
    """√T/σ: how far the worlds are apart at q = 1, less what another release of the same batch has used up."""
    mu = math.sqrt(made.plan.steps) / made.noise_multiplier
    if made.config.method != "quantile":
        return mu
    assert made.config.batch_size is not None
    return mu * math.sqrt(1 - (made.noise_multiplier / (2 * made.config.batch_size / 20)) ** 2)


@pytest.mark.parametrize("method", ["dpsgd", "adadpigu", "quantile"])
def test_the_worlds_differ_as_two_gaussians_where_every_record_is_in_every_batch(
    method: str, plain: AuditResult
) -> None:
    """At q = 1 the score of T steps is N(±μ²/2, μ²).

    False alarms of all three methods together below 1e-6: both error counts and both means, at 8e-8 each.
    """
    result = plain if method == "dpsgd" else audit_many_runs(subject(method), runs=RUNS)
    details, mu = result.details, mu_of(subject(method))
    for errors in (details["false_alarms"], details["misses"]):
        below, above = binom.cdf(errors, RUNS, norm.cdf(-mu / 2)), binom.sf(errors - 1, RUNS, norm.cdf(-mu / 2))
        assert min(below, above) > 4e-8
    for mean, expected in ((details["mean_within"], mu**2 / 2), (details["mean_without"], -(mu**2) / 2)):
        assert abs(mean - expected) < norm.isf(4e-8) * mu / math.sqrt(RUNS)
    assert result.passed
    assert result.observations == RUNS


@pytest.mark.parametrize("sees", ["releases", "model"])
def test_too_little_noise_is_refuted(sees: Any) -> None:
    """A thousandth of the noise: over a hundred standard deviations lie between the worlds, so no run errs."""
    result = audit_many_runs(lying(subject(epsilon=0.5)), runs=32, sees=sees)
    assert result.details["false_alarms"] == result.details["misses"] == 0
    assert result.epsilon_lower == result.details["reach"]
    assert result.epsilon_certain == result.details["reach_certain"] > 0.5
    assert result.details["epsilon_lower_gaussian"] > result.epsilon_lower
    assert not result.passed


def test_the_canary_is_drawn_as_often_as_a_record() -> None:
    """At q = ½ and with next to no noise, what a run shows is in how many of its 4 batches the canary was.

    The score is above 0 from 2 on, so that misses are Bin(30, 5/16): false alarms below 1e-6.
    """
    details = audit_many_runs(lying(subject(sample_rate=0.5)), runs=30).details
    assert details["false_alarms"] == 0
    below, above = binom.cdf(details["misses"], 30, 5 / 16), binom.sf(details["misses"] - 1, 30, 5 / 16)
    assert min(below, above) > 5e-7


def test_the_audit_says_what_it_could_have_shown_and_what_a_refutation_takes(plain: AuditResult) -> None:
    details = plain.details
    rate = 1 - 0.025 ** (1 / RUNS)
    assert details["reach"] == pytest.approx(math.log((1 - rate - 1e-5) / rate))
    needed = details["runs_to_refute"]
    rates = [1 - 5e-7 ** (1 / runs) for runs in (needed - 1, needed)]
    few, enough = (math.log((1 - rate - 1e-5) / rate) for rate in rates)
    assert few <= 4.0 < enough


def test_every_run_starts_from_the_same_weights_with_the_worlds_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Tensor] = []
    worlds: list[bool] = []

    def watched(ready: Preparation, *, tape: Any, **options: Any) -> Run:
        starts.append(ready.engine.layout.read(ready.model))
        worlds.append(tape._present)
        return train_prepared(ready, tape=tape, **options)

    monkeypatch.setattr(many_runs, "train_prepared", watched)
    seen: list[tuple[int, int]] = []
    audit_many_runs(subject(), runs=21, progress=lambda done, total: seen.append((done, total)))
    assert all(torch.equal(start, starts[0]) for start in starts)
    assert worlds == [True, False] * 21
    assert seen == [(done, 42) for done in range(1, 43)]


def told(monkeypatch: pytest.MonkeyPatch, scores: Iterable[float], looks: int = 1) -> None:
    """Instead of training, runs have these scores."""
    scores = iter(scores)

    def runner(_: Subject, canary: LoneCanary, sees: str) -> Callable[[bool], float]:
        canary.looks = looks
        return lambda present: next(scores)

    monkeypatch.setattr(many_runs, "_runner", runner)


def test_the_threshold_on_weights_is_chosen_on_runs_that_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pilots at 5 and 1 set it to 3; all later runs are below."""
    told(monkeypatch, [*[5.0, 1.0] * 10, *[2.5, 2.0] * 21])
    details = audit_many_runs(subject(), runs=21, sees="model").details
    assert details["threshold"] == 3.0
    assert (details["false_alarms"], details["misses"]) == (0, 21)


def test_a_score_that_is_no_number_is_never_counted_as_told_apart() -> None:
    nothing = np.array([np.nan, np.nan, 1.0])
    errors = Worlds(within=nothing, without=nothing, threshold=0.0).errors()
    assert (errors.misses, errors.false_alarms) == (2, 1)


def test_a_block_that_is_frozen_throughout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, [0.0] * 42, looks=0)
    with pytest.raises(InputError, match="froze the whole dummy block"):
        audit_many_runs(subject(), runs=21)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"runs": 20}, r"runs=20 .* at least 21"),
        ({"runs": 24, "confidence": 0.9999999}, r"runs=24 .* confidence 0.9999999; allowed: at least 25"),
        ({"sees": "coins"}, r"sees \'coins\' .*model, releases"),
        ({"confidence": 1.0}, r"confidence=1.0"),
    ],
)
def test_bad_input_is_refused_with_what_is_allowed(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        audit_many_runs(subject(), **options)


def test_findings_about_the_claim_fail_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, [0.0] * 42)
    result = audit_many_runs(replace(subject(), findings=("the ledger is damaged",)), runs=21)
    assert not result.passed


def test_the_figure_shows_every_run_and_the_threshold(plain: AuditResult, tmp_path: Path) -> None:
    assert plain.draw is not None
    figure = Figure()
    plain.draw(figure)
    heights = [bar.get_height() for bar in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert sum(heights) == 2 * RUNS
    assert [list(line.get_xdata()) for line in figure.axes[0].lines] == [[0.0, 0.0]]  # type: ignore[arg-type]
    save_figure(plain, tmp_path / "many-runs.png")
    assert (tmp_path / "many-runs.png").stat().st_size > 10_000
