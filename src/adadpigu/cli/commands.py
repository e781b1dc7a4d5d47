"""How a command is added to the program: one line for the list of commands, options in groups, an example to type."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import Field
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from adadpigu.config import GROUPS, SETTINGS, all_presets, flag_type
from adadpigu.data import all_datasets
from adadpigu.errors import require
from adadpigu.methods import all_methods
from adadpigu.models import all_models


def _offer(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What the shell completes a flag's value to."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


PRESETS = _offer(lambda: ("none", *all_presets()))
COMPLETED = {"dataset": _offer(all_datasets), "method": _offer(all_methods), "model": _offer(all_models)}  # by setting
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]  # of every command
Command = TypeVar("Command", bound=Callable[..., object])


class Interrupted(int):
    """The exit code of a command that was stopped and has said what became of its work."""


def example(*lines: str) -> str:
    """The end of a help text; the parser's mark keeps its lines as they are.

    >>> example("adadpigu methods").splitlines()[1:]
    ['Example:', '  adadpigu methods']
    """
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(("\b", title, *(f"  {line}" for line in lines)))


class GroupedCommand(TyperCommand):
    """A command whose help lists each option under its `rich_help_panel`, in plain text that a pipe can take."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuses a flag that takes one value and is given twice: the parser would drop the first."""
        _, _, found = self.make_parser(ctx).parse_args(args=list(args))
        for flag, times in Counter(found).items():
            once = times == 1 or getattr(flag, "multiple", False) or flag.param_type_name == "argument"
            require(once, f"{flag.opts[0]} is given {times} times; give it once")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments, then each group in the order of its first option, then options without a group."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        loose: list[tuple[str, str]] = []
        for option in self.get_params(ctx):
            row = option.get_help_record(ctx)
            if row is not None:
                argument = option.param_type_name == "argument"
                section = "Arguments" if argument else getattr(option, "rich_help_panel", None)
                (sections.setdefault(section, []) if section else loose).append(row)
        sections["Other options" if len(sections) > 1 else "Options"] = loose
        for section, rows in sections.items():
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)


def with_settings(*keys: str, **changed: Any) -> Callable[[Command], Command]:
    """Gives a command a flag for each of these settings of `RunConfig` (all, without names), in its `**settings`.

    Help and groups are those of the table; `changed` has another help for single ones.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        derived = [_flag(f, changed.get(f.name)) for f in SETTINGS if not keys or f.name in keys]
        found = [*derived, *(one.replace(kind=one.KEYWORD_ONLY) for one in own if one.kind is not one.VAR_KEYWORD)]
        command.__signature__ = inspect.Signature(sorted(found, key=_place))  # type: ignore[attr-defined]
        return command

    return decorate


def _flag(setting: Field[Any], about: str | None) -> inspect.Parameter:
    kind, shown = flag_type(setting.name)
    flag = "--" + setting.name.replace("_", "-")
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
        help=about or setting.metadata["about"],
        metavar=shown or None,
        rich_help_panel=setting.metadata["group"],
        autocompletion=COMPLETED.get(setting.name),
    )
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _place(parameter: inspect.Parameter) -> int:
    """Where a parameter stands: arguments and the context first, then flags by group, then those without a group."""
    if parameter.annotation is typer.Context:
        return -1
    panels = [getattr(note, "rich_help_panel", None) for note in getattr(parameter.annotation, "__metadata__", ())]
    return GROUPS.index(panels[0]) if panels and panels[0] in GROUPS else len(GROUPS)


def add(app: typer.Typer, command: Command, *examples: str, name: str | None = None, extra_flags: bool = False) -> None:
    """Adds a command; its docstring is its help, and the first sentence (up to 60 characters) its line in the list.

    With `extra_flags` the command itself reads those that it does not declare, from its context's `args`.
    """
    extra = {"ignore_unknown_options": extra_flags, "allow_extra_args": extra_flags}
    app.command(name, cls=GroupedCommand, epilog=example(*examples), context_settings=extra)(command)
