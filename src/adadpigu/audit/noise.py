"""Is the noise of every release Gaussian, of the claimed size, and drawn afresh each time?

The subject's own training loop is run and observed (`noise_capture`). The noise over what is claimed has to be N(0, 1),
also on each tensor and coordinate, and independent from one coordinate, tensor, release, step, run, session of a run
and process to the next (`p_values`, `keys`); empty draws get it, others and unwatched ones too, and a frozen coordinate
never.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from adadpigu.accounting import PlannedDraw
from adadpigu.audit import figures, keys, p_values
from adadpigu.audit.noise_capture import CapturedNoise, Part, Parts, capture_noise
from adadpigu.audit.p_values import Check, Numbers
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject
from adadpigu.core.layout import Layout
from adadpigu.core.randomness import Randomness
from adadpigu.errors import require

_FEWEST = 10_000
_TAILS = (3.0, 4.0, 4.5)
_TOGETHER = 8  # releases over which coordinates are compared
_COMPARED = 2**18  # numbers of which it is looked at whether any are equal: of more, some are by rounding
_PROCESSES_FROM = 1_000_000
"""numbers from which on two more processes are started and their keys compared: that takes seconds"""
_ONE_PROCESS = (
    "another process has another key (two generators of this one were compared; from 1,000,000 numbers on, two more "
    "processes are)"
)
_NO_RECORDS = "draws that have taken records get the noise of empty ones: no dummy block can be attached to the model"
_UNPERTURBED = "noise is the same with perturbation on: of the runs that draw records, the one that is heard has none"
_UNWATCHED = "noise is the same where nobody watches: the weights do not tell it in stage "
_GIVEN = "the generator that was handed to the audit has a key of its own in every run and process"


def audit_noise(
    subject: Subject,
    *,
    numbers: int = 1_000_000,
    confidence: float = 0.95,
    progress: Progress | None = None,
    randomness: Randomness | None = None,
) -> AuditResult:
    """Trains until so many numbers of noise were drawn, and tests them. `randomness` unset is what training chooses.

    Formal guarantee: noise that is as claimed fails with a probability of at most 1e-6: half of it for all findings
    together, half for the standard deviations that `epsilon_certain` goes by. That holds under masks that are learned
    from earlier noise: a mask is settled before its release's noise is drawn (`p_values`).
    """
    check_confidence(confidence)
    few = f"numbers={numbers} are too few to tell a standard deviation; allowed: at least {_FEWEST}"
    require(numbers >= _FEWEST, few)
    captured = capture_noise(subject, numbers, randomness, progress)
    parts, layout = captured.whole.parts, captured.ready.engine.layout
    kinds, tensors = [_kind_of(them) for them in _grouped(parts)], _by_tensor(parts, layout)
    z, lags = _flat(parts), _Repeats.among(parts)
    checks = [*_shape_checks(kinds, z[:numbers]), *_tensor_checks(tensors, parts, layout)]
    checks += _fresh_checks(captured, lags)
    unseen, layout = captured.unwatched.parts, captured.unwatched.run.engine.layout
    checks += [check.of("where nobody watches") for check in _tensor_checks(_by_tensor(unseen, layout), unseen, layout)]
    here, elsewhere, key_assumed = _keys(subject, captured, numbers, randomness)
    return subject.result(
        "noise",
        epsilon_lower=_cost(subject, kinds, tensors, 1 - confidence),
        epsilon_certain=_cost(subject, kinds, tensors, REFUTING / 2),
        confidence=confidence,
        observations=len(z),
        assumed=(
            "one record moves a sum by no more than its sensitivity (`adadpigu audit replay` tests that)",
            "records are sampled as claimed (`adadpigu audit sampler` tests that)",
            "noise has no pattern of a kind that these tests do not look at",
            *key_assumed,
            *([] if captured.with_records.noise.parts else [_NO_RECORDS]),
            *([_UNPERTURBED] if subject.config.perturbation else []),
            *([_UNWATCHED + ", ".join(sorted(untold))] if (untold := captured.unwatched.untold) else []),
            *captured.whole.assumed(),
        ),
        findings=(*_plain(captured), *keys.equal_numbers(here, elsewhere), *p_values.refuted(checks, REFUTING / 2)),
        details={
            "noise_multiplier": subject.noise_multiplier,
            "releases": [kind.summary(confidence) for kind in kinds],
            "tensors": [{"tensor": kind.tensor, **kind.summary(confidence)} for kind in tensors],
            "processes": 1 + len(elsewhere),
            "largest": float(np.abs(z).max()),
            "frozen_disturbed": captured.disturbed,
            "empty_draws": captured.whole.released,
            "draws_with_records": len(captured.with_records.noise.parts),
            "draws_without_a_watch": len(captured.unwatched.parts),
            **captured.whole.details(),
            "p_values": {check.name: check.p for check in checks},
        },
        draw=partial(figures.noise, z=z, **vars(lags)),
    )


def _keys(
    subject: Subject, captured: CapturedNoise, numbers: int, randomness: Randomness | None
) -> tuple[list[keys.Drawn], list[keys.Drawn], tuple[str, ...]]:
    """Numbers of generators as the subject's runs make them, here and elsewhere, and what is then left to assume."""
    tier = subject.tier if randomness is None else randomness.tier
    if tier == "reproducible":
        return [], [], (_GIVEN,)
    here = keys.drawn_here(tier, captured.ready.device)
    if numbers < _PROCESSES_FROM:
        return here, [], (_ONE_PROCESS,)
    return here, keys.drawn_elsewhere(tier, captured.ready.device), ()


