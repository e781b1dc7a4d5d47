"""The noise audit passes noise that is as claimed, and refutes every planted way not to be.

Clean subjects fail with a probability of at most 1e-6 each. Planted faults are so plain that a miss has one below 1e-6.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from plants import overhearing
from scipy.integrate import quad
from scipy.stats import gamma, norm, poisson
from torch import Tensor

from adadpigu.audit import keys, noise
from adadpigu.audit.noise import audit_noise
from adadpigu.audit.noise_capture import _places
from adadpigu.audit.p_values import (
    equal_columns,
    equal_sizes,
    lag_shares,
    most_scale,
    product_p,
    rare_p,
    repeats,
    scale_p,
    sizes,
)
from adadpigu.audit.result import AuditResult
from adadpigu.audit.subject import Subject, subject_of, trained_through
from adadpigu.audit.through import by_loop
from adadpigu.config import merge, read_preset
from adadpigu.core import mechanism
from adadpigu.core.bounding import BoundedSum
from adadpigu.core.layout import Layout, Slot
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.randomness import DeviceRandomness, ReproducibleRandomness, SystemRandomness
from adadpigu.core.sensitive import unseal
from adadpigu.errors import InputError
from adadpigu.training.loop import Session
from adadpigu.training.optimiser import MaskedOptimiser
from adadpigu.training.step import Draws

pytestmark = pytest.mark.usefixtures("coarse_cost")
FEW = 60_000
"""numbers that one short run gives"""
BATCH = 144


@cache
def subject(method: str = "dpsgd", **settings: Any) -> Subject:
    """Sixty steps on the digits, σ given: nothing is calibrated."""
    given = {"epsilon": None, "noise_multiplier": 2.0, "steps": 60, "method": method}
    return subject_of(merge(read_preset("digits-dpsgd"), {**given, **settings}), sample_rate=0.1)


def audited(method: str = "dpsgd", **options: Any) -> AuditResult:
    return audit_noise(subject(method), **{"numbers": FEW, **options})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adadpigu", "dpsgd", "quantile", "dpsur", "random-freeze"])
def test_noise_that_is_as_claimed_passes(method: str) -> None:
    told: list[tuple[int, int]] = []
    result = audited(method, progress=lambda done, of: told.append((done, of)))
    assert result.passed, result.findings
    assert told[-1] == (FEW, FEW)
    assert result.observations >= FEW
    least = 0.7 if method == "dpsur" else 0.95  # of its loss test there are twenty numbers
    assert least * result.epsilon_claimed < result.epsilon_certain < result.epsilon_claimed
    assert result.epsilon_certain < result.epsilon_lower < 1.02 * result.epsilon_claimed
    names = [release["name"] for release in result.details["releases"]]
    assert names == ["gradient", *{"quantile": ["within"], "dpsur": ["loss change"]}.get(method, [])]
    json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.slow
def test_perturbed_clipping_is_no_noise_of_a_release() -> None:
    """ζ of drawn records would touch the dummy block, and widen what is heard there by 4 %."""
    given: dict[str, Any] = {"model": "linear", "perturbation": 50.0, "noise_multiplier": 0.5}
    result = audit_noise(subject("dpsgd", **given), numbers=10_000)
    assert result.passed, result.findings
    assert any("perturbation" in text for text in result.assumed)


def test_so_many_numbers_are_heard_as_were_asked_for_in_several_runs() -> None:
    result = audited("random-freeze", numbers=200_000)
    assert result.passed, result.findings
    assert 200_000 <= result.observations < 230_000


def test_the_fast_tier_passes_too() -> None:
    assert audited(randomness=DeviceRandomness(torch.device("cpu"))).passed


class Planted(ReproducibleRandomness):
    """A generator whose noise is changed on its way; a new key each time one is made."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(int(np.random.default_rng().integers(2**60)))
        self._change = change

    def normal(self, count: int) -> Tensor:
        return self._change(super().normal(count))


def same_each_call(z: Tensor) -> Tensor:
    return torch.from_numpy(np.random.default_rng(5).standard_normal(len(z)))


def same_each_tensor(z: Tensor) -> Tensor:
    """The generator starts anew at each of the model's tensors."""
    sizes = slot_sizes()
    return torch.cat([z[:size] for size in sizes]) if len(z) == sum(sizes) else z


@cache
def slot_sizes() -> list[int]:
    return [slot.stop - slot.start for slot in subject().prepare().engine.layout.slots]


def low_on(start: int, stop: int, factor: float) -> Callable[[Tensor], Tensor]:
    def change(z: Tensor) -> Tensor:
        if len(z) == sum(slot_sizes()):
            z[start:stop] *= factor
        return z

    return change


