"""Output and objective perturbation: the constants of their proofs, their noise, their charge, and attacks on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import Tensor, nn

import adadpigu as ad
from adadpigu.accounting.accountants import epsilon as pld_epsilon
from adadpigu.accounting.closed_forms import gaussian_delta, gaussian_epsilon
from adadpigu.accounting.journal import read_journal
from adadpigu.audit.estimators import Errors, epsilon_from_errors
from adadpigu.core.randomness import ReproducibleRandomness, SystemRandomness
from adadpigu.data import load_dataset
from adadpigu.errors import InputError
from adadpigu_systems import convex
from adadpigu_systems.convex import (
    LIPSCHITZ,
    SMOOTHNESS,
    LinearRelease,
    bounded_features,
    default_regularisation,
    objective_delta,
    objective_perturbation,
    objective_sigma,
    output_perturbation,
    permuted_sgd,
)
from adadpigu_systems.minimum import gradient, minimise
from adadpigu_systems.sklearn import ObjectivePerturbationClassifier, OutputPerturbationClassifier

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Make = Callable[..., LinearRelease]
BOTH = pytest.mark.parametrize("make", [output_perturbation, objective_perturbation])
FACTS: dict[str, Any] = {"classes": 3, "records": 50, "epsilon": 1.0, "delta": 1e-5, "feature_norm": 1.0}


def records(count: int, features: int = 4, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, features, generator=rng), torch.randint(classes, (count,), generator=rng)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_the_loss_is_as_steep_and_as_curved_as_the_proofs_say(classes: int) -> None:
    """By autograd, at random weights, some of them far out; ‖φ‖ = 1."""
    rng = torch.Generator().manual_seed(classes)
    for number in range(40):
        scale = 10.0 ** (number % 4 - 1)
        phi = torch.nn.functional.normalize(torch.randn(3, generator=rng, dtype=torch.float64), dim=0)
        start = scale * torch.randn(classes * 3, generator=rng, dtype=torch.float64)

        def loss(w: Tensor, phi: Tensor = phi, label: int = number % classes) -> Tensor:
            scores = w.view(classes, 3) @ phi
            return scores.logsumexp(0) - scores[label]

        slope = torch.autograd.functional.jacobian(loss, start)  # type: ignore[no-untyped-call]
        curve = torch.autograd.functional.hessian(loss, start)  # type: ignore[no-untyped-call]
        eigenvalues = torch.linalg.eigvalsh(curve)
        assert slope.norm() <= LIPSCHITZ + 1e-12
        assert eigenvalues.min() >= -1e-12
        assert eigenvalues.max() <= SMOOTHNESS + 1e-12
        assert curve.trace() <= 1 - 1 / classes + 1e-12
        assert (eigenvalues > 1e-12).sum() <= classes - 1


def test_features_are_clipped_record_by_record_to_a_public_norm() -> None:
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [float("inf"), 0.0], [float("nan"), 1.0]])
    expected = np.array([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(bounded_features(x, 1.0, False).numpy(), expected, rtol=1e-6)
    with_one = bounded_features(x, 1.0, True)
    assert np.linalg.norm(with_one, axis=1).max() <= 1 + 1e-12
    assert (with_one[2:] == 0).all()
    np.testing.assert_allclose(bounded_features(x, 10.0, False)[0], [0.3, 0.4], rtol=1e-6)


def moved(x: np.ndarray, y: np.ndarray, keys: list[np.ndarray], **how: Any) -> float:
    """How far the weights are moved by the last record, under the same keys."""
    ends = [permuted_sgd(x[:n], y[:n], keys=[key[:n] for key in keys], **how) for n in (len(x), len(x) - 1)]
    return float(np.linalg.norm(ends[0] - ends[1]))


def test_a_record_moves_the_weights_by_no_more_than_the_bound_in_a_thousand_pairs() -> None:
    rng = np.random.default_rng(0)
    most = 0.0
    for _ in range(1000):
        passes, lr = int(rng.integers(1, 4)), float(rng.choice([0.05, 0.5, 4.0]))
        x = rng.standard_normal((8, 3))
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
        keys = [rng.random(8) for _ in range(passes)]
        most = max(most, moved(x, rng.integers(3, size=8), keys, classes=3, lr=lr) / (passes * lr * LIPSCHITZ))
    assert 0.5 < most <= 1 + 1e-12


def test_an_adversarial_pair_meets_nine_tenths_of_the_bound() -> None:
    """One record, the last of every pass, whose class the others make all but impossible.

    They lie nearly at a right angle to it, so that they push its score far without being sure themselves, and hardly
    pull back what it moves.
    """
    count, overlap = 3200, 0.005
    away = math.sqrt(1 - overlap**2)
    others = np.tile([[overlap, away], [overlap, -away]], (count // 2, 1))
    x, y = np.vstack([others, [[1.0, 0.0]]]), np.append(np.zeros(count, int), 1)
    share = moved(x, y, [np.linspace(0, 1, count + 1)] * 3, classes=2, lr=0.5) / (3 * 0.5 * LIPSCHITZ)
    assert 0.9 < share <= 1


def test_steps_beyond_twice_the_inverse_smoothness_are_refused_since_they_may_expand() -> None:
    with pytest.raises(InputError, match=r"lr=4.01: above 0 and at most 2/smoothness = 4"):
        output_perturbation(*records(5), lr=4.01, **FACTS)


def test_the_noise_is_the_exact_one_of_a_single_gaussian() -> None:
    made = output_perturbation(*records(20), passes=2, lr=0.1, **FACTS)
    event: Any = made.privacy.event
    sigma = event.noise_multiplier
    assert gaussian_delta(sigma, 1.0) == pytest.approx(1e-5, rel=1e-6)
    assert gaussian_epsilon(sigma, 1e-5) == pytest.approx(1.0, rel=1e-6)
    assert pld_epsilon(event, 1e-5) == pytest.approx(1.0, rel=1e-3)
    assert made.privacy.sensitivity == pytest.approx(2 * 0.1 * math.sqrt(2))
    x, y = (part.numpy() for part in (bounded(records(20)[0]), records(20)[1]))
    randomness = ReproducibleRandomness(3)
    keys = [randomness.uniform(20).numpy() for _ in range(2)]
    noise = sigma * made.privacy.sensitivity * randomness.normal(15).view(3, 5).numpy()
    again = output_perturbation(
        *records(20), passes=2, lr=0.1, **FACTS, randomness=ReproducibleRandomness(3)
    ).weights.numpy()
    np.testing.assert_allclose(again, permuted_sgd(x, y, classes=3, lr=0.1, keys=keys) + noise, rtol=1e-12)


def bounded(inputs: Tensor) -> Tensor:
    return bounded_features(inputs, 1.0, True)


@pytest.mark.parametrize("regularisation", [0.1, 10.0])
def test_the_solver_certifies_a_gradient_that_autograd_confirms(regularisation: float) -> None:
    inputs, targets = records(60, features=5, classes=4)
    x = bounded(inputs)
    linear = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 5
    how: dict[str, Any] = {"regularisation": regularisation, "gradient_norm": 1e-9, "iterations": 100}
    found = minimise(x, targets, linear, **how)
    weights = found.clone().requires_grad_()
    losses = nn.functional.cross_entropy(x @ weights.T, targets, reduction="sum")
    objective = losses + regularisation / 2 * weights.square().sum() + (linear * weights).sum()
    (slope,) = torch.autograd.grad(objective, weights)
    assert slope.norm() <= 1.1e-9
    assert gradient(found, x, targets, linear, regularisation).norm() <= 1e-9


def test_without_records_the_minimum_is_the_closed_form() -> None:
    linear = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    how: dict[str, Any] = {"regularisation": 2.0, "gradient_norm": 1e-12, "iterations": 10}
    nobody = torch.zeros(0, 3, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
    torch.testing.assert_close(minimise(*nobody, linear, **how), -linear / 2, rtol=1e-12, atol=0)


@pytest.mark.parametrize("others", [0, 1, 5])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_theorem_of_objective_perturbation_bounds_the_exact_divergence(others: int, epsilon: float) -> None:
    """Two classes, one feature: only v = (w₀ − w₁)/√2 meets records, so its density is known and is integrated."""
    regularisation = default_regularisation(epsilon, 2)
    right = objective_sigma(epsilon, 1e-2, classes=2, regularisation=regularisation)
    assert objective_delta(right, epsilon, classes=2, regularisation=regularisation) == pytest.approx(1e-2, rel=1e-6)
    assert exact_delta(right, epsilon, regularisation, others) <= 1e-2
    assert exact_delta(right / 8, epsilon, regularisation, others) > 1e-2  # too little noise is seen here


def exact_delta(sigma: float, epsilon: float, regularisation: float, others: int) -> float:
    """The larger δ of both directions, of `others` records of class 0 with and without one of class 1."""
    root = math.sqrt(2)

    def density(v: Numbers, zeros: int, ones: int) -> Numbers:
        p = 1 / (1 + np.exp(-root * v))  # of class 0
        b = -(zeros * (p - 1) + ones * p) * root - regularisation * v
        bend = 2 * (zeros + ones) * p * (1 - p) + regularisation
        return np.asarray(np.exp(-((b / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi)) * bend)

    edge = 9 * (sigma + others + 1) / regularisation
    points = np.linspace(-edge, edge, 200_001)
    with_it, without = density(points, others, 1), density(points, others, 0)
    step = float(points[1] - points[0])
    assert with_it.sum() * step == pytest.approx(1, rel=1e-6)
    pairs = ((with_it, without), (without, with_it))
    return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * step) for a, b in pairs)


def test_too_little_regularisation_is_refused() -> None:
    with pytest.raises(InputError, match=r"is too little for epsilon; allowed: e.g."):
        objective_perturbation(*records(5), regularisation=0.01, **FACTS)


class Watched(SystemRandomness):
    """Notes whether the charge is on disk whenever noise is drawn."""

    def __init__(self, ledger: Path) -> None:
        super().__init__()
        self.ledger, self.charged = ledger, list[bool]()

    def normal(self, count: int) -> Tensor:
        self.charged.append(self.ledger.exists() and len(read_journal(self.ledger).bodies) == 2)
        return super().normal(count)


@BOTH
def test_the_charge_is_on_disk_before_any_noise_is_drawn(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "ledger.log"
    randomness = Watched(path)
    made = make(*records(20), **FACTS, ledger=path, randomness=randomness)
    assert randomness.charged
    assert all(randomness.charged)
    chain = read_journal(path)
    assert chain.damage == ""
    assert (chain.bodies[1]["epsilon"], chain.bodies[1]["delta"]) == (1.0, 1e-5)
    assert "add or remove one record" in made.privacy.statement()
    assert made.privacy.to_json()["epsilon"] == 1.0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no bound": ({"feature_norm": None}, "feature_norm=None: give a public bound"),
    "an infinite bound": ({"feature_norm": math.inf}, "feature_norm=inf is not a finite number above 0"),
    "two layers": (
        {"model": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))},
        "model=Sequential: convexity is needed; allowed: nn.Linear alone",
    ),
    "one class": ({"classes": 1}, "classes=1: must be 2 or more"),
    "labels out of range": ({"classes": 2}, "targets: a label is out of range; allowed: from 0 to 1"),
    "no records": ({"records": 0}, "records=0: must be the public record count"),
    "no budget": ({"epsilon": 0.0}, "epsilon=0.0: must be a finite number above 0"),
}


@BOTH
@pytest.mark.parametrize("case", REFUSED)
def test_what_the_proof_does_not_cover_is_refused_in_one_line_and_nothing_is_charged(
    make: Make, case: str, tmp_path: Path
) -> None:
    change, words = REFUSED[case]
    with pytest.raises(InputError) as caught:
        make(*records(20), **FACTS | change, ledger=tmp_path / "ledger.log")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


HARD = torch.ones(20, 4), torch.zeros(20, dtype=torch.int64)  # all alike: more iterations than random ones


@pytest.mark.parametrize("given", [HARD, (HARD[0][:0], HARD[1][:0])])
def test_a_solver_that_public_numbers_tell_will_not_get_there_charges_draws_and_tells_nothing(
    given: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    """Refused whatever the records are, none at all too, whose minimum without noise needs no iteration."""
    randomness = Watched(tmp_path / "ledger.log")
    facts: dict[str, Any] = {**FACTS, "ledger": randomness.ledger, "randomness": randomness}
    for how in ({**facts, "gradient_norm": 1e-30}, {**facts, "iterations": 0}):
        with pytest.raises(InputError, match=r"gradient_norm=.*: the solver does not certify it in iterations="):
            objective_perturbation(*given, **how)
    assert list(tmp_path.iterdir()) == []
    assert randomness.charged == []


def test_a_solver_that_fails_on_the_records_alone_has_charged_them(tmp_path: Path) -> None:
    """That it fails tells of them, so it cannot be tried for nothing, and a later statement counts it."""
    path = tmp_path / "ledger.log"
    facts = FACTS | {"classes": 2, "records": 20, "regularisation": 0.1, "epsilon": 10.0}
    with pytest.raises(InputError, match=r"does not certify it in iterations=5.*; this release is charged"):
        objective_perturbation(*HARD, **facts, iterations=5, ledger=path, randomness=ReproducibleRandomness(1))
    assert len(read_journal(path).bodies) == 2
    lines = objective_perturbation(*HARD, **facts).privacy.not_covered
    assert any("an earlier run of this process" in line for line in lines)
    assert any("a solve that does not is charged" in line for line in lines)


@BOTH
def test_releases_of_the_same_records_are_counted_with_each_other_and_with_training(make: Make) -> None:
    """By the data set's name, as in `ad.train`."""
    inputs, targets = records(50)
    assert not any("of this process" in line for line in make(inputs, targets, **FACTS).privacy.not_covered)
    (line,) = (line for line in make(inputs, targets, **FACTS).privacy.not_covered if "of this process" in line)
    assert "have together epsilon = 2 at delta = 2e-05" in line
    other = make(inputs, targets, **FACTS, dataset="others").privacy
    assert not any("of this process" in line for line in other.not_covered)
    how: dict[str, Any] = {"method": "dpsgd", "noise_multiplier": 2.0, "batch_size": 10, "steps": 1}
    run = ad.train(nn.Linear(4, 3), (inputs, targets), records=50, **how)
    assert any("2 earlier runs of this process" in line for line in run.privacy.not_covered)


