"""The cache: where it lies, and that a file in it is whole or absent."""

from __future__ import annotations

import errno
import multiprocessing
from pathlib import Path
from typing import BinaryIO

import pytest

from adadpigu.data.cache import atomic_write, cache_folder, locked
from adadpigu.errors import InputError


def test_the_own_variable_wins_over_xdg_and_xdg_over_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("ADADPIGU_DATA", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("ADADPIGU_DATA")
    assert cache_folder() == tmp_path / "xdg" / "adadpigu"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / "home" / ".cache" / "adadpigu"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home" / ".cache" / "adadpigu"


def test_a_written_file_holds_what_the_writer_wrote_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "file.bin"
    atomic_write(target, lambda file: file.write(b"first"))
    atomic_write(target, lambda file: file.write(b"second"))
    assert target.read_bytes() == b"second"
    assert list(target.parent.iterdir()) == [target]


def test_the_place_is_untouched_until_the_writer_has_finished(tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(b"old")

    def writer(file: BinaryIO) -> None:
        file.write(b"new")
        file.flush()
        assert target.read_bytes() == b"old"

    atomic_write(target, writer)
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no"), InputError("no")])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(b"old")

    def writer(file: BinaryIO) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(type(error)):
        atomic_write(target, writer)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_is_one_line_that_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    def writer(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        InputError, match=r"cache=.*file\.bin.* cannot be written: No space left.*ADADPIGU_DATA"
    ) as refusal:
        atomic_write(tmp_path / "file.bin", writer)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_line_that_names_it(tmp_path: Path) -> None:
    """A file stands where the folder should be: this refuses even the superuser, unlike a read-only mode."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=r"deep\.bin.* cannot be written: .*ADADPIGU_DATA"):
        atomic_write(tmp_path / "file" / "deep.bin", lambda file: file.write(b"x"))
    with (
        pytest.raises(InputError, match=r"\.lock.* cannot be written: .*ADADPIGU_DATA"),
        locked(tmp_path / "file" / ".lock"),
    ):
        pass


def test_a_written_file_has_the_mode_that_any_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_bytes(b"")
    atomic_write(tmp_path / "written", lambda file: file.write(b""))
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def _count(path: Path, times: int) -> None:
    for _ in range(times):
        with locked(path.with_suffix(".lock")):
            path.write_text(str(int(path.read_text()) + 1))  # loses counts unless one process at a time does it


@pytest.mark.slow
def test_one_process_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_count, args=(path, 200)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert path.read_text() == "800"


def test_whoever_finds_a_lock_held_says_so_before_waiting(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / ".lock"
    said: list[str] = []
    with path.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def waiting() -> None:
            said.append("waiting")
            fcntl.flock(held, fcntl.LOCK_UN)

        with locked(path, waiting=waiting):
            assert said == ["waiting"]
    with locked(path, waiting=lambda: said.append("again")):
        pass
    assert said == ["waiting"]
    assert path.stat().st_size == 0
