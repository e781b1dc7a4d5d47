"""Four attacks, one for each leak of the published implementation. Each runs our own training loop, twice if it must.

What an attacker looks at is public in a sound implementation: masks, α, releases. So each attack on the package as it
is must stay below what the package claims; with the leak planted (`plants.py`) it finds more.

| attack | looks at | ε from |
| --- | --- | --- |
| importance | which coordinates of the dummy block the mask keeps | guesses about one run's canaries |
| statistics | α on the dummy block | the same |
| resumed noise | releases of steps that were repeated after a crash | the same |
| shuffle | releases of whole epochs | errors of a test for the batch that holds the canary |
"""

from __future__ import annotations

import math
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor, nn

from adadpigu.audit.canaries import Canaries, WithBlock
from adadpigu.audit.estimators import Errors, Trial, gaussian_mu, one_run_epsilon
from adadpigu.audit.result import REFUTING, AuditResult
from adadpigu.audit.subject import Subject, scaled, subject_of
from adadpigu.config import merge, read_preset
from adadpigu.core.bounding import Query
from adadpigu.core.gradients import Loss
from adadpigu.core.randomness import Randomness, choose_randomness
from adadpigu.data import DataSet, TensorRecords
from adadpigu.training import Facts, Metrics, Observer, Run, train_prepared

CONFIDENCE = 0.95
DELTA = 1e-9
"""of all claims: the bound from one run gives away m δ for its m canaries, which has to be small beside 1e-6"""


def leak_subject(records: int, *, options: dict[str, object] | None = None, **settings: object) -> Subject:
    """AdaDPIGU on the first so many digits, at the sample rate that `batch_size` makes of them."""
    plain = {"delta": DELTA, "physical_batch_size": None, "ema": None, "device": "cpu", "method_options": options or {}}
    whole = merge(read_preset("digits-adadpigu"), {**plain, **settings})
    assert whole.batch_size is not None
    subject = subject_of(whole, sample_rate=whole.batch_size / records)
    train = subject.data.train
    assert isinstance(train, TensorRecords)
    few = TensorRecords(train.inputs[:records], train.targets[:records], name=train.name)
    config = replace(subject.config, batch_size=whole.batch_size)
    return replace(subject, config=config, data=replace(subject.data, train=few, records=records))


class Flipped(Canaries):
    """Canaries that are in the data by the flip of a coin, sampled like any record, and a score for each."""

    def __init__(self, count: int, present: Tensor | None = None) -> None:
        super().__init__(count)
        bits = np.frombuffer(secrets.token_bytes(count), dtype=np.uint8) & 1
        self.present = torch.from_numpy(bits.astype(bool)) if present is None else present
        self.scores = torch.zeros(count, dtype=torch.float64)

    def choose(self, active: Tensor | None) -> Tensor:
        return torch.where(self.present, torch.nan, 1.0)

    def trial(self, guesses: int) -> Trial:
        """ "In" is said of those with the highest scores, equal ones by lot, and nothing of the others."""
        order = torch.randperm(self.count)
        chosen = order[torch.argsort(self.scores[order], descending=True)][:guesses]
        return Trial(canaries=self.count, guesses=guesses, right=int(self.present[chosen].sum()))


class _Masked(Flipped):
    """Scores a canary by whether the mask keeps its coordinate."""

    def choose(self, active: Tensor | None) -> Tensor:
        if active is not None:
            self.scores = active.double()
        return super().choose(active)


class _Centred(Flipped):
    """Scores a canary by α on its coordinate; all other records' gradients are α there."""

    def before_draw(self, draw: str, queries: Sequence[Query]) -> None:
        super().before_draw(draw, queries)
        self.scores = self.loss.center.double()


class _Kept(Flipped):
    """Keeps the releases of the block."""

    def __init__(self, count: int, present: Tensor | None = None) -> None:
        super().__init__(count, present)
        self.releases_seen: list[Tensor] = []

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        self.releases_seen.append(value)


def trained(
    subject: Subject, canaries: Canaries, *, steps: int | None = None, randomness: Randomness | None = None
) -> None:
    """One run of the real loop with the canaries in it."""
    ready = subject.prepare(attach=canaries.attach, steps=steps)
    inner = choose_randomness(None, ready.device) if randomness is None else randomness
    canaries.follow(ready)
    train_prepared(ready, randomness=canaries.coins(inner), watch=canaries, observers=[canaries])


