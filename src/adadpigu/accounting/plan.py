"""Everything a run may ever draw, fixed before its first step: the thing that is calibrated, charged and claimed.

A plan is public. It holds stages of so many steps; every step of a stage makes the same named draws, each one Poisson
sample with one effective noise multiplier σ (already combined over the releases made from that draw).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adadpigu.accounting import events
from adadpigu.errors import InputError

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, kw_only=True)
class PlannedDraw:
    """One Poisson draw a step makes, and the effective noise multiplier of all that is released from it."""

    name: str
    sample_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        events.check_sample_rate(self.sample_rate)
        events.check_noise_multiplier(self.noise_multiplier)

    def event(self) -> DpEvent:
        """What this draw costs."""
        return events.draw_event(self.sample_rate, [self.noise_multiplier])


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """So many equal steps, each making the same draws."""

    name: str
    steps: int
    draws: tuple[PlannedDraw, ...]

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 0:
            raise InputError(f"steps={self.steps!r} in stage {self.name!r}: must be a whole number of 0 or more")
        _check_unique(f"draw in stage {self.name!r}", [draw.name for draw in self.draws])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The stages of a run in order.

    >>> batch = PlannedDraw(name="batch", sample_rate=0.1, noise_multiplier=2.0)
    >>> stages = (PlannedStage(name="importance", steps=5, draws=(batch,)),)
    >>> plan = Plan(stages=(*stages, PlannedStage(name="training", steps=20, draws=(batch,))))
    >>> plan.steps, list(plan.charges().values())
    (25, [25])
    >>> [(stage.name, stage.steps) for stage in plan.prefix(7).stages]
    [('importance', 5), ('training', 2)]
    >>> list(Plan(stages=plan.stages, spare=3).charges().values())
    [28]
    """

    stages: tuple[PlannedStage, ...]
    spare: int = 0
    """steps of each kind that may be repeated after a crash, on top of those above"""

    def __post_init__(self) -> None:
        _check_unique("stage", [stage.name for stage in self.stages])
        if isinstance(self.spare, bool) or not isinstance(self.spare, int) or self.spare < 0:
            raise InputError(f"spare_steps={self.spare!r}: must be a whole number of 0 or more")

    @property
    def steps(self) -> int:
        """Steps of all stages together."""
        return sum(stage.steps for stage in self.stages)

    def charges(self) -> Counter[DpEvent]:
        """How many of each event the whole plan holds."""
        found: Counter[DpEvent] = Counter()
        for draws, steps in self._kinds().items():
            for draw in draws:
                found[draw.event()] += steps + min(steps, self.spare)
        return found

    def _kinds(self) -> Counter[tuple[PlannedDraw, ...]]:
        """How many steps there are of each kind: equal draws are one kind, whatever their stage."""
        found: Counter[tuple[PlannedDraw, ...]] = Counter()
        for stage in self.stages:
            if stage.steps:
                found[stage.draws] += stage.steps
        return found

    def event(self) -> DpEvent:
        """The whole plan as one composed event, equal draws grouped."""
        return events.compose(self.charges())

    def prefix(self, steps: int) -> Plan:
        """The plan of the first so many steps, across stages, none of them repeated."""
        if not 0 <= steps <= self.steps:
            raise InputError(f"steps={steps}: must lie in [0, {self.steps}], the steps of the plan")
        kept, left = [], steps
        for stage in self.stages:
            if left > 0:
                kept.append(PlannedStage(name=stage.name, steps=min(stage.steps, left), draws=stage.draws))
            left -= stage.steps
        return Plan(stages=tuple(kept))

    def to_json(self) -> dict[str, object]:
        """The plan as plain JSON."""
        stages = [
            {"name": stage.name, "steps": stage.steps, "draws": [vars(draw).copy() for draw in stage.draws]}
            for stage in self.stages
        ]
        return {"stages": stages, **({"spare": self.spare} if self.spare else {})}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Plan:
        """The inverse of `to_json`."""
        try:
            stages = tuple(_stage_from_json(stage) for stage in data["stages"])  # type: ignore[attr-defined]
            return cls(stages=stages, spare=data.get("spare", 0))  # type: ignore[arg-type]
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"plan={data!r}: not a plan ({error})") from error


def plan_for(
    sample_rate: float, steps: int, *, stage: str = "training", draw: str = "batch"
) -> Callable[[float], Plan]:
    """The one-stage plan of plain DP-SGD as a function of its noise multiplier, ready for `calibrate`.

    >>> plan_for(0.01, 100)(1.5).stages[0].draws[0].noise_multiplier
    1.5
    """

    def plan_at(noise_multiplier: float) -> Plan:
        planned = PlannedDraw(name=draw, sample_rate=sample_rate, noise_multiplier=noise_multiplier)
        return Plan(stages=(PlannedStage(name=stage, steps=steps, draws=(planned,)),))

    return plan_at


def _stage_from_json(data: Mapping[str, object]) -> PlannedStage:
    draws = tuple(PlannedDraw(**draw) for draw in data["draws"])  # type: ignore[attr-defined]
    return PlannedStage(name=str(data["name"]), steps=data["steps"], draws=draws)  # type: ignore[arg-type]


def _check_unique(kind: str, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"{kind} {name!r} occurs {count} times: names must differ")
