"""The page itself: one HTML file with everything in it, that opens from disk and may make no request.

    style and scripts by their hashes, data as JSON that a script reads; its Content-Security-Policy allows no more

Trusted Types are required and none is allowed, so that no script can turn text into HTML even by mistake.
"""

import base64
import hashlib
from datetime import UTC, datetime
from functools import cache
from importlib import metadata, resources
from pathlib import Path

from adadpigu.durable import check_place, write_text, writing
from adadpigu.report.collecting import Collection, collect
from adadpigu.report.embedding import script_json

FILE = "report.html"  # of a run folder
MARK = "<!doctype html>\n<!-- adadpigu report -->\n"  # with which every page begins


def policy(*, live: bool) -> str:
    """The Content-Security-Policy of a page: from disk nothing may be fetched, `live` its own server alone."""
    hashes, own = {name: _hash(text) for name, text in _assets().items()}, " connect-src 'self';" if live else ""
    return (
        f"default-src 'none'; script-src {hashes['LIBRARY']} {hashes['SCRIPT']}; style-src {hashes['STYLE']}; "
        f"img-src data:;{own} base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )


def data_of(found: Collection) -> dict[str, object]:
    """What the page's script reads."""
    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return {"version": metadata.version("adadpigu"), "written": written, **found.to_json()}


def page(found: Collection, *, live: bool = False) -> str:
    """The whole page; `live` where it is served, and asks its server for what is new."""
    parts = {
        **_assets(),
        "POLICY": policy(live=live).replace("'", "&#39;"),
        "LIVE": "live" if live else "kept",
        "DATA": script_json(data_of(found)),
    }
    pieces = _assets()["PAGE"].split("%%")  # every second one is a part's name: nothing is looked for in a part
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
    problems = {
        f"is a folder; allowed: {ours}": out.is_dir(),
        "is not the name of a page; allowed: one that ends in .html": out.suffix != ".html",
        f"cannot be written: {str(out.parent)!r} is no folder": not out.parent.is_dir(),
        f"is there and no file; allowed: {ours}": out.exists() and not out.is_file(),
        f"is there and no report; allowed: {ours}": out.is_file() and not _is_page(out),
    }
    check_place(out, problems)


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()


def write_run_page(folder: Path) -> Path:
    """Writes the page of one run into its folder: the last thing that `adadpigu train` does."""
    write_page(collect([folder]), folder / FILE)
    return folder / FILE


@cache
def _assets() -> dict[str, str]:
    """What every page is made of; uPlot stands in it as it was published, under its licence."""
    folder = resources.files("adadpigu.report") / "assets"

    def read(*names: str) -> str:
        return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)

    return {
        "PAGE": read("page.html"),
        "STYLE": read("uplot/uPlot.min.css", "page.css"),
        "LIBRARY": f"/*\n{read('uplot/LICENSE')}*/\n{read('uplot/uPlot.iife.min.js')}",
        "SCRIPT": read("elements.js", "charts.js", "table.js", "run.js", "page.js"),
    }


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"
