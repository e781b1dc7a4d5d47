"""Output and objective perturbation of linear heads: one release, private by convexity. Sensitive until the noise.

    ℓ(W; φ, y) = ln Σ_k exp⟨w_k, φ⟩ − ⟨w_y, φ⟩,   ‖φ‖ ≤ 1 by a public clip,   K classes

What both theorems rest on. With p = softmax(Wφ) the gradient is (p − e_y) ⊗ φ and the Hessian
(diag(p) − ppᵀ) ⊗ φφᵀ. So
- ‖∇ℓ‖ = ‖p − e_y‖‖φ‖ ≤ L = √2: ‖p − e_y‖² = Σ_{k≠y} p_k² + (1 − p_y)² ≤ 2(1 − p_y)² ≤ 2;
- 0 ⪯ ∇²ℓ ⪯ β = ½: for ‖v‖ = 1, vᵀ(diag(p) − ppᵀ)v is the variance of v_k under p, at most (max v − min v)²/4 ≤ ½;
- ∇²ℓ has rank K − 1 at most (constants are in its kernel) and trace (1 − ‖p‖²)‖φ‖² ≤ 1 − 1/K.

Neighbours differ by one record that is there or not. The number of records is never read: sums are not divided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adadpigu.accounting.plan import check_delta, check_epsilon
from adadpigu.core.randomness import Randomness
from adadpigu.data.checking import digests, warn_of_copies
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.errors import InputError, check, check_range, require
from adadpigu_paper.theory.gaussian import gaussian_sigma
from adadpigu_systems.minimum import gradient, minimise
from adadpigu_systems.one_shot import EpsilonDelta, OneShotStatement, charge, gaussian_event, secure

Numbers = NDArray[np.float64]

LIPSCHITZ, SMOOTHNESS = math.sqrt(2), 0.5
_SHARE_OF_DETERMINANT = 0.25  # of ε, for the ratio of determinants: it sets Λ
_SHARE_OF_GAP = (0.01, 0.1)  # of ε and δ, for the second noise


@dataclass(frozen=True, kw_only=True)
class LinearRelease:
    """A linear head that was released: its weights are public from here on."""

    weights: Tensor
    """[classes, features], with one column more for the intercept, float64"""
    feature_norm: float
    """the public bound that features are divided by and clipped to"""
    intercept: bool
    privacy: OneShotStatement

    def scores(self, inputs: Tensor) -> Tensor:
        """The class scores of records, [b, features] -> [b, classes]."""
        made = bounded_features(inputs, self.feature_norm, self.intercept)
        return made @ self.weights.to(made.device).T


def bounded_features(inputs: Tensor, feature_norm: float | None, intercept: bool) -> Tensor:
    """φ with ‖φ‖ ≤ 1, record by record: x over the bound, clipped, with a 1 for an intercept (then over √2).

    A record whose norm is not finite is all zeros, so it contributes nothing.
    """
    told = "give a public bound on a record's feature norm; taken from the records it would tell their largest"
    check("feature_norm", feature_norm, feature_norm is not None, told)
    assert feature_norm is not None
    check_range("feature_norm", feature_norm, "a finite number above 0")
    flat = inputs.detach().flatten(1).double() / feature_norm
    norms = flat.square().sum(dim=1, keepdim=True).sqrt()
    known = torch.isfinite(norms)
    clipped = torch.where(known, flat, 0.0) / torch.where(known, norms, 1.0).clamp(min=1.0)
    return torch.cat([clipped, known.double()], dim=1) / math.sqrt(2) if intercept else clipped


def output_perturbation(
    inputs: Tensor,
    targets: Tensor,
    *,
    classes: int,
    records: int,
    epsilon: float,
    delta: float,
    feature_norm: float | None,
    intercept: bool = True,
    passes: int = 10,
    lr: float | None = None,
    model: nn.Module | None = None,
    dataset: str = "own data",
    ledger: Path | None = None,
    randomness: Randomness | None = None,
) -> LinearRelease:
    """Ordinary SGD, record by record in random order, and Gaussian noise on its last weights (Wu et al. 2017).

    Theorem. With η ≤ 2/β = 4 and k passes, each over the records in the order of independent keys, one record more
    moves the last weights by at most Δ = kηL = kη√2 under the same keys.

    Proof. A step θ ↦ θ − η∇ℓ_i(θ) is non-expansive for a convex, β-smooth ℓ_i and η ≤ 2/β (Baillon and Haddad). The
    two runs make the same steps in the same order, but for one step more in each pass, which moves the weights by at
    most ηL. All later steps are non-expansive, so what k such steps add up to is at most kηL. No number of records
    occurs in it. (Replacing a record is removing and adding one: 2kηL, as published.) Keys of the others do not
    change with the record, and a mixture over keys of pairs that are each (ε, δ)-close is (ε, δ)-close.

    The noise has deviation σΔ with the exact σ of one Gaussian at (ε, δ): one unsampled Gaussian event.
    """
    _check(inputs, targets, classes, records, epsilon, delta, model, dataset)
    require(passes >= 1, f"passes={passes}; allowed: 1 or more")
    rate = 1 / math.sqrt(passes * records) if lr is None else float(lr)
    largest = 2 / SMOOTHNESS
    check("lr", lr, 0 < rate <= largest, f"above 0 and at most 2/smoothness = {largest:g}, or steps are not safe")
    features = bounded_features(inputs, feature_norm, intercept).cpu().numpy()
    rng = secure(randomness)
    keys = [rng.uniform(len(features)).numpy() for _ in range(passes)]
    learned = permuted_sgd(features, targets.cpu().numpy(), classes=classes, lr=rate, keys=keys)
    sensitivity, sigma = passes * rate * LIPSCHITZ, gaussian_sigma(epsilon, delta)
    privacy = _statement(
        "output perturbation",
        epsilon=epsilon,
        delta=delta,
        records=records,
        event=gaussian_event(sigma),
        sensitivity=sensitivity,
        noise=(f"Gaussian noise of deviation {sigma * sensitivity:.6g} on every weight",),
        assumed=(
            "features are clipped to a public norm",
            f"the loss is convex and smooth; {passes} passes of steps of {rate:.6g} move by {sensitivity:.6g} at most",
        ),
        rng=rng,
    )
    privacy = charge(privacy, ledger, dataset)
    weights = torch.from_numpy(learned) + sigma * sensitivity * rng.normal(learned.size).view(learned.shape)
    return _released(weights, feature_norm, intercept, privacy)


def permuted_sgd(features: Numbers, targets: NDArray[Any], *, classes: int, lr: float, keys: list[Numbers]) -> Numbers:
    """The last weights of SGD from zero; in every pass records come in the order of its keys. Sensitive."""
    weights = np.zeros((classes, features.shape[1]))
    for order in (np.argsort(key, kind="stable") for key in keys):
        for at in order:
            phi = features[at]
            scores = weights @ phi
            error = np.exp(scores - scores.max())
            error /= error.sum()
            error[targets[at]] -= 1.0
            weights -= lr * np.outer(error, phi)
    return weights


def objective_perturbation(
    inputs: Tensor,
    targets: Tensor,
    *,
    classes: int,
    records: int,
    epsilon: float,
    delta: float,
    feature_norm: float | None,
    intercept: bool = True,
    regularisation: float | None = None,
    gradient_norm: float | None = None,
    iterations: int = 200,
    model: nn.Module | None = None,
    dataset: str = "own data",
    ledger: Path | None = None,
    randomness: Randomness | None = None,
) -> LinearRelease:
    """The minimum of Σ ℓ_i(θ) + (Λ/2)‖θ‖² + ⟨b, θ⟩, b ~ N(0, σ²I), to a certified gradient norm γ, and a second noise.

    Theorem. Let c = (K − 1) ln(1 + 1/(KΛ)) and δ₁ = P[χ_{K−1} > σ(ε₁ − c − 1/σ²)/√2]. The exact minimum is
    (ε₁, δ₁)-private for adding or removing a record.

    Proof. θ is the minimum for exactly one b, b_D(θ) = −∇Σℓ_i(θ) − Λθ, so its density under D is
    ν(b_D(θ))·det(H_D(θ) + ΛI), ν that of b. Let D′ have a record more, with g = ∇ℓ(θ) and G = ∇²ℓ(θ) there; then
    b_D′ = b_D − g. (1) The determinants' ratio det(H_D + G + ΛI)/det(H_D + ΛI) lies between 1 and Π(1 + λ_j/Λ) over
    the at most K − 1 eigenvalues λ_j of G, whose sum is at most 1 − 1/K; by concavity its logarithm is at most c.
    (2) Of the densities of b: ln ν(b_D)/ν(b_D − g) = (‖g‖²/2 − ⟨b_D, g⟩)/σ² where D is the truth, and
    ln ν(b_D′)/ν(b_D′ + g) = (‖g‖²/2 + ⟨b_D′, g⟩)/σ² where D′ is. g depends on b, but g = u ⊗ φ with φ fixed by the
    record and Σu = 0, ‖u‖ ≤ √2: |⟨b, g⟩| ≤ √2·‖Pb‖, P the projection on {u ⊗ φ : Σu = 0}, which has K − 1 dimensions
    and does not depend on b; so ‖Pb‖ is σχ_{K−1} or less. Together the privacy loss is at most √2χ/σ + 1/σ² + c
    either way, and a mechanism whose loss exceeds ε₁ with a chance of at most δ₁ is (ε₁, δ₁)-private.

    The gap (Iyengar et al. 2019). J is Λ-strongly convex, so ‖∇J(θ̃)‖ ≤ γ puts θ̃ within γ/Λ of the minimum. Given the
    minimum, θ̃ minus it is a function of the data that moves by at most 2γ/Λ: a Gaussian release of it at (ε₂, δ₂),
    added to the minimum, costs ε₁ + ε₂ and δ₁ + δ₂ by composition. Here ε₂ = ε/100 and δ₂ = δ/10.

    Whether the solver gets there depends on the records. So it is tried on public random ones first, of the declared
    number, and refused there without a charge; on the records it runs after the charge, and a failure is charged.
    """
    _check(inputs, targets, classes, records, epsilon, delta, model, dataset)
    eps_gap, delta_gap = _SHARE_OF_GAP[0] * epsilon, _SHARE_OF_GAP[1] * delta
    eps_min, delta_min = epsilon - eps_gap, delta - delta_gap
    convexity = default_regularisation(eps_min, classes) if regularisation is None else float(regularisation)
    check_range("regularisation", convexity, "a finite number above 0")
    sigma = objective_sigma(eps_min, delta_min, classes=classes, regularisation=convexity)
    gap = max(1e-9, min(1e-6, records**-2.0)) if gradient_norm is None else float(gradient_norm)
    check_range("gradient_norm", gap, "a finite number above 0")
    how: dict[str, Any] = {"regularisation": convexity, "gradient_norm": gap, "iterations": iterations}
    features = bounded_features(inputs, feature_norm, intercept)
    labels, shape = targets.to(features.device), (classes, features.shape[1])
    # what public numbers alone would fail by is not charged
    minimise(*_stand_ins(records, shape, sigma, features.device), **how)
    second, sensitivity = gaussian_sigma(eps_gap, delta_gap), 2 * gap / convexity
    rng = secure(randomness)
    privacy = _statement(
        "objective perturbation",
        epsilon=epsilon,
        delta=delta,
        records=records,
        event=EpsilonDelta(epsilon=epsilon, delta=delta),
        sensitivity=None,
        noise=(
            f"a random linear term of deviation {sigma:.6g} in the objective",
            f"Gaussian noise of deviation {second * sensitivity:.6g} on every weight, for the solver's gap",
        ),
        assumed=(
            "features are clipped to a public norm",
            f"the objective is convex, with regularisation {convexity:.6g}, and its gradient at the weights is at "
            f"most {gap:.3g}, in float64",
        ),
        caveats=(
            "whether the solver reached that gradient: a solve that does not is charged, and its failure is seen",
        ),
        rng=rng,
    )
    privacy = charge(privacy, ledger, dataset)
    linear = sigma * rng.normal(math.prod(shape)).view(shape).to(features)
    try:
        found = minimise(features, labels, linear, **how)
    except InputError as error:
        raise InputError(f"{error}; this release is charged: that it failed depends on the records") from None
    reached = gradient(found, features, labels, linear, convexity).norm()
    assert reached <= gap, "the solver returned a point whose gradient it had not certified"
    weights = found.cpu() + second * sensitivity * rng.normal(found.numel()).view(shape)
    return _released(weights, feature_norm, intercept, privacy)


def _stand_ins(
    records: int, shape: tuple[int, int], sigma: float, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Public random features, labels and linear term: N as declared, [classes, features] as asked for."""
    rng = torch.Generator(device).manual_seed(0)
    how: dict[str, Any] = {"generator": rng, "dtype": torch.float64, "device": device}
    features = torch.nn.functional.normalize(torch.randn(records, shape[1], **how), dim=1)
    labels = torch.randint(shape[0], (records,), generator=rng, device=device)
    return features, labels, sigma * torch.randn(shape, **how)


