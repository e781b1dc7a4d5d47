"""Counts of classes and quantiles of columns, released with noise and charged: for class weights and for scaling.

One draw of all records, one bounded sum, one Gaussian. A record counts once in its class, or once in each of d columns:

    counts:     Σ e_{y_i},  moved by 1       quantiles: Σ (e_{bin(x_i1)}, …, e_{bin(x_id)}),  moved by √d
"""

import json
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from adadpigu.accounting import Budget, Ledger, Plan, PlannedDraw, PlannedStage, PrivacyReport, privacy_report
from adadpigu.accounting.calibration import calibrate
from adadpigu.accounting.ledger_reading import LEDGER_FILE
from adadpigu.accounting.shared import SharedLedger
from adadpigu.core.bounding import BoundedSum, Bounder, Part, RecordSum
from adadpigu.core.exact import grid_of
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.randomness import Randomness, Tier, choose_randomness
from adadpigu.core.sampling import PoissonSampler, Population
from adadpigu.core.sensitive import PerRecordLosses, Records, withheld
from adadpigu.data.datasets import DataSet, Source, declare
from adadpigu.durable import write_text, writing
from adadpigu.errors import require
from adadpigu.runs.run import check_free
from adadpigu.training.earlier import StartedRun, earlier_runs

NAME = "release"
_AT_ONCE = 1024  # records
_MOST = 10_000_000  # numbers of one release
Values = Callable[[Tensor, Tensor], Tensor]  # of inputs and targets: what each record adds, a row of zeros and ones


@dataclass(frozen=True, kw_only=True)
class Released:
    """What was released of a data set, and what that costs."""

    values: tuple[Any, ...]
    """noisy counts of each class; or the quantiles of each column"""
    stddev: float  # of the noise on each count
    privacy: PrivacyReport

    @property
    def class_weights(self) -> tuple[float, ...]:
        """N/(K·count) of each class, counts of less than their noise taken as that."""
        counts = [max(float(value), self.stddev, 1.0) for value in self.values]
        return tuple(sum(counts) / (len(counts) * count) for count in counts)


def release_counts(
    dataset: Source, *, records: int | None = None, classes: int | None = None, privacy: Budget, **place: Any
) -> Released:
    """How many records each class has, with noise: for class weights. `place`: arguments of `_released`."""
    data = declare(dataset, records=records)
    count = data.classes if classes is None else classes
    require(count is not None and 1 <= count <= _MOST, f"classes={count}; allowed: the public number of classes")
    assert count is not None

    def values(_: Tensor, labels: Tensor) -> Tensor:
        known = (labels >= 0) & (labels < count)
        return F.one_hot(torch.where(known, labels, 0), count) * known[:, None]

    release, stddev, report = _released("counts", data, values, count, 1.0, privacy, **place)
    found = tuple(float(value) for value in release.value)
    return _kept(Released(values=found, stddev=stddev, privacy=report), "counts", place.get("out"))


def release_quantiles(
    dataset: Source,
    *,
    records: int | None = None,
    low: float = 0.0,
    high: float = 1.0,
    shares: Sequence[float] = (0.25, 0.5, 0.75),
    bins: int = 64,
    privacy: Budget,
    **place: Any,
) -> Released:
    """Quantiles of every column between public bounds, from noisy histograms of so many bins: for scaling."""
    data = declare(dataset, records=records)
    inputs = data.train.take(torch.arange(0))[0]
    require(isinstance(inputs, Tensor), f"{data.name}: quantiles are of numbers in one tensor; allowed: inputs [n, …]")
    columns = math.prod(inputs.shape[1:])
    require(
        math.isfinite(low) and math.isfinite(high) and low < high, f"low={low}, high={high}: must be finite, in order"
    )
    require(
        bins >= 2 and bins * columns <= _MOST, f"bins={bins} of {columns} columns; allowed: 2 to {_MOST // columns}"
    )
    require(all(0 < share < 1 for share in shares), f"shares={list(shares)}; allowed: numbers in (0, 1)")

    def values(inputs: Tensor, _: Tensor) -> Tensor:
        place = (inputs.flatten(1).double() - low) / (high - low) * bins
        return F.one_hot(torch.nan_to_num(place).clamp(0, bins - 1).long(), bins).flatten(1)

    release, stddev, report = _released("quantiles", data, values, bins * columns, math.sqrt(columns), privacy, **place)
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    found = tuple(_quantiles(counts, edges, shares) for counts in release.value.double().view(columns, bins))
    return _kept(Released(values=found, stddev=stddev, privacy=report), "quantiles", place.get("out"))


def _quantiles(counts: Tensor, edges: Tensor, shares: Sequence[float]) -> tuple[float, ...]:
    """From a noisy histogram: where its cumulated counts, made to grow, reach each share of their total."""
    below = torch.cat([torch.zeros(1).double(), counts.cumsum(0)]).cummax(0).values.clamp(min=0)
    total = float(below[-1]) or 1.0
    found = []
    for share in shares:
        upper = min(int(torch.searchsorted(below, share * total)), len(edges) - 1)
        lower = max(upper - 1, 0)
        width = float(below[upper] - below[lower])
        part = (share * total - float(below[lower])) / width if width > 0 else 0.5
        found.append(float(edges[lower] + (edges[upper] - edges[lower]) * min(max(part, 0.0), 1.0)))
    return tuple(found)


