"""How a command is added to the program: with one line for the list of commands, and an example that can be typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

Command = TypeVar("Command", bound=Callable[..., object])


def example(*lines: str) -> str:
    """The end of a help text; the parser's mark keeps its lines as they are.

    >>> example("adadpigu methods").splitlines()[1:]
    ['Example:', '  adadpigu methods']
    """
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(("\b", title, *(f"  {line}" for line in lines)))


def add(
    app: typer.Typer,
    command: Command,
    about: str,
    *examples: str,
    name: str | None = None,
    extra_flags: bool = False,
) -> Command:
    """Adds a command: `about` stands in the list of commands, the examples at the end of its help.

    With `extra_flags` the command itself reads those that it does not declare, from its context's `args`.
    """
    extra = {"ignore_unknown_options": extra_flags, "allow_extra_args": extra_flags}
    return app.command(name, short_help=about, epilog=example(*examples), context_settings=extra)(command)