def guessed(attack: str, subject: Subject, trial: Trial, seen: str) -> AuditResult:
    shown = partial(one_run_epsilon, trial, subject.delta)
    return AuditResult(
        audit=attack,
        subject=subject.label,
        epsilon_claimed=subject.epsilon,
        delta=subject.delta,
        epsilon_lower=shown(1 - CONFIDENCE),
        epsilon_certain=shown(REFUTING),
        confidence=CONFIDENCE,
        observations=trial.guesses,
        assumed=(f"the adversary puts {trial.canaries} records into the data and sees {seen}",),
        details={"canaries": trial.canaries, "guesses": trial.guesses, "right": trial.right},
    )


def importance_attack(*, canaries: int = 4000, epsilon: float = 1.0) -> AuditResult:
    """A canary's coordinate has a gradient only where the canary is: un-noised scores rank it above all others.

    The mask is cut so that it holds the model and a quarter of the block.
    """
    shape: dict[str, object] = {"batch_size": 32, "epsilon": epsilon, "steps": 5}
    whole = leak_subject(64, **shape, options={"importance_steps": 4}).prepare().engine.layout.size
    retention = (whole + canaries / 4) / (whole + canaries)
    subject = leak_subject(64, **shape, options={"importance_steps": 4, "retention": retention})
    attacker = _Masked(canaries)
    trained(subject, attacker)
    return guessed("importance", subject, attacker.trial(canaries // 4), "the mask")


def statistics_attack(*, canaries: int = 4000, epsilon: float = 1.0) -> AuditResult:
    """α moves away from what every record has on a coordinate only where a canary was drawn."""
    options: dict[str, object] = {"retention": 1.0, "importance_steps": 0, "mean_decay": 0.9}
    subject = leak_subject(64, batch_size=32, epsilon=epsilon, steps=5, options=options)
    attacker = _Centred(canaries)
    trained(subject, attacker)
    return guessed("statistics", subject, attacker.trial(canaries // 4), "α before every step")


class Crash:
    """Ends a run after so many steps, before they are in a checkpoint."""

    def __init__(self, after: int) -> None:
        self._after = after

    def begin(self, facts: Facts) -> None: ...

    def end(self, run: Run) -> None: ...

    def update(self, metrics: Metrics) -> None:
        if metrics.step == self._after:
            raise KeyboardInterrupt


def resumed_noise_attack(*, canaries: int = 4000, epsilon: float = 1.0) -> AuditResult:
    """Four steps are made, lost and made again; the two releases of a step differ by the sums alone."""
    options: dict[str, object] = {"retention": 1.0, "importance_steps": 0}
    subject = leak_subject(64, batch_size=32, epsilon=epsilon, steps=12, options=options)
    first = _Kept(canaries)
    again = _Kept(canaries, first.present)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        for session, kept in enumerate((first, again)):
            ready = subject.prepare(attach=kept.attach, checkpoint_every=4)
            kept.follow(ready)
            coins = kept.coins(choose_randomness(None, ready.device))
            watching: list[Observer] = [kept, *([Crash(8)] if session == 0 else [])]
            train_prepared(ready, out=out, randomness=coins, watch=kept, observers=watching, resuming=session == 1)
    pairs = zip(first.releases_seen[4:8], again.releases_seen[:4], strict=True)
    again.scores = sum(((one - other).abs() for one, other in pairs), start=torch.zeros(canaries, dtype=torch.float64))
    return guessed("resumed noise", subject, again.trial(canaries // 4), "the releases of all lives of the run")


class _Noting(TensorRecords):
    """Records that note whether the last of them was taken."""

    def __init__(self, records: TensorRecords) -> None:
        super().__init__(records.inputs, records.targets, name=records.name)
        self.last_taken = False

    def to(self, device: torch.device) -> TensorRecords:
        return self

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        self.last_taken = bool((indices == len(self) - 1).any())
        return super().take(indices)


class Displacing(Canaries):
    """All records have the gradient −C on the one coordinate of the block, the canary alone has C.

    In a batch of B records the canary stands where another would: the sum is −(B − 2) C instead of −B C. It is in the
    data in every other epoch.
    """

    _LARGE = 1e6

    def __init__(self, *, batch_size: int, epoch: int) -> None:
        super().__init__(1)
        self._batch_size, self._epoch = batch_size, epoch
        self._step = -1
        self._records: _Noting | None = None
        self.within: list[float] = []
        self.without: list[float] = []
        self.times: dict[int, int] = {}
        """in how many batches of an epoch the canary was"""

    def attach(self, body: nn.Module, data: DataSet) -> tuple[WithBlock, DataSet, Loss]:
        model, data, loss = super().attach(body, data)
        assert isinstance(data.train, TensorRecords)
        self._records = _Noting(data.train)
        return model, replace(data, train=self._records), loss

    def before_draw(self, draw: str, queries: Sequence[Query]) -> None:
        self._step += 1
        super().before_draw(draw, queries)
        self.loss.center.fill_(-self._LARGE * queries[0].clip_norm)
        self.loss.signal.copy_(-2 * self.loss.center)

    @property
    def _inside(self) -> bool:
        return self._step // self._epoch % 2 == 0

    def choose(self, active: Tensor | None) -> Tensor:
        return torch.tensor([torch.nan if self._inside else 1.0])

    def observe(self, value: Tensor, active: Tensor | None) -> None:
        assert self._records is not None
        shift = float(value) + self._batch_size
        if not self._inside:
            self.without.append(shift)
            return
        epoch = self._step // self._epoch
        self.times[epoch] = self.times.get(epoch, 0) + self._records.last_taken
        if self._records.last_taken:
            self.within.append(shift)

    @property
    def once_an_epoch(self) -> bool:
        """Whether the canary was in one batch of nearly every epoch and never in two, as Poisson draws are not."""
        return set(self.times.values()) <= {0, 1} and len(self.within) > 0.9 * len(self.times)

    def errors(self) -> Errors:
        """Of the test for a shift by 2, half of which was fixed as the threshold."""
        within, without = np.array(self.within), np.array(self.without)
        return Errors(
            false_alarms=int((without > 1).sum()),
            without=len(without),
            misses=int((within <= 1).sum()),
            within=len(within),
        )


def one_batch_epsilon(mu: float, batches: int, delta: float, dealt: float = 1.0) -> float:
    """The least ε of an epoch in one unknown batch of which a record moves a Gaussian by μ: ln((P[A] − δ)/Q[A]).

    A says that the largest of the epoch's releases exceeds a threshold, which is the attacker's to choose. `dealt` is
    the chance that the record is in a batch at all.

    >>> round(one_batch_epsilon(2.0, 20, 1e-5), 2), round(one_batch_epsilon(1.0, 1, 1e-5), 2)
    (7.0, 4.38)
    """

    def shown(threshold: float) -> float:
        quiet = norm.logcdf(threshold)
        alarm = -math.expm1(batches * quiet)
        hit = -dealt * math.expm1((batches - 1) * quiet + norm.logcdf(threshold - mu))
        return math.log((hit - delta) / alarm) if hit > delta and alarm > 0 else 0.0

    return max(0.0, *(shown(threshold) for threshold in np.arange(0.0, 12.0, 0.05)))


def shuffle_attack(
    *,
    epochs: int = 600,
    epsilon: float = 4.0,
    epoch: int = 20,
    batch_size: int = 4,
    randomness: Randomness | None = None,
) -> AuditResult:
    """Every release of every epoch is looked at: a batch of fixed size gives away whom the canary has displaced.

    The claim is for one epoch; the run holds many, each of them one trial.
    """
    options: dict[str, object] = {"retention": 1.0, "importance_steps": 0}
    records = batch_size * epoch
    subject = leak_subject(records, batch_size=batch_size, epsilon=epsilon, steps=epoch, options=options)
    attacker = Displacing(batch_size=batch_size, epoch=epoch)
    trained(subject, attacker, steps=epoch * epochs, randomness=randomness)
    errors, once = attacker.errors(), attacker.once_an_epoch

    def shown(significance: float) -> float:
        mu = gaussian_mu(errors, significance)
        if mu == 0:
            return 0.0
        if once:  # what a move is worth depends on how records are dealt, which an auditor sees
            return one_batch_epsilon(mu, epoch, subject.delta, dealt=records / (records + 1))
        return subject.cost(scaled(1 / (mu * subject.noise_multiplier)))

    return AuditResult(
        audit="shuffle",
        subject=subject.label,
        epsilon_claimed=subject.epsilon,
        delta=subject.delta,
        epsilon_lower=shown(1 - CONFIDENCE),
        epsilon_certain=shown(REFUTING),
        confidence=CONFIDENCE,
        observations=errors.within,
        assumed=(
            "the adversary chooses all records' gradients and sees every release",
            "noise is Gaussian and independent from batch to batch",
        ),
        details={
            "false_alarms": errors.false_alarms,
            "without": errors.without,
            "misses": errors.misses,
            "once_an_epoch": once,
            "mean_shift": float(np.mean(attacker.within)) - float(np.mean(attacker.without)),
        },
    )
