"""The ledger: on disk before it returns, never beyond the plan, and readable or refused."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import dp_accounting as dp
import pytest

from adadpigu.accounting import (
    Budget,
    Ledger,
    Plan,
    PlannedDraw,
    PlannedStage,
    draw_event,
    epsilon,
    event_to_json,
    plan_for,
    read_ledger,
)
from adadpigu.accounting.events import leaves
from adadpigu.accounting.journal import Journal
from adadpigu.errors import BudgetError, InputError, LedgerError

EVENT = draw_event(0.1, [2.0])
PLAN = plan_for(0.1, 3)(2.0)


def charge(ledger: Ledger, step: int = 0, event: dp.DpEvent = EVENT, draw: str = "batch", **release: object) -> None:
    releases = [{"name": "gradient", "size": 10, "sensitivity": 1.0, "noise_multiplier": 2.0, **release}]
    ledger.charge(event, stage="training", step=step, draw=draw, releases=releases)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.log"


def test_a_charge_is_on_disk_before_it_returns(path: Path) -> None:
    ledger = Ledger(PLAN, path=path)
    for done in range(1, 4):
        charge(ledger, step=done)
        record = read_ledger(path)  # read while the ledger is still open
        assert len(record.charges) == done == ledger.count
        assert record.charges[-1]["step"] == done
    ledger.close()


def test_the_header_says_what_may_be_spent_and_under_which_relation(path: Path) -> None:
    with Ledger(PLAN, budget=Budget(epsilon=9.0), path=path, facts={"method": "dpsgd"}):
        pass
    record = read_ledger(path)
    assert record.plan == PLAN
    assert record.header["budget"] == {"epsilon": 9.0, "delta": 1e-5}
    assert record.header["relation"] == "add or remove one record"
    assert record.header["facts"] == {"method": "dpsgd"}


def test_a_charge_beyond_the_plan_is_refused_and_leaves_the_file_unchanged(path: Path) -> None:
    with Ledger(PLAN, path=path) as ledger:
        for step in range(3):
            charge(ledger, step)
        before = path.read_bytes()
        with pytest.raises(BudgetError, match="the plan holds no such draw"):
            charge(ledger, 3)
        assert path.read_bytes() == before
        assert ledger.count == 3


@pytest.mark.parametrize(
    "event",
    [draw_event(0.1, [1.9]), draw_event(0.11, [2.0]), draw_event(0.09, [2.0]), dp.NonPrivateDpEvent()],
    ids=["less noise", "higher rate", "lower rate", "no noise"],
)
def test_an_event_the_plan_does_not_hold_is_refused_and_nothing_is_written(path: Path, event: dp.DpEvent) -> None:
    with Ledger(PLAN, path=path) as ledger:
        before = path.read_bytes()
        with pytest.raises(BudgetError):
            ledger.charge(event, stage="training", step=0, draw="batch")
        assert path.read_bytes() == before
        assert ledger.count == 0


@pytest.mark.parametrize("sigma", [2.0 * (1 - 5e-10), 2.0, 2.0 * (1 + 5e-10), 7.0])
def test_at_least_the_planned_noise_is_charged_as_planned(sigma: float) -> None:
    ledger = Ledger(PLAN)
    ledger.charge(draw_event(0.1, [sigma]), stage="training", step=0, draw="batch")
    assert leaves(ledger.events()) == {EVENT: 1}


def test_more_noise_is_charged_as_the_cheapest_planned_draw_that_covers_it() -> None:
    draws = tuple(PlannedDraw(name=f"d{s}", sample_rate=0.1, noise_multiplier=float(s)) for s in (1, 3, 5))
    ledger = Ledger(Plan(stages=(PlannedStage(name="s", steps=1, draws=draws),)))
    ledger.charge(draw_event(0.1, [4.0]), stage="s", step=0, draw="a")
    ledger.charge(draw_event(0.1, [4.0]), stage="s", step=0, draw="b")
    assert leaves(ledger.events()) == {draw_event(0.1, [3.0]): 1, draw_event(0.1, [1.0]): 1}
    with pytest.raises(BudgetError):
        ledger.charge(draw_event(0.1, [4.0]), stage="s", step=0, draw="c")


def test_what_was_charged_never_costs_more_than_the_plan() -> None:
    ledger = Ledger(PLAN)
    for step, sigma in enumerate((2.0, 2.5, 9.0)):
        ledger.charge(draw_event(0.1, [sigma]), stage="training", step=step, draw="batch")
    assert epsilon(ledger.events(), 1e-5) == epsilon(PLAN.event(), 1e-5)


def test_two_releases_of_one_draw_cannot_be_charged_as_two_draws() -> None:
    ledger = Ledger(PLAN)
    charge(ledger, step=0)
    with pytest.raises(BudgetError, match="already charged; one charge covers all releases"):
        charge(ledger, step=0)
    assert ledger.count == 1
    charge(ledger, step=0, draw="another batch")
    assert ledger.count == 2


def test_an_event_that_claims_more_noise_than_its_releases_have_is_refused() -> None:
    ledger = Ledger(PLAN)
    pair = [{"name": name, "sensitivity": 1.0, "noise_multiplier": 2.0} for name in ("a", "b")]
    with pytest.raises(BudgetError, match=r"noise_multiplier=2\.0: the releases of this draw together have only 1\.41"):
        ledger.charge(EVENT, stage="training", step=0, draw="batch", releases=pair)
    with pytest.raises(KeyError, match="noise_multiplier"):
        ledger.charge(EVENT, stage="training", step=0, draw="batch", releases=[{"name": "a"}])
    assert ledger.count == 0


def test_releases_that_share_a_draw_are_one_charge_with_their_own_multipliers(path: Path) -> None:
    wide = 2.0 * math.sqrt(2)
    pair = [{"name": name, "sensitivity": 1.0, "noise_multiplier": wide} for name in ("a", "b")]
    with Ledger(PLAN, path=path) as ledger:
        ledger.charge(draw_event(0.1, [wide, wide]), stage="training", step=0, draw="batch", releases=pair)
    (line,) = read_ledger(path).charges
    assert line["releases"] == pair


def test_a_step_is_covered_with_all_its_draws_or_refused() -> None:
    ledger = Ledger(PLAN)
    draws = dict.fromkeys("abcd", EVENT)
    ledger.cover("training", 0, {name: draws[name] for name in "abc"}, left=1)
    with pytest.raises(BudgetError):
        ledger.cover("training", 0, draws, left=1)
    assert ledger.count == 0
    charge(ledger)
    with pytest.raises(BudgetError):
        ledger.cover("training", 1, {name: draws[name] for name in "abc"}, left=1)


@pytest.mark.parametrize("sigma", [2.0 * (1 - 1e-6), 1.99])
def test_hardly_less_noise_than_planned_is_less_noise(sigma: float) -> None:
    ledger = Ledger(PLAN)
    with pytest.raises(BudgetError):
        ledger.charge(draw_event(0.1, [sigma]), stage="training", step=0, draw="batch")


def test_of_a_release_the_widest_bound_and_the_least_noise_are_kept() -> None:
    ledger = Ledger(plan_for(0.1, 3)(1.0))
    for step, (bound, sigma) in enumerate([(1.0, 2.0), (3.0, 4.0), (2.0, 3.0)]):
        charge(ledger, step, event=draw_event(0.1, [sigma]), sensitivity=bound, noise_multiplier=sigma)
    (release,) = ledger.released
    assert (release.sensitivity, release.noise_multiplier) == (3.0, 2.0)


def test_a_reservation_ends_with_its_stage(path: Path) -> None:
    with Ledger(plan_for(0.1, 10)(2.0), path=path, reserve=8) as ledger:
        ledger.cover("training", 0, {"batch": EVENT}, left=3)
        assert ledger.count == 3


def test_a_record_is_held_by_its_digest_not_by_its_number(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    for place in (path, other):
        with Ledger(PLAN, path=place) as ledger:
            charge(ledger)
            count, digest = ledger.head
    resumed = Ledger.resume(path)
    assert not resumed.holds(count, digest)
    assert resumed.holds(*resumed.opened_at)
    resumed.close()


def test_a_plan_beyond_its_budget_is_refused_before_anything_is_written(path: Path) -> None:
    with pytest.raises(BudgetError, match=r"epsilon=0\.01: the plan of 3 steps costs"):
        Ledger(PLAN, budget=Budget(epsilon=0.01), path=path)
    assert not path.exists()


def test_an_existing_file_is_never_touched(path: Path) -> None:
    path.write_text("something")
    with pytest.raises(InputError, match="stands there already"):
        Ledger(PLAN, path=path)
    assert path.read_text() == "something"


def test_a_closed_ledger_takes_no_charge(path: Path) -> None:
    ledger = Ledger(PLAN, path=path)
    ledger.close()
    ledger.close()
    for attempt in (charge, lambda it: it.note("late"), lambda it: it.cover("training", 0, {}, left=1)):
        with pytest.raises(BudgetError, match="closed"):
            attempt(ledger)


def test_a_draw_without_noise_is_charged_as_non_private(path: Path) -> None:
    with Ledger(plan_for(0.5, 1)(0.0), path=path) as ledger:
        charge(ledger, event=draw_event(0.5, [0.0]), sensitivity=math.inf, noise_multiplier=0.0)
    record = read_ledger(path)
    assert epsilon(record.events(), 1e-5) == math.inf
    assert record.charges[0]["releases"][0]["sensitivity"] is None


def test_in_memory_it_counts_and_refuses_just_the_same() -> None:
    with Ledger(PLAN) as ledger:
        for step in range(3):
            charge(ledger, step)
        with pytest.raises(BudgetError):
            charge(ledger, 3)
    assert leaves(ledger.events()) == PLAN.charges()


def test_reading_gives_back_the_events_and_the_notes(path: Path) -> None:
    with Ledger(PLAN, path=path) as ledger:
        charge(ledger, 0)
        ledger.note("interrupted", steps_done=1)
        charge(ledger, 1)
    record = read_ledger(path)
    assert leaves(record.events()) == leaves(ledger.events()) == {EVENT: 2}
    assert [(note["note"], note["steps_done"]) for note in record.notes] == [("interrupted", 1)]


@pytest.mark.parametrize(
    "line",
    [
        {"charge": 0, "stage": "training", "step": 0, "draw": "batch"},
        {"charge": 0, "stage": "training", "step": "one", "draw": "batch", "event": event_to_json(EVENT)},
        {"charge": 0, "stage": "training", "step": 0, "draw": "batch", "event": {"event": "Laplace"}},
        {"reserve": -4, "stage": "training", "step": 0, "draws": {"batch": event_to_json(EVENT)}},
        {"settle": 3, "stage": "training", "step": 0},
        {"torn": 8, "steps": 1, "charged": [[event_to_json(EVENT), -1]]},
    ],
)
def test_lines_that_no_run_has_written_are_refused(path: Path, line: dict[str, object]) -> None:
    with Ledger(PLAN, path=path):
        pass
    journal = Journal(path, new=False)
    journal.append(line)
    journal.close()
    with pytest.raises(LedgerError, match="lines that no run has written"):
        read_ledger(path)


def test_a_missing_or_empty_ledger_is_refused(path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be read"):
        read_ledger(path)
    Journal(path, new=True).close()  # a run that was killed before its header
    with pytest.raises(LedgerError, match="nothing was charged yet"):
        read_ledger(path)


def covered(ledger: Ledger, step: int, left: int) -> None:
    ledger.cover("training", step, {"batch": EVENT}, left=left)
    charge(ledger, step)


def test_steps_reserved_at_once_are_one_record_and_are_charged_before_they_are_drawn(path: Path) -> None:
    ledger = Ledger(plan_for(0.1, 10)(2.0), path=path, reserve=4)
    written = []
    for step in range(10):
        covered(ledger, step, left=10 - step)
        written.append((ledger.count, read_ledger(path).steps))
    assert written == [(4, 4)] * 4 + [(8, 8)] * 4 + [(10, 10)] * 2
    assert [line["reserve"] for line in read_ledger(path).lines if "reserve" in line] == [4, 4, 2]
    with pytest.raises(BudgetError):
        ledger.cover("training", 10, {"batch": EVENT}, left=1)
    ledger.close()


def test_reserved_steps_that_were_not_begun_are_given_back_at_the_end_and_not_after_a_crash(path: Path) -> None:
    ledger = Ledger(plan_for(0.1, 10)(2.0), path=path, reserve=4)
    covered(ledger, 0, left=10)
    assert read_ledger(path).steps == 4  # what a crash would leave
    ledger.note("interrupted")
    ledger.close()
    record = read_ledger(path)
    assert record.steps == 1
    assert leaves(record.events()) == {EVENT: 1}
    assert [session.end for session in record.sessions()] == ["interrupted"]


def test_a_step_of_which_one_draw_was_made_is_not_given_back(path: Path) -> None:
    draws = tuple(PlannedDraw(name=name, sample_rate=0.1, noise_multiplier=2.0) for name in ("batch", "test"))
    plan = Plan(stages=(PlannedStage(name="training", steps=10, draws=draws),))
    with Ledger(plan, path=path, reserve=4) as ledger:
        ledger.cover("training", 0, {"batch": EVENT, "test": EVENT}, left=10)
        assert ledger.count == 8
        charge(ledger, 0)
    assert leaves(read_ledger(path).events()) == {EVENT: 2}


def test_a_reserved_draw_cannot_be_taken_with_less_noise_or_twice() -> None:
    ledger = Ledger(PLAN, path=None, reserve=2)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(PLAN, path=Path(folder) / "ledger.log", reserve=2)
        ledger.cover("training", 0, {"batch": EVENT}, left=3)
        with pytest.raises(BudgetError, match="another draw was reserved"):
            ledger.charge(draw_event(0.1, [1.5]), stage="training", step=0, draw="batch")
        charge(ledger, 0)
        with pytest.raises(BudgetError, match="already charged"):
            charge(ledger, 0)
        ledger.close()


def test_releases_of_reserved_steps_are_written_when_they_are_new_or_wider(path: Path) -> None:
    with Ledger(plan_for(0.1, 8)(2.0), path=path, reserve=8) as ledger:
        for step, bound in enumerate((1.0, 1.0, 2.0, 1.5)):
            ledger.cover("training", step, {"batch": EVENT}, left=8 - step)
            charge(ledger, step, sensitivity=bound)
        assert [release.sensitivity for release in ledger.released] == [2.0]
    assert len([line for line in read_ledger(path).lines if "releases" in line]) == 2
    resumed = Ledger.resume(path)
    assert [release.sensitivity for release in resumed.released] == [2.0]
    resumed.close()


def test_a_resumed_ledger_goes_on_where_the_plan_was_left(path: Path) -> None:
    first = Ledger(PLAN, path=path, facts={"run": "a"})
    charge(first, 0)
    charge(first, 1)
    first._journal.close()  # type: ignore[union-attr]  # as a killed process would
    ledger = Ledger.resume(path)
    assert ledger.count == 2
    assert ledger.facts == {"run": "a"}
    ledger.note("resumed", step=1, randomness="other")
    charge(ledger, 1)  # repeated, and charged again
    with pytest.raises(BudgetError, match=r"3 of 3 charged"):
        charge(ledger, 2)
    ledger.close()
    record = read_ledger(path)
    assert record.steps == 3
    assert [(session.first_step, session.steps, session.end) for session in record.sessions()] == [
        (0, 2, "crashed"),
        (1, 1, "crashed"),
    ]
    assert record.sessions()[1].randomness == "other"
