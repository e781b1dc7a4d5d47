"""One harness for all methods: sensitivities, noise, charges, masks, and what a run may be combined with.

A method that is registered is here by itself (`method_cases`). Neighbours: tests/audit/test_replay_everything.py.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from adadpigu.accounting import Budget, Ledger, event_from_json, read_ledger
from adadpigu.accounting.events import combined_noise_multiplier
from adadpigu.audit.tapes import Recorder
from adadpigu.core.bounding import BoundedSum, Query
from adadpigu.core.mechanism import Release
from adadpigu.core.randomness import Randomness, ReproducibleRandomness
from adadpigu.data import DataSet, TensorRecords
from adadpigu.errors import InputError
from adadpigu.methods import Method
from adadpigu.training import Facts, Metrics, Run
from adadpigu.training.loop import Session
from adadpigu.training.preparation import Preparation
from adadpigu.training.resuming import Begun
from method_cases import CASES, OWN, VARIANTS
from open_method import OpenMethod
from trials import method_case, prepare_small, small_digits, small_net, weights

STEPS, RECORDS = 10, 300


@pytest.fixture(scope="module", params=[*CASES, "all the frame allows"])
def method(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Method:
    """Every registered method with its defaults and its variants, and one that uses all the frame allows."""
    return method_case(CASES[request.param], tmp_path_factory) if request.param in CASES else OpenMethod()


@pytest.fixture(scope="module")
def private(method: Method) -> Method:
    if not method.private:
        pytest.skip(f"{method.name} adds no noise and claims no privacy, so there is no claim to hold it to")
    return method


@pytest.fixture(scope="module")
def plain(method: Method, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A run with momentum and weight decay, its ledger on disk."""
    return tried(method, path=tmp_path_factory.mktemp("run") / "ledger.log")


@pytest.fixture(scope="module")
def with_adam(method: Method) -> Trial:
    return tried(method, optimizer="adam", lr=0.01)


class Tape(Recorder):
    """Keeps the queries too: they are public."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[list[Query]] = []

    def record(self, sums: Sequence[BoundedSum], releases: dict[str, Release]) -> None:
        super().record(sums, releases)
        self.queries.append([total.query for total in sums])


class Watcher:
    """Follows weights and masks from step to step."""

    session: Session

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, Tensor | None]] = []

    def begin(self, facts: Facts) -> None: ...

    def end(self, run: Run) -> None: ...

    def update(self, metrics: Metrics) -> None:
        active = self.session.learned.method_state.active
        self.steps.append((weights(self.session._p.model), None if active is None else active.clone()))


@dataclass
class Trial:
    """A finished run and all that was written down of it."""

    run: Run
    prepared: Preparation
    tape: Tape
    ledger: Ledger
    watcher: Watcher
    path: Path | None

    @property
    def charges(self) -> tuple[dict[str, Any], ...]:
        """The lines of the ledger."""
        assert self.path is not None
        return read_ledger(self.path).charges

    @property
    def draws(self) -> list[Any]:
        """The plan's draws in the order in which they are made."""
        return [draw for stage in self.prepared.plan.stages for _ in range(stage.steps) for draw in stage.draws]

    def releases(self) -> Iterator[tuple[int, Query, Tensor, Release]]:
        """(number of the draw, query, un-noised sum, release) for everything that was released."""
        for number, (queries, calls, released) in enumerate(
            zip(self.tape.queries, self.tape.calls, self.tape.released, strict=True)
        ):
            for query, call in zip(queries, calls, strict=True):
                yield number, query, call.total, released[call.name]


def prepared(method: Method, data: DataSet | None = None, **options: Any) -> Preparation:
    return prepare_small(
        method, data or small_digits(RECORDS), **({"steps": STEPS, "momentum": 0.9, "weight_decay": 0.1} | options)
    )


def tried(method: Method, *, randomness: Randomness | None = None, path: Path | None = None, **options: Any) -> Trial:
    ready = prepared(method, **options)
    ledger, tape, watcher = Ledger(ready.plan, budget=ready.budget, path=path), Tape(), Watcher()
    session = Session(
        Begun(prepared=ready, ledger=ledger),
        randomness=randomness or ReproducibleRandomness(7),
        mechanism=tape.mechanism,
        observers=[watcher],
    )
    watcher.session = session
    with ledger:
        return Trial(session.run(), ready, tape, ledger, watcher, path)


