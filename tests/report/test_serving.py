"""A page is served to the browser of whoever started it: on loopback, by one secret address, read-only."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from adadpigu.errors import InputError
from adadpigu.report.page import page, policy
from adadpigu.report.serving import LiveCollection, ReportServer
from run_folders import trained


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("kept") / "run")


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "runs" / "one"))


@pytest.fixture
def server(run: Path) -> Iterator[ReportServer]:
    with ReportServer(LiveCollection([run.parent])) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(
    server: ReportServer, path: str = "", verb: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    """One request for a path behind the token, or for any that begins with a slash."""
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        place = path if path.startswith("/") else f"/{server.token}/{path}"
        link.request(verb, place, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = link.getresponse()
        return answer, answer.read()
    finally:
        link.close()


def test_it_listens_on_loopback_alone(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.socket.family == socket.AF_INET


def test_page_and_data_are_served_with_headers_that_keep_them_in(server: ReportServer) -> None:
    for path, kind in (("", "text/html; charset=utf-8"), ("data.json", "application/json")):
        answer, body = ask(server, path)
        assert answer.status == 200
        assert answer.getheader("Content-Type") == kind
        assert answer.getheader("Content-Security-Policy") == f"{policy(live=True)}; frame-ancestors 'none'"
        assert answer.getheader("Cache-Control") == "no-store"
        assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
        assert answer.getheader("Access-Control-Allow-Origin") is None
        assert len(body) == int(answer.getheader("Content-Length") or -1)
        head, nothing = ask(server, path, "HEAD")
        assert (head.status, nothing) == (200, b"")
    assert [found["name"] for found in json.loads(body)["runs"]] == ["one"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "[::1]:{port}"]
)
def test_a_name_that_leads_here_from_elsewhere_gets_nothing(server: ReportServer, host: str) -> None:
    answer, body = ask(server, Host=host.format(port=server.server_port))
    assert answer.status == 421
    assert body == b"wrong host\n"


def test_it_goes_by_its_usual_names(server: ReportServer) -> None:
    for name in ("127.0.0.1", "localhost"):
        assert ask(server, Host=f"{name}:{server.server_port}")[0].status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/data.json",
        "/wrong/",
        "/wrong/data.json",
        "summary.json",
        "../summary.json",
        "data.json?x",
        "%64ata.json",
        "x/",
    ],
)
def test_no_other_place_is_served(server: ReportServer, path: str) -> None:
    assert ask(server, path)[0].status == 404


def test_the_address_cannot_be_guessed(run: Path) -> None:
    tokens = set()
    for _ in range(3):
        with ReportServer(LiveCollection([run])) as made:
            tokens.add(made.token)
            assert made.token in made.url
    assert len(tokens) == 3
    assert all(len(token) >= 32 for token in tokens)


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "NONSENSE"])
def test_other_verbs_are_refused(server: ReportServer, verb: str) -> None:
    answer, body = ask(server, verb=verb)
    assert answer.status == 405
    assert answer.getheader("Allow") == "GET, HEAD"
    assert server.token.encode() not in body


def test_nothing_is_sent_again_until_something_has_changed(server: ReportServer, run: Path) -> None:
    first, body = ask(server, "data.json")
    tag = first.getheader("ETag") or ""
    same, nothing = ask(server, "data.json", If_None_Match=tag)
    assert (same.status, nothing) == (304, b"")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    other, changed = ask(server, "data.json", If_None_Match=tag)
    assert other.status == 200
    assert other.getheader("ETag") != tag
    assert body != changed


def test_a_run_that_begins_while_others_are_watched_is_found(server: ReportServer, run: Path) -> None:
    beside = run.parent / "two"
    beside.mkdir()
    assert len(json.loads(ask(server, "data.json")[1])["runs"]) == 1
    for name in ("config.toml", "metrics.jsonl"):
        shutil.copy(run / name, beside)
    assert [found["name"] for found in json.loads(ask(server, "data.json")[1])["runs"]] == ["one", "two"]


def test_what_was_seen_last_stays_while_nothing_is_there(server: ReportServer, run: Path) -> None:
    before = json.loads(ask(server, "data.json")[1])["runs"]
    run.rename(run.parent.parent / "away")
    assert json.loads(ask(server, "data.json")[1])["runs"] == before


def test_an_audit_that_is_written_over_is_seen(server: ReportServer, run: Path) -> None:
    audit = {
        **{"audit": "a", "subject": "s", "epsilon_claimed": 1.0, "epsilon_lower": 0.0, "epsilon_lower_certain": 0.0},
        **{"delta": 1e-5, "confidence": 0.95, "observations": 10, "passed": True, "epsilon_reach": 2.0},
    }
    (run / "audits").mkdir()
    for refuted in (False, True):
        shown = {"epsilon_lower": 5.0, "epsilon_lower_certain": 5.0, "passed": False} if refuted else {}
        with (run / "audits" / "a.json").open("w") as file:
            json.dump(audit | shown, file)
        (found,) = json.loads(ask(server, "data.json")[1])["runs"]
        assert [audit["passed"] for audit in found["audits"]] == [not refuted]


def test_a_folder_that_is_empty_or_not_there_yet_is_watched_until_a_run_begins(kept: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "empty", tmp_path / "not" / "yet"):
        if place.name == "empty":
            place.mkdir()
        watched = LiveCollection([place])
        stamp, found = watched.refresh()
        assert found.empty
        assert page(found, live=True)
        shutil.copytree(kept, place / "run")
        later, found = watched.refresh()
        assert later != stamp
        assert [run.name for run in found.runs] == ["run"]


@pytest.mark.parametrize("path", ["", "data.json"])
def test_what_nobody_thought_of_is_an_answer_that_says_so(
    server: ReportServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("secret words")

    monkeypatch.setattr(server.watched, "refresh", fail)
    answer, body = ask(server, path)
    assert answer.status == 500
    assert body.startswith(b"the page cannot be made: ZeroDivisionError")
    assert b"secret" not in body


def test_a_port_that_is_taken_is_told_in_one_line(server: ReportServer, run: Path) -> None:
    with pytest.raises(InputError, match=f"port={server.server_port} cannot be used: .*; allowed: one that is free"):
        ReportServer(LiveCollection([run]), server.server_port)


def test_neither_requests_nor_browsers_that_leave_are_logged(
    server: ReportServer, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    ask(server)
    with socket.create_connection(("127.0.0.1", server.server_port)) as link:
        link.sendall(b"GET / nonsense\r\n\r\n")
        assert link.recv(100)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
