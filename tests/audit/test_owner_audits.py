"""Audits of runs with owners: the neighbour and the canaries are persons, with as many records as the cap and one more.

A clean subject is refuted with a chance of at most 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from adadpigu.audit.one_run import audit_one_run
from adadpigu.audit.replay import audit_replay
from adadpigu.audit.sampler import audit_sampler
from adadpigu.audit.subject import Subject, subject_of
from adadpigu.audit.through import audit_through
from adadpigu.audit.white_box import audit_white_box
from adadpigu.config import merge, read_preset
from adadpigu.core.bounding import BoundedSum
from adadpigu.core.randomness import Randomness
from adadpigu.core.sampling import Coins, Owners, OwnerSampler, Population
from adadpigu.core.sensitive import unseal
from adadpigu.errors import InputError

pytestmark = pytest.mark.usefixtures("coarse_cost")
of_names = Owners.of


def subject(cap: int, method: str = "dpsgd") -> Subject:
    """A claim of about ε = 8, on the digits, as if each were somebody's."""
    chosen = {"noise_multiplier": 0.6085, "epsilon": None, "steps": 40, "method": method}
    made = subject_of(merge(read_preset("digits-dpsgd"), chosen), sample_rate=0.05)
    return replace(made, data=replace(made.data, owners=Owners.of(range(len(made.data.train)), cap=cap)))


def by_record(self: OwnerSampler, population: Population, randomness: Randomness) -> Coins:
    """Planted: a coin a record; of an owner's records those within the cap."""
    return Coins((randomness.uniform(len(population)) < self.sample_rate) & (unseal(self.owners) >= 0))


def without_cap(self: OwnerSampler, population: Population, randomness: Randomness) -> Coins:
    """Planted: a coin a record, whoever's it is and however many they have."""
    return Coins(randomness.uniform(len(population)) < self.sample_rate)


def uncapped(cls: type[Owners], names: Any, *, cap: int) -> Owners:
    """Planted: an owner keeps all of their records."""
    return Owners(unseal(of_names(names, cap=len(list(names)) or 1)), cap)


def of_a_record(total: BoundedSum) -> float:
    """Planted: noise for one record."""
    return total.query.sensitivity / total.query.per_owner


@pytest.mark.parametrize("method", ["dpsgd", "adadpigu"])
def test_an_owner_moves_a_sum_by_all_that_the_noise_covers(method: str) -> None:
    found = audit_replay(subject(4, method), steps=4)
    assert found.passed, found.findings
    assert 0.99 <= found.details["largest_share"] <= 1 + 1e-5
    assert found.epsilon_lower == pytest.approx(found.epsilon_claimed, rel=1e-2)


@pytest.mark.parametrize(
    ("audit", "target", "name", "planted"),
    [
        (partial(audit_replay, steps=3), OwnerSampler, "toss", without_cap),
        (partial(audit_replay, steps=3), Owners, "of", classmethod(uncapped)),
        (partial(audit_replay, steps=3), BoundedSum, "sensitivity", property(of_a_record)),
        (partial(audit_sampler, draws=40), OwnerSampler, "toss", without_cap),
        (partial(audit_sampler, draws=40), OwnerSampler, "toss", by_record),
        (partial(audit_white_box, observations=3000), BoundedSum, "sensitivity", property(of_a_record)),
    ],
)
def test_a_fault_of_grouping_cap_or_noise_is_refuted(
    audit: Callable[[Subject], Any], target: type, name: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, name, planted)
    assert not audit(subject(4)).passed


def test_a_sampler_of_owners_passes() -> None:
    found = audit_sampler(subject(4), draws=40)
    assert found.passed, found.findings


@pytest.mark.slow
def test_a_person_shows_what_a_single_record_shows() -> None:
    """ε above the claim at 1 − 1e-6 has a chance of 1e-6; below 70 % of it at 95 %, less than that."""
    for cap in (1, 5):
        found = audit_white_box(subject(cap), observations=4000)
        assert found.passed, found.findings
        assert 0.7 * found.epsilon_claimed < found.epsilon_lower
        assert found.details["mean_within"] == pytest.approx(1, abs=0.08)


@pytest.mark.slow
def test_one_run_has_persons_as_canaries() -> None:
    """Of 200 guesses about 162 ± 6 are right, as of canaries that are records; 100 would be by chance."""
    found = audit_one_run(subject(3), canaries=1000, guesses=200)
    assert found.passed, found.findings
    assert found.details["right"] > 130


def test_what_is_assumed_of_owners_is_said() -> None:
    told = [
        subject(3).result(name, epsilon_lower=0.0, epsilon_certain=0.0, confidence=0.95, observations=1)
        for name in ("accountant", "replay")
    ]
    assert [any("each record is another owner's" in line for line in result.assumed) for result in told] == [
        True,
        False,
    ]


def test_a_trainer_that_takes_no_owners_is_not_audited_with_them() -> None:
    with pytest.raises(InputError, match="augmentation or owners through 'opacus'; allowed: none"):
        audit_through("opacus", audit_replay, subject(3), steps=1)
