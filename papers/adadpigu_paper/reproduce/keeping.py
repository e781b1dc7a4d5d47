"""Rows and drawings on disk: rows are appended as they come, so an interrupted measurement goes on where it was."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from adadpigu.durable import write_bytes, write_text
from adadpigu.errors import InputError
from adadpigu_paper.reproduce.artefact import STAMP, Artefact, Drawn, Scale
from adadpigu_paper.reproduce.crew import Crew
from adadpigu_paper.reproduce.jobs import Job, Row, key_of

DRAWINGS = "paper"
"""where tables and figures stand in the folder of results"""


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of JSON lines; what failed or was skipped is no result."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path} cannot be read: {reason}; `adadpigu reproduce` without --from measures") from None
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number} is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number} is {type(row).__name__}; allowed: one JSON object a line")
        if "failed" not in row and "skipped" not in row:
            rows.append(row)
    return rows


def rows_of(artefact: Artefact, folder: Path) -> list[Row]:
    """All rows that an artefact is drawn from."""
    further = sorted(path for pattern in artefact.beside for path in folder.glob(pattern))
    return [row for path in (folder / artefact.rows, *further) for row in read_rows(path)]


def append(path: Path, row: Row) -> None:
    """Adds a row and sees it safely to the disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"out={str(path)!r} cannot be written: {error.strerror}") from None


def measure(
    artefacts: Sequence[Artefact], scale: Scale, folder: Path, crew: Crew, progress: Callable[[int, int], None]
) -> list[Row]:
    """Measures what the folder does not hold yet, and returns the rows that failed or had no time left.

    The runs of all artefacts are one queue, in the order in which they are named, so that nobody waits in between.
    Those that depend on rows of others come after it.
    """
    mark = {"quick": True} if scale.quick else {}
    end = time.monotonic() + crew.begin_within
    first: list[tuple[Job, Path]] = []
    for artefact in artefacts:
        path = folder / artefact.rows
        kept = read_rows(path) if path.exists() else []
        _refuse_mixture(path, kept, scale)
        if artefact.jobs is not None:
            first += [(job, path) for job in artefact.jobs(scale)]
            continue
        assert artefact.compute is not None
        for row in [] if kept else artefact.compute(scale):
            append(path, row | mark)
    lost = _measure_missing(first, mark, crew, progress)
    for artefact in artefacts:
        path = folder / artefact.rows
        if artefact.then is not None and path.exists():
            crew = replace(crew, begin_within=max(0.0, end - time.monotonic()))
            later = [(job, path) for job in artefact.then(scale, read_rows(path))]
            lost += _measure_missing(later, mark, crew, progress)
    return lost


def _measure_missing(
    wanted: Sequence[tuple[Job, Path]], mark: Row, crew: Crew, progress: Callable[[int, int], None]
) -> list[Row]:
    """Runs the jobs that have no row in their file yet; returns the rows that failed or had no time left."""
    files = {path for _, path in wanted if path.exists()}
    there = {path: {_named(key_of(row)) for row in read_rows(path)} for path in files}
    todo = {name: (job, path) for job, path in wanted if (name := _named(job.key())) not in there.get(path, set())}
    known = len(wanted) - len(todo)
    lost: list[Row] = []
    progress(known, len(wanted))
    for count, row in enumerate(crew.run([job for job, _ in todo.values()]) if todo else (), start=1):
        if "failed" in row or "skipped" in row:
            lost.append(row)
        else:
            append(todo[_named(key_of(row))][1], row | mark)
        progress(known + count, len(wanted))
    return lost


def _named(key: Row) -> str:
    """A job's key as text: the same from the job and from its row in a file."""
    return json.dumps(key, sort_keys=True)


def _refuse_mixture(path: Path, kept: Sequence[Row], scale: Scale) -> None:
    """Rows of a quick measurement and of a full one must not be drawn together."""
    if any(bool(row.get("quick")) != scale.quick for row in kept):
        there, asked = ("a full", "a quick one") if scale.quick else ("a quick", "a full one")
        raise InputError(f"{path} holds rows of {there} measurement, {asked} is asked for; give another --out")


def write(name: str, drawn: Drawn, folder: Path) -> list[Path]:
    """A drawing's files: its table and its figures, each under the stamp where it shows un-noised values."""
    place = folder / DRAWINGS
    stamp = f"**{STAMP}.**\n\n" if drawn.exposed else ""
    try:
        place.mkdir(parents=True, exist_ok=True)
        written = [place / f"{name}.md"]
        write_text(written[0], stamp + drawn.markdown.rstrip("\n") + "\n")
        for file, text in drawn.texts.items():
            written.append(place / file)
            write_text(written[-1], stamp + text)
        for stem, figure in drawn.figures.items():
            if drawn.exposed:
                figure.text(0.99, 0.005, STAMP, ha="right", va="bottom", fontsize=7, color="#b00020")
            made = io.BytesIO()
            figure.savefig(made, dpi=150, format="png", metadata={"Software": None})
            written.append(place / f"{stem}.png")
            write_bytes(written[-1], made.getvalue())
    except OSError as error:
        raise InputError(f"out={str(folder)!r} cannot be written: {error.strerror}") from None
    return written


def tabled(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as markdown.

    >>> print(tabled(["ε", "σ"], [["4", "2.49"]]))
    | ε | σ |
    | --- | --- |
    | 4 | 2.49 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
