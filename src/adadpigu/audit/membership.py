"""A membership attack with shadow models (LiRA, `audit.lira`): whose record was in the training data?

Models are trained in pairs on random halves of the records: a coin for each record says which model of a pair has it,
so that every record is in exactly half of the models. Each is attacked with the models of all other pairs as shadows.

The attack is a figure for people: its ROC counts pairs of record and model, which are not independent. The coins of
one target are, of its shadows too; so guesses about them bound ε (Steinke, Nasr, Jagielski 2023). What is found out
about records is sensitive, unless they are public or stand-ins.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from adadpigu.audit.estimators import Errors, Scores, Trial, epsilon_from_errors, one_run_epsilon
from adadpigu.audit.lira import Coins, Roc, allowed_rate, likelihood_ratios, logit_confidence
from adadpigu.audit.one_run import guessed
from adadpigu.audit.outside import Answer, Watcher, broken, chance
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject, trained
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.errors import InputError
from adadpigu.randomness import choose_randomness
from adadpigu.training import Facts, Metrics, Run
from adadpigu.training.evaluation import predict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FALSE_POSITIVE_RATES = (0.001, 0.01)
"""at which the rate of true positives is told"""
_FEWEST_MODELS = 6
"""two shadows with a record and two without it, for a variance"""
_GUESSED = 10
"""one record in so many is guessed to be in, and one in so many to be out"""
_THRESHOLDS = 100
"""that are tried on either side of the median"""


def audit_membership(
    subject: Subject,
    *,
    models: int = 16,
    records: int | None = None,
    data: DataSet | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> AuditResult:
    """Trains `models` models on random halves of the data and attacks each with the others as its shadows.

    `records` are attacked, a random choice (None: all). `data` are the records to train on and to attack instead of the
    subject's; they are taken to be somebody's, so the result says that it is outside their guarantee.
    """
    check_confidence(confidence)
    held = _held(subject.data if data is None else data)
    count = len(held.train) if records is None else records
    _check(models, count, len(held.train))
    seen = _Attacked(subject, held, models, count)
    seen.train(progress)
    scores = likelihood_ratios(seen.confidences, seen.members)
    roc, significance = Roc.of(scores[seen.members], scores[~seen.members]), 1 - confidence
    trials, above = guesses(scores, seen.members), seen.rates_above_claim()

    def shown(significance: float) -> float:
        return 0.0 if above else epsilon_of_guesses(trials, subject.delta, significance)

    return AuditResult(
        audit="membership",
        subject=subject.label if data is None else f"{subject.config.method} on {data.name}",
        epsilon_claimed=subject.epsilon,
        delta=subject.delta,
        epsilon_lower=shown(significance),
        epsilon_certain=shown(REFUTING),
        confidence=confidence,
        observations=int(roc.others[-1]),
        assumed=_assumed(models, above),
        findings=(*subject.findings, *seen.findings()),
        exposed=subject.exposed or data is not None,
        details={
            "models": models,
            "records": count,
            "sample_rate": seen.ready.sample_rate,
            "steps": subject.plan.steps,
            "noise_multiplier": subject.noise_multiplier,
            "auc": roc.area,
            "true_positive_rates": [_rate(roc, rate, subject, significance) for rate in FALSE_POSITIVE_RATES],
            "epsilon_of_attack": _held_out(scores, seen.members, subject.delta, significance),
            "guesses_a_model": trials[0].guesses,
            "most_right_of_a_model": max(trial.right for trial in trials),
            "reach": epsilon_of_guesses(
                [Trial.flawless(count, trials[0].guesses)] * models, subject.delta, significance
            ),
        },
        draw=lambda figure: _draw(figure, roc, subject),
    )


def _held(data: DataSet) -> DataSet:
    """The data with its records as tensors, so that a half of them is a choice of rows."""
    if isinstance(data.train, TensorRecords):
        return data
    return replace(data, train=TensorRecords(*data.train.take(torch.arange(len(data.train))), name=data.name))


def _check(models: int, records: int, there: int) -> None:
    if models < _FEWEST_MODELS or models % 2:
        raise InputError(f"models={models}; allowed: an even number of at least {_FEWEST_MODELS}")
    needed = math.ceil(2 / (min(FALSE_POSITIVE_RATES) * models))
    if not needed <= records <= there:
        raise InputError(
            f"records={records} of the {there} that there are: a false positive rate of {min(FALSE_POSITIVE_RATES):g} "
            f"needs at least {needed} with models={models}; allowed: from {needed} to {there}"
        )


class _Attacked:
    """Models trained on random halves of the records, and how confident each is about those that are attacked.

    A half has half the batch size out of half the declared records: q is the claim's, σ and the steps are too.
    """

    def __init__(self, subject: Subject, data: DataSet, models: int, records: int) -> None:
        drawn, there = chance(), len(data.train)
        coins = drawn.random((models // 2, there)) < 0.5
        self._halves: Coins = np.stack([coins, ~coins], axis=1).reshape(models, there)
        self._attacked = np.sort(drawn.choice(there, records, replace=False))
        self.members: Coins = self._halves[:, self._attacked]
        self.confidences: Scores = np.empty((models, records))
        self._subject, self._records = subject, data.train
        self._releases = _Releases()
        batch, declared = _halved(subject)
        self.ready = subject.prepare(data=replace(data, records=declared, test=None), batch_size=batch)

    def train(self, progress: Progress | None) -> None:
        """One preparation, the same first weights for every model: they are public."""
        ready, everyone = self.ready, self.ready.data.train
        layout, randomness = ready.engine.layout, choose_randomness(self._subject.tier, ready.device)
        start = layout.read(ready.model)
        for number, half in enumerate(self._halves):
            layout.write(ready.model, start)
            part = TensorRecords(*everyone.take(torch.from_numpy(half.nonzero()[0])), name=ready.data.name)
            follower = _Steps(progress, done=number * ready.plan.steps, total=len(self._halves) * ready.plan.steps)
            trained(
                replace(ready, data=replace(ready.data, train=part)),
                randomness=randomness,
                observers=[self._releases, follower],
                watch=self._releases,
            )
            self.confidences[number] = self._confidence()
        if self._releases.broken:  # which is told as a finding; such confidences tell nothing
            self.confidences[~np.isfinite(self.confidences)] = 0.0
        if not np.isfinite(self.confidences).all():
            raise InputError(
                f"{self._subject.label}: a model's outputs are not finite, so there is nothing to attack; allowed: "
                "settings under which training does not diverge, such as a smaller lr"
            )

    def findings(self) -> list[str]:
        """What is wrong with the releases themselves."""
        broken = self._releases.broken
        return [f"{broken} releases hold numbers that are not finite: no noise hides what was released"] * bool(broken)

    def _confidence(self) -> Scores:
        """φ of the attacked records, as they are: without augmentation."""
        ready, where = self.ready, torch.from_numpy(self._attacked)
        if ready.view.variants is None:
            model, population = ready.shown_model(), ready.data.train
        else:  # the data are positions in features of augmented records
            model, population = ready.whole_model(), self._records
        inputs, labels = population.take(where)
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


class _Releases(Watcher):
    """Counts releases with numbers that are not finite, and does nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = 0

    def heard(self, answer: Answer, stage: str) -> None:
        self.broken += broken(answer)


