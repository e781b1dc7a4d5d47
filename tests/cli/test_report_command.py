"""`adadpigu report`: one page from runs and results, one line for each thing that is wrong, a server until Ctrl-C."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from run_folders import trained

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "one")


@pytest.mark.slow
def test_a_run_gets_its_page_in_its_folder(call: Call, run: Path) -> None:
    (run / "report.html").unlink()
    code, out, err = call("report", str(run))
    assert (code, err) == (0, "")
    size = (run / "report.html").stat().st_size
    assert out == f"{run / 'report.html'}: 1 run; {size:,} bytes\n"


def test_several_runs_share_a_page_where_one_stands_or_where_it_is_asked_for(call: Call, run: Path) -> None:
    shutil.copytree(run, run.parent / "two", dirs_exist_ok=True)
    assert call("report", str(run.parent))[0] == 0
    assert Path("report.html").is_file()
    for flag in ("--out", "--output"):
        code, out, _ = call("report", str(run), str(run.parent / "two"), flag, "both.html", "--json")
        assert code == 0
        told = json.loads(out)
        assert (told["out"], told["runs"], told["left_out"]) == ("both.html", 2, [])
        assert Path("both.html").stat().st_size == told["bytes"]
        Path("both.html").unlink()


def test_a_name_that_would_write_on_the_terminal_is_spelled_out(call: Call, run: Path, tmp_path: Path) -> None:
    odd = Path(shutil.copytree(run, tmp_path / "esc\x1b]0;taken\x07"))
    code, out, err = call("report", str(odd))
    assert (code, err) == (0, "")
    assert "esc\\x1b]0;taken\\x07" in out
    assert out.count("\n") == 1
    assert "\x1b" not in out
    assert (odd / "report.html").is_file()


def test_files_of_no_known_kind_are_counted_and_not_shown(call: Call, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "all" / "run")
    (tmp_path / "all" / "records.jsonl").write_text('{"patient": "Ann Example"}\n')
    code, _, err = call("report", str(tmp_path / "all"), "--out", "page.html")
    assert code == 0
    assert err == "passed over: 1 file of no known kind; name a file to show it as a table\n"
    assert "Ann Example" not in Path("page.html").read_text()


def test_what_is_left_out_is_told_in_a_line_and_by_the_exit_code(call: Call, run: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(run, tmp_path / "broken\x1b[31m"))
    (broken / "metrics.jsonl").write_text("{\n")
    code, out, err = call("report", str(run), str(broken), "--out", "page.html")
    assert code == 1
    assert "2 runs" in out
    (line,) = err.splitlines()
    assert line.startswith("left out: ")
    assert "metrics.jsonl, line 1" in line
    assert "\x1b" not in out + err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none"], "run='none' does not exist; allowed: run folders, folders of them, results/"),
        (["none"], "`adadpigu train --out FOLDER` makes a run"),
        (["."], "no run, result or audit there; `adadpigu train --out FOLDER` makes a run (nothing can be shown)"),
        (["RUN", "--out", "page.pdf"], "out='page.pdf' is not the name of a page; allowed: one that ends in .html"),
        ([], "Missing argument 'RUN'"),
        (["RUN", "--out", "."], "out='.' is a folder; allowed: a new file, or an earlier report"),
        (["RUN", "--out", "none/page.html"], "'none' is no folder"),
        (["RUN", "--port", "80"], "port=80: does nothing without --watch"),
        (["RUN", "--watch", "--out", "x.html"], "out='x.html': a page that --watch serves"),
        (["RUN", "--watch", "--port", "70000"], "port=70000: allowed: 0 to 65535"),
        (["RUN/summary.json"], "cannot be shown; allowed: audits, or an object with a list of rows"),
        (["RUN/config.toml"], "cannot be shown; allowed: .jsonl of results, .json of audits"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(call: Call, run: Path, arguments: list[str], words: str) -> None:
    code, out, err = call("report", *(argument.replace("RUN", str(run)) for argument in arguments))
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_file_that_is_no_report_is_not_written_over(call: Call, run: Path) -> None:
    Path("notes.html").write_text("mine")
    code, _, err = call("report", str(run), "--out", "notes.html")
    assert code == 2
    assert "is there and no report" in err
    assert Path("notes.html").read_text() == "mine"


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is born deaf to it
from adadpigu.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_watching_serves_the_page_until_it_is_interrupted(run: Path) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "report", "--watch", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert watching.stdout is not None
        url = watching.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert b"<!-- adadpigu report -->" in answer.read()
        assert watching.stdout.readline() == "Open it on this machine; Ctrl-C ends it.\n"
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=60)
    finally:
        watching.kill()
        watching.communicate()
    assert watching.returncode == 0
    assert out == ""
    assert err == "ended: the page is served no longer\n"
