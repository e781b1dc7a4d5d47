"""A page that grows while a run trains: served on loopback, to whoever knows its address, and to nobody else.

    GET /TOKEN/            the page
    GET /TOKEN/data.json   what it shows now; 304 where nothing has changed

Read-only. The token keeps other users of the machine out; the Host header is checked against DNS rebinding.
"""

import hashlib
import hmac
import secrets
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from adadpigu.errors import InputError
from adadpigu.report.audits import FOLDER as AUDITS
from adadpigu.report.collecting import Collection, entries, gather
from adadpigu.report.embedding import script_json
from adadpigu.report.page import data_of, page, policy
from adadpigu.report.run_reading import LEFT

HOST = "127.0.0.1"


class LiveCollection:
    """What is shown, read again where files have changed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._lock = Lock()
        self._stamp = self._now()  # before the look: what changes amid it is seen at the next one
        self._found = gather(paths)

    def refresh(self) -> tuple[str, Collection]:
        """What there is now, and a mark that is another one when that has changed."""
        with self._lock:
            stamp = self._now()
            if stamp != self._stamp:
                found = gather(self._paths)
                if not found.empty or self._found.empty:  # else nothing is there for now: what was last seen stays
                    self._found, self._stamp = found, stamp
            return self._stamp, self._found

    def _now(self) -> str:
        """Of all that a page would be made from now: a run that begins while others are watched is found too."""
        found = entries(self._paths)
        folders = [place for place in found if place.is_dir()]
        audits = [path for folder in folders for path in sorted((folder / AUDITS).glob("*.json"))]
        return fingerprint([*found, *(f / name for f in folders for name in LEFT), *audits])


def fingerprint(places: Sequence[Path]) -> str:
    """A short mark of when each place has changed last, and how long it is."""
    marks = []
    for place in places:
        try:
            stat = place.stat()
            marks.append(f"{place}:{stat.st_mtime_ns}:{stat.st_size}")
        except OSError:
            marks.append(f"{place}:-")
    return hashlib.sha256("\n".join(marks).encode("utf-8", "surrogateescape")).hexdigest()[:32]


class ReportServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, watched: LiveCollection, port: int = 0) -> None:
        self.watched = watched
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise InputError(f"port={port} cannot be used: {error.strerror}; allowed: one that is free, or 0") from None

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that leaves amid an answer is no error; anything else is told as servers do."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    timeout = 30  # of a request that never ends; each has a connection of its own, so that none outlives the server
    server_version, sys_version = "adadpigu", ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in [f"{name}:{self.server.server_port}" for name in (HOST, "localhost")]:
            self._answer(421, b"wrong host\n", "text/plain")
            return
        token, slash, rest = self.path.removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode(), self.server.token.encode())
        if not known or not slash or rest not in ("", "data.json"):
            self._answer(404, b"not found\n", "text/plain")
            return
        try:
            code, body, kind, stamp = self._made(data=bool(rest))
        except Exception as error:  # a folder that nobody thought of must not leave the browser without an answer
            words = f"the page cannot be made: {type(error).__name__}; `adadpigu report RUN` tells of which run\n"
            code, body, kind, stamp = 500, words.encode(), "text/plain", ""
        self._answer(code, body, kind, stamp)

    do_HEAD = do_GET  # noqa: N815  as http.server calls it

    def _made(self, *, data: bool) -> tuple[int, bytes, str, str]:
        """Status, body, kind and stamp of the page, or of what it shows now."""
        stamp, found = self.server.watched.refresh()
        if not data:
            return 200, page(found, live=True).encode(), "text/html; charset=utf-8", ""
        if self.headers.get("If-None-Match") == f'"{stamp}"':
            return 304, b"", "application/json", stamp
        return 200, script_json(data_of(found)).encode(), "application/json", stamp

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Another verb, or a request that cannot be read."""
        self._answer(405 if code == 501 else code, b"allowed: GET, HEAD\n", "text/plain")

    def _answer(self, code: int, body: bytes, kind: str, stamp: str = "") -> None:
        self.send_response(code)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", f"{policy(live=True)}; frame-ancestors 'none'"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        if stamp:
            self.send_header("ETag", f'"{stamp}"')
        if code == 405:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD" and code != 304:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: a log would hold the token."""