def test_an_estimator_counts_its_fits_and_warns_of_copies() -> None:
    rows, labels = (part.numpy() for part in records(40, features=8, classes=2))
    fitted = OutputPerturbationClassifier(classes=[0, 1], feature_norm=3.0, records=40, dataset="mine").fit(
        rows, labels
    )
    copied = np.vstack([rows, np.repeat(rows[:1], 50, 0)]), np.append(labels, np.repeat(labels[:1], 50))
    with pytest.warns(UserWarning, match="mine: many rows are exact copies of others"):
        fitted.fit(*copied)
    assert "an earlier run of this process" in " ".join(fitted.privacy_.statement().split())


@BOTH
def test_a_linear_layer_is_a_model(make: Make) -> None:
    make(*records(20), **FACTS, model=nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))


@BOTH
def test_fixed_noise_is_no_guarantee(make: Make) -> None:
    made = make(*records(20), **FACTS, randomness=ReproducibleRandomness(0))
    assert made.privacy.statement().startswith("NOT PRIVATE")


PAIR = torch.tensor([[1.0], [1.0]]), torch.tensor([0, 1])
RUNS = 600


def found_epsilon(make: Make, **how: Any) -> float:
    """What many releases of two records, and of one of them, show for certain: an ε that exceeds the true one with a
    chance of 1e-6. The threshold is the middle of a first half of the releases, which is not counted."""
    facts: dict[str, Any] = {"classes": 2, "records": 2, "delta": 1e-5, "feature_norm": 1.0, "intercept": False} | how
    seen = {}
    for count in (1, 2):
        weights = [make(PAIR[0][:count], PAIR[1][:count], **facts).weights for _ in range(RUNS)]
        seen[count] = torch.stack([w[1, 0] - w[0, 0] for w in weights]).numpy()  # the second record raises it
    half = RUNS // 2
    threshold = float((seen[1][:half].mean() + seen[2][:half].mean()) / 2)
    return epsilon_from_errors(Errors.of(seen[2][half:], seen[1][half:], threshold), 1e-5, 1e-6)