def student(z: Tensor) -> Tensor:
    return torch.from_numpy(np.random.default_rng().standard_t(6, len(z)) / math.sqrt(1.5))


GENERATORS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "constant": (torch.ones_like, "has mean 1 instead of 0"),
    "nothing": (torch.zeros_like, "has 0 times the standard deviation"),
    "5 % low": (lambda z: 0.95 * z, r"has 0\.9[45]\d* times the standard deviation"),
    "5 % high": (lambda z: 1.05 * z, r"has 1\.0[45]\d* times the standard deviation"),
    "single precision": (lambda z: z.float().double(), "single precision"),
    "no tails": (lambda z: torch.where(z.abs() > 3, torch.zeros_like(z), z), "0 of .* numbers lie above 3"),
    "heavy tails": (student, "numbers lie below −4 standard deviations"),
    "one side": (torch.abs, "away from a Gaussian's"),
    "the same each call": (same_each_call, "repeats itself after 4810 numbers .correlation 1"),
    "the same each tensor": (same_each_tensor, "the noise on '.*' is that on '.*' again .correlation (1|0.9)"),
    "not a number": (lambda z: torch.where(z > 4, torch.nan, z), "numbers of noise are not finite"),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_bad_generator_is_refuted(name: str) -> None:
    change, words = GENERATORS[name]
    result = audited(randomness=Planted(change))
    assert not result.passed
    assert found(words, result), result.findings
    if name == "5 % low":
        assert result.epsilon_certain > 1.03 * result.epsilon_claimed
    if name == "nothing":
        assert result.epsilon_certain == math.inf


def found(words: str, result: AuditResult) -> bool:
    return any(re.search(words, finding) for finding in result.findings)


Noisy = Callable[[GaussianMechanism, BoundedSum, float], Release]


def scaled(factor: float) -> Callable[[Noisy], Noisy]:
    return lambda genuine: lambda self, total, sigma: genuine(self, total, sigma * factor)


def bare_where(fits: Callable[[BoundedSum], bool]) -> Callable[[Noisy], Noisy]:
    """No noise on some sums."""
    return lambda genuine: lambda self, total, sigma: genuine(self, total, 0.0 if fits(total) else sigma)


MECHANISMS: dict[str, tuple[str, Callable[[Noisy], Noisy], str]] = {
    "added to the mean, scaled for the sum": ("dpsgd", scaled(BATCH), "has 14[34].* times the standard deviation"),
    "added to the sum, scaled for the mean": (
        "dpsgd",
        scaled(1 / BATCH),
        r"has 0\.0069\d* times the standard deviation",
    ),
    "none on the count": ("quantile", bare_where(lambda s: s.query.name != "gradient"), r"on 'within' has 0 times"),
    "none on the test": ("dpsur", bare_where(lambda s: s.query.name != "gradient"), r"on 'loss change' has 0 times"),
    "none on nobody": (
        "dpsgd",
        bare_where(lambda s: not bool(unseal(s).any())),
        "96200 of 96200 numbers that were released of nobody have no noise",
    ),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_bad_mechanism_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, plant, words = MECHANISMS[name]
    monkeypatch.setattr(GaussianMechanism, "_noisy", plant(GaussianMechanism._noisy))
    result = audited(method)
    assert not result.passed
    assert found(words, result), result.findings
    if name in ("added to the sum, scaled for the mean", "none on the test"):
        assert result.epsilon_certain > 100 * result.epsilon_claimed


def test_noise_on_frozen_coordinates_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism, "where_or_zero", lambda active, value: value)
    result = audited("adadpigu")
    assert found("numbers were released of coordinates that are frozen", result), result.findings


def test_a_step_that_is_skipped_because_nobody_was_drawn_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, kept = Draws._answer, dict[int, Any]()

    def answer(self: Draws, queries: Any, draw: str) -> Any:
        if len(self._population) == 1 and id(self) in kept:  # as the coins would say
            self._planned.pop(draw)
            return kept[id(self)]
        kept[id(self)] = genuine(self, queries, draw)
        return kept[id(self)]

    monkeypatch.setattr(Draws, "_answer", answer)
    result = audited()
    assert found(r"repeats itself after 4810 numbers .correlation 1", result), result.findings


