"""Does every draw take every record independently, with the probability q that the accountant was told?

The subject's own training loop runs on public records or stand-ins (`watching`). What reaches the engine has to follow
the law of Poisson sampling (`p_values`): record i is in draw t with probability q, whatever else is in any draw.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from adadpigu.accounting import PlannedDraw
from adadpigu.audit import figures, p_values
from adadpigu.audit.estimators import rate_above, rate_below
from adadpigu.audit.p_values import Check, Counts
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject
from adadpigu.audit.watching import DrawnRecords, Taken, watch
from adadpigu.core.randomness import Randomness
from adadpigu.errors import require
from adadpigu.training.configured import training_options

_LEAST_DRAWS, _MOST_DRAWS = 200, 1500  # unless the caller says how many
_FEWEST_DRAWS = 10
_BATCH = 128  # records in a draw, on average, on a CPU: more of them tell more, and hardly take longer
_COMPARED = 2000  # draws, or records, that are compared each with each
_SMALL_DRAWS = 80  # of about one record each, in which empty ones are common


def audit_sampler(
    subject: Subject,
    *,
    draws: int | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
    randomness: Randomness | None = None,
) -> AuditResult:
    """Trains for so many steps and compares what was drawn with Poisson sampling at the claimed rates.

    `draws` unset is between 200 and 1,500, enough to show a record that is never or always drawn. `randomness` unset is
    what training chooses.

    Formal guarantee: a sampler that is as claimed fails with a probability of at most 1e-6: half of it for all findings
    together, half for the inclusion rates that `epsilon_certain` goes by.
    """
    check_confidence(confidence)
    few = f"draws={draws} are too few to test a law of batch sizes; allowed: at least {_FEWEST_DRAWS}"
    require(draws is None or draws >= _FEWEST_DRAWS, few)
    rate, records = subject.sample_rate, _records(subject)
    steps = subject.run_length(_enough_draws(records, rate) if draws is None else draws)
    watched = watch(subject, records=records, steps=steps, randomness=randomness, progress=progress)
    small = watch(subject, records=round(1 / rate), steps=subject.run_length(_SMALL_DRAWS), randomness=randomness)
    checks = [check.of(taken.draw.name) for taken in watched.kinds for check in _checks(taken)]
    if len(watched.draws) > 1:  # of whatever kind: a batch that serves twice is charged as if it were two
        checks.append(_overlap_check(watched.in_order, 1, "consecutive draws", "draws that follow each other"))
    checks += [_empties(taken).of(taken.draw.name) for taken in small.kinds]
    return subject.result(
        "sampler",
        epsilon_lower=_cost(subject, watched.kinds, 1 - confidence),
        epsilon_certain=_cost(subject, watched.kinds, REFUTING / 2),
        confidence=confidence,
        observations=len(watched.draws),
        assumed=(
            "noise is added as claimed (`adadpigu audit noise` tests that)",
            "records and draws do not depend on each other in ways that these tests do not look at",
            f"{records:,} records are sampled as the {subject.data.records:,} of the run are",
        ),
        findings=(*_plain(watched), *_plain(small), *p_values.refuted(checks, REFUTING / 2)),
        details={
            "records": records,
            "records_declared": subject.data.records,
            "draws": [_summary(taken, confidence) for taken in watched.kinds],
            "p_values": {check.name: check.p for check in checks},
        },
        draw=partial(figures.sampler, taken=watched.kinds[0]),
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


def _plain(watched: DrawnRecords) -> Iterator[str]:
    """What needs no test to be wrong."""
    if len(watched.draws) != watched.planned:
        yield f"{watched.planned} draws were planned, {len(watched.draws)} were made"
    if watched.stray:
        yield f"{watched.stray} records were looked at outside any draw that was charged"
    if watched.repeated:
        yield f"records were taken twice by one draw, {watched.repeated} times"
    if watched.torn:
        yield f"owners' records were drawn in part, or beyond the cap, {watched.torn} times"


def _checks(taken: Taken) -> Iterator[Check]:
    (count, records), rate = taken.counts.shape, taken.draw.sample_rate
    sizes, by_record = taken.sizes, taken.by_record
    told = f"a record is drawn with probability {sizes.sum() / (count * records):.5g}, claimed is {rate:.5g}"
    yield Check("rate", p_values.binomial_p(int(sizes.sum()), count * records, rate), told)
    told = f"batch sizes vary by {sizes.std():.1f}, Poisson sampling by {_spread(records, rate):.1f}"
    told += ": amplification by sampling does not hold"
    yield Check("batch sizes", p_values.dispersion_p(sizes, records, rate), told)
    told = f"records are in {by_record.mean():.1f} ± {by_record.std():.1f} of {count} draws, Poisson sampling has "
    told += f"{count * rate:.1f} ± {_spread(count, rate):.1f}: they are not drawn alike and afresh"
    yield Check("records", p_values.dispersion_p(by_record, count, rate), told)
    told = f"of {count} draws one record is in {by_record.min()} and another in {by_record.max()}"
    told += f", {count * rate:.1f} are expected"
    yield Check("extreme records", p_values.extreme_p(by_record, count, rate), told)
    yield from _together(taken)


def _together(taken: Taken) -> Iterator[Check]:
    """Whether records are drawn with each other, and draws made without regard to each other."""
    drawn, sizes = taken.taken, taken.sizes
    count, records = drawn.shape
    pairs = (drawn[:, 1:] & drawn[:, :-1]).sum(axis=1, dtype=np.int64)
    expected = (sizes * (sizes - 1) / records).sum()
    told = f"neighbouring records are drawn together {pairs.sum()} times, {expected:.0f} are expected"
    yield Check("neighbours", p_values.neighbours_p(pairs, records, sizes), told)
    p, one, other = p_values.most_alike(drawn[:_COMPARED].T[:_COMPARED])
    yield Check("any two records", p, f"records {one} and {other} are drawn together")
    p, one, other = p_values.most_alike(drawn[:_COMPARED, :_COMPARED])
    yield Check("any two draws", p, f"draws {one} and {other} have taken the same records")
    epoch = round(1 / taken.draw.sample_rate)
    if 1 < epoch < count:
        yield _overlap_check(drawn, epoch, "an epoch apart", f"draws that are an epoch ({epoch} draws) apart")


def _overlap_check(drawn: NDArray[np.bool_], lag: int, name: str, who: str) -> Check:
    """Whether draws that are so far apart have as many records in common as independent ones."""
    records, sizes = drawn.shape[1], drawn.sum(axis=1, dtype=np.int64)
    common: Counts = (drawn[lag:] & drawn[:-lag]).sum(axis=1, dtype=np.int64)
    expected = (sizes[lag:] * sizes[:-lag] / records).sum()
    told = f"{who} have {common.sum()} records in common, independent ones of their sizes {expected:.0f}"
    return Check(name, p_values.overlaps_p(common, records, sizes[lag:], sizes[:-lag]), told)


def _empties(taken: Taken) -> Check:
    """Empty draws, of a population so small that they are common."""
    count, records = taken.counts.shape
    chance, seen = (1 - taken.draw.sample_rate) ** records, int((taken.sizes == 0).sum())
    told = f"{seen} of {count} draws from {records} records are empty, {count * chance:.1f} are expected"
    return Check("empty draws", p_values.binomial_p(seen, count, chance), told)


def _spread(trials: int, rate: float) -> float:
    return math.sqrt(trials * rate * (1 - rate))


def _cost(subject: Subject, kinds: Sequence[Taken], significance: float) -> float:
    """ε of the claim's plan at rates that are exceeded, by all records together or by one. All bounds hold together."""
    shown = {}
    for taken in kinds:
        count, records = taken.counts.shape
        each = significance / (2 * len(kinds))
        total = rate_below(int(taken.sizes.sum()), count * records, each)
        shown[taken.draw] = max(total, rate_below(int(taken.by_record.max()), count, each / records))

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
        "sample_rate_interval": [rate_below(total, trials, side), rate_above(total, trials, side)],
        "batch_size_mean": float(taken.sizes.mean()),
        "batch_size_variance": float(taken.sizes.var()),
        "batch_size_variance_claimed": _spread(records, taken.draw.sample_rate) ** 2,
    }
