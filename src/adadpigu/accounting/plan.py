"""The budget (ε, δ) that a user grants, and the plan: all that a run may ever draw, fixed before its first step.

A plan is public. It is what is calibrated, charged and claimed. Every step of a stage makes the same named draws, each
one Poisson sample with one noise multiplier σ (combined over the releases made from that draw).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adadpigu.accounting import events
from adadpigu.accounting.events import DpEvent
from adadpigu.errors import InputError, check, require


def check_epsilon(value: float) -> None:
    check("epsilon", value, math.isfinite(value) and value > 0, "must be a finite number above 0")


def check_delta(value: float) -> None:
    check("delta", value, 0 < value < 1, "must lie strictly between 0 and 1 (usual: 1e-5, and below 1/records)")


@dataclass(frozen=True)
class Budget:
    """How much a run may leak about any one record, under adding or removing that record.

    >>> Budget(epsilon=4)
    Budget(epsilon=4, delta=1e-05)
    """

    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)


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
        return events.draw_event(self.sample_rate, [self.noise_multiplier])


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """So many equal steps, each making the same draws."""

    name: str
    steps: int
    draws: tuple[PlannedDraw, ...]

    def __post_init__(self) -> None:
        whole = type(self.steps) is int and self.steps >= 0
        check("steps", repr(self.steps), whole, f"must be a whole number of 0 or more, in stage {self.name!r}")
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
    spare: int = 0  # steps of each kind that may be repeated after a crash, on top of those above

    def __post_init__(self) -> None:
        _check_unique("stage", [stage.name for stage in self.stages])
        whole = type(self.spare) is int and self.spare >= 0
        check("spare_steps", repr(self.spare), whole, "must be a whole number of 0 or more")

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def charges(self) -> Counter[DpEvent]:
        """How many of each event the whole plan holds. Steps with equal draws are one kind, whatever their stage."""
        kinds: Counter[tuple[PlannedDraw, ...]] = Counter()
        for stage in self.stages:
            kinds[stage.draws] += stage.steps
        found: Counter[DpEvent] = Counter()
        for draws, steps in (+kinds).items():  # without those of no step
            for draw in draws:
                found[draw.event()] += steps + min(steps, self.spare)
        return found

    def event(self) -> DpEvent:
        return events.compose(self.charges())

    def prefix(self, steps: int) -> "Plan":
        """The plan of the first so many steps, across stages, none of them repeated."""
        check("steps", steps, 0 <= steps <= self.steps, f"must lie in [0, {self.steps}], the steps of the plan")
        kept, left = [], steps
        for stage in self.stages:
            if left > 0:
                kept.append(PlannedStage(name=stage.name, steps=min(stage.steps, left), draws=stage.draws))
            left -= stage.steps
        return Plan(stages=tuple(kept))

    def to_json(self) -> dict[str, object]:
        stages = [{**vars(stage), "draws": [vars(draw).copy() for draw in stage.draws]} for stage in self.stages]
        return {"stages": stages, **({"spare": self.spare} if self.spare else {})}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Plan":
        try:
            drawn = [(stage, tuple(PlannedDraw(**draw) for draw in stage["draws"])) for stage in data["stages"]]
            stages = tuple(PlannedStage(**{**stage, "draws": draws}) for stage, draws in drawn)
            return cls(stages=stages, spare=data.get("spare", 0))
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"plan={data!r}: not a plan ({error})") from error


def plan_for(sample_rate: float, steps: int) -> Callable[[float], Plan]:
    """The one-stage plan of plain DP-SGD as a function of its noise multiplier, ready for `calibrate`.

    >>> plan_for(0.01, 100)(1.5).stages[0].draws[0].noise_multiplier
    1.5
    """

    def plan_at(noise_multiplier: float) -> Plan:
        draw = PlannedDraw(name="batch", sample_rate=sample_rate, noise_multiplier=noise_multiplier)
        return Plan(stages=(PlannedStage(name="training", steps=steps, draws=(draw,)),))

    return plan_at


def _check_unique(kind: str, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        require(count == 1, f"{kind} {name!r} occurs {count} times: names must differ")
