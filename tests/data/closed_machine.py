"""A machine that reaches nothing: a cache of its own, no client but those that a test installs, a loopback server.

A plugin for the modules that name it. PYTEST_DONT_REWRITE: it asserts nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder; not yet there."""
    monkeypatch.setenv("ADADPIGU_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("ADADPIGU_MIRROR", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path, empty: no client is installed, and pip is no module of a Python there either."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setitem(sys.modules, "pip", None)
    return folder


@pytest.fixture
def client(programs: Path) -> Callable[[str, str], Path]:
    """Puts a program on the path, a shell script that first notes its arguments; returns where it notes them."""

    def install(name: str, script: str) -> Path:
        noted = programs.parent / f"{name}.said"
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "$@" >> "{noted}"\n{script}\n')
        program.chmod(0o755)
        return noted

    return install


@dataclass
class Server:
    """Files over HTTP, with what was asked for."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    """where a path is redirected to"""
    promised: str | None = None
    """what is said of a file's length, if not the truth"""
    asked: list[str] = field(default_factory=list)
    cut: int | None = None
    """bytes after which an answer breaks off"""
    before: Callable[[], object] = lambda: None


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            state.before()
            if self.path in state.moved:
                self.send_response(302)
                self.send_header("Location", state.moved[self.path])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            payload = state.files.get(self.path)
            if payload is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", state.promised or str(len(payload)))
            self.end_headers()
            self.wfile.write(payload[: state.cut])

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield state
    listening.shutdown()
    listening.server_close()
    thread.join()
