"""What is held against a block that is not run: a command's flags exist, its files are there, Python compiles.

Nothing here executes what it checks. Commands of our program go through its own parser, as far as to the arguments.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import typer
from blocks import ROOT, Command

from adadpigu.cli.app import app
from adadpigu.cli.training_settings import method_options
from adadpigu.config import all_presets
from adadpigu.methods import all_methods


def check_command(command: Command) -> None:
    """Refuses, by an AssertionError, a command that could not be started as it stands."""
    words = [word for word in command.words if not re.fullmatch(r"[A-Z_]+=\S*", word)]  # variables come first
    ends = [number for number, word in enumerate(words) if re.fullmatch(r"[|&;<>]+", word)]
    first = words[: ends[0]] if ends else words
    program, arguments = first[0], first[1:]
    if program in ("python", "torchrun") and "-m" in arguments:
        at = arguments.index("-m")
        program, arguments = arguments[at + 1], arguments[at + 2 :]
    checks = {"adadpigu": parse, "python": _check_script, "torchrun": _check_script, "pip": _check_extras}
    checks |= {"make": _check_targets, "pytest": _check_paths}
    assert program in checks or program in ("tensorboard", "source", "cat", "git", "mkdocs", "cd", "pip"), program
    if program in checks:
        checks[program](arguments)


def parse(arguments: list[str]) -> None:
    """Arguments of our program, read as it reads them; names of presets and methods have to exist."""
    if arguments in (["--install-completion"], ["--show-completion"]):  # reading them would do it
        return
    command: Any = typer.main.get_command(app)
    context = command.make_context("adadpigu", [word for word in arguments if word != "…"])
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    method_options([], context.args, {})  # flags that `train` reads itself; of other commands nothing is left over
    given = context.params
    assert given.get("preset") in {None, "none", *all_presets()}, given["preset"]
    if isinstance(given.get("method"), str):
        assert given["method"] in all_methods(), given["method"]


def check_mention(line: str) -> None:
    """A command in the running text: as above, but it may leave out what it needs, and letters stand for numbers."""
    line = re.sub(r"(\w+)\|\S+", r"\1", line).split("…")[0]
    try:
        check_command(Command(re.sub(r"(?<= )[A-Z](?= |$)", "1", line).strip()))
    except Exception as error:
        if type(error).__name__ != "MissingParameter":
            raise


def _check_script(arguments: list[str]) -> None:
    """The script is there, and its text knows every flag that it is given."""
    scripts = [word for word in arguments if word.endswith(".py")]
    if not scripts:
        assert arguments[:1] == ["-c"], arguments
        return
    assert (ROOT / scripts[0]).is_file(), f"no such file: {scripts[0]}"
    text = "".join(path.read_text() for path in (ROOT / scripts[0]).parent.glob("*.py"))  # helpers beside it, too
    after = arguments[arguments.index(scripts[0]) + 1 :]
    missing = [word for word in after if word.startswith("--") and f'"{word.split("=")[0]}"' not in text]
    assert not missing, f"{scripts[0]} has no {', '.join(missing)}"


def _check_extras(arguments: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in arguments:
        for named in re.findall(r"(?:adadpigu|\.)\[([a-z,]+)\]", word):
            assert set(named.split(",")) <= extras.keys(), f"adadpigu has no extra {named}"


def _check_targets(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in (word for word in arguments if "=" not in word):
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"no target {target}"


def _check_paths(arguments: list[str]) -> None:
    for word in arguments:
        path = word.split("::")[0]
        assert word.startswith("-") or (ROOT / path).exists(), f"no such file: {path}"


def check_python(text: str) -> None:
    """It compiles, and all that it imports can be imported."""
    tree = compile(text, "block", "exec", ast.PyCF_ONLY_AST)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(importlib.util.find_spec(name.name.split(".")[0]) for name in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            missing = [name.name for name in node.names if not hasattr(module, name.name)]
            assert not missing, f"{node.module} has no {', '.join(missing)}"


def placeholder_free(path: Path) -> list[str]:
    """What an author leaves behind to fill in later."""
    return re.findall(r"\b(?:TODO|FIXME|XXX|TBD|SPEED\d+)\b", path.read_text())
