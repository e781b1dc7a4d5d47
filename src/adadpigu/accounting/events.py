"""What a private step costs, in `dp_accounting`'s own vocabulary, so that any accountant can replay it.

One Poisson draw of a batch is one event, however many noisy sums are released from it: releases with multipliers σᵢ
from one batch cost what a single Gaussian with (Σ σᵢ⁻²)^−½ costs, sampled once. Two sampled events would claim two
independent draws and under-report. Everything here is public: rates, multipliers and counts, no record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from adadpigu.errors import InputError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_SHORT_NAMES = {
    "PoissonSampledDpEvent": "PoissonSampled",
    "GaussianDpEvent": "Gaussian",
    "NonPrivateDpEvent": "NonPrivate",
    "ComposedDpEvent": "Composed",
    "SelfComposedDpEvent": "SelfComposed",
}


def check_sample_rate(value: float) -> None:
    """Refuse a sampling rate that is no probability."""
    if not 0 <= value <= 1:
        raise InputError(f"sample_rate={value}: must lie in [0, 1]")


def check_noise_multiplier(value: float) -> None:
    """Refuse a noise multiplier that is negative or not a number (infinity stands for "nothing is released")."""
    if not value >= 0:
        raise InputError(f"noise_multiplier={value}: must be 0 or more")


def combined_noise_multiplier(noise_multipliers: Sequence[float]) -> float:
    """The multiplier (Σ σᵢ⁻²)^−½ of the one Gaussian that costs as much as all these releases from one batch.

    >>> combined_noise_multiplier([1.1])
    1.1
    >>> round(combined_noise_multiplier([2.0, 2.0]), 6)
    1.414214
    """
    if not noise_multipliers:
        raise InputError("noise_multipliers=[]: a draw makes at least one release")
    for value in noise_multipliers:
        check_noise_multiplier(value)
    if len(noise_multipliers) == 1:
        return float(noise_multipliers[0])
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
    raise InputError(f"event {_name(event)}: this package accounts for Poisson-sampled Gaussian mechanisms only")


def event_to_json(event: DpEvent) -> dict[str, object]:
    """The event as plain JSON; an event this package does not use is refused by name."""
    import dp_accounting as dp

    if isinstance(event, dp.PoissonSampledDpEvent):
        return _named(event, sample_rate=float(event.sampling_probability), of=event_to_json(event.event))
    if isinstance(event, dp.GaussianDpEvent):
        if not math.isfinite(event.noise_multiplier):
            raise InputError(f"noise_multiplier={event.noise_multiplier}: only a finite one can be written down")
        return _named(event, noise_multiplier=float(event.noise_multiplier))
    if isinstance(event, dp.NonPrivateDpEvent):
        return _named(event)
    if isinstance(event, dp.ComposedDpEvent):
        return _named(event, of=[event_to_json(part) for part in event.events])
    if isinstance(event, dp.SelfComposedDpEvent):
        return _named(event, count=int(event.count), of=event_to_json(event.event))
    raise InputError(f"event {_name(event)}: cannot be written; known: {', '.join(_SHORT_NAMES.values())}")


def event_from_json(data: Mapping[str, object]) -> DpEvent:
    """The inverse of `event_to_json`.

    >>> event_from_json(event_to_json(draw_event(0.01, [1.1]))) == draw_event(0.01, [1.1])
    True
    """
    import dp_accounting as dp

    name = data.get("event")
    if name == "PoissonSampled":
        sample_rate = _number(data, "sample_rate")
        check_sample_rate(sample_rate)
        return dp.PoissonSampledDpEvent(sample_rate, event_from_json(_mapping(data.get("of"))))
    if name == "Gaussian":
        noise_multiplier = _number(data, "noise_multiplier")
        check_noise_multiplier(noise_multiplier)
        return dp.GaussianDpEvent(noise_multiplier)
    if name == "NonPrivate":
        return dp.NonPrivateDpEvent()
    if name == "Composed":
        parts = data.get("of")
        if not isinstance(parts, list):
            raise InputError(f"of={parts!r}: a Composed event holds a list of events")
        return dp.ComposedDpEvent([event_from_json(_mapping(part)) for part in parts])
    if name == "SelfComposed":
        count = data.get("count")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise InputError(f"count={count!r}: must be a whole number of 0 or more")
        return dp.SelfComposedDpEvent(event_from_json(_mapping(data.get("of"))), count)
    raise InputError(f"event={name!r}: unknown; known: {', '.join(_SHORT_NAMES.values())}")


def _name(event: DpEvent) -> str:
    return _SHORT_NAMES.get(type(event).__name__, type(event).__name__)


def _named(event: DpEvent, **fields: object) -> dict[str, object]:
    return {"event": _name(event), **fields}


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InputError(f"of={value!r}: must be an event")
    return value


def _number(data: Mapping[str, object], key: str) -> float:
    value = data.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InputError(f"{key}={value!r}: must be a number")
    return float(value)
