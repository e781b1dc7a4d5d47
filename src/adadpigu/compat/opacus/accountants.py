"""What a script asks of `privacy_engine.accountant`: ε of what was charged, and its history. Public numbers only."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from adadpigu.accounting import (
    EventCount,
    PrivacyReport,
    StageSteps,
    calibrate,
    epsilon,
    epsilons,
    event_to_json,
    plan_for,
)
from adadpigu.accounting.events import compose, leaves
from adadpigu.accounting.spending import spending_of
from adadpigu.errors import InputError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from adadpigu.training.own_loop import PrivateLoop
    from adadpigu.training.preparation import Preparation

_OURS = {"prv": "pld", "pld": "pld", "rdp": "rdp"}


class Accountant:
    """ε of the runs of one engine, by what their ledgers hold."""

    def __init__(self, name: str) -> None:
        if name not in _OURS:
            why = " (gdp is an approximation from below, no bound)" if name == "gdp" else ""
            raise InputError(f"accountant={name!r}: allowed: {', '.join(sorted(_OURS))}{why}")
        self._name = name
        self._loops: Callable[[], list[PrivateLoop]] = list
        self._prepared: Preparation | None = None

    def watch(self, loops: Callable[[], list[PrivateLoop]], prepared: Preparation) -> None:
        """From here on these runs are accounted."""
        self._loops, self._prepared = loops, prepared

    def mechanism(self) -> str:
        """The accountant's name."""
        return self._name

    def get_epsilon(self, delta: float) -> float:
        """ε of all that was charged so far."""
        return epsilon(self._spent(), delta, _OURS[self._name])

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sampling rate, steps) of all that was charged."""
        return [(sigma, rate, count) for rate, sigma, count in spending_of(self._spent()).mechanisms()]

    def __len__(self) -> int:
        return sum(count for _, _, count in self.history)

    def report(self, delta: float | None = None) -> PrivacyReport:
        """The report of the planned run, or, where every pass was a run, of all of them together at a δ."""
        reports = [loop.run.privacy for loop in self._loops() if loop.ended]
        if len(reports) == 1 and delta in (None, reports[0].delta):
            return reports[0]
        delta = reports[0].delta if delta is None else delta
        planned = Counter[DpEvent]() if TYPE_CHECKING else Counter()
        for report in reports:
            planned.update(leaves(report.event()))
        whole = compose(planned)
        found = epsilons(whole, delta)
        steps = [(stage.planned, stage.done) for report in reports for stage in report.stages]
        return dataclasses.replace(
            reports[-1],
            delta=delta,
            epsilon_pld=found["pld"],
            epsilon_rdp=found["rdp"],
            epsilon_rdp_classic=found["rdp_classic"],
            epsilon_spent=epsilon(self._spent(), delta),
            stages=(
                StageSteps(
                    name=reports[0].stages[0].name,
                    planned=sum(planned for planned, _ in steps),
                    done=sum(done for _, done in steps),
                ),
            ),
            events=tuple(EventCount(event=event_to_json(event), count=count) for event, count in planned.items()),
            lives=(dataclasses.replace(reports[-1].lives[-1], steps=sum(report.steps_charged for report in reports)),),
            warnings=(f"{len(reports)} passes over the loader, each a run of its own, are taken together here",),
        )

    def _spent(self) -> DpEvent:
        return compose((loop.spent, 1) for loop in self._loops())


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: int | None = None,
    steps: int | None = None,
    accountant: str = "prv",
) -> float:
    """σ for which so many epochs (of 1/q steps) or steps cost at most the target, by the tight accountant."""
    Accountant(accountant)
    if (steps is None) == (epochs is None):
        raise InputError(f"epochs={epochs} and steps={steps}: give one of them")
    count = steps if steps is not None else int((epochs or 0) / sample_rate)
    if count < 1:
        raise InputError(f"epochs={epochs} and steps={steps} make {count} steps; allowed: at least 1")
    return calibrate(plan_for(sample_rate, count), epsilon=target_epsilon, delta=target_delta).noise_multiplier
