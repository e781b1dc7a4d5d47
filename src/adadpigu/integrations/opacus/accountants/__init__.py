"""What a script asks of `privacy_engine.accountant`: ε of what was charged, and its history. Public numbers only."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from adadpigu.accounting import EventCount, PrivacyReport, StageSteps, epsilon, epsilons, event_to_json
from adadpigu.accounting.events import compose, leaves, spending_of
from adadpigu.errors import InputError
from adadpigu.training.preparation import TRAINED_BEFORE

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from adadpigu.training.own_loop import PrivateLoop

_OURS = {"prv": "pld", "pld": "pld", "rdp": "rdp"}


class Accountant:
    """ε of the runs of one engine, by what their ledgers hold."""

    def __init__(self, name: str) -> None:
        if name not in _OURS:
            why = " (gdp is an approximation from below, no bound)" if name == "gdp" else ""
            raise InputError(f"accountant={name!r}: allowed: {', '.join(sorted(_OURS))}{why}")
        self._name = name
        self._loops: Callable[[], list[PrivateLoop]] = list

    def watch(self, loops: Callable[[], list[PrivateLoop]]) -> None:
        """From here on these runs are accounted."""
        self._loops = loops

    def mechanism(self) -> str:
        """The accountant's name."""
        return self._name

    def get_epsilon(self, delta: float) -> float:
        """ε of all that was begun, to cite: the whole plan of every run or pass that was charged for anything.

        A script that stops early because of what it saw claims the whole plan, and nobody can tell when it will stop.
        So this does not grow during a planned run; `history` says what was charged so far.
        """
        return epsilon(compose((loop.planned, 1) for loop in self._begun()), delta, _OURS[self._name])

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sampling rate, steps) of all that was charged."""
        return [(sigma, rate, count) for rate, sigma, count in spending_of(self._spent()).mechanisms()]

    def __len__(self) -> int:
        return sum(count for _, _, count in self.history)

    def report(self, delta: float | None = None) -> PrivacyReport:
        """The report of the planned run, or, where every pass was a run, of all of them together at a δ."""
        begun = self._begun()
        reports = [loop.privacy for loop in begun if loop.ended]
        if len(begun) == 1 and delta in (None, reports[0].delta):
            return reports[0]
        delta = reports[0].delta if delta is None else delta
        planned = Counter[DpEvent]() if TYPE_CHECKING else Counter()
        for report in reports:
            planned.update(leaves(report.event()))
        for loop in begun[len(reports) :]:  # the pass that is open: when it is left may depend on what is seen
            planned.update(leaves(loop.planned))
        between = {TRAINED_BEFORE} - {*reports[0].warnings}  # by the passes before, which are counted here
        found = epsilons(compose(planned), delta)
        steps = sum(stage.done for report in reports for stage in report.stages)
        return dataclasses.replace(
            reports[-1],
            delta=delta,
            epsilon_pld=found["pld"],
            epsilon_rdp=found["rdp"],
            epsilon_rdp_classic=found["rdp_classic"],
            epsilon_spent=epsilon(self._spent(), delta),
            stages=(StageSteps(name=reports[0].stages[0].name, planned=sum(planned.values()), done=steps),),
            events=tuple(EventCount(event=event_to_json(event), count=count) for event, count in planned.items()),
            lives=(dataclasses.replace(reports[-1].lives[-1], steps=sum(report.steps_charged for report in reports)),),
            interrupted=any(report.interrupted for report in reports),
            randomness_private=all(report.randomness_private for report in reports),
            not_covered=tuple(dict.fromkeys(told for report in reports for told in report.not_covered)),
            warnings=(
                *dict.fromkeys(told for report in reports for told in report.warnings if told not in between),
                f"{len(begun)} passes over the loader, each a run of its own, are taken together here",
            ),
        )

    def _begun(self) -> list[PrivateLoop]:
        return [loop for loop in self._loops() if loop.ended or not spending_of(loop.spent).free]

    def _spent(self) -> DpEvent:
        return compose((loop.planned if loop.ended else loop.spent, 1) for loop in self._loops())
