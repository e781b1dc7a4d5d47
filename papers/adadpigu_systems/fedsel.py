"""FedSel (Liu et al. 2020): each user reports one of its largest gradient entries, perturbed on its own device.

    P[j] ∝ e^ε₁ for the k largest |r_j|, ∝ 1 for the others           which entry (perturbed sampling)
    ±(e^ε₂ + 1)/(e^ε₂ − 1), plus with probability ½ + x(e^ε₂ − 1)/(2(e^ε₂ + 1))          x = clip(r_j/c) in [−1, 1]

r is the user's memory of gradients that it has not reported yet: private, never sent. What was reported is zeroed.

Formal guarantee: ε₁ + ε₂ of *local* privacy a report, without a curator: for any two memories and any report, the
probabilities differ by at most e^(ε₁ + ε₂). Proof: P[j] is e^ε₁/(d − k + ke^ε₁) or 1/(d − k + ke^ε₁), since exactly k
entries are the largest (ties by index), so its ratio is at most e^ε₁; given j, each sign has a probability between
1/(e^ε₂ + 1) and e^ε₂/(e^ε₂ + 1), so its ratio is at most e^ε₂. Reports of one user add up. The value is unbiased given
j: its mean is (e^ε₂ + 1)/(e^ε₂ − 1)·x(e^ε₂ − 1)/(e^ε₂ + 1) = x.

This is another guarantee than the central ε of every other method here: the two are never compared as one number.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadpigu.accounting.ledger_reading import WITHOUT_STEPS
from adadpigu.core.randomness import Randomness
from adadpigu.errors import check
from adadpigu.methods.base import Positive, check_options
from adadpigu_systems.one_shot import secure, write_charge

Numbers = NDArray[np.float64]
FORMAT = WITHOUT_STEPS[1]
_MOST_EPSILON = 30.0


@dataclass(frozen=True, kw_only=True)
class FedSel:
    """Public constants of the reports."""

    select_epsilon: Positive = 1.0
    """ε₁, for which entry is reported"""
    value_epsilon: Positive = 1.0
    """ε₂, for its value"""
    top_share: Annotated[float, "in (0, 1)"] = 0.1
    """k/d, entries that count as the largest"""
    bound: Positive = 1.0
    """c, an entry is clipped to it before it is reported"""

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("select_epsilon", "value_epsilon"):  # beyond it, the least probability is lost beside 1
            check(name, getattr(self, name), getattr(self, name) <= _MOST_EPSILON, f"must be at most {_MOST_EPSILON:g}")

    @property
    def epsilon_a_report(self) -> float:
        """ε₁ + ε₂."""
        return self.select_epsilon + self.value_epsilon

    @property
    def magnitude(self) -> float:
        """What a report says: plus or minus this, times c."""
        return 1 / math.tanh(self.value_epsilon / 2)

    def count(self, size: int) -> int:
        """k of d entries, at least 1."""
        return max(1, int(self.top_share * size))

    def chance_of_top(self, size: int) -> float:
        """The probability that any of the k largest is chosen: k e^ε₁/(d − k + k e^ε₁)."""
        k = self.count(size)
        return k / (k + (size - k) * math.exp(-self.select_epsilon))

    def probabilities(self, memory: Numbers) -> Numbers:
        """The exact probability of each report [2, d], minus and plus, of one memory [d]."""
        size = len(memory)
        k, top = self.count(size), self.chance_of_top(size)
        chosen = np.where(largest(memory[None], k)[0], top / k, (1 - top) / max(1, size - k))
        plus = self._chance_of_plus(memory)
        return np.stack([chosen * (1 - plus), chosen * plus])

    def _chance_of_plus(self, values: Numbers) -> Numbers:
        x = np.clip(np.nan_to_num(values / self.bound), -1.0, 1.0)
        return np.asarray(0.5 + x / (2 * self.magnitude))

    def report(self, memories: Numbers, randomness: Randomness) -> tuple[NDArray[np.int64], Numbers]:
        """One report of each user's memory [n, d]: which entry, and its perturbed value. Memories are not changed."""
        count, size = memories.shape
        k, coins = self.count(size), randomness.uniform(3 * count).numpy().reshape(3, count)
        order = np.argsort(~largest(memories, k), axis=1, kind="stable")  # the k largest first
        top = coins[0] < self.chance_of_top(size)
        place = np.where(top, np.floor(coins[1] * k), k + np.floor(coins[1] * (size - k))).astype(np.int64)
        index = order[np.arange(count), place]
        plus = coins[2] < self._chance_of_plus(memories[np.arange(count), index])
        return index, np.where(plus, 1.0, -1.0) * self.magnitude * self.bound


def largest(memories: Numbers, count: int) -> NDArray[np.bool_]:
    """The entries of largest magnitude of each row, exactly so many: of equal ones the first, and those not finite
    count as 0."""
    order = np.argsort(-np.abs(np.nan_to_num(memories, nan=0.0, posinf=0.0, neginf=0.0)), axis=1, kind="stable")
    found = np.zeros(memories.shape, dtype=bool)
    np.put_along_axis(found, order[:, :count], True, axis=1)
    return found


