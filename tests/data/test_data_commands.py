"""`adadpigu data get` and `data list`: one JSON object or a few lines, and one line for every mistake."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tiny_published import digits_files, photo_files, put, tiny_digits, tiny_photos

from adadpigu.cli.app import run
from adadpigu.data.published import PUBLISHED
from adadpigu.data.sources import FetchProgress

pytest_plugins = ["closed_machine"]
pytestmark = pytest.mark.usefixtures("cache", "programs")


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tiny data sets, which stand in the place of the real ones."""
    monkeypatch.setitem(PUBLISHED, "mnist", tiny_digits(name="mnist"))
    monkeypatch.setitem(PUBLISHED, "cifar10", tiny_photos())
    monkeypatch.setitem(PUBLISHED, "fashion-mnist", tiny_digits(name="fashion-mnist"))
    return put(tmp_path / "given", digits_files() | photo_files())


def test_get_fetches_into_the_cache_and_says_so(given: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "get", "mnist", "--from", str(given)]) == 0
    out, err = capsys.readouterr()
    assert out == f"mnist: 0 MB, verified, in {cache / 'data' / 'mnist'}\n"
    assert f"mnist: trying the folder {given}" in err
    for name, payload in digits_files().items():
        assert (cache / "data" / "mnist" / name).read_bytes() == payload


def test_get_all_prints_one_json_object(given: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source in (f"the folder {given}", "cache"):
        assert run(["data", "get", "all", "--from", str(given), "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["datasets"]
        assert [row["name"] for row in rows] == ["mnist", "fashion-mnist", "photos"]
        assert [row["source"] for row in rows] == [source] * 3
        assert rows[0]["folder"] == str(cache / "data" / "mnist")
        assert rows[0]["bytes"] == sum(map(len, digits_files().values()))


def test_get_all_fetches_what_it_can_and_names_what_it_cannot(
    given: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (given / "train-labels-idx1-ubyte").unlink()
    assert run(["data", "get", "all", "--from", str(given), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    errors = [line for line in err.splitlines() if line.startswith("adadpigu: error: ")]
    assert len(errors) == 1
    assert "no source has mnist" in errors[0]
    assert "no source has photos" not in errors[0]
    assert len(list((cache / "data" / "photos").glob("*.bin"))) == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data", "get", "mnsit"], "unknown dataset 'mnsit'; did you mean 'mnist'? (known: all, cifar10, fas"),
        (["data", "get"], "Missing argument 'mnist|fashion-mnist|cifar10|all'"),
        (["data", "get", "mnist", "--from", "/no/such"], "--from '/no/such' is not there; allowed: a folder with the"),
        (["data", "gett"], "unknown command 'gett'; did you mean 'get'? (known: get, list, template)"),
        (["data"], "'adadpigu data' needs a command (known: get, list, template)"),
        (["dat"], "unknown command 'dat'; did you mean 'data'?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    given: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"adadpigu: error: {message}")
    assert err.count("\n") == 1


def test_a_mirror_that_is_no_address_is_one_line(
    given: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ADADPIGU_MIRROR", "mirror.example")
    assert run(["data", "get", "mnist"]) == 2
    wanted = "adadpigu: error: ADADPIGU_MIRROR='mirror.example' is no address; allowed: http://… or https://…\n"
    assert capsys.readouterr() == ("", wanted)


def test_list_tells_what_is_at_hand(given: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(cache / "data" / "mnist", digits_files())
    put(cache / "data" / "photos", photo_files() | {"test_batch.bin": b"cut"})
    assert run(["data", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["datasets"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "digits": "embedded",
        "mnist": "ready",
        "fashion-mnist": "absent",
        "photos": "damaged",
    }
    assert rows["mnist"]["records"] == 6
    assert rows["mnist"]["shape"] == [1, 28, 28]
    assert run(["data", "list"]) == 0
    out = capsys.readouterr().out
    for name, row in rows.items():
        assert any(line.split()[:2] == [name, row["state"]] for line in out.splitlines())


def test_an_interrupt_is_one_line_and_exit_code_130(
    given: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("adadpigu.data.fetching.read_cache", interrupted)
    assert run(["data", "get", "mnist"]) == 130
    assert capsys.readouterr().err == "adadpigu: error: interrupted: nothing half-written is left\n"


def test_a_bar_is_drawn_on_a_terminal_only() -> None:
    for terminal in (True, False):
        text = io.StringIO()
        watcher = FetchProgress(Console(file=text, force_terminal=terminal, width=100))
        with watcher.progress("train-images.gz", 2_000_000) as advance:
            advance(1_000_000)
        watcher.say("mnist: done [fine]")
        assert ("train-images.gz" in text.getvalue()) == terminal
        assert ("1.0/2.0 MB" in text.getvalue()) == terminal
        assert "mnist: done [fine]" in text.getvalue()
