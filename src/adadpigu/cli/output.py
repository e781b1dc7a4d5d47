"""Where the command line writes: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
"""the option that every command takes"""


def screen() -> Console:
    """For people: standard output."""
    return Console(highlight=False)


def notes() -> Console:
    """For progress and remarks: standard error."""
    return Console(stderr=True, highlight=False)


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object on standard output, nothing else."""
    sys.stdout.write(json.dumps(value, allow_nan=False, ensure_ascii=False) + "\n")


def print_error(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    sys.stderr.write("adadpigu: error: " + " ".join(message.split()) + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table."""
    made = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def number(value: float | None, digits: int = 4) -> str:
    """A number for people; ∞ where there is no guarantee."""
    if value is None or value == float("inf"):
        return "∞"
    return f"{value:.{digits}g}"
