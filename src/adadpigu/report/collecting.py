"""What a report is asked to show: run folders, results and audits, found in the folders and files that are named.

A folder of a run is one entry. Any other folder is searched, links not followed, for run folders, results, audits and
tables of ours; a file of another kind may hold records, and is shown only where it is named itself. What cannot be
shown is told in one line and costs the others nothing.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adadpigu.errors import InputError, require
from adadpigu.report.audits import StoredAudit, audit_of, is_audit
from adadpigu.report.embedding import listed
from adadpigu.report.results import MOST_RESULTS, is_own, read_results, refuse_unnoised, table_of
from adadpigu.report.run_reading import DIAGNOSTICS, is_run_folder, read_run
from adadpigu.report.shown_run import ShownRun
from adadpigu.runs.reading import Fields, fields_of, text_of

MOST_RUNS = 5000  # on one page
DEEPEST = 4  # folders within a folder that is searched
MOST_POINTS = 200_000  # of all lines on one page, which keeps it under 5 MB
FEWEST, ENOUGH = 24, 2000  # points of one line: at least, and at most


@dataclass
class Collection:
    runs: list[ShownRun] = field(default_factory=list)
    audits: list[StoredAudit] = field(default_factory=list)  # that belong to no run folder
    tables: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # a line for each thing that cannot be shown
    passed_over: int = 0  # files in the folders that were searched, of no known kind

    @property
    def empty(self) -> bool:
        return not (self.runs or self.audits or self.tables)

    def to_json(self) -> dict[str, object]:
        """For the page; long lines are thinned so that all of them together have a bounded number of points."""
        most = max(FEWEST, min(ENOUGH, MOST_POINTS // max(1, sum(run.curves.count for run in self.runs))))
        return {
            "runs": [run.to_json(most) for run in self.runs],
            "audits": [audit.to_json() for audit in self.audits],
            "tables": self.tables,
            "left_out": listed(self.left_out),
        }


def collect(paths: Sequence[Path]) -> Collection:
    """All that the given folders and files hold. Refused where one is not there, or where nothing can be shown."""
    for path in paths:
        remedy = "run folders, folders of them, results/ (`adadpigu train --out FOLDER` makes a run)"
        require(path.exists(), f"run={str(path)!r} does not exist; allowed: {remedy}")
    found = gather(paths)
    none = f"{', '.join(map(str, paths))}: no run, result or audit there; `adadpigu train --out FOLDER` makes a run"
    require(not found.empty, f"{found.left_out[0] if found.left_out else none} (nothing can be shown)")
    return found


def gather(paths: Sequence[Path]) -> Collection:
    """All that the given folders and files hold now, which may be nothing."""
    found, named = Collection(), set(paths)
    for entry in entries(paths):
        if len(found.runs) >= MOST_RUNS:
            found.left_out.append(f"{entry} and what comes after it: a page has at most {MOST_RUNS} runs")
            break
        try:
            _add(found, entry, named=entry in named)
        except InputError as error:
            found.left_out.append(str(error))
    return found


def entries(paths: Sequence[Path]) -> list[Path]:
    """The run folders and files that a page of these paths is made from, each once."""
    return list(dict.fromkeys(entry for path in paths for entry in _entries(path)))


def _entries(path: Path) -> Iterator[Path]:
    """The run folders and files at or below a path, in order of name."""
    if path.is_file():
        yield path
    for place, folders, files in os.walk(path):
        here = Path(place)
        if is_run_folder(here):
            folders.clear()
            yield here
            continue
        deep = len(here.relative_to(path).parts) >= DEEPEST
        folders[:] = [] if deep else sorted(folder for folder in folders if not folder.startswith("."))
        yield from (here / file for file in sorted(files) if file.endswith((".jsonl", ".json")))


def _add(found: Collection, path: Path, *, named: bool) -> None:
    if path.name == DIAGNOSTICS:
        raise InputError(f"file={str(path)!r} holds un-noised values, which no page shows; allowed: its run folder")
    if path.is_dir():
        run = read_run(path)
        found.runs.append(run)
        found.left_out += run.missing
    elif path.suffix == ".jsonl":
        results = read_results(path, named=named, most=MOST_RUNS - len(found.runs))
        if results is None:
            found.passed_over += 1
            return
        runs, table, odd = results
        found.runs += runs
        found.tables += [] if table is None else [table]
        found.left_out += odd
    elif path.suffix == ".json":
        _add_json(found, path, named=named)
    else:
        raise InputError(f"file={str(path)!r} cannot be shown; allowed: .jsonl of results, .json of audits")


def _add_json(found: Collection, path: Path, *, named: bool) -> None:
    """An audit, a list of them, or another object's first list of rows, such as a benchmark's."""
    stored = fields_of(text_of(path.parent, path.name, MOST_RESULTS), f"file={str(path)!r}")
    lists = (value for value in stored.values.values() if isinstance(value, list) and value)
    first = next((found for found in lists if all(isinstance(row, dict) for row in found)), [])
    rows = [Fields(row, stored.where) for row in first]
    if is_audit(stored):
        found.audits.append(audit_of(stored, path.name))
    elif rows and all(map(is_audit, rows)):
        found.audits += [audit_of(row, path.name) for row in rows]
    elif rows and (named or all(map(is_own, rows))):
        for row in rows:
            refuse_unnoised(row)
        found.tables.append(table_of(path.stem, rows))
    elif named:
        raise InputError(f"{stored.where} cannot be shown; allowed: audits, or an object with a list of rows")
    else:
        found.passed_over += 1