def default_regularisation(epsilon: float, classes: int) -> float:
    """Λ with which the determinants take a quarter of ε: (K − 1) ln(1 + 1/(KΛ)) = ε/4."""
    return 1 / (classes * math.expm1(_SHARE_OF_DETERMINANT * epsilon / (classes - 1)))


def objective_delta(sigma: float, epsilon: float, *, classes: int, regularisation: float) -> float:
    """δ₁ of the theorem at ε₁; 1 where the determinants alone take more than ε₁."""
    from scipy.stats import chi

    left = epsilon - (classes - 1) * math.log1p(1 / (classes * regularisation)) - 1 / sigma**2
    return 1.0 if left <= 0 else float(chi.sf(sigma * left / math.sqrt(2), classes - 1))


@lru_cache(maxsize=64)
def objective_sigma(epsilon: float, delta: float, *, classes: int, regularisation: float) -> float:
    """The least σ with which the exact minimum is (ε, δ)-private, from above."""

    def holds(sigma: float) -> bool:
        return objective_delta(sigma, epsilon, classes=classes, regularisation=regularisation) <= delta

    high = 1.0
    while not holds(high):
        least = default_regularisation(epsilon, classes)
        require(high < 1e9, f"regularisation={regularisation:g} is too little for epsilon; allowed: e.g. {least:.3g}")
        high *= 2
    low = high / 2 if high > 1 else 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if middle and holds(middle) else (middle, high)
    return high