def test_noise_that_comes_back_with_a_checkpoint_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator's state is kept and restored, as the weights are."""
    save, begin, state = Session.save, Session.begin, dict[str, Any]()

    def saving(self: Session) -> None:
        if self._store is not None:
            state["kept"] = self._randomness._generator.bit_generator.state  # type: ignore[attr-defined]
        save(self)

    def begun(self: Session) -> None:
        begin(self)
        if self.done:
            self._randomness._generator.bit_generator.state = state["kept"]  # type: ignore[attr-defined]

    monkeypatch.setattr(Session, "save", saving)
    monkeypatch.setattr(Session, "begin", begun)
    result = audited()
    assert found("in a run that was resumed the noise repeats itself after", result), result.findings
    assert not found("^the noise repeats itself", result)


@pytest.mark.slow
def test_a_key_that_is_the_same_in_every_process_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def rekey(self: SystemRandomness) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=7))

    monkeypatch.setattr(SystemRandomness, "_rekey", rekey)
    result = audited("adadpigu", numbers=150_000)
    assert found("in a run that was resumed the noise repeats itself after", result), result.findings
    assert found("^the noise repeats itself after", result), result.findings


def test_a_mask_that_moves_hides_no_repetition() -> None:
    result = audited("random-freeze", randomness=Planted(same_each_call))
    assert found("repeats itself after 4810 numbers .correlation 1", result), result.findings


def test_too_little_noise_on_one_small_tensor_is_refuted_and_counts() -> None:
    """10 of 4,810 coordinates: over all of them the standard deviation is 0.999."""
    size = sum(slot_sizes())
    result = audited(randomness=Planted(low_on(size - 10, size, 0.1)))
    assert found(r"the noise on '\S*bias' has 0\.(0[7-9]|1)\d* times the standard deviation", result), result.findings
    assert result.epsilon_certain > 5 * result.epsilon_claimed
    assert not found("the noise on 'gradient' has", result)


@pytest.mark.slow
def test_too_little_noise_on_one_coordinate_is_refuted_in_some_dozen_steps() -> None:
    """A hundredth of the variance: 60 squares sum to 0.6, where a sound sum is below 2 with p < 1e-40."""
    result = audited(randomness=Planted(low_on(100, 101, 0.1)), numbers=290_000)
    assert found(r"on number 100 of '\S+' has 0\.(0|1)\d* times .* over \d+ releases", result), result.findings
    assert not found("the noise on '", result)


def test_numbers_without_noise_are_seen() -> None:
    result = audited(randomness=Planted(low_on(4805, 4810, 0.0)))
    assert found(r"^\d+ of \d+ numbers that were released of nobody have no noise", result), result.findings


def halved_where(fits: Callable[[GaussianMechanism, BoundedSum], bool]) -> Callable[[Noisy], Noisy]:
    return lambda genuine: lambda self, total, sigma: genuine(self, total, sigma / 2 if fits(self, total) else sigma)


@pytest.mark.parametrize("method", ["dpsgd", "adaclip", "adadpigu"])
@pytest.mark.parametrize(
    ("fits", "words"),
    [
        (lambda self, _: type(self) is GaussianMechanism, r"the noise on 'gradient' has 0\.\d+ times"),
        (lambda _, total: bool(unseal(total).any()), r"where records are drawn: noise has 0\.(49\d*|50\d*|5) times"),
    ],
    ids=["where no auditor looks at sums", "where records were drawn"],
)
def test_noise_that_is_halved_out_of_an_auditor_s_sight_is_refuted(
    method: str, fits: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GaussianMechanism, "_noisy", halved_where(fits)(GaussianMechanism._noisy))
    result = audited(method)
    assert not result.passed
    assert found(words, result), result.findings


