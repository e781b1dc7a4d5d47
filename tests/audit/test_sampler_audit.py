"""The sampler audit passes what samples as claimed, and refutes every planted way not to.

Clean subjects fail with a probability of at most 1e-6 each. Planted faults are so plain that a miss has one below 1e-6.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import plants_once_missed as missed
import pytest
import torch
from torch import Tensor

from adadpigu.accounting import epsilon, plan_for
from adadpigu.audit.sampler import audit_sampler
from adadpigu.audit.subject import Subject, subject_of
from adadpigu.audit.watching import ObservedSampler, watch
from adadpigu.config import merge, read_preset
from adadpigu.core import standardising
from adadpigu.core.fixed_batch import FixedBatch
from adadpigu.core.randomness import DeviceRandomness, Randomness, ReproducibleRandomness
from adadpigu.core.sampling import Coins, Drawn, PoissonSampler, Population, gather
from adadpigu.core.sensitive import unseal
from adadpigu.errors import InputError
from adadpigu.training.cuda_graphs import choose_recorder
from adadpigu.training.micro_batches import MicroBatches
from replayed_operations import ReplayedOperations

pytestmark = pytest.mark.usefixtures("coarse_cost")
RATE = 0.1
CPU = torch.device("cpu")


@cache
def subject(method: str = "dpsgd", **settings: Any) -> Subject:
    """Sixty steps on the digits, σ given: nothing is calibrated."""
    options = {"test_batch_size": 144} if method == "dpsur" else {}
    given = {"epsilon": None, "noise_multiplier": 2.0, "steps": 60, "method": method, "method_options": options}
    return subject_of(merge(read_preset("digits-dpsgd"), {**given, **settings}), sample_rate=RATE)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adadpigu", "dpsgd", "quantile", "dpsur", "random-freeze"])
def test_a_sampler_that_is_as_claimed_passes(method: str) -> None:
    told: list[tuple[int, int]] = []
    result = audit_sampler(subject(method), draws=40, progress=lambda done, of: told.append((done, of)))
    assert result.passed, result.findings
    assert told[-1] == (40, 40)
    assert 0.8 * result.epsilon_claimed < result.epsilon_certain < result.epsilon_claimed
    assert result.epsilon_certain < result.epsilon_lower < 1.2 * result.epsilon_claimed
    names = [kind["name"] for kind in result.details["draws"]]
    assert names == (["gradient", "test"] if method == "dpsur" else ["gradient"])
    assert result.observations == 40 * len(names)
    json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.slow
def test_a_draw_of_every_record_is_one_too() -> None:
    result = audit_sampler(subject(normalisation="released"), draws=30)
    assert result.passed, result.findings
    assert [(kind["name"], kind["sample_rate_found"] == 1.0) for kind in result.details["draws"]] == [
        ("normalisation", True),
        ("gradient", False),
    ]


def test_what_is_watched_is_what_the_coins_say() -> None:
    """In whatever parts a draw is processed."""
    kept: list[Tensor] = []

    class Kept(ReproducibleRandomness):
        def uniform(self, count: int) -> Tensor:
            kept.append(super().uniform(count))
            return kept[-1]

    for size in (None, 7):
        kept.clear()
        seen = watch(subject("dpsur", physical_batch_size=size), records=300, steps=4, randomness=Kept(0))
        assert seen.planned == len(seen.in_order) == len(kept) == 8
        assert (seen.in_order == (torch.stack(kept) < RATE).numpy()).all()
        assert (seen.repeated, seen.stray) == (0, 0)


Toss = Callable[[PoissonSampler, Population, Randomness], Coins]


def shuffled() -> Toss:
    """The batches of an epoch are parts of a random order, accounted as Poisson."""
    left: dict[int, Tensor] = {}

    def toss(self: PoissonSampler, population: Population, randomness: Randomness) -> Coins:
        count = len(population)
        size = round(self.sample_rate * count)
        if len(left.get(count, ())) < size:
            left[count] = torch.randperm(count)
        taken, left[count] = left[count][:size], left[count][size:]
        return Coins(torch.zeros(count, dtype=torch.bool).index_fill_(0, taken, True))

    return toss


def fixed_size(self: PoissonSampler, population: Population, randomness: Randomness) -> Coins:
    taken = torch.randperm(len(population))[: math.ceil(self.sample_rate * len(population))]
    return Coins(torch.zeros(len(population), dtype=torch.bool).index_fill_(0, taken, True))


def changed(change: Callable[[Tensor, float], Tensor]) -> Toss:
    """Coins that are tossed as they should be, and then changed."""

    def toss(self: PoissonSampler, population: Population, randomness: Randomness) -> Coins:
        return Coins(change(randomness.uniform(len(population)), self.sample_rate))

    return toss


def certain(value: bool) -> Toss:
    def change(coins: Tensor, rate: float) -> Tensor:
        return (coins < rate).index_fill_(0, torch.tensor([7]), value)

    return changed(change)


def pairs(coins: Tensor, rate: float) -> Tensor:
    """Neighbours share a coin."""
    return (coins < rate)[torch.arange(len(coins)) // 2 * 2]


def households(coins: Tensor, rate: float) -> Tensor:
    """Records that are a hundred apart share a coin."""
    return (coins < rate)[torch.arange(len(coins)) % 100]


def repeating(period: int) -> Toss:
    """The coins of so many draws come again and again: a generator that is put back."""
    kept: dict[int, list[Tensor]] = {}

    def toss(self: PoissonSampler, population: Population, randomness: Randomness) -> Coins:
        coins = kept.setdefault(len(population), [])
        coins.append(coins[-period] if len(coins) >= period else randomness.uniform(len(population)) < self.sample_rate)
        return Coins(coins[-1].clone())

    return toss


def served_twice() -> Toss:
    """Every other draw is the one before again: two releases of one batch, charged as two draws."""
    kept: list[Tensor] = []

    def toss(self: PoissonSampler, population: Population, randomness: Randomness) -> Coins:
        if kept:
            return Coins(kept.pop())
        kept.append(randomness.uniform(len(population)) < self.sample_rate)
        return Coins(kept[-1].clone())

    return toss


def never_empty(self: PoissonSampler, population: Population, randomness: Randomness) -> Coins:
    while not bool((taken := randomness.uniform(len(population)) < self.sample_rate).any()):
        pass
    return Coins(taken)


def rate_of_the_length(self: PoissonSampler, population: Population, randomness: Randomness) -> Coins:
    """q from how many records there are, not from how many were declared."""
    return Coins(randomness.uniform(len(population)) < 144 / len(population))


PLANTED: dict[str, tuple[Callable[[], Toss], str, dict[str, Any]]] = {
    "shuffled batches": (shuffled, r"batch sizes vary by 0\.0, Poisson sampling by 10\.7: amplification", {}),
    "batches of one size": (lambda: fixed_size, r"batch sizes vary by 0\.0", {}),
    "a higher rate": (lambda: changed(lambda coins, rate: coins < 1.15 * rate), "claimed is 0.1", {}),
    "a lower rate": (lambda: changed(lambda coins, rate: coins < 0.85 * rate), "claimed is 0.1", {}),
    "a rate of the length": (lambda: rate_of_the_length, "0 of 80 draws from 10 records are empty", {}),
    "a record always": (lambda: certain(True), "one record is in .* and another in 40", {}),
    "a record never": (lambda: certain(False), "one record is in 0", {"draws": 300}),
    "neighbours together": (lambda: changed(pairs), "neighbouring records are drawn together", {}),
    "households together": (lambda: changed(households), r"records \d+ and \d+ are drawn together", {"draws": 120}),
    "coins put back": (lambda: repeating(7), "have taken the same records", {}),
    "one batch served twice": (served_twice, "draws that follow each other", {}),
    "one batch for both draws": (served_twice, "draws that follow each other", {"method": "dpsur"}),
    "never empty": (lambda: never_empty, "0 of 80 draws from 10 records are empty", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_sampler_that_is_not_as_claimed_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, words, settings = PLANTED[name]
    monkeypatch.setattr(PoissonSampler, "toss", make())
    result = audit_sampler(subject(settings.get("method", "dpsgd")), draws=settings.get("draws", 40))
    assert not result.passed
    assert any(re.search(words, finding) for finding in result.findings), result.findings
    if name in ("a higher rate", "a record always"):
        assert result.epsilon_certain > result.epsilon_claimed
    if name == "a record always":  # what sixty steps at q = 1 cost, nearly: the rate is at least 0.5 for certain
        assert result.epsilon_certain > epsilon(plan_for(0.5, 60)(2.0).event(), 1e-5)


def test_the_sampler_that_is_audited_is_the_runs_own() -> None:
    """And not one that the auditor makes, at the same rate."""
    with missed.batches_of_one_size():
        result = audit_sampler(subject(), draws=40)
    assert any("batch sizes vary by 0.0" in finding for finding in result.findings), result.findings


def test_a_spied_sampler_answers_as_the_runs_own_does_and_tells() -> None:
    class Own(PoissonSampler):
        def toss(self, *given: Any) -> Any:
            return "tossed", given

        def event(self, *given: Any) -> Any:
            return "priced", given

    told: list[str] = []
    spied: Any = ObservedSampler(
        sample_rate=RATE,
        own=Own(sample_rate=RATE),
        asked=lambda: told.append("asked"),
        tossed=lambda: told.append("tossed"),
    )
    assert spied.event([2.0]) == ("priced", ([2.0],))
    assert spied.toss("records", "coins") == ("tossed", ("records", "coins"))
    assert told == ["asked", "tossed"]


@pytest.mark.slow
def test_a_record_that_is_gathered_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(population: Population, drawn: Drawn, present: Any = None) -> Any:
        positions = unseal(drawn)
        return gather(population, Drawn(torch.cat([positions[:1], positions[:-1]])), present)

    monkeypatch.setattr("adadpigu.training.micro_batches.gather", again)
    result = audit_sampler(subject(), draws=20)
    assert any("taken twice by one draw" in finding for finding in result.findings), result.findings


def test_records_that_a_micro_batch_leaves_out_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = MicroBatches._process

    def process(self: MicroBatches, drawn: Drawn, *rest: Any) -> Any:
        return genuine(self, Drawn(unseal(drawn)[:100]), *rest)

    monkeypatch.setattr(MicroBatches, "_process", process)
    result = audit_sampler(subject(), draws=40)
    assert any("batch sizes vary by" in finding for finding in result.findings), result.findings


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[ReplayedOperations]:
    """Steps are recorded and replayed as a GPU does, in batches of fixed shape."""
    made: list[ReplayedOperations] = []

    def replayed(prepared: Any, learned: Any, randomness: Any, **options: Any) -> Any:
        made.append(ReplayedOperations(randomness.coins, randomness.noise, torch.default_generator))
        return choose_recorder(prepared, learned, randomness, **{**options, "recorder": made[-1]})

    def unseen(z: Tensor, factors: Tensor) -> Tensor:
        return z.masked_fill((factors == 0)[:, None], 0.0).mT @ factors

    monkeypatch.setattr("adadpigu.training.loop.choose_recorder", replayed)
    monkeypatch.setattr(standardising, "weighted_total", unseen)
    return made


@pytest.mark.slow
def test_recorded_steps_are_watched_too(recorded: list[ReplayedOperations]) -> None:
    result = audit_sampler(subject(), draws=40, randomness=DeviceRandomness(CPU))
    assert result.passed, result.findings
    assert all(recorder.recorded for recorder in recorded)
    assert result.observations == 40


def test_a_recorded_toss_that_is_not_tossed_again_is_seen(
    recorded: list[ReplayedOperations], monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = FixedBatch.toss

    def toss(self: FixedBatch, *facts: Any) -> Coins:
        return genuine(self, *facts) if self._tossed is None else Coins(self._tossed.taken)

    monkeypatch.setattr(FixedBatch, "toss", toss)
    result = audit_sampler(subject(), draws=40, randomness=DeviceRandomness(CPU))
    assert any("draws that follow each other" in finding for finding in result.findings), result.findings


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(InputError, match=r"draws=9 are too few .* allowed: at least 10"):
        audit_sampler(subject(), draws=9)
    with pytest.raises(InputError, match=r"confidence=1\.5"):
        audit_sampler(subject(), confidence=1.5)
