"""Does every draw take every record independently, with the probability q that the accountant was told?

The subject's own training loop is run on public records or stand-ins, and what reaches the engine in each draw is held
to the law of Poisson sampling (`watching`, `laws`):

    record i is in draw t with probability q, whatever else is in that draw or in another
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from adadpigu.accounting import PlannedDraw
from adadpigu.audit.estimators import rate_above
from adadpigu.audit.laws import (
    Check,
    Counts,
    binomial_p,
    dispersion_p,
    extreme_p,
    most_alike,
    neighbours_p,
    overlaps_p,
    refuted,
)
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject
from adadpigu.audit.watching import Taken, Watched, run_length, watch
from adadpigu.core.randomness import Randomness
from adadpigu.errors import require
from adadpigu.training.configured import training_options

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST_DRAWS, _MOST_DRAWS = 200, 1500
"""unless the caller says how many"""
_FEWEST_DRAWS = 10
_BATCH = 128
"""records in a draw, on average, where a CPU draws them: its time goes by draws, what a draw tells by its records"""
_COMPARED = 2000
"""draws, or records, that are compared each with each"""
_SMALL_DRAWS = 80
"""of about one record each, in which empty ones are common"""


def audit_sampler(
    subject: Subject,
    *,
    draws: int | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
    randomness: Randomness | None = None,
) -> AuditResult:
    """Trains for so many steps and holds what was drawn to Poisson sampling at the claimed rates.

    `draws` unset is as many as show a record that is never or always drawn, between 200 and 1,500. `randomness` unset
    is what training would choose.

    Formal guarantee: a sampler that is as claimed fails with a probability of at most 1e-6: half of it for all findings
    together, half for the inclusion rates that `epsilon_certain` goes by.
    """
    check_confidence(confidence)
    few = f"draws={draws} are too few to test a law of batch sizes; allowed: at least {_FEWEST_DRAWS}"
    require(draws is None or draws >= _FEWEST_DRAWS, few)
    rate = subject.sample_rate
    records = _records(subject)
    steps = run_length(subject, _enough_draws(records, rate) if draws is None else draws)
    watched = watch(subject, records=records, steps=steps, randomness=randomness, progress=progress)
    short = run_length(subject, _SMALL_DRAWS)
    small = watch(subject, records=round(1 / rate), steps=short, randomness=randomness)
    checks = [check for taken in watched.kinds for check in _checks(taken)]
    checks += [*_consecutive(watched), *(_empties(taken) for taken in small.kinds)]
    return subject.result(
        "sampler",
        epsilon_lower=_cost(subject, watched.kinds, 1 - confidence),
        epsilon_certain=_cost(subject, watched.kinds, REFUTING / 2),
        confidence=confidence,
        observations=len(watched.in_order),
        assumed=(
            "noise is added as claimed (`adadpigu audit noise` tests that)",
            "records and draws do not depend on each other in ways that these tests do not look at",
            f"{records:,} records are sampled as the {subject.data.records:,} of the run are",
        ),
        findings=(*_plain(watched), *_plain(small), *refuted(checks, REFUTING / 2)),
        details={
            "records": records,
            "records_declared": subject.data.records,
            "draws": [_summary(taken, confidence) for taken in watched.kinds],
            "p_values": {check.name: check.p for check in checks},
        },
        draw=partial(_draw, taken=watched.kinds[0]),
    )


def _records(subject: Subject) -> int:
    """How many records are drawn from: on a GPU as many as there are, since it gives batches of B their own shape."""
    device = training_options(subject.config, subject.data.records).torch_device()
    return len(subject.data.train) if device.type == "cuda" else math.ceil(_BATCH / subject.sample_rate)


def _enough_draws(records: int, rate: float) -> int:
    """So many that a record which is never, or always, drawn has a chance below 1e-9 among all of them."""
    wanted = math.log(records / 1e-9)
    needed = max((wanted / -math.log(share) for share in (rate, 1 - rate) if 0 < share < 1), default=0)
    return min(max(math.ceil(needed), _LEAST_DRAWS), _MOST_DRAWS)


def _plain(watched: Watched) -> Iterator[str]:
    """What needs no test to be wrong."""
    if len(watched.in_order) != watched.planned:
        yield f"{watched.planned} draws were planned, {len(watched.in_order)} were made"
    if watched.astray:
        yield f"{watched.astray} records were looked at outside any draw that was charged"
    if watched.repeated:
        yield f"records were taken twice by one draw, {watched.repeated} times"


def _checks(taken: Taken) -> Iterator[Check]:
    """All that is tested of the draws of one kind."""
    name, rate = taken.draw.name, taken.draw.sample_rate
    count, records = taken.counts.shape
    sizes, by_record = taken.sizes, taken.by_record
    found = sizes.sum() / (count * records)
    yield Check(
        name=f"{name}: rate",
        p=binomial_p(int(sizes.sum()), count * records, rate),
        told=f"{name}: a record is drawn with probability {found:.5g}, claimed is {rate:.5g}",
    )
    yield Check(
        name=f"{name}: batch sizes",
        p=dispersion_p(sizes, records, rate),
        told=f"{name}: batch sizes vary by {sizes.std():.1f}, Poisson sampling by "
        f"{_spread(records, rate):.1f}: amplification by sampling does not hold",
    )
    yield Check(
        name=f"{name}: records",
        p=dispersion_p(by_record, count, rate),
        told=f"{name}: records are in {by_record.mean():.1f} ± {by_record.std():.1f} of {count} draws, Poisson "
        f"sampling has {count * rate:.1f} ± {_spread(count, rate):.1f}: they are not drawn alike and afresh",
    )
    yield Check(
        name=f"{name}: extreme records",
        p=extreme_p(by_record, count, rate),
        told=f"{name}: of {count} draws one record is in {by_record.min()} and another in {by_record.max()}, "
        f"{count * rate:.1f} are expected",
    )
    yield from _together(taken)


def _together(taken: Taken) -> Iterator[Check]:
    """Whether records are drawn with each other, and draws made without regard to each other."""
    name, drawn, sizes = taken.draw.name, taken.taken, taken.sizes
    count, records = drawn.shape
    pairs = (drawn[:, 1:] & drawn[:, :-1]).sum(axis=1, dtype=np.int64)
    yield Check(
        name=f"{name}: neighbours",
        p=neighbours_p(pairs, records, sizes),
        told=f"{name}: neighbouring records are drawn together {pairs.sum()} times, "
        f"{(sizes * (sizes - 1) / records).sum():.0f} are expected",
    )
    p, one, other = most_alike(drawn[:_COMPARED].T[:_COMPARED])
    yield Check(name=f"{name}: any two records", p=p, told=f"{name}: records {one} and {other} are drawn together")
    p, one, other = most_alike(drawn[:_COMPARED, :_COMPARED])
    yield Check(name=f"{name}: any two draws", p=p, told=f"{name}: draws {one} and {other} have taken the same records")
    epoch = round(1 / taken.draw.sample_rate)
    if 1 < epoch < count:
        yield _apart(drawn, epoch, f"{name}: an epoch apart", f"{name}: draws that are an epoch ({epoch} draws) apart")


def _consecutive(watched: Watched) -> Iterator[Check]:
    """Draws that follow each other, of whatever kind: a batch that serves twice is charged as if it were two."""
    if len(watched.in_order) > 1:
        yield _apart(watched.in_order, 1, "consecutive draws", "draws that follow each other")


def _apart(drawn: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], lag: int, name: str, who: str) -> Check:
    """Whether draws that are so far apart have as many records in common as independent ones."""
    records, sizes = drawn.shape[1], drawn.sum(axis=1, dtype=np.int64)
    common: Counts = (drawn[lag:] & drawn[:-lag]).sum(axis=1, dtype=np.int64)
    expected = (sizes[lag:] * sizes[:-lag] / records).sum()
    return Check(
        name=name,
        p=overlaps_p(common, records, sizes[lag:], sizes[:-lag]),
        told=f"{who} have {common.sum()} records in common, independent ones of their sizes {expected:.0f}",
    )


def _empties(taken: Taken) -> Check:
    """Empty draws, of a population so small that they are common."""
    name, (count, records) = taken.draw.name, taken.counts.shape
    chance, seen = (1 - taken.draw.sample_rate) ** records, int((taken.sizes == 0).sum())
    return Check(
        name=f"{name}: empty draws",
        p=binomial_p(seen, count, chance),
        told=f"{name}: {seen} of {count} draws from {records} records are empty, {count * chance:.1f} are expected",
    )


def _spread(trials: int, rate: float) -> float:
    return math.sqrt(trials * rate * (1 - rate))


def _rate_below(count: int, trials: int, significance: float) -> float:
    """Clopper-Pearson: the rate that would give so many with probability `significance`."""
    return 1 - rate_above(trials - count, trials, significance)


def _cost(subject: Subject, kinds: Sequence[Taken], significance: float) -> float:
    """ε of the claim's plan at rates that are exceeded: that of all records together, or that of one of them.

    A guarantee is for every record, so one that is drawn too often refutes it. All bounds hold together.
    """
    shown = {}
    for taken in kinds:
        count, records = taken.counts.shape
        each = significance / (2 * len(kinds))
        total = _rate_below(int(taken.sizes.sum()), count * records, each)
        shown[taken.draw] = max(total, _rate_below(int(taken.by_record.max()), count, each / records))

    def found(_: str, draw: PlannedDraw) -> PlannedDraw | None:
        return replace(draw, sample_rate=shown[draw]) if shown.get(draw, 0.0) > 0 else None

    return subject.cost(found)


def _summary(taken: Taken, confidence: float) -> dict[str, object]:
    count, records = taken.counts.shape
    total, trials, side = int(taken.sizes.sum()), count * records, (1 - confidence) / 2
    return {
        "name": taken.draw.name,
        "draws": count,
        "sample_rate": taken.draw.sample_rate,
        "sample_rate_found": total / trials,
        "sample_rate_interval": [_rate_below(total, trials, side), rate_above(total, trials, side)],
        "batch_size_mean": float(taken.sizes.mean()),
        "batch_size_variance": float(taken.sizes.var()),
        "batch_size_variance_claimed": _spread(records, taken.draw.sample_rate) ** 2,
    }


def _draw(figure: Figure, *, taken: Taken) -> None:
    left, right = figure.subplots(1, 2)
    count, records = taken.counts.shape
    rate, name = taken.draw.sample_rate, taken.draw.name
    _histogram(left, taken.sizes, records, rate, f"records in a draw, {name}", "draws")
    _histogram(right, taken.by_record, count, rate, f"draws that a record is in, {name}", "records")
    left.legend(frameon=False, fontsize=8)


def _histogram(axes: Axes, counts: Counts, trials: int, rate: float, what: str, of: str) -> None:
    """Counts against the binomial law that they should follow."""
    from scipy.stats import binom

    middle, reach = trials * rate, 5 * _spread(trials, rate) + 1
    low, high = min(int(counts.min()), math.floor(middle - reach)), max(int(counts.max()), math.ceil(middle + reach))
    edges = np.arange(max(0, low), min(trials, high) + 2) - 0.5
    axes.hist(counts, bins=edges.tolist(), color="#1b6ca8", alpha=0.5, label="seen")
    values = (edges[1:] + edges[:-1]) / 2
    axes.plot(
        values, len(counts) * binom.pmf(values, trials, rate), color="#c8553d", linewidth=1.2, label="Poisson sampling"
    )
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])  # room for the legend
    axes.set_xlabel(what)
    axes.set_ylabel(of)
