"""The journal under a ledger: every flipped bit and every cut is refused or costs no less; faults of a disk stop it."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from adadpigu.accounting import Ledger, draw_event, plan_for
from adadpigu.accounting.journal import Journal, head_path, read_journal
from adadpigu.accounting.ledger_reading import inspect_ledger
from adadpigu.errors import BudgetError, LedgerError

EVENT = draw_event(0.1, [2.0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.log"


def small_ledger(path: Path, steps: int = 3, reserve: int = 1) -> float:
    """A ledger of three charges in a plan of nine, left as a killed process leaves it; gives its ε."""
    ledger = Ledger(plan_for(0.1, 9)(2.0), path=path, reserve=reserve)
    for step in range(steps):
        ledger.cover("training", step, {"batch": EVENT}, left=9 - step)
        ledger.charge(EVENT, stage="training", step=step, draw="batch")
    assert ledger._journal is not None
    ledger._journal.close()
    return inspect_ledger(path).epsilon()


def put(files: dict[Path, bytes]) -> None:
    """As new files: some file systems wait for the disk where an old one is cut and filled again."""
    for file, content in files.items():
        file.unlink(missing_ok=True)
        file.write_bytes(content)


def found(path: Path) -> float | None:
    """The ε that is told of a ledger, or None where it is refused; `verify` and `resume` agree on which."""
    try:
        ledger = Ledger.resume(path)
    except LedgerError:
        ledger = None
    try:
        record = inspect_ledger(path)
    except LedgerError:
        assert ledger is None
        return None
    if ledger is None:
        assert record.damage
        return None
    ledger.close()
    assert not record.damage
    return record.epsilon()


@pytest.mark.parametrize("reserve", [1, 2])
@pytest.mark.parametrize("which", ["head", pytest.param("log", marks=pytest.mark.slow)])
def test_a_flipped_bit_at_every_byte_is_refused_or_costs_no_less(path: Path, which: str, reserve: int) -> None:
    least = small_ledger(path, reserve=reserve)
    files = {path: path.read_bytes(), head_path(path): head_path(path).read_bytes()}
    damaged = path if which == "log" else head_path(path)
    outcomes = set()
    for offset in range(len(files[damaged])):
        flipped = bytearray(files[damaged])
        flipped[offset] ^= 1 << (offset % 8)
        put({**files, damaged: bytes(flipped)})
        cost = found(path)
        assert cost is None or cost >= least, offset
        outcomes.add("refused" if cost is None else "no less")
    # for the newest of the head's places the other one steps in; the older one is not damaged by a crash
    assert outcomes == ({"refused"} if which == "log" else {"refused", "no less"})


@pytest.mark.parametrize("reserve", [1, 2])
@pytest.mark.parametrize("which", ["head", pytest.param("log", marks=pytest.mark.slow)])
def test_a_file_cut_at_every_byte_is_refused_or_costs_no_less(path: Path, which: str, reserve: int) -> None:
    least = small_ledger(path, reserve=reserve)
    files = {path: path.read_bytes(), head_path(path): head_path(path).read_bytes()}
    damaged = path if which == "log" else head_path(path)
    for length in range(len(files[damaged])):
        put({**files, damaged: files[damaged][:length]})
        cost = found(path)
        assert cost is None or cost >= least, length
        assert cost is None or which == "head"


@pytest.mark.parametrize("reserve", [1, 2])
def test_a_write_that_was_torn_at_every_byte_counts_as_charged(path: Path, reserve: int) -> None:
    ledger = Ledger(plan_for(0.1, 9)(2.0), path=path, reserve=reserve)
    for step in range(3):
        before, head, least = path.read_bytes(), head_path(path).read_bytes(), inspect_ledger(path).epsilon()
        ledger.cover("training", step, {"batch": EVENT}, left=9 - step)
        ledger.charge(EVENT, stage="training", step=step, draw="batch")
    more, record = inspect_ledger(path).epsilon(), path.read_bytes()[len(before) :]
    ledger.close()
    for length in range(1, len(record)):
        put({path: before + record[:length], head_path(path): head})
        cost = found(path)
        assert cost is not None
        assert cost >= more > least
        assert found(path) == cost  # written down by the first resume, and not charged once more
        assert not read_journal(path).torn


@pytest.mark.parametrize("reserve", [1, 2])
def test_a_damaged_head_does_not_hide_a_cut(path: Path, reserve: int) -> None:
    small_ledger(path, reserve=reserve)
    log, head = path.read_bytes(), head_path(path).read_bytes()
    for offset in range(len(head)):
        flipped = bytearray(head)
        flipped[offset] ^= 1
        put({path: b"".join(log.splitlines(keepends=True)[:-1]), head_path(path): bytes(flipped)})
        assert found(path) is None, offset


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        b"[1]",
        b'{"note":"a","n":' + b"9" * 5000 + b"}",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_body_that_fits_its_digest_and_is_no_json_object_is_taken_for_an_unfinished_one(
    path: Path, body: bytes
) -> None:
    least = small_ledger(path)
    chain = read_journal(path)
    digest = hashlib.sha256(chain.digest.encode() + body).hexdigest()
    line = b"%08x %08x %s %s\n" % (len(body), zlib.crc32(body), digest.encode(), body)
    path.write_bytes(path.read_bytes() + line + line)
    cost = found(path)
    assert cost is not None
    assert cost > least


def test_a_record_on_disk_whose_head_was_not_written_counts(path: Path) -> None:
    small_ledger(path, steps=2)
    head = head_path(path).read_bytes()
    ledger = Ledger.resume(path)
    ledger.charge(EVENT, stage="training", step=2, draw="batch")
    cost = inspect_ledger(path).epsilon()
    ledger._journal.close()  # type: ignore[union-attr]
    head_path(path).write_bytes(head)
    assert found(path) == cost


@pytest.mark.parametrize("what", ["an older head", "another ledger", "no head", "two records more", "rewritten"])
def test_files_that_do_not_belong_together_are_refused(path: Path, tmp_path: Path, what: str) -> None:
    small_ledger(path, steps=1)
    early = head_path(path).read_bytes()
    path.unlink()
    head_path(path).unlink()
    small_ledger(path)
    if what in ("an older head", "two records more"):
        head_path(path).write_bytes(early)
    elif what == "another ledger":
        other = tmp_path / "other" / "ledger.log"
        other.parent.mkdir()
        small_ledger(other)
        path.write_bytes(other.read_bytes())
    elif what == "no head":
        head_path(path).unlink()
    else:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:2], *lines[3:], lines[2]]))
    assert found(path) is None


FAULTS: dict[str, tuple[str, int]] = {
    "no space to write": ("pwrite", errno.ENOSPC),
    "a device that fails to write": ("pwrite", errno.EIO),
    "no space at fsync": ("fdatasync", errno.ENOSPC),
    "a device that fails at fsync": ("fdatasync", errno.EIO),
}


@pytest.mark.parametrize("call", [0, 1], ids=["the record", "the head"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_fails_stops_the_run_and_loses_no_charge(
    path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, call: int
) -> None:
    function, code = FAULTS[fault]
    ledger = Ledger(plan_for(0.1, 9)(2.0), path=path)
    ledger.charge(EVENT, stage="training", step=0, draw="batch")
    spent = inspect_ledger(path).epsilon()
    real: Callable[..., int] = getattr(os, function)
    calls = [0]

    def failing(*arguments: object) -> int:
        calls[0] += 1
        if calls[0] <= call:
            return real(*arguments)
        if function == "pwrite":
            descriptor, data, offset = arguments
            real(descriptor, data[: len(data) // 2], offset)  # type: ignore[index, arg-type]  # what still fitted
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, function, failing)
    with pytest.raises(LedgerError, match=f"cannot be written: {os.strerror(code)}"):
        ledger.charge(EVENT, stage="training", step=1, draw="batch")
    monkeypatch.undo()
    assert ledger.count == 2  # ahead of what was released, never behind
    with pytest.raises(BudgetError, match="could not be written"):
        ledger.charge(EVENT, stage="training", step=2, draw="batch")
    ledger.close()
    cost = found(path)
    assert cost is not None
    assert cost >= spent


def test_short_writes_are_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: real(descriptor, data[:7], offset))
    least = small_ledger(path)
    monkeypatch.undo()
    assert found(path) == least


def test_a_second_writer_is_refused_at_once(path: Path) -> None:
    ledger = Ledger(plan_for(0.1, 9)(2.0), path=path)
    with pytest.raises(LedgerError, match="in use by another process"):
        Ledger.resume(path)
    ledger.close()
    Ledger.resume(path).close()


def _second_writer(path: Path, answers: multiprocessing.Queue[str]) -> None:
    try:
        Ledger.resume(path).close()
        answers.put("let in")
    except LedgerError as error:
        answers.put(str(error))


def test_a_second_process_is_refused_at_once(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[str] = context.Queue()
    ledger = Ledger(plan_for(0.1, 9)(2.0), path=path)
    process = context.Process(target=_second_writer, args=(path, answers))
    process.start()
    assert "in use by another process" in answers.get(timeout=60)
    process.join()
    ledger.close()


def test_a_forked_child_may_not_write(path: Path) -> None:
    ledger = Ledger(plan_for(0.1, 9)(2.0), path=path)
    child = os.fork()
    if child == 0:
        try:
            ledger.charge(EVENT, stage="training", step=0, draw="batch")
        except LedgerError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    ledger.charge(EVENT, stage="training", step=0, draw="batch")
    ledger.close()
    assert inspect_ledger(path).steps == 1


def test_a_forked_child_may_not_draw_what_its_parent_has_reserved(path: Path) -> None:
    ledger = Ledger(plan_for(0.1, 9)(2.0), path=path, reserve=8)
    ledger.cover("training", 0, {"batch": EVENT}, left=9)
    child = os.fork()
    if child == 0:
        try:
            ledger.charge(EVENT, stage="training", step=0, draw="batch")
        except LedgerError:
            ledger.close()
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert inspect_ledger(path).steps == 8  # nor give it back
    ledger.charge(EVENT, stage="training", step=0, draw="batch")
    ledger.close()
    assert inspect_ledger(path).steps == 1


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be written: No such file or directory"):
        Journal(tmp_path / "missing" / "ledger.log", new=True)


def test_the_files_are_the_owners_alone(path: Path) -> None:
    small_ledger(path)
    assert [file.stat().st_mode & 0o777 for file in (path, head_path(path))] == [0o600, 0o600]
