"""A ledger that is interrupted at any line of its code, or read while it is written, never tells too little."""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from adadpigu.accounting import Ledger, draw_event, plan_for
from adadpigu.accounting import journal as journal_module
from adadpigu.accounting import ledger as ledger_module
from adadpigu.accounting.journal import Journal, head_path
from adadpigu.accounting.ledger_reading import inspect_ledger, read_ledger
from adadpigu.errors import BudgetError, LedgerError

EVENT = draw_event(0.1, [2.0])
STEPS = 5
OURS = {str(module.__file__) for module in (journal_module, ledger_module)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.log"


@contextlib.contextmanager
def interrupted_at(number: int, lines: list[str]) -> Iterator[None]:
    """Ctrl-C before the line of this number is run, of those of the ledger and its journal; all of them are listed.

    Python itself looks for signals after calls and jumps, never between a `with` and its block, so not there.
    """

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in OURS:
            return None
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not source.strip().startswith("with "):
            lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            if len(lines) == number:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def work(path: Path, reserve: int, number: int) -> tuple[int, list[str]]:
    """Charges a few steps, interrupted at a line, and ends as a run does; how many draws were let through."""
    ledger = Ledger(plan_for(0.1, STEPS)(2.0), path=path, reserve=reserve)
    drawn, lines = 0, list[str]()
    try:
        with interrupted_at(number, lines):
            for step in range(STEPS):
                ledger.cover("training", step, {"batch": EVENT}, left=STEPS - step)
                ledger.charge(EVENT, stage="training", step=step, draw="batch")
                drawn += 1
    except KeyboardInterrupt:
        with contextlib.suppress(BudgetError):
            ledger.note("interrupted")
    ledger.close()
    return drawn, lines


@pytest.mark.parametrize("reserve", [1, 2, 3])
def test_an_interrupt_at_every_line_leaves_at_least_what_was_drawn(tmp_path: Path, reserve: int) -> None:
    """And a ledger that is whole: the run goes on, with what is left."""
    _, lines = work(tmp_path / "undisturbed.log", reserve, number=0)
    for number in range(1, len(lines) + 1):
        path = tmp_path / f"{number}.log"
        drawn, _ = work(path, reserve, number)
        record = read_ledger(path)
        assert sum(record.spent().values()) >= drawn, lines[number - 1]
        assert record.steps >= drawn, lines[number - 1]
        resumed = Ledger.resume(path)
        for step in range(STEPS - sum(record.spent().values())):
            resumed.charge(EVENT, stage="training", step=step, draw="batch")
        with pytest.raises(BudgetError):
            resumed.charge(EVENT, stage="training", step=STEPS, draw="batch")
        resumed.close()
        path.unlink()
        head_path(path).unlink()


def test_a_ledger_that_is_read_while_it_is_written_is_not_called_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several records come in between the reader's look at the head and its look at the journal."""
    ledger = Ledger(plan_for(0.1, 9)(2.0), path=path)
    genuine, steps = journal_module._bytes_or_none, iter(range(9))

    def slow(file: Path) -> bytes | None:
        found = genuine(file)
        for step in [next(steps) for _ in range(3)]:
            ledger.charge(EVENT, stage="training", step=step, draw="batch")
        return found

    monkeypatch.setattr(journal_module, "_bytes_or_none", slow)
    record = read_ledger(path)
    monkeypatch.undo()
    assert record.steps == 3
    assert read_ledger(path).steps == 6
    ledger.close()


@pytest.mark.parametrize("head", [b"", b"000000000000 00000"])
def test_files_that_were_only_just_made_hold_no_charge(path: Path, head: bytes) -> None:
    path.write_bytes(b"")
    head_path(path).write_bytes(head)
    with pytest.raises(LedgerError, match="it has no header, so nothing was charged yet"):
        inspect_ledger(path)
    with pytest.raises(LedgerError, match="nothing was charged yet"):
        Ledger.resume(path)


@pytest.mark.parametrize(
    "line",
    [
        {"settle": 2, "stage": "training", "step": 3},
        {"settle": 2, "stage": "training", "step": 0},
        {"settle": 1, "stage": "other", "step": 2},
        {"settle": 4, "stage": "training", "step": -1},
    ],
)
def test_only_the_last_steps_of_a_reservation_can_be_given_back(path: Path, line: dict[str, object]) -> None:
    ledger = Ledger(plan_for(0.1, 9)(2.0), path=path, reserve=3)
    ledger.cover("training", 0, {"batch": EVENT}, left=9)
    assert ledger._journal is not None
    ledger._journal.close()
    journal = Journal(path, new=False)
    journal.append(line)
    journal.close()
    with pytest.raises(LedgerError, match="lines that no run has written"):
        inspect_ledger(path)
