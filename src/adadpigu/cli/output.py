"""How a command writes its result on standard output, and its one line of error on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
"""the option that every command takes"""


class Interrupted(int):
    """The exit code of a command that was stopped and has said what became of its work."""


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object on standard output, nothing else."""
    sys.stdout.write(json.dumps(value, allow_nan=False, ensure_ascii=False) + "\n")


def print_error(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    sys.stderr.write("adadpigu: error: " + " ".join(message.split()) + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table; brackets in its cells stay brackets."""
    made = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made
