"""The ledger that several runs share: an RDP filter whose total is never too low."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import dp_accounting as dp
import pytest
from dp_accounting import rdp

import adadpigu as ad
from adadpigu.accounting import Budget, Ledger, PrivacyReport, draw_event, plan_for
from adadpigu.accounting.journal import head_path
from adadpigu.accounting.shared import (
    SharedLedger,
    best_order,
    create_shared,
    rdp_at,
    rdp_limit,
    read_shared,
)
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.errors import BudgetError, InputError, LedgerError
from adadpigu.methods import DPSGD, SGD
from trials import SHORT, arrays, small_net

PLAN = plan_for(0.1, 100)(2.0).event()
LEDGER = Ledger(plan_for(0.1, 100)(2.0))
"""of a run that has charged nothing yet"""


def charged(steps: int) -> Ledger:
    ledger = Ledger(plan_for(0.1, 100)(2.0))
    for step in range(steps):
        ledger.charge(draw_event(0.1, [2.0]), stage="training", step=step, draw="batch")
    return ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_shared(tmp_path / "shared.log", Budget(epsilon=6.0), dataset="digits", records=1000)
    return tmp_path / "shared.log"


def place(path: Path, run: str) -> SharedLedger:
    return SharedLedger(path, dataset="digits", records=1000, run=run)


def accountant_epsilon(order: float, *events: dp.DpEvent) -> float:
    """The oracle: dp_accounting's own accountant with one order."""
    accountant = rdp.RdpAccountant([order])
    for event in events:
        accountant.compose(event)
    return float(accountant.get_epsilon(1e-5))


@pytest.mark.parametrize("runs", [1, 2])
def test_the_total_is_what_an_accountant_with_one_order_says(path: Path, runs: int) -> None:
    for number in range(runs):
        place(path, str(number)).reserve(PLAN, LEDGER, "dpsgd")
    total = read_shared(path).total()
    assert total.runs == runs
    assert total.epsilon == pytest.approx(accountant_epsilon(total.order, *[PLAN] * runs), rel=1e-9)


def test_a_run_that_would_exceed_the_budget_is_refused_and_nothing_is_written(path: Path) -> None:
    done = 0
    while accountant_epsilon(read_shared(path).order, *[PLAN] * (done + 1)) <= 6:
        place(path, str(done)).reserve(PLAN, LEDGER, "dpsgd")
        done += 1
    before = path.read_bytes()
    with pytest.raises(BudgetError, match=r"epsilon=6 of the shared ledger: \d runs have spent .* with this one"):
        place(path, str(done)).reserve(PLAN, LEDGER, "dpsgd")
    assert path.read_bytes() == before
    assert done >= 2
    total = read_shared(path).total()
    assert total.epsilon <= 6 < accountant_epsilon(total.order, *[PLAN] * (done + 1))


def test_what_was_never_charged_is_given_back_and_a_crash_gives_nothing_back(path: Path) -> None:
    crashed, ended = place(path, "crashed"), place(path, "ended")
    crashed.reserve(PLAN, LEDGER, "dpsgd")
    ended.reserve(PLAN, LEDGER, "dpsgd")
    ended.settle(charged(10), "dpsgd")
    order = read_shared(path).order
    expected = rdp_at(PLAN, order) + rdp_at(plan_for(0.1, 10)(2.0).event(), order)
    assert read_shared(path).rdp == pytest.approx(expected)


def test_a_resumed_run_has_to_be_there_with_the_ledger_that_it_goes_on_with(path: Path, tmp_path: Path) -> None:
    plan, event = plan_for(0.1, 100)(2.0), draw_event(0.1, [2.0])
    ledger = Ledger(plan, path=tmp_path / "ledger.log")
    place(path, "a").reserve(PLAN, ledger, "dpsgd")
    once = read_shared(path).rdp
    ledger.charge(event, stage="training", step=0, draw="batch")
    ledger.note("interrupted")
    ledger.close()
    place(path, "a").settle(ledger, "dpsgd")
    assert 0 < read_shared(path).rdp < once
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in (tmp_path / "ledger.log", head_path(tmp_path / "ledger.log")):
        (copy / file.name).write_bytes(file.read_bytes())
    again = Ledger.resume(tmp_path / "ledger.log")
    with pytest.raises(InputError, match="does not know this run"):
        place(path, "b").reserve(PLAN, again, "dpsgd")
    place(path, "a").reserve(PLAN, again, "dpsgd")
    assert read_shared(path).rdp == once
    again.note("resumed", step=1)
    again.close()
    place(path, "a").settle(again, "dpsgd")
    with pytest.raises(LedgerError, match="another copy of this run"):
        place(path, "a").reserve(PLAN, Ledger.resume(copy / "ledger.log"), "dpsgd")


def test_an_event_without_noise_is_refused(path: Path) -> None:
    with pytest.raises(BudgetError, match="inf"):
        place(path, "a").reserve(draw_event(0.1, [0.0]), LEDGER, "sgd")


