"""What a terminal gets and a file does not: colour, moving bars; and tables that fit 80 columns wherever they are."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from adadpigu.console import count_progress, print_prose, table

ESCAPE = b"\x1b"
STYLE = re.compile(rb"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MODES: dict[str, dict[str, str]] = {"colour": {}, "plain": {"NO_COLOR": "1"}, "dumb": {"TERM": "dumb"}}
SESSION = """
import json, os, sys
from adadpigu.cli.app import run
train = ["train", "--steps", "40", "--evaluate-every", "10", "--delta", "0.01", "--out"]
for mode, environment in json.loads(sys.argv[1]).items():
    os.environ.update(environment)
    codes = [run(["methods"]), run(["calibrate", "-e", "2", "-q", "0.1", "-T", "50"])]
    print(f"codes {codes + [run([*train, mode]), run(['nothing'])]} END", flush=True)
"""
"""tables, a search, a run with a warning, and an error; one mode after the other, since a start takes seconds"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the session writes to a terminal of 80 columns, by mode."""
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    removed = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    process = subprocess.Popen(
        [sys.executable, "-c", SESSION, json.dumps(MODES)],
        cwd=tmp_path_factory.mktemp("terminal"),
        stdin=end,
        stdout=end,
        stderr=end,
        env={**kept, "TERM": "xterm-256color"},
    )
    os.close(end)
    written = b""
    try:
        while block := os.read(main, 1 << 16):
            written += block
    except OSError:  # how Linux says that the other end is closed
        pass
    finally:
        os.close(main)
    assert process.wait() == 0
    *sessions, rest = written.split(b"codes [0, 0, 0, 2] END")
    assert len(sessions) == len(MODES), written[-2000:].decode()
    assert rest.strip() == b""
    return dict(zip(MODES, sessions, strict=True))


def lines_of(written: bytes) -> list[str]:
    """The lines as they stood there, one after the other."""
    return re.split(r"[\r\n]+", CONTROL.sub("", written.decode()))


def test_a_terminal_gets_colour_and_bars_with_the_time_left_in_80_columns(seen: dict[str, bytes]) -> None:
    written = seen["colour"]
    assert b"\x1b[33mwarning:" in written
    assert b"\x1b[1mmethod" in written
    lines = lines_of(written)
    bars = [line for line in lines if "━" in line]
    assert any("looking for σ" in line for line in bars)
    training = [line for line in bars if "ε " in line]
    assert any(re.search(r"\d:\d\d left$", line.strip()) for line in training), training
    methods = [line for line in lines if line.startswith(("method ", "adaclip ", "dpsgd "))]
    assert len(methods) == 3
    assert max(map(cell_len, [*bars, *methods[:3]])) <= 80


def test_no_color_is_heeded_on_a_terminal_and_bars_still_move(seen: dict[str, bytes]) -> None:
    assert STYLE.findall(seen["plain"]) == []
    assert any("left" in line for line in lines_of(seen["plain"]) if "━" in line)


def test_a_terminal_that_can_only_print_gets_lines_and_no_escape(seen: dict[str, bytes]) -> None:
    assert ESCAPE not in seen["dumb"]
    assert "━" not in seen["dumb"].decode()
    assert "step 40/40" in seen["dumb"].decode()


LONG = "a-name-that-somebody-has-made-far-longer-than-eighty-columns-" * 2


def long_runs(call: Any) -> None:
    """A run and a shared ledger whose names are as long as names get."""
    assert call("train", "--steps", "6", "--out", LONG)[0] == 0
    shared = ["ledger", "create", "all.log", "--epsilon", "9", "--dataset", "digits", "--records", "1437"]
    assert call(*shared)[0] == 0
    assert call("train", "--steps", "6", "--epsilon", "1", "--ledger", "all.log", "--out", f"{LONG}-2")[0] == 0