def _released(
    kind: str,
    data: DataSet,
    values: Values,
    size: int,
    bound: float,
    budget: Budget,
    *,
    out: Path | str | None = None,
    ledger: Path | str | None = None,
    randomness: Randomness | Tier | None = None,
) -> tuple[Release, float, PrivacyReport]:
    """One charged release of all records; `out` is a folder for it, `ledger` one that is shared with runs."""
    require(data.owners is None, f"{data.name}: records with owners; allowed: single records")

    def plan_at(sigma: float) -> Plan:
        draw = PlannedDraw(name=NAME, sample_rate=1.0, noise_multiplier=sigma)
        return Plan(stages=(PlannedStage(name=NAME, steps=1, draws=(draw,)),))

    found = calibrate(plan_at, epsilon=budget.epsilon, delta=budget.delta)
    source = choose_randomness(randomness, torch.device("cpu")) if isinstance(randomness, str | None) else randomness
    folder, run = None if out is None else Path(out), uuid.uuid4().hex
    common = None if ledger is None else SharedLedger(Path(ledger), dataset=data.name, records=data.records, run=run)
    if common is not None:
        require(source.private, "reproducible noise on a shared ledger: no total could cover it; allowed: without it")
        common.check(found.plan.event())
    if folder is not None:
        check_free(folder)
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = None if folder is None else folder / LEDGER_FILE
    facts = {
        "run": run,
        "method": kind,
        "dataset": data.name,
        "randomness": source.description,
        "secret": source.private,
    }
    with Ledger(found.plan, budget=budget, path=path, delta=budget.delta, facts=facts) as charges:
        if common is not None:
            common.reserve(found.plan.event(), charges, kind)
        needs: frozenset[Part] = frozenset({"loss"})
        grid = grid_of(bound) if hasattr(source, "rounded") else None  # of tier exact
        query = RecordSum(name=kind, of=lambda record: record.loss, clip_norm=bound, needs=needs, grid=grid)
        mechanism = GaussianMechanism(charges, source)
        named = {"stage": NAME, "step": 0, "draw": NAME}
        receipt = mechanism.charge(
            [query],
            source=PoissonSampler(sample_rate=1.0),
            noise_multiplier=found.noise_multiplier,
            size=size,
            **named,  # type: ignore[arg-type]
        )
        total = withheld(partial(_sum, data.train, values, query, size))
        release = mechanism.release([total], receipt)[kind]
        charges.note("finished")
        report = _report(kind, data, budget, found.plan, found.noise_multiplier, charges, source)
    if common is not None:
        common.settle(charges, kind)
    _note_earlier(run, data, report, common, ledger)
    return release, release.noise_stddev or 0.0, report


def _sum(population: Population, values: Values, query: RecordSum, size: int) -> BoundedSum:
    bounder = Bounder(query, size)
    bounder.add_records(Records((torch.zeros(0), torch.zeros(0))), losses=PerRecordLosses(torch.zeros(0, size)))
    for start in range(0, len(population), _AT_ONCE):
        inputs, targets = population.take(torch.arange(start, min(start + _AT_ONCE, len(population))))
        assert isinstance(inputs, Tensor)
        rows, blank = values(inputs, targets.long()).double(), torch.zeros(len(targets))
        bounder.add_records(Records((blank, blank)), losses=PerRecordLosses(rows))
    return bounder.result()


def _report(
    kind: str, data: DataSet, budget: Budget, plan: Plan, sigma: float, ledger: Ledger, source: Randomness
) -> PrivacyReport:
    return privacy_report(
        plan=plan,
        spent=ledger.events(),
        delta=budget.delta,
        target_epsilon=budget.epsilon,
        method=kind,
        records=data.records,
        expected_batch_size=data.records,
        noise_multiplier=sigma,
        clip_norm=None,
        steps_done={NAME: 1},
        releases=ledger.released,
        randomness=source.description,
        randomness_private=source.private,
        sessions=ledger.sessions(),
        not_covered=[f"declared public of {data.name!r}: {fact}" for fact in data.public],
    )


def _note_earlier(
    run: str, data: DataSet, report: PrivacyReport, common: SharedLedger | None, ledger: Path | str | None
) -> None:
    """A run of this process on the same records says that they have been released of before."""
    epsilon = report.epsilon if report.private else math.inf
    shared = None if common is None or ledger is None else Path(ledger).resolve()
    facts: dict[str, Any] = {"run": run, "preparation": run, "dataset": data.name, "records": data.records}
    earlier_runs.add(StartedRun(**facts, epsilon=epsilon, delta=report.delta, ledger=shared))


def _kept(found: Released, kind: str, out: Path | str | None) -> Released:
    """Written beside its ledger, where there is a folder."""
    if out is not None:
        weights = {"class_weights": found.class_weights} if kind == "counts" else {}
        told = {"released": kind, "values": found.values, "stddev": found.stddev, **weights}
        with writing(Path(out)):
            write_text(Path(out) / "released.json", json.dumps(told, indent=2, allow_nan=False) + "\n")
            write_text(
                Path(out) / "privacy.json", json.dumps(found.privacy.to_json(), indent=2, allow_nan=False) + "\n"
            )
            write_text(Path(out) / "statement.txt", found.privacy.statement() + "\n")
    return found