class _Steps:
    """Tells how many steps of all models are done."""

    def __init__(self, progress: Progress | None, *, done: int, total: int) -> None:
        self._progress, self._done, self._total = progress, done, total

    def begin(self, facts: Facts) -> None: ...

    def update(self, metrics: Metrics) -> None:
        if self._progress is not None:
            self._progress(self._done + metrics.step, self._total)

    def end(self, run: Run) -> None: ...


def guesses(scores: Scores, members: Coins) -> list[Trial]:
    """How guesses about each target did: "in" for its highest tenth of scores, "out" for its lowest."""
    a_side = max(1, scores.shape[1] // _GUESSED)
    return [guessed(torch.from_numpy(s), torch.from_numpy(m), a_side) for s, m in zip(scores, members, strict=True)]


def epsilon_of_guesses(trials: list[Trial], delta: float, significance: float) -> float:
    """The largest ε that the guesses about one of the targets refute; they share the significance.

    Formal guarantee: whatever the mechanism, at most its ε at δ but for a chance of `significance`. The coins of a
    target are fair and independent of each other and of its shadows, which is all that the bound for one run asks for.
    """
    return max(one_run_epsilon(trial, delta, significance / len(trials)) for trial in trials)


def _held_out(scores: Scores, members: Coins, delta: float, significance: float) -> float:
    """ε by the errors of one threshold, chosen on half of the targets and counted on the others. No bound."""
    first = len(scores) // 4 * 2  # whole pairs
    tail = np.geomspace(1e-4, 0.5, _THRESHOLDS)
    found = np.unique(np.quantile(scores[:first], np.concatenate([tail, 1 - tail])))

    def shown(threshold: float, part: slice) -> float:
        alarms, hits = scores[part][~members[part]] > threshold, scores[part][members[part]] > threshold
        errors = Errors(
            false_alarms=int(alarms.sum()), without=len(alarms), misses=int((~hits).sum()), within=len(hits)
        )
        return epsilon_from_errors(errors, delta, significance)

    best = max(found.tolist(), key=lambda threshold: shown(threshold, slice(None, first)))
    return shown(best, slice(first, None))


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
        "auc, true_positive_rates and epsilon_of_attack count pairs of record and model as if they were independent, "
        "which they are not: an attack, not a bound, and nothing is refuted by it",
    )


def _draw(figure: Figure, roc: Roc, subject: Subject) -> None:
    axes = figure.subplots()
    least = 0.5 / int(roc.others[-1])
    shown = np.unique(
        np.searchsorted(roc.others, np.append(0, np.geomspace(1, roc.others[-1], 2000)), side="right") - 1
    )
    rates = np.geomspace(least, 1, 400)
    axes.plot(
        rates,
        [allowed_rate(rate, subject.epsilon, subject.delta) for rate in rates],
        color="#c8553d",
        label=f"the most that ε = {subject.epsilon:.3g}, δ = {subject.delta:g} allows",
    )
    axes.plot(
        np.maximum(roc.false_positives[shown], least),
        np.maximum(roc.true_positives[shown], least),
        color="#1b6ca8",
        label=f"the attack, AUC {roc.area:.3f}",
    )
    axes.plot(rates, rates, color="gray", linestyle="--", linewidth=0.8, label="guessing")
    for rate in FALSE_POSITIVE_RATES:
        axes.plot(rate, max(roc.at(rate, 0.05)[1], least), "o", color="#1b6ca8", markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(least, 1)
    axes.set_ylim(least, 1.3)
    axes.set_xlabel("false positive rate (records that the model has not seen)")
    axes.set_ylabel("true positive rate")
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
