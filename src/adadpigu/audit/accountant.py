"""The accountant audit: does the claim cover what is drawn, when somebody else counts and reckons?

ε of the claim's plan is reckoned once more (`reckoning`), and once by Rényi orders, straight from `dp_accounting`. A
short real run is counted from outside, replays of recorded steps included: what its samplers tossed, what it released,
what its ledger charged, and what it says that costs. Of a finished run the charges on its ledger are counted too.
Deterministic, on public records or stand-ins.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor

from adadpigu.accounting import Plan, read_ledger
from adadpigu.accounting.ledger_reading import NAME
from adadpigu.audit.outside import Answer, Watcher
from adadpigu.audit.reckoning import Reckoned, reckon
from adadpigu.audit.result import AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject, trained
from adadpigu.audit.watching import run_length, so_many_records
from adadpigu.randomness import Randomness
from adadpigu.sampling import Coins, PoissonSampler, Population
from adadpigu.training.preparation import Preparation
from adadpigu.training.run import Run

Kind = tuple[float, float]
"""(q, σ) of a draw"""
_STEPS, _RECORDS = 20, 200
"""of the run that is counted"""
_ROUNDING = 1e-6
"""share of ε by which two sound reckonings may differ"""
_ORDERS = (*range(2, 64), 128, 256, 512, 1024)


def audit_accountant(subject: Subject, *, confidence: float = 0.95, progress: Progress | None = None) -> AuditResult:
    """Counts and reckons. ε_lower is what the claim's plan costs at least: above the claim, it is refuted.

    Deterministic, so that the confidence is 1, whatever is asked for.
    """
    check_confidence(confidence)
    planned = _planned(subject.plan)
    found = reckon(((q, sigma, count) for (q, sigma), count in planned.items()), subject.delta)
    least = found.least * (1 - _ROUNDING)
    renyi = _renyi(planned, subject.delta)
    counted = _counted(subject)
    return AuditResult(
        audit="accountant",
        subject=subject.label,
        epsilon_claimed=subject.epsilon,
        delta=subject.delta,
        epsilon_lower=least,
        epsilon_certain=least,
        confidence=confidence,
        observations=counted.made.total(),
        exposed=subject.exposed,
        assumed=(
            "draws are independent Poisson samples (`adadpigu audit sampler` tests that)",
            "noise is Gaussian of the size that is charged (`adadpigu audit noise` tests that)",
            "a record moves a sum by no more than its sensitivity (`adadpigu audit replay` tests that)",
        ),
        findings=(
            *subject.findings,
            *_disagreements(found, renyi),
            *counted.findings(),
            *_overdrawn(subject, planned),
        ),
        details={
            "epsilon_reckoned": [found.least, found.most],
            "epsilon_renyi": renyi,
            "draws": [{"sample_rate": q, "noise_multiplier": s, "count": n} for (q, s), n in planned.items()],
            "counted_steps": counted.steps,
            "counted_epsilon": [counted.reckoned.least, counted.reckoned.most],
            "counted_epsilon_claimed": counted.told,
            **counted.path,
        },
    )


def _planned(plan: Plan) -> Counter[Kind]:
    """What the stages of a plan hold, those steps included that may be repeated."""
    alike: Counter[tuple[Kind, ...]] = Counter()
    for stage in plan.stages:
        alike[tuple((draw.sample_rate, draw.noise_multiplier) for draw in stage.draws)] += stage.steps
    found: Counter[Kind] = Counter()
    for draws, steps in alike.items():
        for kind in draws:
            found[kind] += steps + min(steps, plan.spare)
    return found


def _renyi(draws: Mapping[Kind, int], delta: float) -> float:
    """An upper bound on ε, by whole Rényi orders."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=_ORDERS)
    for (q, sigma), count in draws.items():
        if count and math.isfinite(sigma):
            event = dp.GaussianDpEvent(sigma) if q == 1 else dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma))
            accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def _disagreements(found: Reckoned, renyi: float) -> Iterator[str]:
    if found.least * (1 - _ROUNDING) > renyi:
        yield f"the plan costs at least epsilon={found.least:.6g}, by Rényi orders {renyi:.6g} at most: one is wrong"


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """A short run, seen from outside."""

    steps: int
    tossed: Counter[Kind]
    released: Counter[Kind]
    charged: Counter[Kind]
    reckoned: Reckoned
    """ε of what was made"""
    told: float
    """ε that the run says it has spent"""
    path: Mapping[str, object]

    @property
    def made(self) -> Counter[Kind]:
        """Draws that were tossed or released, whichever were more."""
        return self.tossed | self.released

    def findings(self) -> Iterator[str]:
        for (q, sigma), count in self.made.items():
            kind = q, sigma
            at = f"at q={q:.4g}, sigma={sigma:.4g}"
            if self.charged[kind] < count:
                yield f"{count} draws were made {at}; {self.charged[kind]} are on the ledger"
            if self.tossed[kind] < count:
                yield f"{count} draws were released {at}; coins were tossed for {self.tossed[kind]} of them"
        if self.told < self.reckoned.least * (1 - _ROUNDING):
            yield (
                f"a run of {self.steps} steps says that it has spent epsilon={self.told:.6g}, while its draws cost "
                f"{self.reckoned.least:.6g} at least"
            )


