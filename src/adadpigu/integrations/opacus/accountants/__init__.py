"""What a script asks of `privacy_engine.accountant`: ε of what was charged, and its history. Public numbers only."""

import dataclasses
from collections import Counter
from collections.abc import Callable

from adadpigu.accounting import Budget, PrivacyReport, calibrate, epsilon, epsilons, plan_for
from adadpigu.accounting.events import DpEvent, compose, event_to_json, leaves, spending_of
from adadpigu.accounting.membership import membership_bounds
from adadpigu.accounting.statement import EventCount, StageSteps
from adadpigu.errors import BudgetError, InputError, require
from adadpigu.training.own_loop import PrivateLoop
from adadpigu.training.preparation import TRAINED_BEFORE

_OURS = {"prv": "pld", "pld": "pld", "rdp": "rdp"}


class Accountant:
    """ε of the runs of one engine, by what their ledgers hold."""

    def __init__(self, name: str) -> None:
        if name not in _OURS:
            why = " (gdp is an approximation from below, no bound)" if name == "gdp" else ""
            raise InputError(f"accountant={name!r}: allowed: {', '.join(sorted(_OURS))}{why}")
        self._kind = _OURS[name]
        self.loops: Callable[[], list[PrivateLoop]] = list  # the runs that are accounted

    def noise_for(self, budget: Budget, sample_rate: float, steps: int) -> float:
        """σ for which so many steps cost at most the budget, by this accountant: Rényi accounting asks for more."""
        plan_at = plan_for(sample_rate, steps)
        low = high = tight = calibrate(plan_at, epsilon=budget.epsilon, delta=budget.delta).noise_multiplier

        def cost(sigma: float) -> float:
            return epsilon(plan_at(sigma).event(), budget.delta, self._kind)

        while cost(high) > budget.epsilon:
            low, high = high, 1.2 * high
            if high > 1e4 * tight:  # the orders at hand show little below 0.004
                given = f"epsilon={budget.epsilon}, delta={budget.delta}"
                raise BudgetError(f"{given}: too small for Rényi accounting; allowed: accountant='prv'")
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if cost(middle) <= budget.epsilon else (middle, high)
        return high

    def get_epsilon(self, delta: float) -> float:
        """ε to cite: of the whole plan of every run or pass that was charged for anything, since when a script stops
        may depend on what it saw. `history` says what was charged so far."""
        return epsilon(compose((loop.planned, 1) for loop in self._begun()), delta, self._kind)

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
        planned: Counter[DpEvent] = Counter()
        for loop in begun:  # also one that is open: when it is left may depend on what is seen
            planned.update(leaves(loop.planned))
        between = {TRAINED_BEFORE} - {*reports[0].warnings}  # by the passes before, which are counted here
        found = epsilons(compose(planned), delta)
        steps = sum(stage.done for report in reports for stage in report.stages)
        charged = sum(report.steps_charged for report in reports)
        return dataclasses.replace(
            reports[-1],
            delta=delta,
            epsilon_pld=found["pld"],
            epsilon_rdp=found["rdp"],
            epsilon_rdp_classic=found["rdp_classic"],
            epsilon_spent=epsilon(self._spent(), delta),
            membership=membership_bounds(compose(planned)),
            stages=(StageSteps(name=reports[0].stages[0].name, planned=sum(planned.values()), done=steps),),
            events=tuple(EventCount(event=event_to_json(event), count=count) for event, count in planned.items()),
            sessions=(dataclasses.replace(reports[-1].sessions[-1], steps=charged),),
            interrupted=any(report.interrupted for report in reports),
            randomness_private=all(report.randomness_private for report in reports),
            not_covered=tuple(dict.fromkeys(told for report in reports for told in report.not_covered)),
            warnings=(
                *dict.fromkeys(told for report in reports for told in report.warnings if told not in between),
                f"{len(begun)} passes over the loader, each a run of its own, are taken together here",
            ),
        )

    def _begun(self) -> list[PrivateLoop]:
        return [loop for loop in self.loops() if loop.ended or not spending_of(loop.spent).free]

    def _spent(self) -> DpEvent:
        return compose((loop.planned if loop.ended else loop.spent, 1) for loop in self.loops())


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: int | None = None,
    steps: int | None = None,
    accountant: str = "prv",
) -> float:
    """σ for which so many epochs (of 1/q steps) or steps cost at most the target, by the accountant."""
    asked = Accountant(accountant)
    require((steps is None) != (epochs is None), f"epochs={epochs} and steps={steps}: give one of them")
    count = steps if steps is not None else int((epochs or 0) / sample_rate)
    require(count >= 1, f"epochs={epochs} and steps={steps} make {count} steps; allowed: at least 1")
    return asked.noise_for(Budget(epsilon=target_epsilon, delta=target_delta), sample_rate, count)
