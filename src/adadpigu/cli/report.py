"""`adadpigu report`: runs, results and audits as one HTML page, written to a file or served while a run trains."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from adadpigu.cli.commands import Json
from adadpigu.console import notes, print_json, print_line
from adadpigu.errors import check
from adadpigu.report.collecting import Collection, collect
from adadpigu.report.embedding import listed, visible
from adadpigu.report.page import FILE, check_out, write_page
from adadpigu.report.run_reading import is_run_folder
from adadpigu.report.serving import LiveCollection, ReportServer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, folders of them, results/, audits.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "--output", metavar="FILE", help="The page. [RUN/report.html; of several, report.html]"),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve it on this machine instead, and update it while a run trains.")
    ] = False,
    port: Annotated[int | None, typer.Option(help="With --watch: where it is served. [any that is free]")] = None,
    as_json: Json = False,
) -> int:
    """Shows runs, results and audits on one HTML page. Exits 1 where something was left out.

    The page opens from disk and makes no request.
    """
    if watch:
        check("out", repr(str(out)), out is None, "a page that --watch serves is not written; give one of them")
        return _serve(runs, port, as_json)
    check("port", port, port is None, "does nothing without --watch")
    place = out or (runs[0] / FILE if len(runs) == 1 and is_run_folder(runs[0]) else Path(FILE))
    check_out(place)
    found = collect(runs)
    size = write_page(found, place)
    if as_json:
        print_json({"out": str(place), "bytes": size, **_counts(found), "left_out": found.left_out})
    else:
        there = {what: count for what, count in _counts(found).items() if count}
        counts = ", ".join(f"{count} {what if count > 1 else what[:-1]}" for what, count in there.items())
        print_line(f"{visible(str(place))}: {counts}; {size:,} bytes")
        _print_missing(found)
    return 1 if found.left_out else 0


def _counts(found: Collection) -> dict[str, int]:
    audits = len(found.audits) + sum(len(run.audits) for run in found.runs)
    return {"runs": len(found.runs), "audits": audits, "tables": len(found.tables)}


def _print_missing(found: Collection) -> None:
    for line in listed(found.left_out, visible):
        print_line(f"left out: {line}", notes())
    if found.passed_over:
        files = "1 file" if found.passed_over == 1 else f"{found.passed_over:,} files"
        print_line(f"passed over: {files} of no known kind; name a file to show it as a table", notes())


def _serve(runs: list[Path], port: int | None, as_json: bool) -> int:
    check("port", port, 0 <= (port or 0) <= 65535, "allowed: 0 to 65535, 0 for any that is free")
    watched = LiveCollection(runs)
    with ReportServer(watched, port or 0) as server:
        if as_json:
            print_json({"url": server.url})
        else:
            found = watched.refresh()[1]
            _print_missing(found)
            if found.empty:
                print_line("no run yet: the page fills by itself when one begins there", notes())
            print_line(f"{server.url}\nOpen it on this machine; Ctrl-C ends it.")
        sys.stdout.flush()  # whoever reads it through a pipe waits for the address
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            notes().print("ended: the page is served no longer")
    return 0
