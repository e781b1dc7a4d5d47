"""Perturbed clipping as an option of a run: what is summed, where descent rests, what one record can move."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.randomness import ReproducibleRandomness, seed_generator
from adadpigu.core.sensitive import unseal
from adadpigu.data import DataSet, TensorRecords
from adadpigu.errors import InputError
from adadpigu.methods import DPSGD, SGD, AdaDPIGU, Method, make_method
from adadpigu.training import TrainingOptions, prepare, train_prepared
from adadpigu.training.micro_batches import MicroBatches
from float64_world import LR, B, N, clipped_sum, gradients, net, record, splitmix
from replays import breaches, neighbours
from trials import prepare_small, run_small, weights

TELLING = ("large", "one infinity", "duplicated")
MASKED = AdaDPIGU(importance_steps=2, retention=0.5, schedule="constant", clip_norm=0.3)


def test_without_perturbation_a_run_is_dpsgd_to_the_bit() -> None:
    plain, zero, some = run_small(DPSGD()), run_small(DPSGD(), perturbation=0.0), run_small(DPSGD(), perturbation=0.3)
    assert torch.equal(weights(zero.model), weights(plain.model))
    assert not torch.equal(weights(some.model), weights(plain.model))


@pytest.mark.parametrize("stability", [None, 0.1])
def test_a_run_sums_clipped_gradients_and_the_numbers_of_their_coins(stability: float | None) -> None:
    """In float64, by numbers made anew from each record's coin; every step has other coins."""
    how: dict[str, Any] = {} if stability is None else {"clipping": "automatic", "clip_stability": stability}
    recorded, theta = record(DPSGD(clip_norm=0.3), steps=3, perturbation=0.5, **how), weights(net()).numpy()
    filled = [words for words in recorded.coins.filled if len(words) == 624]
    before = None
    for t in range(3):
        drawn, generator = recorded.drawn(t), torch.Generator()
        seed_generator(generator, filled[2 * t])  # the second 624 words of a draw are numpy's
        coins = torch.rand(N, 1, dtype=torch.float64, generator=generator)[drawn, 0].tolist()
        assert before is None or not set(coins) & before
        before, size = set(coins), 0.5 * 0.3 / math.sqrt(len(theta))
        rows = [g + size * splitmix(c, len(g)) for g, c in zip(gradients(theta, drawn), coins, strict=True)]
        wanted = clipped_sum(rows, 0.3)
        if stability is not None:
            wanted = np.asarray(sum(0.3 * row / (np.linalg.norm(row) + stability) for row in rows))
        np.testing.assert_allclose(recorded.total(t), wanted, atol=1e-9)
        assert recorded.recorder.calls[t][0].sensitivity == 0.3
        theta = theta - LR * recorded.released(t) / B
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-9)


def test_masked_coordinates_get_nothing() -> None:
    recorded = record(MASKED, steps=4, perturbation=0.5)
    for (call,) in recorded.recorder.calls[2:]:
        active = call.public["active"]
        assert 0 < int(active.sum()) < len(active)
        assert not call.total[~active].any()
        assert call.total[active].all()  # dead weights too: their gradients are 0


# ---- nine records at 0, one at 10, C = 1 (docs/theory.md)

OUTLIERS = 0.1


def mean_clip(m: float, size: float, power: int = 1) -> float:
    """E[clip(m + ζ)^power] to [−1, 1], ζ ~ N(0, size²), by quadrature."""
    if size == 0:
        return max(-1.0, min(1.0, m)) ** power
    inside = quad(lambda x: x**power * norm.pdf(x, m, size), -1, 1, epsabs=1e-12)[0]
    return float(inside + norm.sf(1, m, size) + (-1) ** power * norm.cdf(-1, m, size))


def mean_step(theta: float, size: float, power: int = 1) -> float:
    return (1 - OUTLIERS) * mean_clip(theta, size, power) + OUTLIERS * mean_clip(theta - 10, size, power)


def resting(size: float) -> float:
    return float(brentq(mean_step, 0.0, 2.0, args=(size,), xtol=1e-12))


def point() -> nn.Module:
    """θ, whatever the input."""
    layer = nn.Linear(1, 1).double()
    nn.init.zeros_(layer.weight).requires_grad_(False)
    nn.init.zeros_(layer.bias)
    return layer