@pytest.mark.parametrize(("method", "share"), [("dpsgd", 0.0), ("random-freeze", 0.0), ("adadpigu", 0.5)])
def test_noise_that_is_less_where_nobody_watches_is_read_off_the_weights(
    method: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, noisy, factor = Draws._answer, GaussianMechanism._noisy, [1.0]

    def answered(self: Draws, *given: Any) -> dict[str, Release]:
        factor[0] = share if self._watch is None else 1.0
        return genuine(self, *given)

    monkeypatch.setattr(Draws, "_answer", answered)
    monkeypatch.setattr(GaussianMechanism, "_noisy", lambda self, total, s: noisy(self, total, s * factor[0]))
    result = audited(method)
    assert found("where nobody watches: noise has 0", result), result.findings


@pytest.mark.parametrize(("method", "stages"), [("dpsgd", ""), ("quantile", "training"), ("adadpigu", "training")])
def test_where_weights_do_not_tell_the_noise_the_audit_says_so(method: str, stages: str) -> None:
    result = audited(method)
    assert result.passed, result.findings
    told = [line for line in result.assumed if "nobody watches" in line]
    assert [line.rsplit(" ")[-1] for line in told] == ([stages] if stages else [])
    assert (result.details["draws_without_a_watch"] > 0) == (method != "quantile")


def test_weights_that_get_another_release_than_is_shown_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: half of the noise is taken off again on its way to the weights."""
    genuine = MaskedOptimiser.expose
    monkeypatch.setattr(MaskedOptimiser, "expose", lambda self, step: genuine(self, step.map(lambda v: v / 2)))
    result = audited()
    assert found(r"in (\d+) of \1 steps the weights or p.grad were not made by what was released", result), (
        result.findings
    )


@pytest.mark.parametrize("watched", [True, False])
def test_a_sum_that_is_left_in_p_grad_is_seen(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of empty draws, and of records that touch a block alone, the sum is 0."""
    genuine = MaskedOptimiser.step
    with overhearing() as heard:

        def step(self: MaskedOptimiser, direction: Release) -> None:
            genuine(self, direction)
            if heard.watched == watched:
                for parameter in self._parameters:
                    parameter.grad = torch.zeros_like(parameter)

        monkeypatch.setattr(MaskedOptimiser, "step", step)
        result = audited()
    assert found(r"in (\d+) of \1 steps the weights or p.grad were not made by what was released", result)
    assert len(result.findings) == (3 if watched else 1)


def test_a_release_that_a_loop_of_the_user_s_own_leaves_in_p_grad_is_none_of_an_audit_s_findings() -> None:
    with trained_through(by_loop):
        result = audited(numbers=10_000)
    assert result.passed, result.findings


def test_keys_that_are_constant_show_between_two_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the coins alone: the noise is as it should be."""
    fixed = ReproducibleRandomness(7).uniform(2**12)
    monkeypatch.setattr(SystemRandomness, "uniform", lambda self, count: fixed[:count].clone())
    seen = keys.drawn_here("secure", torch.device("cpu"))
    assert list(keys.equal_numbers(seen)) == [
        "two generators draw the same coins: 256 of 256 numbers, so their key is constant"
    ]


SHARED = """
import torch
from adadpigu.core.randomness import SystemRandomness
generator = torch.Generator().manual_seed(0)
SystemRandomness.normal = lambda self, count: torch.randn(count, dtype=torch.float64, generator=generator)
"""


@pytest.mark.slow
def test_a_constant_seed_shows_between_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One generator for the whole process: within it, nothing repeats."""
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(
        SystemRandomness, "normal", lambda self, n: torch.randn(n, dtype=torch.float64, generator=generator)
    )
    monkeypatch.setattr(keys, "_PROGRAM", SHARED + keys._PROGRAM)
    assert audited().passed
    monkeypatch.setattr(noise, "_PROCESSES_FROM", FEW)
    result = audited()
    assert result.findings == ("two processes draw the same noise: 256 of 256 numbers, so their key is constant",)
    assert result.details["processes"] == 3


@pytest.mark.slow
def test_two_processes_of_the_package_as_it_is_share_no_number() -> None:
    here, elsewhere = (drawn(None, torch.device("cpu")) for drawn in (keys.drawn_here, keys.drawn_elsewhere))
    assert len(here) == len(elsewhere) == 2
    assert list(keys.equal_numbers(here, elsewhere)) == []


def test_a_process_that_cannot_draw_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_PROGRAM", "raise OSError('no entropy')")
    with pytest.raises(InputError, match=r"a second process could not draw any .OSError: no entropy.; allowed"):
        keys.drawn_elsewhere(None, torch.device("cpu"))


def test_of_a_large_model_every_tensor_is_heard() -> None:
    ends = [0, 60_000, 60_010, 90_000, 100_000]
    slots = (Slot(str(a), torch.Size([b - a]), a, b) for a, b in pairwise(ends))
    layout = Layout(tuple(slots))
    one, other = _places(layout, 8_000), _places(layout, 8_000)
    assert len(one) == len(other) == 8_000
    assert not np.array_equal(one, other)
    assert (np.diff(one) > 0).all()
    for slot in layout.slots:
        assert np.isin(np.arange(slot.start, min(slot.stop, slot.start + 64)), one).all()
        assert ((one >= slot.start) & (one < slot.stop)).sum() >= min(slot.stop - slot.start, 300)
    assert np.array_equal(_places(layout, None), np.arange(100_000))
    assert np.array_equal(_places(layout, 100_000), np.arange(100_000))


def test_repeats_are_what_adding_up_pair_by_pair_gives() -> None:
    chance = np.random.default_rng(1)
    due = chance.random(50) < 0.7
    z = np.where(due, chance.standard_normal(50), 0.0)
    products, variances = repeats(z, due)
    for lag in range(1, 50):
        assert products[lag - 1] == pytest.approx(z[:-lag] @ z[lag:], abs=1e-9)
        assert variances[lag - 1] == pytest.approx(z[:-lag] ** 2 @ due[lag:], abs=1e-9)
    assert lag_shares(10**6).sum() < 1


def test_bets_are_the_likelihoods_they_stand_for() -> None:
    """Oracle: numerical integration over the scale, and over λ."""
    for squares, count in ((0.3, 4), (20.0, 6), (1.0, 12)):
        won, _ = quad(lambda t: t ** (count / 2) * np.exp((1 - t) * squares / 2) * gamma.pdf(t, 0.5, scale=200), 0, 1e3)  # noqa: B023
        assert float(scale_p(squares, count)) == pytest.approx(min(1.0, 1 / won), rel=1e-4)
    won, _ = quad(lambda x: np.exp(x * 40 - x**2 * 100 / 2) * norm.pdf(x, scale=0.25), -4, 4)
    assert float(product_p(40.0, 100.0)) == pytest.approx(1 / won, rel=1e-6)
    assert float(product_p(-40.0, 100.0)) == pytest.approx(1 / won, rel=1e-6)
    bound = most_scale(30.0, 50, 1e-6)
    assert float(scale_p(30.0 / bound**2, 50)) == pytest.approx(1e-6, rel=1e-6)
    assert bound > math.sqrt(30 / 50)
    for count in range(1, 40):
        for expected in (1e-9, 1e-3, 0.5, 3.0, 20.0):
            assert rare_p(count, expected) >= poisson.sf(count - 1, expected)


def test_learned_choices_do_not_raise_alarms() -> None:
    """Pairs are kept where the earlier number is large, a sum is stopped where it is least: 4,000 times each."""
    chance = np.random.default_rng(2)
    earlier, later = chance.standard_normal((2, 4000, 200))
    chosen = np.abs(earlier) > 1.5
    p = product_p((earlier * later * chosen).sum(axis=1), (earlier**2 * chosen).sum(axis=1))
    assert (p < 0.05).mean() < 0.05
    running = np.cumsum(earlier**2, axis=1)
    least = scale_p(running, np.broadcast_to(np.arange(1.0, 201.0), running.shape)).min(axis=1)
    assert 0 < (least < 0.05).mean() < 0.05


def test_too_few_numbers_are_refused() -> None:
    with pytest.raises(InputError, match=r"numbers=9999 are too few .* allowed: at least 10000"):
        audited(numbers=9_999)
    with pytest.raises(InputError, match=r"confidence=0\.2"):
        audited(confidence=0.2)


def test_sizes_of_normal_numbers_are_fair_bets() -> None:
    """E exp(λu) ≤ exp(λ²/2), which is what makes `product_p` hold for them."""
    for bet in (0.1, 0.5, 1.0, 2.0, 5.0, 20.0):
        mean = quad(lambda z, bet=bet: np.exp(bet * sizes(np.array([z]), np.array([True]))[0]) * norm.pdf(z), -9, 9)[0]
        assert mean <= np.exp(bet**2 / 2) * (1 + 1e-9)


def test_numbers_of_few_digits_are_equal_as_often_as_is_expected_at_most() -> None:
    z = np.random.default_rng(3).standard_normal(100_000)
    for digits, rounded in ((2.0**-23, z.astype(np.float32)), (2.0**-10, z.astype(np.float16))):
        equal, expected = equal_sizes(rounded.astype(np.float64), digits)
        assert 0.1 * expected < equal < expected
    assert equal_sizes(z, 2.0**-52)[0] == 0
    assert rare_p(*equal_sizes(np.random.default_rng(4).choice(z, 2000), 2.0**-23)) < 1e-9


def test_columns_are_alike_as_often_as_is_expected_at_most() -> None:
    """Independent ones; and pairs, however far apart, whose sizes are equal but for a hundredth."""
    chance = np.random.default_rng(5)
    z = chance.standard_normal((8, 6000))
    alike, expected = equal_columns(z)
    assert alike < expected + 5 * math.sqrt(expected) + 5
    assert expected == pytest.approx(6000 * 5999 / 2 / 8**8, rel=1.2)
    order = chance.permutation(6000)
    z[:, order[:3000]] = -z[:, order[3000:]] * (1 + 0.01 * chance.standard_normal((8, 3000)))
    assert equal_columns(z)[0] > 1500