def test_variants_are_of_registered_methods() -> None:
    assert VARIANTS.keys() <= set(OWN) == {name for name, _ in CASES.values()}


def test_noise_is_the_declared_sensitivity_times_the_multiplier_that_is_charged(private: Method, plain: Trial) -> None:
    charges = plain.charges
    assert len(charges) == len(plain.draws)
    for number, query, _, release in plain.releases():
        sigma, charge = plain.draws[number].noise_multiplier, charges[number]
        assert charge["draw"] == plain.draws[number].name
        (line,) = [line for line in charge["releases"] if line["name"] == query.name]
        assert line["sensitivity"] == query.clip_norm
        assert line["noise_multiplier"] == sigma / query.share**0.5
        assert release.noise_stddev == pytest.approx(query.clip_norm * sigma / query.share**0.5, rel=1e-12)
        together = combined_noise_multiplier([line["noise_multiplier"] for line in charge["releases"]])
        assert together == pytest.approx(sigma, rel=1e-9)  # no share is left unused


def test_what_is_added_is_fresh_gaussian_noise_on_active_coordinates_alone(private: Method, plain: Trial) -> None:
    """Release minus sum, over its standard deviation: Σ² is χ², Σ of products of neighbouring entries nearly normal.

    For each named release a two-sided test of the variance at 1e-6, all steps together: 1,800 entries of a gradient or
    more, so that a standard deviation 8 % off is seen (test_mechanism.py sees 1 %). Neighbouring entries, and the same
    entry in consecutive steps, are uncorrelated within 5.5 standard errors, a false alarm below 1e-7 each.
    """
    noise: dict[str, list[Tensor]] = {}
    for _, query, total, release in plain.releases():
        value, active = release.value.double(), getattr(query, "active", None)
        if active is not None:
            assert (value[~active] == 0).all()
            assert (total[~active] == 0).all()
            value, total = value[active], total[active]
        noise.setdefault(query.name, []).append((value - total) / (release.noise_stddev or 0.0))
    for draws in noise.values():
        z = torch.cat(draws)
        assert chi2.ppf(5e-7, len(z)) < float(z.square().sum()) < chi2.ppf(1 - 5e-7, len(z))
        pairs = [z[1:] * z[:-1], *(a[: len(b)] * b[: len(a)] for a, b in itertools.pairwise(draws))]
        for products in (pairs[0], torch.cat(pairs[1:])) if len(pairs) > 1 else pairs:
            assert abs(float(products.sum())) < 5.5 * float(products.square().sum().sqrt() + 1)


def test_everything_planned_is_charged_once_and_a_calibrated_run_keeps_its_budget(
    private: Method, plain: Trial, tmp_path: Path
) -> None:
    cost = plain.prepared.epsilons["pld"]
    trial = tried(private, path=tmp_path / "ledger.log", sigma=None, epsilon=cost)
    assert Counter(event_from_json(line["event"]) for line in trial.charges) == trial.prepared.plan.charges()
    assert trial.ledger.count == len(trial.draws) == len(trial.tape.calls)
    assert trial.prepared.plan.steps == trial.run.steps == STEPS
    assert trial.prepared.budget == Budget(epsilon=cost)
    assert cost - 0.01 < trial.run.epsilon <= cost
    assert trial.prepared.noise_multiplier == pytest.approx(1.5, rel=0.01)