def _plain(captured: CapturedNoise) -> Iterator[str]:
    """What needs no test to be wrong."""
    whole, with_records = captured.whole, captured.with_records.noise
    if captured.disturbed:
        yield f"{captured.disturbed} numbers were released of coordinates that are frozen"
    if odd := sum(parts.odd for parts in (whole, captured.resumed, with_records)):
        yield f"{odd} numbers of noise are not finite"
    if whole.released != whole.planned:
        yield f"of {whole.planned} draws in which nobody is drawn, {whole.released} were answered"
    if whole.bare:
        yield f"{whole.bare} of {whole.count} numbers that were released of nobody have no noise"
    if with_records.bare:
        yield f"{with_records.bare} of {with_records.count} numbers have no noise where records were drawn"
    for watcher in (whole, captured.resumed, captured.with_records, captured.unwatched):
        yield from watcher.findings()
    if captured.single_precision:
        yield "noise is drawn in single precision: it has gaps, and an end at 5.8 standard deviations"


def _shape_checks(kinds: "Sequence[_Kind]", z: Numbers) -> Iterator[Check]:
    """Whether the numbers are N(0, 1), one by one."""
    from scipy.stats import norm

    for kind in kinds:
        told = f"the noise on {kind.name!r} has {kind.spread:.4g} times the standard deviation that is claimed"
        yield Check(f"{kind.draw.name}, {kind.name}: standard deviation", kind.p, told)
    yield Check("mean", p_values.mean_p(float(z.sum()), len(z)), f"the noise has mean {z.mean():.4g} instead of 0")
    for edge in _TAILS:
        chance = float(norm.sf(edge))
        for where, seen in ((f"above {edge:g}", int((z > edge).sum())), (f"below −{edge:g}", int((z < -edge).sum()))):
            told = f"{seen} of {len(z)} numbers lie {where} standard deviations, {len(z) * chance:.1f} are expected"
            yield Check(where, p_values.binomial_p(seen, len(z), chance), told)
    p, distance = p_values.distance_p(np.sort(z))
    yield Check("distance", p, f"the noise's distribution is {distance:.3g} away from a Gaussian's")


@dataclass(frozen=True)
class _Repeats:
    """How much a sequence of noise agrees with itself at every lag from 1 on (`p_values.product_p`).

    A mask that was learned from the earlier number of a pair may choose it: the later one is drawn after both.
    """

    products: Numbers
    variances: Numbers

    @classmethod
    def among(cls, parts: Sequence[Part], *, signed: bool = True) -> "_Repeats":
        """Numbers that are not due keep their place, so that what repeats does so at one lag, whatever the mask."""
        z, due = np.concatenate([part.z for part in parts]), np.concatenate([part.due for part in parts])
        return cls(*p_values.repeats(z if signed else p_values.sizes(z, due), due))

    def check(self, name: str, where: str) -> Check:
        """The worst lag, each with its share of the significance."""
        chances = p_values.product_p(self.products, self.variances) / p_values.lag_shares(len(self.products))
        worst = int(np.argmin(chances))
        strength = self.products[worst] / max(1.0, self.variances[worst])
        told = f"{where}the noise repeats itself after {worst + 1} numbers (correlation {strength:.3g})"
        return Check(name, min(1.0, float(chances[worst])), told)


