"""LiRA as pure functions (Carlini et al. 2022, online form): confidences of many models -> scores -> ROC.

Models come in pairs; each record is in one model of every pair. With φ = log(p/(1 − p)), p the probability of a
record's label under a model, each model is the target once and those of all other pairs are its shadows:

    score = log N(φ; shadows that have the record) − log N(φ; shadows that have not)

Confidences, coins and scores are sensitive, as far as the records are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadpigu.audit.estimators import Scores, rate_above

Coins = NDArray[np.bool_]
"""[models, records]: which model has which record"""
_MANY = 32
"""shadows on either side from which each record has variances of its own"""
_LEAST_VARIANCE = 1e-12


def logit_confidence(outputs: Tensor, labels: Tensor) -> Tensor:
    """φ = log(p/(1 − p)) of each label, from class scores; exact where p rounds to 0 or 1.

    >>> logit_confidence(torch.tensor([[0.0, 0.0], [2000.0, 0.0]]), torch.tensor([0, 0])).tolist()
    [0.0, 2000.0]
    """
    outputs, column = outputs.double(), labels[:, None].to(torch.long)
    others = outputs.scatter(1, column, -math.inf).logsumexp(dim=1)
    return outputs.gather(1, column)[:, 0] - others


def likelihood_ratios(confidences: Scores, members: Coins) -> Scores:
    """The score of every record under every target, [models, records]; the models 2k and 2k + 1 are a pair.

    A record has as many shadows on one side as on the other, whether the target has it or not: under models that tell
    nothing, members and others score alike.
    """
    scores = np.empty_like(confidences)
    for target in range(len(confidences)):
        shadows = np.arange(len(confidences)) // 2 != target // 2
        scores[target] = _ratio(confidences[target], confidences[shadows], members[shadows])
    return scores


def _ratio(target: Scores, shadows: Scores, members: Coins) -> Scores:
    (inside, spread_in), (outside, spread_out) = (_moments(shadows, side) for side in (members, ~members))
    # A record's own gap is mostly noise where shadows are few: as much of it is kept as the records' spread supports.
    gap, middle = inside - outside, (inside + outside) / 2
    noise = float(np.mean(spread_in + spread_out)) / (len(shadows) / 2)
    spread = float(gap.var())
    kept = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
    gap = gap.mean() + kept * (gap - gap.mean())
    return _log_normal(target, middle + gap / 2, spread_in) - _log_normal(target, middle - gap / 2, spread_out)


def _moments(shadows: Scores, side: Coins) -> tuple[Scores, Scores]:
    """Mean and variance over the shadows on one side; one variance for all records where shadows are few."""
    count = len(shadows) // 2
    mean = (shadows * side).sum(axis=0) / count
    variance = (np.square(shadows - mean) * side).sum(axis=0) / (count - 1)
    if count < _MANY:
        variance = np.full_like(variance, variance.mean())
    return mean, variance + _LEAST_VARIANCE


def _log_normal(x: Scores, mean: Scores, variance: Scores) -> Scores:
    value: Scores = -np.square(x - mean) / (2 * variance) - np.log(variance) / 2
    return value


@dataclass(frozen=True, kw_only=True)
class Roc:
    """How many members and how many others score above each threshold, from the highest down, none first."""

    members: NDArray[np.int64]
    others: NDArray[np.int64]

    @classmethod
    def of(cls, within: Scores, without: Scores) -> Roc:
        scores = np.concatenate([within, without])
        order = np.argsort(-scores, kind="stable")
        ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # equal scores are on one side
        is_in = (order < len(within)).cumsum()[ends]
        return cls(members=np.append(0, is_in), others=np.append(0, ends + 1 - is_in))

    @property
    def true_positives(self) -> Scores:
        """As rates."""
        rates: Scores = self.members / self.members[-1]
        return rates

    @property
    def false_positives(self) -> Scores:
        """As rates."""
        rates: Scores = self.others / self.others[-1]
        return rates

    @property
    def area(self) -> float:
        """AUC: the chance that a member scores above another record, ties by halves."""
        heights = self.true_positives[1:] + self.true_positives[:-1]
        return float(np.diff(self.false_positives) @ heights) / 2

    def at(self, false_positives: float, significance: float) -> tuple[float, float, float]:
        """The largest rate of true positives there, between its Clopper-Pearson bounds."""
        allowed = math.floor(false_positives * int(self.others[-1]) + 1e-9)
        found = int(self.members[np.searchsorted(self.others, allowed, side="right") - 1])
        trials = int(self.members[-1])
        low = 1 - rate_above(trials - found, trials, significance / 2)
        return low, found / trials, rate_above(found, trials, significance / 2)


def allowed_rate(false_positives: float, epsilon: float, delta: float) -> float:
    """The largest rate of true positives that (ε, δ) leaves possible.

    >>> round(allowed_rate(0.01, 1.0, 1e-5), 6), round(allowed_rate(0.5, 1.0, 0.0), 6)
    (0.027193, 0.81606)
    """
    if epsilon > 700:
        return 1.0
    return min(math.exp(epsilon) * false_positives + delta, 1 - math.exp(-epsilon) * (1 - delta - false_positives), 1.0)