@BOTH
def test_many_releases_of_two_records_refute_nothing(make: Make) -> None:
    """False alarms: 1e-6."""
    assert found_epsilon(make, epsilon=1.0) <= 1.0


def test_a_planted_sensitivity_that_is_far_too_small_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By 32 times. The record moves half of the bound: 4.3 deviations of the noise, where 2 are enough to refute."""
    monkeypatch.setattr(convex, "LIPSCHITZ", LIPSCHITZ / 32)
    assert found_epsilon(output_perturbation, epsilon=1.0, passes=1, lr=0.1) > 1.0


def test_a_planted_linear_term_that_is_far_too_small_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, by 100 times."""
    right = objective_sigma
    monkeypatch.setattr(convex, "objective_sigma", lambda *args, **facts: right(*args, **facts) / 100)
    assert found_epsilon(objective_perturbation, epsilon=1.0) > 1.0


@pytest.mark.parametrize("kind", [OutputPerturbationClassifier, ObjectivePerturbationClassifier])
def test_the_estimators_learn_digits(kind: Any) -> None:
    data = load_dataset("digits")
    (x, y), (tx, ty) = (
        (part.inputs.flatten(1).numpy(), part.targets.numpy().astype(str))  # type: ignore[union-attr]
        for part in (data.train, data.test)
    )
    fitted = clone(kind(classes=list("3210456789"), feature_norm=4.0, records=1400, epsilon=10.0)).fit(x, y)
    assert fitted.score(tx, ty) > 0.7
    assert fitted.coef_.shape == (10, 65)
    assert fitted.predict_proba(tx).sum(axis=1) == pytest.approx(np.ones(len(tx)))
    assert fitted.epsilon_ == 10.0
    with pytest.raises(InputError, match="classes=None"):
        clone(fitted).set_params(classes=None).fit(x, y)
    with pytest.raises(InputError, match="y has another label"):
        clone(fitted).set_params(classes=["a", "b"]).fit(x, y)