def _fresh_checks(captured: CapturedNoise, lags: _Repeats) -> Iterator[Check]:
    yield lags.check("repeats", "")
    yield from _size_checks(captured.whole)
    yield _Repeats.among(captured.resumed.parts).check("repeats after a resume", "in a run that was resumed ")
    yield from _tensor_check(captured.whole.parts, captured.ready.engine.layout)
    others = {"where records are drawn": captured.with_records.noise, "where nobody watches": captured.unwatched}
    for where, parts in others.items():
        if parts.count:
            kind = _kind_of(parts.parts)
            told = f"noise has {kind.spread:.4g} times the standard deviation that is claimed"
            checks = Check("standard deviation", kind.p, told), _Repeats.among(parts.parts).check("repeats", "")
            yield from (check.of(where) for check in (*checks, *_size_checks(parts)))


def _tensor_check(parts: Sequence[Part], layout: Layout) -> Iterator[Check]:
    """Whether the noise of a tensor begins as that of the largest one does: too little to see at a single lag."""
    largest = max(layout.slots, key=lambda slot: slot.stop - slot.start)
    slots = [slot for slot in layout.slots if slot is not largest]
    if not slots:
        return
    products, variances = np.zeros(len(slots)), np.zeros(len(slots))
    z, due = np.zeros(layout.size), np.zeros(layout.size, dtype=np.bool_)
    for part in parts:
        if part.places is None:
            continue
        z[:], due[:] = 0.0, False
        z[part.places], due[part.places] = part.z, part.due
        for number, slot in enumerate(slots):
            one, other = slice(slot.start, slot.stop), slice(largest.start, largest.start + slot.stop - slot.start)
            products[number] += z[one] @ z[other]
            variances[number] += due[one] @ z[other] ** 2
    chances = p_values.product_p(products, variances)
    worst = int(np.argmin(chances))
    strength = products[worst] / max(1.0, variances[worst])
    told = f"the noise on {slots[worst].name!r} is that on {largest.name!r} again (correlation {strength:.3g})"
    yield Check("tensors", min(1.0, float(chances[worst]) * len(slots)), told)


def _size_checks(captured: Parts) -> Iterator[Check]:
    """Whether sizes come again, after so many numbers, to the last digit or in another coordinate's place."""
    yield _Repeats.among(captured.parts, signed=False).check("repeats up to a sign", "but for its sign ")
    z = captured.rounded[:_COMPARED]
    equal, expected = p_values.equal_sizes(z[z != 0], captured.digits, captured.finest)
    told = f"{equal} of {len(z)} numbers of noise have the size of an earlier one, {expected:.2g} at most may"
    yield Check("equal numbers", p_values.rare_p(equal, expected), told)
    full = [part for part in captured.parts if part.places is not None and part.due.all()]
    groups = [full[start : start + _TOGETHER] for start in range(0, len(full) - _TOGETHER + 1, _TOGETHER)]
    same = [np.stack([part.z for part in group]) for group in groups if len({id(part.places) for part in group}) == 1]
    equal, expected = map(sum, zip((0, 0.0), *map(p_values.equal_columns, same), strict=True))
    told = f"in {equal} cases the noise of a coordinate had the sizes of another's in {_TOGETHER} releases"
    yield Check("coordinates alike", p_values.rare_p(equal, expected), f"{told}, {expected:.2g} at most may")


@dataclass(frozen=True)
class _Kind:
    """All noise of one named release, or of one tensor in it."""

    draw: PlannedDraw
    name: str
    share: float
    squares: float
    count: int
    settled: bool  # whether nothing but the plan decides how many numbers these are
    tensor: str | None = None

    @property
    def spread(self) -> float:
        """Standard deviation over the claimed one."""
        return math.sqrt(self.squares / self.count)

    @property
    def p(self) -> float:
        """Exact where the count is settled, else by a bet."""
        p = p_values.spread_p if self.settled else p_values.scale_p
        return float(p(self.squares, self.count))

    def most(self, significance: float) -> float:
        """The standard deviation, over what is claimed, that would give so little noise with that probability."""
        from scipy.stats import chi2

        if not self.settled:
            return p_values.most_scale(self.squares, self.count, significance)
        return math.sqrt(self.squares / chi2.ppf(significance, self.count))

    def summary(self, confidence: float) -> dict[str, object]:
        from scipy.stats import chi2

        side = (1 - confidence) / 2
        ends = chi2.isf([side, 1 - side], self.count)
        return {
            "draw": self.draw.name,
            "name": self.name,
            "numbers": self.count,
            "noise_multiplier": self.draw.noise_multiplier / math.sqrt(self.share),
            "stddev": self.spread,
            "stddev_interval": [math.sqrt(self.squares / end) for end in ends],
        }