def check_linear(model: nn.Module, name: str | None = None) -> None:
    """Refuses a model whose loss is not convex in its weights; it is called by its name, or its class."""
    layers = [layer for layer in model.modules() if not isinstance(layer, nn.Sequential | nn.Flatten | nn.Identity)]
    linear = len(layers) == 1 and type(layers[0]) is nn.Linear
    name = name or type(model).__name__
    require(linear, f"model={name}: convexity is needed; allowed: nn.Linear alone, on features of a frozen encoder")


def _check(
    inputs: Tensor,
    targets: Tensor,
    classes: int,
    records: int,
    epsilon: float,
    delta: float,
    model: nn.Module | None,
    dataset: str,
) -> None:
    check_epsilon(epsilon)
    check_delta(delta)
    check("classes", classes, classes >= 2, "must be 2 or more")
    check("records", records, records >= 1, "must be the public record count, 1 or more")
    if model is not None:
        check_linear(model)
    whole = not targets.is_floating_point() and targets.ndim == 1 and len(targets) == len(inputs)
    require(whole, f"targets of {targets.dtype}; allowed: one class number for every record")
    fits = not len(targets) or (int(targets.min()) >= 0 and int(targets.max()) < classes)
    require(fits, f"targets: a label is out of range; allowed: from 0 to {classes - 1}")
    given = TensorRecords(inputs, targets, name=dataset)
    warn_of_copies(digests(given), DataSet(name=dataset, train=given, records=records))


def _statement(mechanism: str, *, rng: Randomness, **facts: Any) -> OneShotStatement:
    return OneShotStatement(mechanism=mechanism, randomness=rng.description, private=rng.private, **facts)


def _released(weights: Tensor, bound: float | None, intercept: bool, privacy: OneShotStatement) -> LinearRelease:
    assert bound is not None
    return LinearRelease(weights=weights, feature_norm=bound, intercept=intercept, privacy=privacy)