def descended(size: float, lr: float, steps: int, records: int) -> float:
    """The mean θ of a run on all records at every step."""
    targets = torch.where(torch.arange(records) % 10 == 0, 10.0, 0.0).double()[:, None]
    inputs = torch.arange(records, dtype=torch.float64)[:, None] / records
    data = DataSet(name="points", train=TensorRecords(inputs, targets), records=records, shape=(1,))

    def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets) / 2

    often: dict[str, Any] = {"steps": steps, "evaluate_every": steps, "reserve": steps, "batch_size": records}
    options = TrainingOptions(noise_multiplier=1.0, lr=lr, momentum=0.0, tail=0.9, perturbation=size, **often)
    ready = prepare(
        point(), data, method=DPSGD(clip_norm=1.0), budget=None, delta=1e-5, options=options, loss=half_square
    )
    return float(weights(train_prepared(ready, randomness=ReproducibleRandomness(3)).model)[-1])


def test_the_resting_point_moves_from_a_ninth_to_one() -> None:
    """Each run's mean within 6 standard errors of the root: a false alarm below 1e-8 in all.

    With η = 1/H, H the slope at the root, θ_t is the root plus independent errors of variance Var(step)/H².
    """
    records, steps = 400, 150
    roots = [resting(size) for size in (0.0, 0.3, 1.0, 3.0, 10.0, 100.0)]
    assert roots == sorted(roots)
    assert [round(root, 2) for root in roots] == [0.11, 0.11, 0.16, 0.43, 0.89, 1.0]  # docs/choosing.md names some
    for size, root in zip((0.0, 1.0, 3.0), (roots[0], roots[2], roots[3]), strict=True):
        slope = (mean_step(root + 1e-4, size) - mean_step(root - 1e-4, size)) / 2e-4
        spread = (1 - OUTLIERS) * (mean_clip(root, size, 2) - mean_clip(root, size) ** 2)
        spread += OUTLIERS * (mean_clip(root - 10, size, 2) - mean_clip(root - 10, size) ** 2)
        error = math.sqrt((spread / records + 1 / records**2) / slope**2 / (0.9 * steps))
        assert error < 0.02
        assert descended(size, 1 / slope, steps, records) == pytest.approx(root, abs=6 * error)


# ---- no record moves a sum beyond C, with the coins of common records frozen


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (DPSGD(clip_norm=0.3), {}),
        (DPSGD(clip_norm=0.3), {"copies": 2, "flip": True, "clipping": "automatic", "physical_batch_size": 8}),
        (MASKED, {}),
        (make_method("dpis", {"clip_norm": 0.3}), {}),
        (make_method("quantile", {}), {}),
    ],
    ids=["dpsgd", "copies, automatic", "masked", "dpis", "quantile"],
)
def test_no_record_moves_a_sum_beyond_its_bound(method: Method, options: dict[str, Any]) -> None:
    found = neighbours(method, *TELLING, perturbation=0.3, **options)
    assert breaches(found) == {}
    assert 0.5 < max(result.largest for result in found.values()) <= 1 + 1e-5


def test_numbers_that_depend_on_how_many_are_drawn_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: one generator for the whole draw, whose state is the number of records in it."""
    genuine = MicroBatches._process

    def process(self: MicroBatches, drawn: Any, present: Any, *others: Any) -> Any:
        count = len(unseal(drawn)) if present is None else int(unseal(present).sum())
        rng = np.random.default_rng(count)
        monkeypatch.setattr(self, "_toss", lambda query: torch.from_numpy(rng.random((len(self.population), 1))))
        return genuine(self, drawn, present, *others)

    monkeypatch.setattr(MicroBatches, "_process", process)
    found = neighbours(DPSGD(clip_norm=0.3), "zero", perturbation=0.3)
    assert any("above its sensitivity" in text for texts in breaches(found).values() for text in texts)


# ---- what the run says, and what it refuses


def test_the_run_says_that_gradients_are_built() -> None:
    ready = prepare_small(DPSGD(), perturbation=0.3, engine="ghost")
    assert ready.engine.reason.endswith(
        "; perturbation=0.3 is added before the clip, so every record's gradient is built"
    )
    assert "perturbation" not in prepare_small(DPSGD(), engine="ghost").engine.reason
    assert "every record's gradient is built" in run_small(DPSGD(), perturbation=0.3, steps=1).gradients


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_size_that_is_none_is_refused_in_one_line(value: float) -> None:
    with pytest.raises(InputError, match=f"^perturbation={value} is not a finite number of at least 0$"):
        prepare_small(DPSGD(), perturbation=value)


def test_a_method_that_does_not_clip_refuses_it() -> None:
    with pytest.raises(InputError, match=r"^perturbation=0.3: method 'sgd' clips nothing; leave it out$"):
        prepare_small(SGD(), perturbation=0.3)


def test_the_charge_is_that_of_plain_clipping() -> None:
    assert prepare_small(DPSGD(), perturbation=0.3).epsilons == prepare_small(DPSGD()).epsilons
