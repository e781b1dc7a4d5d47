"""Recorded steps against eager ones: same numbers, same charges, overflowing draws included, and honest refusals."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adadpigu.accounting import Ledger
from adadpigu.core import standardising
from adadpigu.core.bounding import BoundedSum, GradientSum
from adadpigu.core.fixed_batch import FixedBatch
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.randomness import DeviceRandomness
from adadpigu.core.sampling import PoissonSampler
from adadpigu.core.sensitive import unseal
from adadpigu.data.datasets import TensorRecords
from adadpigu.errors import PrivacyLineError
from adadpigu.methods import DPSGD, AdaDPIGU, Method, make_method
from adadpigu.methods.base import Batches, MethodState, RunContext, Stage, mean_gradient
from adadpigu.training import Run
from adadpigu.training.loop import Session
from adadpigu.training.resuming import Begun
from method_cases import OWN
from replayed_operations import ReplayedOperations
from trials import prepare_small, small_digits, weights

CPU = torch.device("cpu")
LEARNING = AdaDPIGU(
    importance_steps=5, schedule="linear", mean_decay=0.9, variance_decay=0.9, offset=1e-3, clip_norm=0.3
)
STEPS = 16


class Seeded(DeviceRandomness):
    """Device randomness that can be repeated."""

    def _rekey(self) -> None:
        super()._rekey()
        self._generator = torch_free_numpy(7)
        self.coins, self.noise = torch.Generator().manual_seed(7), torch.Generator().manual_seed(8)


def torch_free_numpy(seed: int) -> Any:
    import numpy as np

    return np.random.Generator(np.random.Philox(seed))


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a CPU looks whether rows have to be left out, a GPU leaves them out unseen."""

    def unseen(z: Tensor, factors: Tensor) -> Tensor:
        return z.masked_fill((factors == 0)[:, None], 0.0).mT @ factors

    monkeypatch.setattr(standardising, "weighted_total", unseen)


def run(method: Method, recorded: bool, **options: Any) -> tuple[Tensor, Run, Ledger]:
    prepared = prepare_small(method, **({"steps": STEPS} | options))
    randomness = Seeded(CPU)
    recorder = ReplayedOperations(randomness.coins, randomness.noise, torch.default_generator) if recorded else None
    ledger = Ledger(prepared.plan)
    with ledger:
        done = Session(Begun(prepared=prepared, ledger=ledger), randomness=randomness, recorder=recorder).run()
    return weights(done.model), done, ledger


@pytest.mark.parametrize("engine", ["materialised", "ghost", "functional"])
@pytest.mark.parametrize(
    "method",
    [
        DPSGD(clip_norm=0.3),
        LEARNING,
        AdaDPIGU(importance_steps=4, mode="prune"),
        make_method("adaclip", {}),
        make_method("parameter-freezing", {}),
        make_method("sgd", {}),
    ],
    ids=lambda method: method.name,
)
def test_recorded_steps_give_what_eager_steps_give(method: Method, engine: str) -> None:
    eager, _, charged = run(method, False, engine=engine)
    replayed, done, recharged = run(method, True, engine=engine)
    torch.testing.assert_close(replayed, eager, rtol=1e-5, atol=1e-6)
    assert recharged.count == charged.count == STEPS
    assert "replayed operations" in done.execution, done.execution


@pytest.mark.parametrize("name", OWN)
def test_every_method_is_the_same_whether_its_steps_may_be_recorded_or_not(name: str) -> None:
    method = make_method(name, {"test_batch_size": 60} if name == "dpsur" else {})
    eager, _, _ = run(method, False, steps=10)
    replayed, done, _ = run(method, True, steps=10)
    torch.testing.assert_close(replayed, eager, rtol=1e-4, atol=1e-6)
    assert done.execution