def _kind_of(parts: Sequence[Part]) -> _Kind:
    z, settled = _flat(parts), all(part.due.all() for part in parts)
    return _Kind(parts[0].draw, parts[0].name, min(part.share for part in parts), float(z @ z), len(z), settled)


def _grouped(parts: Sequence[Part]) -> list[list[Part]]:
    """By named release of a planned draw, where noise is due."""
    found: dict[tuple[PlannedDraw, str], list[Part]] = {}
    for part in parts:
        if part.due.any():
            found.setdefault((part.draw, part.name), []).append(part)
    return list(found.values())


def _flat(parts: Sequence[Part]) -> Numbers:
    return np.concatenate([part.z[part.due] for part in parts])


def _by_tensor(parts: Sequence[Part], layout: Layout) -> list[_Kind]:
    """The noise of gradients, tensor by tensor, over all steps and runs."""
    kinds = []
    for them in _grouped(parts):
        (squares, counts), whole = _by_coordinate(them, layout), _kind_of(them)
        for slot in layout.slots:
            total, count = float(squares[slot.start : slot.stop].sum()), int(counts[slot.start : slot.stop].sum())
            if count:
                kinds.append(replace(whole, squares=total, count=count, settled=False, tensor=slot.name))
    return kinds


def _by_coordinate(parts: Sequence[Part], layout: Layout) -> tuple[Numbers, p_values.Counts]:
    """The sum of squares of each coordinate of a gradient, and of how many numbers."""
    squares, counts = np.zeros(layout.size), np.zeros(layout.size, dtype=np.int64)
    for part in parts:
        if part.places is not None:
            squares[part.places] += part.z**2
            counts[part.places] += part.due
    return squares, counts


def _tensor_checks(kinds: Sequence[_Kind], parts: Sequence[Part], layout: Layout) -> Iterator[Check]:
    """The worst tensor and the worst coordinate, for as many as there are in the layout."""
    if not kinds:
        return
    worst = min(kinds, key=lambda kind: kind.p)
    told = f"the noise on {worst.tensor!r} has {worst.spread:.4g} times the standard deviation that is claimed"
    yield Check("spread of a tensor", min(1.0, worst.p * len(kinds)), told)
    squares, counts = _by_coordinate(parts, layout)
    chances = p_values.scale_p(squares, counts.astype(np.float64))
    place = int(np.argmin(chances))
    slot = next(slot for slot in layout.slots if place < slot.stop)
    spread = math.sqrt(squares[place] / max(1, counts[place]))
    told = f"the noise on number {place - slot.start} of {slot.name!r} has {spread:.4g} times the standard deviation"
    told += f" that is claimed, over {counts[place]} releases"
    yield Check("spread of a coordinate", min(1.0, float(chances[place]) * len(chances)), told)


def _cost(subject: Subject, kinds: Sequence[_Kind], tensors: Sequence[_Kind], significance: float) -> float:
    """ε of the claim's plan with no more noise than the bounds that hold together leave possible.

    Half of the significance goes to whole releases, half to tensors. The worst bound of a draw counts, be it of a
    tensor or of one of several releases: the others can only add to ε.
    """
    noise: dict[PlannedDraw, float] = {}
    for them in (kinds, tensors):
        for kind in them:
            factor = kind.most(significance / 2 / len(them)) / math.sqrt(kind.share)
            noise[kind.draw] = min(factor, noise.get(kind.draw, math.inf))

    def found(_: str, draw: PlannedDraw) -> PlannedDraw | None:
        return replace(draw, noise_multiplier=draw.noise_multiplier * noise[draw]) if draw in noise else None

    return subject.cost(found)
