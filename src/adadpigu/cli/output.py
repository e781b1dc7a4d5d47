"""Where the command line writes: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
"""the option that every command takes"""


class Interrupted(int):
    """The exit code of a command that was stopped and has said what became of its work."""


def screen() -> Console:
    """For people: standard output."""
    return _console(stderr=False)


def notes() -> Console:
    """For progress and remarks: standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    """Colour on a terminal only; with NO_COLOR not even bold, which some terminals show as one."""
    return Console(stderr=stderr, highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object on standard output, nothing else."""
    sys.stdout.write(json.dumps(value, allow_nan=False, ensure_ascii=False) + "\n")


def print_error(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    sys.stderr.write("adadpigu: error: " + " ".join(message.split()) + "\n")


def print_warning(message: str, console: Console | None = None) -> None:
    """A remark that must not be missed, on standard error; brackets in it stay brackets."""
    (console or notes()).print(f"[yellow]warning:[/] {escape(message)}", soft_wrap=True)


def print_line(text: str, console: Console | None = None) -> None:
    """One line as it is, for paths and commands that are copied: no markup, and the terminal alone breaks it."""
    (console or screen()).print(text, markup=False, emoji=False, soft_wrap=True)


def print_prose(text: str, console: Console | None = None, *, indent: str = "", style: str | None = None) -> None:
    """Sentences, broken between words at the width of the screen; a word that is wider stands alone."""
    to = console or screen()
    wrapped = textwrap.fill(
        text.replace(" = ", "\0=\0"),  # a value stays with its name
        to.width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    to.print(wrapped.replace("\0", " "), markup=False, emoji=False, soft_wrap=True, style=style)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table; brackets in its cells stay brackets."""
    made = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def number(value: float | None, digits: int = 4) -> str:
    """A number for people; ∞ where there is no guarantee."""
    if value is None or value == float("inf"):
        return "∞"
    return f"{value:.{digits}g}"
