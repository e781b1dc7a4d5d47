"""The page itself: one HTML file with everything in it, that opens from disk and may make no request.

    style and scripts by their hashes, data as JSON that a script reads; its Content-Security-Policy allows no more

Trusted Types are required and none is allowed, so that no script can turn text into HTML even by mistake.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from functools import cache
from importlib import metadata, resources
from pathlib import Path

from adadpigu.durable import check_place, write_text, writing
from adadpigu.errors import check
from adadpigu.report.collecting import Collection, collect
from adadpigu.report.embedding import script_json

FILE = "report.html"
"""of a run folder"""
MARK = "<!doctype html>\n<!-- adadpigu report -->\n"
"""with which every page begins"""
UPLOT = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""SHA-256 of the files of uPlot 1.6.32 as npm has them"""
_SCRIPTS = ("elements.js", "charts.js", "table.js", "run.js", "page.js")


def policy(*, live: bool) -> str:
    """The Content-Security-Policy of a page: from disk nothing may be fetched, `live` its own server alone."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, (_library(), _script())))}",
            f"style-src {_hash(_style())}",
            "img-src data:",
            *(("connect-src 'self'",) if live else ()),
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def data_of(found: Collection) -> dict[str, object]:
    """What the page's script reads."""
    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return {"version": metadata.version("adadpigu"), "written": written, **found.to_json()}


def page(found: Collection, *, live: bool = False) -> str:
    """The whole page; `live` where it is served, and asks its server for what is new."""
    parts = {
        "POLICY": policy(live=live).replace("'", "&#39;"),
        "STYLE": _style(),
        "LIBRARY": _library(),
        "SCRIPT": _script(),
        "LIVE": "live" if live else "kept",
        "DATA": script_json(data_of(found)),
    }
    pieces = _asset("page.html").split("%%")  # every second one is a part's name: nothing is looked for in a part
    return MARK + "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def write_page(found: Collection, out: Path) -> int:
    """Writes a page and returns its size in bytes; only a page of ours is written over."""
    check_out(out)
    text = page(found)
    with writing(out):
        write_text(out, text)
    return len(text.encode("utf-8"))


def check_out(out: Path) -> None:
    """Refuses a place where a page cannot stand, or where something else does."""
    ours = "a new file, or an earlier report"
    check_place(
        out,
        {
            f"is a folder; allowed: {ours}": out.is_dir(),
            "is not the name of a page; allowed: one that ends in .html": out.suffix != ".html",
            f"cannot be written: {str(out.parent)!r} is no folder": not out.parent.is_dir(),
            f"is there and no file; allowed: {ours}": out.exists() and not out.is_file(),
            f"is there and no report; allowed: {ours}": out.is_file() and not _is_page(out),
        },
    )


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()


def write_run_page(folder: Path) -> Path:
    """Writes the page of one run into its folder: the last thing that `adadpigu train` does."""
    write_page(collect([folder]), folder / FILE)
    return folder / FILE


@cache
def _asset(name: str) -> str:
    return (resources.files("adadpigu.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """uPlot as it was published, under its licence."""
    for name, digest in UPLOT.items():
        found = (resources.files("adadpigu.report") / "assets" / "uplot" / name).read_bytes()
        published = hashlib.sha256(found).hexdigest() == digest
        check("asset", name, published, "is not the file of uPlot that was published; install adadpigu again")
    return f"/*\n{_asset('uplot/LICENSE')}*/\n{_asset('uplot/uPlot.iife.min.js')}"


@cache
def _script() -> str:
    return "\n".join(map(_asset, _SCRIPTS))


@cache
def _style() -> str:
    return _asset("uplot/uPlot.min.css") + "\n" + _asset("page.css")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"