def _counted(subject: Subject) -> _Counted:
    steps = run_length(subject, _STEPS)
    ready = subject.prepare(data=so_many_records(subject, _RECORDS), steps=steps, evaluate_every=steps)
    counting, watcher = _Counting(**vars(ready), tosses={}), _Releases(ready)
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run: Run = trained(counting, randomness=subject.tier, out=out, watch=watcher, observers=[watcher])
        charged = charges(read_ledger(out / NAME).lines)
    tossed = Counter({kind: int(count) for kind, count in counting.tosses.items()})
    made = tossed | watcher.released
    return _Counted(
        steps=steps,
        tossed=tossed,
        released=watcher.released,
        charged=charged,
        reckoned=reckon(((q, sigma, count) for (q, sigma), count in made.items()), subject.delta),
        told=run.privacy.epsilon_spent,
        path={"execution": watcher.execution, "replayed_steps": watcher.replayed},
    )


def charges(lines: Iterable[Mapping[str, Any]]) -> Counter[Kind]:
    """How often each draw was charged, counted from a ledger's own lines."""
    found: Counter[Kind] = Counter()
    last: list[Kind] = []
    for line in lines:
        if "charge" in line:
            found[_kind(line["event"])] += 1
        elif "reserve" in line:
            last = [_kind(event) for event in line["draws"].values()]
            found.update(last * line["reserve"])
        elif "settle" in line:
            found.subtract(last * line["settle"])
        elif "torn" in line:
            found.update({_kind(event): count for event, count in line["charged"]})
    return found


def _kind(event: Mapping[str, Any]) -> Kind:
    """(q, σ) as JSON has them; what is not private has σ = 0."""
    if event["event"] == "PoissonSampled":
        return float(event["sample_rate"]), _kind(event["of"])[1]
    return 1.0, float(event.get("noise_multiplier", 0.0))


def _overdrawn(subject: Subject, planned: Mapping[Kind, int]) -> Iterator[str]:
    """Of a finished run: more on its ledger than in its plan."""
    if subject.ledger is None:
        return
    for (q, sigma), count in charges(subject.ledger.lines).items():
        if count > planned.get((q, sigma), 0):
            yield (
                f"{count} draws at q={q:.4g}, sigma={sigma:.4g} are on the ledger, "
                f"{planned.get((q, sigma), 0)} in the plan that is claimed for"
            )


class _Releases(Watcher):
    """Counts the draws that were answered, those of replayed steps too."""

    def __init__(self, ready: Preparation) -> None:
        super().__init__()
        self.released: Counter[Kind] = Counter()
        self._kinds = {
            (stage.name, draw): (sampler.sample_rate, sigma)
            for number, stage in enumerate(ready.stages)
            for draw, (sampler, sigma) in ready.samplers(number).items()
        }

    def heard(self, answer: Answer, stage: str) -> None:
        self.released[self._kinds[stage, answer.draw]] += 1


@dataclass(frozen=True, kw_only=True)
class _Counting(Preparation):
    """A run whose samplers are counted."""

    tosses: dict[Kind, Tensor]

    def samplers(self, stage: int) -> dict[str, tuple[PoissonSampler, float]]:
        found = {}
        for name, (sampler, sigma) in super().samplers(stage).items():
            count = self.tosses.setdefault((sampler.sample_rate, sigma), torch.zeros((), device=self.device))
            found[name] = cast(PoissonSampler, _CountedSampler(sampler, count)), sigma
        return found


class _CountedSampler:
    """A sampler as it is, but that its tosses are counted, on the device: a recorded toss counts at every replay."""

    def __init__(self, sampler: PoissonSampler, count: Tensor) -> None:
        self._sampler, self._count = sampler, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def toss(self, population: Population, randomness: Randomness) -> Coins:
        self._count.add_(1)
        return self._sampler.toss(population, randomness)
