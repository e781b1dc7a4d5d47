"""What a private step costs, in `dp_accounting`'s own vocabulary, so that any accountant can replay it.

One Poisson draw of a batch is one event, however many noisy sums are released from it: releases with multipliers σᵢ
from one batch cost what a single Gaussian with (Σ σᵢ⁻²)^−½ costs, sampled once. Two sampled events would claim two
independent draws and under-report. Everything here is public: rates, multipliers and counts, no record.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from adadpigu.errors import InputError, check, first_line

if TYPE_CHECKING:
    from dp_accounting import DpEvent as DpEvent
else:
    DpEvent = Any  # the real one takes over a second to import

RELATION = "add or remove one"  # the unit of privacy: by so much do neighbouring data sets differ
SAMPLER = "Poisson"  # the law of every draw


def check_sample_rate(value: float) -> None:
    check("sample_rate", value, 0 <= value <= 1, "must lie in [0, 1]")


def check_noise_multiplier(value: float) -> None:
    """Refuse a noise multiplier that is negative or not a number (infinity stands for "nothing is released")."""
    check("noise_multiplier", value, value >= 0, "must be 0 or more")


def combined_noise_multiplier(noise_multipliers: Sequence[float]) -> float:
    """The multiplier (Σ σᵢ⁻²)^−½ of the one Gaussian that costs as much as all these releases from one batch.

    >>> round(combined_noise_multiplier([2.0, 2.0]), 6)
    1.414214
    """
    check("noise_multipliers", noise_multipliers, len(noise_multipliers) > 0, "a draw makes at least one release")
    for value in noise_multipliers:
        check_noise_multiplier(value)
    least = min(noise_multipliers)
    if least == 0 or math.isinf(least):
        return float(least)
    # Scaled by the smallest one, so that no square under- or overflows.
    return float(least / math.sqrt(math.fsum((least / value) ** 2 for value in noise_multipliers)))


def draw_event(sample_rate: float, noise_multipliers: Sequence[float]) -> DpEvent:
    """The one event of one Poisson draw, covering every release made from it.

    >>> event_to_json(draw_event(0.01, [1.1]))
    {'event': 'PoissonSampled', 'sample_rate': 0.01, 'of': {'event': 'Gaussian', 'noise_multiplier': 1.1}}
    >>> event_to_json(draw_event(0.01, [1.1, 0.0]))
    {'event': 'NonPrivate'}
    """
    import dp_accounting as dp

    check_sample_rate(sample_rate)
    noise_multiplier = combined_noise_multiplier(noise_multipliers)
    if noise_multiplier == 0:
        return dp.NonPrivateDpEvent()
    return dp.PoissonSampledDpEvent(float(sample_rate), dp.GaussianDpEvent(noise_multiplier))


def compose(charges: Mapping[DpEvent, int] | Iterable[tuple[DpEvent, int]]) -> DpEvent:
    """All of these events together, each with its count, as one composed event."""
    import dp_accounting as dp

    pairs = charges.items() if isinstance(charges, Mapping) else charges
    return dp.ComposedDpEvent([dp.SelfComposedDpEvent(event, count) for event, count in pairs if count > 0])


def leaves(event: DpEvent) -> Counter[DpEvent]:
    """How often each single mechanism occurs in a (nested) composition."""
    import dp_accounting as dp

    found: Counter[DpEvent] = Counter()
    waiting: list[tuple[DpEvent, int]] = [(event, 1)]
    while waiting:
        current, count = waiting.pop()
        if isinstance(current, dp.SelfComposedDpEvent):
            waiting.append((current.event, count * current.count))
        elif isinstance(current, dp.ComposedDpEvent):
            waiting.extend((part, count) for part in reversed(current.events))
        elif not isinstance(current, dp.NoOpDpEvent) and count > 0:
            found[current] += count
    return found


def sampled_gaussian(event: DpEvent) -> tuple[float, float]:
    """(sample rate q, noise multiplier σ) of a single mechanism; σ = 0 for one that is not private."""
    import dp_accounting as dp

    if isinstance(event, dp.NonPrivateDpEvent):
        return 1.0, 0.0
    if isinstance(event, dp.GaussianDpEvent):
        return 1.0, float(event.noise_multiplier)
    if isinstance(event, dp.PoissonSampledDpEvent) and isinstance(event.event, dp.GaussianDpEvent):
        return float(event.sampling_probability), float(event.event.noise_multiplier)
    known = "this package accounts for Poisson-sampled Gaussian mechanisms only"
    raise InputError(f"event {type(event).__name__}: {known}")


def repeated(run: Iterable[tuple[DpEvent, int]], mean: float, shape: float) -> DpEvent:
    """A random number of runs, each of these events, of which the best is shown."""
    from dp_accounting import dp_event

    check("mean", mean, math.isfinite(mean) and mean >= 1 and shape >= 0, "must be a finite number of at least 1")
    parts = tuple(dp_event.SelfComposedDpEvent(event, count) for event, count in run)
    return dp_event.RepeatAndSelectDpEvent(dp_event.ComposedDpEvent(parts), mean, shape)  # a tuple: it can be a key


def is_repeated(event: DpEvent) -> bool:
    from dp_accounting import dp_event

    return isinstance(event, dp_event.RepeatAndSelectDpEvent)


def event_to_json(event: DpEvent) -> dict[str, object]:
    """A single mechanism as plain JSON; an event that this package does not use is refused by name."""
    import dp_accounting as dp

    if is_repeated(event):
        parts = [[event_to_json(part), count] for part, count in leaves(event.event).items()]
        shape = event.shape if math.isfinite(event.shape) else None
        return {"event": "RepeatAndSelect", "mean": event.mean, "shape": shape, "of": parts}
    rate, sigma = sampled_gaussian(event)
    if isinstance(event, dp.NonPrivateDpEvent):
        return {"event": "NonPrivate"}
    check("noise_multiplier", sigma, math.isfinite(sigma), "only a finite one can be written down")
    gaussian: dict[str, object] = {"event": "Gaussian", "noise_multiplier": sigma}
    sampled = isinstance(event, dp.PoissonSampledDpEvent)
    return {"event": "PoissonSampled", "sample_rate": rate, "of": gaussian} if sampled else gaussian


def event_from_json(data: Mapping[str, Any]) -> DpEvent:
    """The inverse of `event_to_json`.

    >>> event_from_json(event_to_json(draw_event(0.01, [1.1]))) == draw_event(0.01, [1.1])
    True
    """
    import dp_accounting as dp

    try:
        if data.get("event") == "NonPrivate":
            return dp.NonPrivateDpEvent()
        if data.get("event") == "RepeatAndSelect":
            shape = math.inf if data["shape"] is None else float(data["shape"])
            return repeated([(event_from_json(part), int(n)) for part, n in data["of"]], float(data["mean"]), shape)
        sampled = data.get("event") == "PoissonSampled"
        gaussian = data["of"] if sampled else data
        name = gaussian.get("event")
        check("event", repr(name), name == "Gaussian", "unknown; known: PoissonSampled, Gaussian, NonPrivate")
        check_noise_multiplier(gaussian["noise_multiplier"])
        event = dp.GaussianDpEvent(float(gaussian["noise_multiplier"]))
        if not sampled:
            return event
        check_sample_rate(data["sample_rate"])
        return dp.PoissonSampledDpEvent(float(data["sample_rate"]), event)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"event={data!r}: not an event ({first_line(error)})") from None


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Sampled Gaussians (q, σ, count) with 0 < q < 1, and one unsampled Gaussian of the given precision 1/σ²."""

    private: bool
    precision: float
    sampled: tuple[tuple[float, float, int], ...]

    @property
    def free(self) -> bool:
        return self.private and self.precision == 0 and not self.sampled

    @property
    def gaussian_multiplier(self) -> float:
        """σ of the one Gaussian that all unsampled draws amount to; infinite when there is none."""
        return math.inf if self.precision == 0 else self.precision**-0.5

    def mechanisms(self) -> tuple[tuple[float, float, int], ...]:
        """Every mechanism as (q, σ, count), the unsampled Gaussian included."""
        unsampled = ((1.0, self.gaussian_multiplier, 1),) if self.precision else ()
        return (*unsampled, *self.sampled)

    def split(self, sigma: float) -> "tuple[Spending, Spending]":
        """The sampled draws with less noise than that, and all else."""
        below = tuple(part for part in self.sampled if part[1] < sigma)
        rest = tuple(part for part in self.sampled if part[1] >= sigma)
        return replace(self, precision=0.0, sampled=below), replace(self, sampled=rest)

    def chance_of_being_drawn(self) -> float:
        """The probability that a given record takes part in any sampled draw."""
        return -math.expm1(math.fsum(count * math.log1p(-q) for q, _, count in self.sampled))


def spending_of(event: DpEvent) -> Spending:
    """The normal form of an event.

    >>> from adadpigu.accounting import draw_event
    >>> spending_of(draw_event(0.5, [2.0]))
    Spending(private=True, precision=0.0, sampled=((0.5, 2.0, 1),))
    """
    private, precisions = True, []
    sampled: Counter[tuple[float, float]] = Counter()
    for leaf, count in leaves(event).items():
        q, sigma = sampled_gaussian(leaf)
        if q == 0 or math.isinf(sigma):
            continue
        if sigma == 0:
            private = False
        elif q == 1:
            precisions.append(count / sigma**2)
        else:
            sampled[q, sigma] += count
    return Spending(
        private=private,
        precision=math.fsum(precisions),
        sampled=tuple(sorted((q, sigma, count) for (q, sigma), count in sampled.items())),
    )