def test_a_pipe_gets_tables_of_80_columns_and_no_escape(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in (
        ["methods"],
        ["models"],
        ["presets"],
        ["data", "list"],
        ["account", "-s", "1", "-q", "0.1", "-T", "5"],
        ["calibrate", "-e", "2", "-q", "0.1", "-T", "50"],
        ["bench", "--counts", "--suite", "all"],
    ):
        code, out, err = call(*command)
        assert code == 0, err
        assert "\x1b" not in out + err
        assert [line for line in out.splitlines() if cell_len(line) > 80] == [], command


def test_tables_of_runs_fit_80_columns_however_long_their_names(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are not broken, so that they can be copied; rows of tables are told by their gaps."""
    monkeypatch.setenv("COLUMNS", "80")
    shared = ["ledger", "create", "all.log", "--epsilon", "9", "--dataset", "digits", "--records", "1437"]
    assert call(*shared)[0] == 0
    for command in (
        ["train", "--steps", "6", "--epsilon", "1", "--ledger", "all.log", "--delta", "0.01", "--out", LONG],
        ["ledger", "show", LONG],
        ["ledger", "show", "all.log"],
        ["audit", "replay", LONG],
    ):
        code, out, err = call(*command)
        assert code == 0, err
        assert "\x1b" not in out + err
        rows = [line for line in out.splitlines() if re.search(r"\S {2,}\S", line) and not line.startswith("  ")]
        assert len(rows) > 1
        assert [line for line in rows if cell_len(line) > 80] == [], command


def test_what_a_run_its_ledger_and_its_audit_say_fits_80_columns(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command, said in (
        (["train", "--steps", "6", "--out", "run"], "per-record gradients: layer rules"),
        (["ledger", "verify", "run"], "\ndigest "),
        (["ledger", "show", "run"], "\ndigest "),
        (["audit", "replay", "run"], "Assumed"),
    ):
        code, out, err = call(*command)
        assert code == 0, err
        assert said in out + err
        assert [line for line in (out + err).splitlines() if cell_len(line) > 80] == [], command


def test_prose_breaks_between_words_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    text = f"a claim of ε = 3.995 [/at] δ = 1e-05 :smile: in {LONG} and " + "more words " * 20
    print_prose(text, Console(file=screen, width=30), indent="  ")
    lines = screen.getvalue().splitlines()
    assert screen.getvalue().split() == text.split()
    assert [line for line in lines if cell_len(line) > 30] == [f"    {LONG}"]
    assert any("ε = 3.995" in line for line in lines)
    assert any("δ = 1e-05" in line for line in lines)


def test_a_warning_is_told_once_however_often_it_comes(call: Any) -> None:
    """Of a δ that is too large: at the start, at the end and in the statement."""
    code, _, err = call("train", "--method", "dpsgd", "--steps", "20", "--delta", "0.5", "--out", "run")
    assert code == 0
    assert err.count("is not below 1/records") == 1


def test_a_cell_that_is_too_long_goes_on_below() -> None:
    screen = io.StringIO()
    Console(file=screen, width=80).print(
        table(["run", "ε", "state"], [[LONG, "2.5", "ended"], ["short", "1", "began"]])
    )
    lines = screen.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= 80
    first = "".join(line.split("  ")[0].strip() for line in lines[1:] if not line.startswith("short"))
    assert first == LONG
    assert "2.5" in lines[1]
    assert "ended" in lines[1]


def test_a_line_tells_the_time_left_at_the_pace_since_the_first_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there before took no time: 10 of 40 in 20 s leave 60 s for the other 30."""
    now = [100.0]
    monkeypatch.setattr("adadpigu.console.time", SimpleNamespace(monotonic=lambda: now[0]))
    screen = io.StringIO()
    with count_progress(Console(file=screen, width=80), "runs [of a test]") as report:
        for after, done in ((0, 60), (5, 63), (15, 70)):
            now[0] += after
            report(done, 100)
    assert screen.getvalue() == "  runs [of a test]: 70 of 100, about 1:00 left\n"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_bar_stays_in_one_line_of_any_terminal(width: int) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=width, color_system=None)
    with count_progress(console, f"noise: {LONG}") as report:
        for done in range(0, 10**7, 10**6):
            report(done, 10**7)
        report.name("and another")
    lines = lines_of(screen.getvalue().encode())
    assert any("10000000" in line for line in lines)
    assert max(map(cell_len, lines)) <= width


def test_the_bench_knows_how_many_stages_there_are() -> None:
    from adadpigu_bench.command import _stages
    from adadpigu_bench.contestants import contestants
    from adadpigu_bench.run import BenchOptions

    options = BenchOptions(nets=("mnist-cnn",), batches=(8, 16), engines=("ghost",), peers=(), rounds=3, device="cpu")
    entered = contestants(options.methods, options.engines, options.peers, "cpu")
    assert _stages(options) == 2 * len(entered) * (1 + 1 + 3)