@dataclass(frozen=True, kw_only=True)
class LocalStatement:
    """The guarantee of local reports. It has no central ε and no δ, and takes no place on their axis."""

    epsilon_a_report: float
    reports_a_user: int
    users: int
    randomness: str
    private: bool
    caveats: tuple[str, ...] = ()
    """what else is not covered"""

    @property
    def epsilon_a_user(self) -> float:
        """Of all reports of one user together."""
        return self.epsilon_a_report * self.reports_a_user

    def statement(self) -> str:
        """The guarantee in plain words."""
        if not self.private:
            return f"NOT PRIVATE: the reports' randomness can be repeated ({self.randomness})."
        lines = [
            f"LOCAL privacy, ε = {self.epsilon_a_report:g} a report, pure (δ = 0): every user's device perturbs what "
            "it sends, and nobody else is trusted.",
            f"Each of {self.users:,} users reports at most {self.reports_a_user} time(s): ε = {self.epsilon_a_user:g} "
            "a user, added up.",
            "Not to be compared with the central ε of training on collected records: that trusts who collects them.",
            "Not covered: that and when a user reports, how many users there are, a user's records elsewhere. Here "
            f"users are simulated in one process, their coins drawn by {self.randomness}.",
            *(f"Not covered: {caveat}." for caveat in self.caveats),
        ]
        return "\n".join(row for line in lines for row in textwrap.wrap(line, 100))

    def to_json(self) -> dict[str, object]:
        return {"kind": "local", **vars(self), "epsilon_a_user": self.epsilon_a_user}


@dataclass(frozen=True, kw_only=True)
class Federated:
    """What the server has learned from reports, and what each user is guaranteed."""

    weights: Tensor
    """[classes, features + 1] of a softmax regression, the intercept's last"""
    privacy: LocalStatement

    def scores(self, inputs: Tensor) -> Tensor:
        return torch.from_numpy(_with_one(inputs) @ self.weights.numpy().T)


def simulate(
    inputs: Tensor,
    targets: Tensor,
    *,
    classes: int,
    options: FedSel | None = None,
    rounds: int = 100,
    reports_a_user: int = 1,
    lr: float = 1.0,
    ledger: Path | None = None,
    randomness: Randomness | None = None,
) -> Federated:
    """Softmax regression from local reports, users and server in one process; every user holds one record.

    In each round an equal part of the users adds the gradient at the server's weights to its memory and reports once;
    users come round as often as they report. The server steps along the mean of the reports, times d/k. The ledger has
    what all reports may cost before the first one is made.
    """
    count = len(inputs)
    check("reports_a_user", reports_a_user, reports_a_user >= 1, "must be 1 or more")
    allowed = f"must be from 1 to {count * reports_a_user}, the reports that there are"
    check("rounds", rounds, 1 <= rounds <= count * reports_a_user, allowed)
    check("classes", classes, classes >= 2, "must be 2 or more")
    options, rng = FedSel() if options is None else options, secure(randomness)
    features, labels = _with_one(inputs), targets.cpu().numpy()
    privacy = LocalStatement(
        epsilon_a_report=options.epsilon_a_report,
        reports_a_user=reports_a_user,
        users=count,
        randomness=rng.description,
        private=rng.private,
    )
    spent = {"epsilon_a_report": privacy.epsilon_a_report, "reports_a_user": reports_a_user}
    write_charge(ledger, FORMAT, {"users": count}, {"mechanism": "local reports", **spent})
    weights = np.zeros((classes, features.shape[1]))
    memories = np.zeros((count if reports_a_user > 1 else 0, weights.size))  # nobody who reports once needs one later
    turns = np.concatenate([np.argsort(rng.uniform(count).numpy()) for _ in range(reports_a_user)])
    for users in np.array_split(turns, rounds):
        users = np.unique(users)  # who would report twice in a round reports once
        fresh = _gradients(weights, features[users], labels[users])
        if len(memories):
            fresh += memories[users]
        index, values = options.report(fresh, rng)
        if len(memories):
            fresh[np.arange(len(users)), index] = 0.0
            memories[users] = fresh
        step = np.bincount(index, values, minlength=weights.size) / len(users)
        weights -= lr * (weights.size / options.count(weights.size)) * step.reshape(weights.shape)
    return Federated(weights=torch.from_numpy(weights), privacy=privacy)


def _gradients(weights: Numbers, features: Numbers, labels: NDArray[Any]) -> Numbers:
    """Each user's own, [n, classes·features]."""
    scores = features @ weights.T
    error = np.exp(scores - scores.max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1.0
    return np.asarray((error[:, :, None] * features[:, None]).reshape(len(labels), -1))


def _with_one(inputs: Tensor) -> Numbers:
    flat = inputs.detach().flatten(1).double().cpu().numpy()
    return np.hstack([flat, np.ones((len(flat), 1))])