@pytest.mark.parametrize(("key", "value"), [("dataset", "mnist"), ("records", 999)])
def test_another_data_set_is_refused(path: Path, key: str, value: object) -> None:
    facts = {"dataset": "digits", "records": 1000, key: value}
    with pytest.raises(InputError, match=f"{key}={value!r}: ledger"):
        SharedLedger(path, run="a", **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_damaged_one_is_refused_and_claims_its_whole_budget(path: Path, cut: int) -> None:
    place(path, "a").reserve(PLAN, LEDGER, "dpsgd")
    path.write_bytes(path.read_bytes()[:-cut])
    record = read_shared(path)
    assert record.damage
    assert record.total().epsilon >= 6
    with pytest.raises(LedgerError, match="damaged"):
        place(path, "b").reserve(PLAN, LEDGER, "dpsgd")


def test_a_line_that_was_never_finished_is_not_taken_for_nothing(path: Path) -> None:
    head = head_path(path).read_bytes()
    place(path, "a").reserve(PLAN, LEDGER, "dpsgd")
    path.write_bytes(path.read_bytes()[:-5])
    head_path(path).write_bytes(head)
    assert "never finished" in read_shared(path).damage
    with pytest.raises(LedgerError):
        place(path, "b").reserve(PLAN, LEDGER, "dpsgd")


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0, 30.0])
def test_the_order_it_chooses_is_the_best_for_a_gaussian(epsilon: float) -> None:
    budget = Budget(epsilon=epsilon)
    order = best_order(budget)
    precision = 2 * rdp_limit(budget, order) / order  # of the Gaussian that just fits
    assert accountant_epsilon(order, dp.GaussianDpEvent(precision**-0.5)) == pytest.approx(epsilon)
    for other in (order - 1, order + 1):
        if other > 1:
            assert accountant_epsilon(other, dp.GaussianDpEvent(precision**-0.5)) >= epsilon - 1e-9


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"order": 1.0}, "order=1"), ({"order": 2.5}, "order=2.5"), ({"records": 0}, "records=0")],
)
def test_what_cannot_be_is_refused_at_creation(tmp_path: Path, changed: dict[str, float], message: str) -> None:
    facts = {"dataset": "digits", "records": 10, **changed}
    with pytest.raises(InputError, match=message):
        create_shared(tmp_path / "s.log", Budget(epsilon=1.0), **facts)  # type: ignore[arg-type]
    assert not (tmp_path / "s.log").exists()


def test_an_order_that_cannot_give_the_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="order=2: cannot give epsilon=1; allowed: larger, such as"):
        create_shared(tmp_path / "s.log", Budget(epsilon=1.0), dataset="digits", records=10, order=2)


def train(path: Path, out: Path | None = None, **options: object) -> ad.Run:
    common = {"records": 240, "method": DPSGD(), "noise_multiplier": 3.0, **SHORT, **options}
    return ad.train(small_net(), arrays(), ledger=path, out=out, **common)  # type: ignore[arg-type]


@pytest.mark.slow
def test_runs_add_up_their_statements_give_the_total_and_the_last_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shared.log"
    name = ad.train(small_net(), arrays(), records=240, method=DPSGD(), noise_multiplier=3.0, **SHORT).dataset
    create_shared(path, Budget(epsilon=4.0), dataset=name, records=240)
    runs = [train(path, tmp_path / str(number)) for number in range(2)]
    with pytest.raises(BudgetError, match="shared ledger"):
        train(path, tmp_path / "third", noise_multiplier=0.9)
    assert not (tmp_path / "third").exists()  # refused before anything was written
    totals = [run.privacy.shared for run in runs]
    assert [total.runs for total in totals if total] == list(range(1, len(runs) + 1))
    assert all(one and two and one.epsilon < two.epsilon <= 4 for one, two in itertools.pairwise(totals))
    text = runs[-1].privacy.statement()
    assert f"{len(runs)} runs share a ledger" in " ".join(text.split())
    assert any("scores on test records" in line for line in runs[-1].privacy.not_covered)
    assert PrivacyReport.from_json(runs[-1].privacy.to_json()) == runs[-1].privacy


def test_an_interrupted_run_gives_back_what_it_did_not_charge(tmp_path: Path) -> None:
    class Stopping:
        def begin(self, facts: ad.training.Facts) -> None: ...
        def end(self, run: ad.Run) -> None: ...
        def update(self, metrics: ad.training.Metrics) -> None:
            raise KeyboardInterrupt

    path = tmp_path / "shared.log"
    create_shared(path, Budget(epsilon=4.0), dataset="own data", records=240)
    run = train(path, observers=[Stopping()])
    assert run.interrupted
    order = read_shared(path).order
    one = rdp_at(plan_for(40 / 240, 1)(3.0).event(), order)
    assert read_shared(path).rdp == pytest.approx(one)


def test_a_method_without_a_guarantee_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shared.log"
    create_shared(path, Budget(epsilon=4.0), dataset="own data", records=240)
    with pytest.raises(BudgetError):
        train(path, method=SGD(), noise_multiplier=None)
    assert math.isclose(read_shared(path).rdp, 0)


@pytest.mark.parametrize("option", ["noise", "diagnostics"])
def test_what_no_total_could_cover_is_refused(tmp_path: Path, option: str) -> None:
    path = tmp_path / "shared.log"
    create_shared(path, Budget(epsilon=4.0), dataset="own data", records=240)
    odd = {"randomness": ReproducibleRandomness(3)} if option == "noise" else {"diagnostics": True}
    with pytest.raises(InputError, match="no total could cover"):
        train(path, tmp_path / "run", **odd)
    assert not (tmp_path / "run").exists()
    assert read_shared(path).runs == {}


def test_the_total_in_a_statement_is_that_of_its_end(tmp_path: Path) -> None:
    path = tmp_path / "shared.log"
    create_shared(path, Budget(epsilon=4.0), dataset="own data", records=240)

    class Meanwhile:
        """Another run on the same ledger, from begin to end."""

        def begin(self, facts: ad.training.Facts) -> None:
            train(path)

        def update(self, metrics: ad.training.Metrics) -> None: ...
        def end(self, run: ad.Run) -> None: ...

    shared = train(path, observers=[Meanwhile()]).privacy.shared
    assert shared is not None
    assert shared.runs == 2
