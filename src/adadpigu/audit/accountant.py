"""The accountant audit: does the claim cover what is drawn, when somebody else counts and computes?

ε of the claim's plan is computed once more (`epsilon_integral`), and once by Rényi orders, straight from
`dp_accounting`. A short real run is counted from outside: what its samplers tossed, what it released, what its ledger
charged, and what it says that costs. Of a finished run the charges on its ledger are counted too. Deterministic.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from adadpigu.accounting import Plan, read_ledger
from adadpigu.accounting.ledger_reading import LEDGER_FILE
from adadpigu.audit.epsilon_integral import EpsilonBounds, integrate_epsilon
from adadpigu.audit.outside import Answer, RunObserver
from adadpigu.audit.result import AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject, trained
from adadpigu.audit.watching import ObservedPreparation, ObservedSampler
from adadpigu.core.sampling import Sampler
from adadpigu.training.preparation import Preparation

Kind = tuple[float, float]  # (q, σ) of a draw
_STEPS, _RECORDS = 20, 200  # of the run that is counted
_ROUNDING = 1e-6  # share of ε by which two sound reckonings may differ
_ORDERS = (*range(2, 64), 128, 256, 512, 1024)


def audit_accountant(subject: Subject, *, confidence: float = 0.95, progress: Progress | None = None) -> AuditResult:
    """Counts and reckons. ε_lower is what the claim's plan costs at least: above the claim, it is refuted.

    Deterministic, so that the confidence is 1, whatever is asked for.
    """
    check_confidence(confidence)
    planned, counted = _planned(subject.plan), _counted(subject)
    found, cost = (
        integrate_epsilon(((q, sigma, count) for (q, sigma), count in draws.items()), subject.delta)
        for draws in (planned, counted.made)
    )
    least, renyi = found.least * (1 - _ROUNDING), _renyi(planned, subject.delta)
    told = f"the plan costs at least epsilon={found.least:.6g}, by Rényi orders {renyi:.6g} at most: one is wrong"
    return subject.result(
        "accountant",
        epsilon_lower=least,
        epsilon_certain=least,
        confidence=confidence,
        observations=counted.made.total(),
        assumed=(
            "draws are independent Poisson samples (`adadpigu audit sampler` tests that)",
            "noise is Gaussian of the size that is charged (`adadpigu audit noise` tests that)",
            "a record moves a sum by no more than its sensitivity (`adadpigu audit replay` tests that)",
        ),
        findings=(*([told] if least > renyi else []), *counted.contradictions(cost), *_overdrawn(subject, planned)),
        details={
            "epsilon_reckoned": [found.least, found.most],
            "epsilon_renyi": renyi,
            "draws": [{"sample_rate": q, "noise_multiplier": s, "count": n} for (q, s), n in planned.items()],
            "counted_steps": counted.steps,
            "counted_epsilon": [cost.least, cost.most],
            "counted_epsilon_claimed": counted.told,
            "execution": counted.execution,
            "replayed_steps": counted.replayed,
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


class _Counted(RunObserver):
    """A short run, seen from outside: how often draws of each kind were tossed, released and charged."""

    def __init__(self, ready: Preparation) -> None:
        super().__init__()
        self._stages, self._device = ready.stages, ready.device
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._tosses: dict[Kind, Tensor] = {}
        self.steps = ready.plan.steps
        self.released: Counter[Kind] = Counter()
        self.charged: Counter[Kind] = Counter()
        self.told = 0.0  # ε that the run says it has spent

    def spied(self, stage: int, name: str, sampler: Sampler, sigma: float) -> ObservedSampler:
        """Counts its tosses on the device: a recorded toss counts at every replay."""
        kind = self._kinds[self._stages[stage].name, name] = sampler.sample_rate, sigma
        count = self._tosses.setdefault(kind, torch.zeros((), device=self._device))
        return ObservedSampler(sample_rate=sampler.sample_rate, own=sampler, tossed=lambda: count.add_(1))

    def on_draw(self, answer: Answer, stage: str) -> None:
        self.released[self._kinds[stage, answer.draw]] += 1

    @property
    def tossed(self) -> Counter[Kind]:
        return Counter({kind: int(count) for kind, count in self._tosses.items()})

    @property
    def made(self) -> Counter[Kind]:
        """Draws that were tossed or released, whichever were more."""
        return self.tossed | self.released

    def contradictions(self, cost: EpsilonBounds) -> Iterator[str]:
        """`cost` is what the draws that were made cost."""
        tossed = self.tossed
        for kind, count in self.made.items():
            if self.charged[kind] < count:
                yield f"{count} draws were made {_at(kind)}; {self.charged[kind]} are on the ledger"
            if tossed[kind] < count:
                yield f"{count} draws were released {_at(kind)}; coins were tossed for {tossed[kind]} of them"
        if self.told < cost.least * (1 - _ROUNDING):
            yield (
                f"a run of {self.steps} steps says that it has spent epsilon={self.told:.6g}, while its draws cost "
                f"{cost.least:.6g} at least"
            )


def _counted(subject: Subject) -> _Counted:
    steps = subject.run_length(_STEPS)
    ready = subject.prepare(data=subject.first(_RECORDS), steps=steps, evaluate_every=steps)
    seen = _Counted(ready)
    with TemporaryDirectory() as folder:
        out, followed = Path(folder) / "run", ObservedPreparation(**vars(ready), spied=seen.spied)
        run = trained(followed, randomness=subject.tier, out=out, watch=seen, observers=[seen])
        seen.charged, seen.told = charges(read_ledger(out / LEDGER_FILE).lines), run.privacy.epsilon_spent
    return seen


def _at(kind: Kind) -> str:
    return f"at q={kind[0]:.4g}, sigma={kind[1]:.4g}"


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
    for kind, count in charges(subject.ledger.lines).items():
        if count > (allowed := planned.get(kind, 0)):
            yield f"{count} draws {_at(kind)} are on the ledger, {allowed} in the plan that is claimed for"
