"""A membership attack with shadow models (online LiRA, Carlini et al. 2022): whose record was in the training data?

Pairs of models are trained on random halves of the records. Each is attacked with all other pairs as shadows. With
φ = log(p/(1 − p)), p the probability of a record's label,

    score = log N(φ; shadows that have the record) − log N(φ; shadows that have not)

The ROC is a figure for people. The coins of one target are independent, so guesses about them bound ε. Sensitive.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadpigu.audit import figures
from adadpigu.audit.estimators import Scores, Trial, one_run_epsilon, rate_above, rate_below
from adadpigu.audit.one_run import guessed
from adadpigu.audit.outside import RunObserver, secret_rng
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject, trained
from adadpigu.core.randomness import choose_randomness
from adadpigu.data.datasets import TensorRecords
from adadpigu.errors import require
from adadpigu.training.evaluation import predict

Coins = NDArray[np.bool_]  # [models, records]: which model has which record
_MANY = 32  # shadows on either side from which each record has variances of its own
_LEAST_VARIANCE = 1e-12
FALSE_POSITIVE_RATES = (0.001, 0.01)  # at which the rate of true positives is told
_FEWEST_MODELS = 6  # two shadows with a record and two without it, for a variance
_GUESSED = 10  # one record in so many is guessed to be in, and one in so many to be out


def audit_membership(
    subject: Subject, *, models: int = 16, confidence: float = 0.95, progress: Progress | None = None
) -> AuditResult:
    """Trains `models` models on random halves of the data and attacks each with the others as its shadows."""
    check_confidence(confidence)
    fits = models >= _FEWEST_MODELS and models % 2 == 0
    require(fits, f"models={models}; allowed: an even number of at least {_FEWEST_MODELS}")
    count, needed = len(subject.data.train), math.ceil(2 / (min(FALSE_POSITIVE_RATES) * models))
    told = f"records={count}: a false positive rate of {min(FALSE_POSITIVE_RATES):g} needs at least {needed} with "
    require(count >= needed, f"{told}models={models}; allowed: more records, or more models")
    seen = _Attacked(subject, models)
    seen.train_all(progress)
    scores = likelihood_ratios(seen.confidences, seen.members)
    roc, significance = Roc.of(scores[seen.members], scores[~seen.members]), 1 - confidence
    trials, above = guesses(scores, seen.members), seen.rates_above_claim()
    without_errors = [Trial.without_errors(count, trials[0].guesses)] * models

    def shown(significance: float) -> float:
        return 0.0 if above else epsilon_of_guesses(trials, subject.delta, significance)

    return subject.result(
        "membership",
        epsilon_lower=shown(significance),
        epsilon_certain=shown(REFUTING),
        confidence=confidence,
        observations=int(roc.others[-1]),
        assumed=_assumed(models, above),
        findings=seen.findings(),
        details={
            "models": models,
            "records": count,
            **subject.terms,
            "sample_rate": seen.ready.sample_rate,
            "auc": roc.area,
            "true_positive_rates": [_rate(roc, rate, subject, significance) for rate in FALSE_POSITIVE_RATES],
            "guesses_a_model": trials[0].guesses,
            "most_right_of_a_model": max(trial.right for trial in trials),
            "reach": epsilon_of_guesses(without_errors, subject.delta, significance),
        },
        draw=partial(
            figures.membership, roc=roc, epsilon=subject.epsilon, delta=subject.delta, marked=FALSE_POSITIVE_RATES
        ),
    )


class _Attacked(RunObserver):
    """Models trained on random halves of the records, at the claim's q, σ and steps, and their confidences."""

    def __init__(self, subject: Subject, models: int) -> None:
        super().__init__()
        coins = secret_rng().random((models // 2, len(subject.data.train))) < 0.5
        self.members: Coins = np.stack([coins, ~coins], axis=1).reshape(models, -1)
        self.confidences: Scores = np.empty(self.members.shape)
        self._subject = subject
        batch, declared = _halved(subject)
        self.ready = subject.prepare(data=replace(subject.data, records=declared), batch_size=batch)

    def train_all(self, progress: Progress | None) -> None:
        """One preparation, the same first weights for every model: they are public."""
        ready, everyone = self.ready, self.ready.data.train
        layout, randomness = ready.engine.layout, choose_randomness(self._subject.tier, ready.device)
        start, steps = layout.read(ready.model), ready.plan.steps
        for number, half in enumerate(self.members):
            layout.write(ready.model, start)
            part = TensorRecords(*everyone.take(torch.from_numpy(half.nonzero()[0])), name=ready.data.name)
            self.tell(progress, steps * len(self.members), done=steps * number)
            trained(replace(ready, data=ready.data.holding(part)), randomness=randomness, observers=[self], watch=self)
            self.confidences[number] = self._confidence()
        if self.broken:  # which is told as a finding; such confidences tell nothing
            self.confidences[~np.isfinite(self.confidences)] = 0.0
        odd = f"{self._subject.label}: a model's outputs are not finite; allowed: other settings, such as a smaller lr"
        require(np.isfinite(self.confidences).all(), odd)

    def _confidence(self) -> Scores:
        """φ of the records, as they are: without augmentation."""
        ready = self.ready
        if ready.view.variants is None:
            model, population = ready.shown_model(), ready.data.train
        else:  # the data are positions in features of augmented records
            model, population = ready.whole_model(), self._subject.data.train
        inputs, labels = population.take(torch.arange(len(population)))
        found: Scores = logit_confidence(predict(model, inputs, device=ready.device), labels.cpu()).numpy()
        return found

    def rates_above_claim(self) -> tuple[str, ...]:
        """Draws whose records are sampled at a higher rate than is claimed: those with a batch size of their own."""
        pairs = zip(self.ready.plan.stages, self._subject.plan.stages, strict=True)
        draws = [pair for here, there in pairs for pair in zip(here.draws, there.draws, strict=True)]
        names = (here.name for here, there in draws if here.sample_rate > there.sample_rate * (1 + 1e-12))
        return tuple(dict.fromkeys(names))


def _halved(subject: Subject) -> tuple[int, int]:
    """Half the batch size, and the declared record count with which q is as claimed, or a rounding below it."""
    whole = subject.config.batch_size
    assert whole is not None
    batch = max(1, round(whole / 2))
    return batch, -(-batch * subject.data.records // whole)


def guesses(scores: Scores, members: Coins) -> list[Trial]:
    """How guesses about each target did: "in" for its highest tenth of scores, "out" for its lowest."""
    count = 2 * max(1, scores.shape[1] // _GUESSED)
    return [guessed(torch.from_numpy(s), torch.from_numpy(m), count) for s, m in zip(scores, members, strict=True)]


def epsilon_of_guesses(trials: list[Trial], delta: float, significance: float) -> float:
    """The largest ε that the guesses about one of the targets refute; they share the significance.

    Formal guarantee: at most the mechanism's ε at δ, but for a chance of `significance`. The bound for one run needs
    fair coins, independent of each other and of the shadows, and a target has them.
    """
    return max(one_run_epsilon(trial, delta, significance / len(trials)) for trial in trials)


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

    Every record has as many shadows with it as without, so members and others score alike if models tell nothing.
    """
    pairs = np.arange(len(confidences)) // 2
    others = [pairs != pair for pair in pairs]
    return np.stack([_ratio(c, confidences[o], members[o]) for c, o in zip(confidences, others, strict=True)])


def _ratio(target: Scores, shadows: Scores, members: Coins) -> Scores:
    from scipy.stats import norm

    (inside, spread_in), (outside, spread_out) = (_moments(shadows, side) for side in (members, ~members))
    # A record's own gap is mostly noise where shadows are few: as much of it is kept as the records' spread supports.
    gap, middle = inside - outside, (inside + outside) / 2
    noise = float(np.mean(spread_in + spread_out)) / (len(shadows) / 2)
    spread = float(gap.var())
    kept = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
    gap = gap.mean() + kept * (gap - gap.mean())
    within = norm.logpdf(target, middle + gap / 2, np.sqrt(spread_in))
    return np.asarray(within - norm.logpdf(target, middle - gap / 2, np.sqrt(spread_out)))


def _moments(shadows: Scores, side: Coins) -> tuple[Scores, Scores]:
    """Mean and variance over the shadows on one side; one variance for all records where shadows are few."""
    count = len(shadows) // 2
    mean = (shadows * side).sum(axis=0) / count
    variance = (np.square(shadows - mean) * side).sum(axis=0) / (count - 1)
    if count < _MANY:
        variance = np.full_like(variance, variance.mean())
    return mean, variance + _LEAST_VARIANCE


@dataclass(frozen=True, kw_only=True)
class Roc:
    """How many members and how many others score above each threshold, from the highest down, none first."""

    members: NDArray[np.int64]
    others: NDArray[np.int64]

    @classmethod
    def of(cls, within: Scores, without: Scores) -> "Roc":
        scores = np.concatenate([within, without])
        order = np.argsort(-scores, kind="stable")
        ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # equal scores are on one side
        is_in = (order < len(within)).cumsum()[ends]
        return cls(members=np.append(0, is_in), others=np.append(0, ends + 1 - is_in))

    @property
    def true_positives(self) -> Scores:
        return np.asarray(self.members / self.members[-1])

    @property
    def false_positives(self) -> Scores:
        return np.asarray(self.others / self.others[-1])

    @property
    def area(self) -> float:
        """AUC: the chance that a member scores above another record, ties by halves."""
        return float(np.trapezoid(self.true_positives, self.false_positives))

    def at(self, false_positives: float, significance: float) -> tuple[float, float, float]:
        """The largest rate of true positives there, between its Clopper-Pearson bounds."""
        allowed = math.floor(false_positives * int(self.others[-1]) + 1e-9)
        found = int(self.members[np.searchsorted(self.others, allowed, side="right") - 1])
        trials, side = int(self.members[-1]), significance / 2
        return rate_below(found, trials, side), found / trials, rate_above(found, trials, side)


def allowed_rate(false_positives: float, epsilon: float, delta: float) -> float:
    """The largest rate of true positives that (ε, δ) leaves possible.

    >>> round(allowed_rate(0.01, 1.0, 1e-5), 6), round(allowed_rate(0.5, 1.0, 0.0), 6)
    (0.027193, 0.81606)
    """
    if epsilon > 700:
        return 1.0
    return min(math.exp(epsilon) * false_positives + delta, 1 - math.exp(-epsilon) * (1 - delta - false_positives), 1.0)


def _rate(roc: Roc, false_positives: float, subject: Subject, significance: float) -> dict[str, float]:
    low, rate, high = roc.at(false_positives, significance)
    return {
        "false_positive_rate": false_positives,
        "true_positive_rate": rate,
        "lower": low,
        "upper": high,
        "allowed": allowed_rate(false_positives, subject.epsilon, subject.delta),
    }


def _assumed(models: int, above: tuple[str, ...]) -> tuple[str, ...]:
    bound = (
        f"epsilon_lower assumes nothing about the mechanism: a fair coin for each record, independent of the shadows, "
        f"guesses fixed in number, the significance shared by {models} models; one run refutes nothing below a "
        "significance of 2 delta"
    )
    if above:
        bound = (
            f"epsilon_lower is 0, since no bound holds: with half the records the draws {', '.join(above)}, whose "
            "batch size is an option of the method, have a higher rate than is claimed"
        )
    return (
        f"the attacker has the records, trains {models} models on halves of them, and sees the outputs of each",
        bound,
        "auc and true_positive_rates count pairs of record and model as if they were independent, which they are not: "
        "an attack, not a bound, and nothing is refuted by it",
    )