def test_rejected_steps_are_undone_and_charged(private: Method, plain: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the method says of a candidate, it is rejected: nothing has moved, and all of the plan is charged."""
    method_state = type(plain.watcher.session.learned.method_state)
    genuine = method_state.accept

    def refuse(self: Any, *facts: Any) -> bool:
        genuine(self, *facts)
        return False

    monkeypatch.setattr(method_state, "accept", refuse)
    trial = tried(private, optimizer="adam", lr=0.01)
    assert all(torch.equal(after, weights(small_net())) for after, _ in trial.watcher.steps)
    assert trial.ledger.count == len(trial.draws)
    assert not trial.watcher.session.learned.optimiser.inner.state_dict()["state"]


def test_an_empty_poisson_batch_adds_noise_is_charged_and_trains_on(method: Method) -> None:
    class NobodyComes(ReproducibleRandomness):
        def uniform(self, count: int) -> Tensor:
            return torch.ones(count, dtype=torch.float64)

    trial = tried(method, randomness=NobodyComes(0))
    assert all(bool((call.total == 0).all()) for calls in trial.tape.calls for call in calls)
    assert trial.run.steps == STEPS
    assert trial.ledger.count == len(trial.draws)
    assert trial.run.epsilon == trial.prepared.epsilons["pld"]
    for _, _, _, release in trial.releases():
        assert bool((release.value != 0).any()) == method.private


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_frozen_coordinates_are_bit_identical_and_the_others_move(
    plain: Trial, with_adam: Trial, optimizer: str
) -> None:
    """Under momentum and weight decay too, which move a weight that no gradient moves."""
    trial = plain if optimizer == "sgd" else with_adam
    before = weights(small_net())
    for (after, active), masked in zip(trial.watcher.steps, masks(trial), strict=True):
        assert (active is None) == (masked is None)
        moved = after != before
        if active is not None:
            assert torch.equal(active, masked)
            assert not moved[~active].any()
            moved = moved[active]
        rejected = not moved.any() and "accept" in vars(type(trial.watcher.session.learned.method_state))
        assert rejected or moved.float().mean() > 0.9
        before = after


def masks(trial: Trial) -> list[Any]:
    """Of each step; None for those that ask for maps of gradients, which are of all coordinates."""
    asked = [query for queries in trial.tape.queries for query in queries if query.name == "gradient"]
    return [query.active for query in asked] if len(asked) == STEPS else [None] * STEPS


def double_net() -> nn.Module:
    return small_net().double()


def test_micro_batches_change_nothing(method: Method) -> None:
    """In float64, where the order of an addition changes nothing that a verdict or a ranking could turn on."""
    data = small_digits(RECORDS)
    assert isinstance(data.train, TensorRecords)
    data = replace(data, train=TensorRecords(data.train.inputs.double(), data.train.targets), test=None)
    whole = tried(method, data=data, net=double_net, steps=5)
    parts = tried(method, data=data, net=double_net, steps=5, physical_batch_size=7)
    torch.testing.assert_close(weights(parts.run.model), weights(whole.run.model), atol=1e-9, rtol=1e-9)
    for one, other in zip(whole.tape.calls, parts.tape.calls, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a.total, b.total, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("run", ["copies and an average of weights", "adam"])
def test_what_honest_accuracy_needs_works_with_every_method(
    method: Method, plain: Trial, with_adam: Trial, run: str
) -> None:
    """It changes the run, and neither what is charged nor what is asked for."""
    trial = with_adam if run == "adam" else tried(method, copies=2, flip=True, ema=0.9)
    assert trial.run.epsilon == plain.run.epsilon
    assert trial.ledger.count == len(trial.draws) == len(plain.draws)
    assert [[q.name for q in queries] for queries in trial.tape.queries] == [
        [q.name for q in queries] for queries in plain.tape.queries
    ]
    assert bool(torch.isfinite(weights(trial.run.model)).all())
    still = all(torch.equal(after, weights(small_net())) for after, _ in plain.watcher.steps)
    assert torch.equal(weights(trial.run.model), weights(plain.run.model)) == still


@pytest.mark.parametrize("kind", ["james-stein", "soft"])
def test_denoising_is_the_runs_choice(method: Method, plain: Trial, kind: str) -> None:
    """The first release is the same, what is made of it is not; refused where the noise in ĝ is not known."""
    if not method.denoises:
        with pytest.raises(InputError, match=f"denoise='{kind}': the noise in ĝ of method '{method.name}'"):
            tried(method, denoise=kind, steps=1)
        return
    trial = tried(method, denoise=kind, steps=3)
    assert [q.name for q in trial.tape.queries[0]] == [q.name for q in plain.tape.queries[0]]
    for name, release in trial.tape.released[0].items():
        assert torch.equal(release.value, plain.tape.released[0][name].value)
    before, shrunk = plain.watcher.steps[2][0], trial.watcher.steps[2][0]
    assert not torch.equal(before, shrunk) or torch.equal(before, weights(small_net()))  # all was rejected


def test_automatic_clipping_is_the_runs_choice(private: Method, plain: Trial) -> None:
    trial = tried(private, clipping="automatic", clip_stability=0.1, steps=3)
    ours, theirs = trial.tape.calls[0][0], plain.tape.calls[0][0]
    assert ours.sensitivity == theirs.sensitivity
    assert not torch.equal(ours.total, theirs.total)