@pytest.mark.parametrize(
    "options",
    [
        {"lr_schedule": "cosine", "warmup": 0.2},
        {"ema": 0.9},
        {"tail": 0.4},
        {"weight_decay": 0.1},
        {"physical_batch_size": 16},
        {"clipping": "automatic"},
        {"lr": 0.2, "momentum": 0.0},
    ],
    ids=str,
)
def test_what_changes_from_step_to_step_reaches_a_recorded_one(options: dict[str, Any]) -> None:
    eager, _, _ = run(LEARNING, False, **options)
    replayed, done, _ = run(LEARNING, True, **options)
    torch.testing.assert_close(replayed, eager, rtol=1e-4, atol=1e-6)
    assert "replayed" in done.execution, done.execution


def test_a_draw_that_does_not_fit_is_processed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for 38 of 40 expected records most draws overflow; none of their records is dropped."""
    eager, _, _ = run(LEARNING, False)
    monkeypatch.setattr(FixedBatch, "size_for", staticmethod(lambda batch_size, rate: 38))
    replayed, done, ledger = run(LEARNING, True)
    torch.testing.assert_close(replayed, eager, rtol=1e-5, atol=1e-6)
    assert ledger.count == STEPS
    taken = int(done.execution.split(", ")[1].split()[0])
    assert 0 < taken < STEPS - 4, done.execution


class Counting(DPSGD):
    """Planted: its steps depend on a number kept in Python, though it says that they do not."""

    def begin(self, context: RunContext) -> MethodState:
        return _Counting(context.batch_size)


class _Counting(MethodState):
    def __init__(self, batch_size: int) -> None:
        self._batch_size, self._count = batch_size, 0

    def capture_key(self, stage: Stage) -> Hashable:
        return stage.name

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        self._count += 1
        return mean_gradient(batches, GradientSum(clip_norm=0.3), self._batch_size * self._count)


def test_the_comparison_finds_a_method_that_keeps_its_state_in_python() -> None:
    eager, _, _ = run(Counting(), False)
    replayed, _, _ = run(Counting(), True)
    assert not torch.allclose(replayed, eager, rtol=1e-2)


class Looking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(torch.isinf(x).any()):
            raise ValueError("infinite")
        return x


@pytest.mark.parametrize(
    ("layer", "reason"),
    [(Looking, "cannot be recorded"), (nn.Dropout, "generator of the CPU")],
    ids=["looks", "chance"],
)
def test_a_model_that_cannot_be_recorded_runs_eagerly_and_says_why(layer: Callable[[], nn.Module], reason: str) -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), layer(), nn.Linear(64, 10))

    eager, _, _ = run(DPSGD(), False, net=net, steps=6)
    kept, done, ledger = run(DPSGD(), True, net=net, steps=6)
    assert reason in done.execution
    assert ledger.count == 6
    torch.testing.assert_close(kept, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"execution": "eager"}, "asked for"),
        ({"diagnostics": True}, "look at every step"),
        ({"perturbation": 0.3}, "perturbation=0.3 needs gradients and coins of single records"),
        ({"optimizer": "adam", "lr_schedule": "cosine"}, "learning rate"),
        ({"optimizer": "adam"}, "cannot be recorded"),
    ],
    ids=str,
)
def test_what_forbids_recording_is_named(options: dict[str, Any], reason: str) -> None:
    _, done, _ = run(DPSGD(), True, **options)
    assert done.execution.startswith("eager: ")
    assert reason in done.execution


class Fixed(DeviceRandomness):
    """Coins that are given."""

    def __init__(self, coins: list[int]) -> None:
        super().__init__(CPU)
        self._coins = torch.tensor(coins)

    def uniform(self, count: int) -> Tensor:
        return 1.0 - self._coins.double()


def test_a_fixed_batch_holds_the_taken_records_in_order_and_marks_the_rest() -> None:
    people, sampler = TensorRecords(torch.zeros(8, 1), torch.zeros(8)), PoissonSampler(sample_rate=0.5)
    for size, expected in ((6, [1, 3, 4, 7]), (4, [1, 3, 4, 7]), (3, [])):
        batch = FixedBatch(size, CPU, ReplayedOperations())
        coins = batch.toss(sampler, people, Fixed([0, 1, 0, 1, 1, 0, 0, 1]))
        assert batch.load() == (size >= 4)
        positions, present = batch.drawn()
        assert unseal(positions)[unseal(present)].tolist() == expected
        assert unseal(present).tolist() == [True] * len(expected) + [False] * (size - len(expected))
        assert unseal(coins.drawn()).tolist() == [1, 3, 4, 7]


def test_fixed_draws_take_every_record_at_the_rate_of_the_coins() -> None:
    """Over 2,000 recorded tosses each of 30 records is there 0.2 of the time, within five standard deviations."""
    people, randomness = TensorRecords(torch.zeros(30, 1), torch.zeros(30)), DeviceRandomness(CPU)
    batch, counts = FixedBatch(30, CPU, ReplayedOperations()), torch.zeros(30)
    for _ in range(2_000):
        batch.toss(PoissonSampler(sample_rate=0.2), people, randomness)
        assert batch.load()
        positions, present = batch.drawn()
        counts[unseal(positions)[unseal(present)]] += 1
    assert ((counts / 2_000 - 0.2).abs() < 5 * (0.2 * 0.8 / 2_000) ** 0.5).all()


def test_rows_that_are_no_records_add_nothing_even_if_they_are_not_finite() -> None:
    prepared = prepare_small(DPSGD())
    data = small_digits()
    assert isinstance(data.train, TensorRecords)
    from adadpigu.core.sensitive import Presence, Records

    inputs, targets = data.train.inputs[:6].clone(), data.train.targets[:6]
    inputs[4:] = torch.nan
    query = GradientSum(clip_norm=0.3)
    padded = Records((inputs, targets), present=Presence(torch.arange(6) < 4))
    alone = prepared.engine.clipped_sum(Records((inputs[:4], targets[:4])), query)
    torch.testing.assert_close(unseal(prepared.engine.clipped_sum(padded, query)), unseal(alone))
    marked = unseal(prepared.engine.per_sample_gradients(padded))
    assert torch.isfinite(marked.records_only().gradients).all()
    assert len(marked.records_only().gradients) == len(marked.records_only().losses) == 4


def test_how_a_run_was_executed_does_not_tell_whether_a_draw_was_large() -> None:
    """At q = 1 every draw holds all records: one more than there are places for, and no draw fits."""
    from dataclasses import replace

    data = small_digits()
    assert isinstance(data.train, TensorRecords)
    more = TensorRecords(
        torch.cat([data.train.inputs, data.train.inputs[:1]]), torch.cat([data.train.targets, data.train.targets[:1]])
    )
    told = {run(DPSGD(), True, data=d, batch_size=240)[1].execution for d in (data, replace(data, train=more))}
    assert len(told) == 1


def test_a_caller_s_autocast_stays_outside() -> None:
    """Bounds are reckoned for float32; what a script has switched on around a run must not reach into it."""
    seen: list[bool] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return nn.functional.cross_entropy(outputs, targets)

    from adadpigu.core.gradients import choose_engine
    from adadpigu.core.sensitive import Records

    engine = choose_engine(nn.Linear(4, 3), loss, (torch.randn(3, 4), torch.arange(3)))
    seen.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        engine.clipped_sum(Records((torch.randn(2, 4), torch.arange(2))), GradientSum(clip_norm=1.0))
    assert seen
    assert not any(seen)


def test_nothing_is_recorded_where_no_device_records() -> None:
    """Or a recording would be a release that nobody pays for."""
    prepared, randomness = prepare_small(DPSGD()), Seeded(CPU)
    query = GradientSum(clip_norm=1.0)
    total = BoundedSum(torch.zeros(3, dtype=torch.float64), query, size=3, dtype=torch.float32)
    with Ledger(prepared.plan) as ledger, pytest.raises(PrivacyLineError, match="no device is recording"):
        GaussianMechanism(ledger, randomness).record([total], 1.0)
