"""Runs the blocks of a page in order: one namespace, one folder, small sizes, no network.

A `Reading` says what a page leaves to its reader (a model, records), which sizes to take instead of the printed ones,
and what is not run, each with its reason: that is only checked (checking.py). A replacement, a reason or an
exit code that no longer meets anything on the page is an error, so that none is left behind.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from blocks import ROOT, Block, Command, commands
from checking import check_command, check_python

from adadpigu.cli.app import run as run_command_line

SHELL = ("sh", "bash", "console")
BORROWED = ("examples", "experiments", "tests", "src", "Makefile", "constraints.txt")
"""of the repository, to be found in the folder where commands run"""
NEVER = ("pip", "git", "apt", "apt-get", "sudo", "npm")
NOISY = re.compile(r"^(adadpigu (train|audit|evaluate)|make train|python examples)")
"""commands whose figures differ from run to run: of what they print, the words are compared"""


@dataclass(frozen=True)
class Reading:
    """How the tests read a page."""

    names: Callable[[Path], Mapping[str, Any]] = lambda _: {}
    """what the page's Python takes for granted; may put files into the folder"""
    smaller: Mapping[str, str] = field(default_factory=dict)
    """printed text -> what is run in its place"""
    not_run: Mapping[str, str] = field(default_factory=dict)
    """beginning of a command, or of a Python block -> why it is not run"""
    exits: Mapping[str, int] = field(default_factory=dict)
    """beginning of a command -> its exit code, where that is not 0"""
    refused: Mapping[str, type[Exception]] = field(default_factory=dict)
    """beginning of a Python block -> the error that it shows"""


class Page:
    """A page being run."""

    def __init__(self, reading: Reading, folder: Path, printed: Callable[[], tuple[str, str]]) -> None:
        self._reading = reading
        self._folder = folder
        self._printed = printed
        self._used: set[str] = set()
        self._last = ""
        self._noisy = False
        for name in BORROWED:
            (folder / name).symlink_to(ROOT / name)
        module = types.ModuleType("page")  # a real one: dataclasses look their names up in their module
        sys.modules["page"] = module
        self._names = vars(module)
        self._names.update(reading.names(folder))

    def run(self, blocks: list[Block]) -> None:
        """Runs or checks every block, then looks for instructions that met nothing."""
        for block in blocks:
            try:
                self._one(block)
            except Exception as error:
                raise AssertionError(f"{block.place}: {type(error).__name__}: {error}") from error
        reading = self._reading
        told = {*reading.smaller, *reading.not_run, *reading.exits, *reading.refused}
        assert told == self._used, f"nothing on the page is {sorted(told - self._used)}"

    def _one(self, block: Block) -> None:
        if block.title is not None:
            self._write(block)
        elif block.language in SHELL:
            for command in commands(block):
                self._command(command)
        elif block.language == "python":
            self._python(block.text)
        elif block.language == "output":
            compare(block.text, self._last, words_only=self._noisy)
        else:
            check_data(block)

    def _write(self, block: Block) -> None:
        assert block.title is not None
        check_data(block)
        path = self._folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._small(block.text))

    def _small(self, text: str) -> str:
        for printed, instead in self._reading.smaller.items():
            if printed in text:
                self._used.add(printed)
                text = text.replace(printed, instead)
        return text

    def _told(self, table: Mapping[str, Any], text: str) -> Any:
        """What a table says about a text that begins as one of its keys; None where it says nothing."""
        found = [key for key in table if text.startswith(key)]
        self._used.update(found)
        return table[found[0]] if found else None

    def _python(self, text: str) -> None:
        if self._told(self._reading.not_run, text) is not None:
            check_python(text)
            return
        refusal = self._told(self._reading.refused, text)
        code, out = compile(textwrap.dedent(self._small(text)), "block", "exec"), io.StringIO()
        with contextlib.redirect_stdout(out):
            if refusal is None:
                exec(code, self._names)
            else:
                self._raises(code, refusal, out)
        self._last, self._noisy = out.getvalue(), False

    def _raises(self, code: Any, refusal: type[Exception], out: io.StringIO) -> None:
        try:
            exec(code, self._names)
        except refusal as error:
            out.write(f"{type(error).__name__}: {error}\n")
        else:
            raise AssertionError(f"no {refusal.__name__} was raised")

    def _command(self, command: Command) -> None:
        if self._told(self._reading.not_run, command.line) is not None:
            check_command(command)
            return
        expected = self._told(self._reading.exits, command.line) or 0
        small = Command(self._small(command.line))
        code, out, err = self._ours(small) if _ours(small) else self._shell(small)
        assert code == expected, f"{small.line}: exit code {code}, {(err or out)[-800:]}"
        self._last, self._noisy = out + err, bool(NOISY.match(command.line))
        if command.output is not None:
            compare(command.output, self._last, words_only=self._noisy)

    def _ours(self, command: Command) -> tuple[int, str, str]:
        """Our own program, within this process: it starts in no time."""
        words = command.words
        arguments = words[1:] if words[0] == "adadpigu" else words[3:]
        self._printed()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["adadpigu", *arguments])  # hints name the program as it was called
            code = run_command_line(arguments)
        return code, *self._printed()

    def _shell(self, command: Command) -> tuple[int, str, str]:
        assert command.words[0] not in NEVER, f"{command.line}: this changes the machine; tell why it is not run"
        here = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            ["bash", "-c", command.line], cwd=self._folder, env=here, capture_output=True, text=True, timeout=300
        )
        return done.returncode, done.stdout, done.stderr


def _ours(command: Command) -> bool:
    return command.plain and (command.words[0] == "adadpigu" or command.words[:3] == ["python", "-m", "adadpigu"])


def check_data(block: Block) -> None:
    """A block that is data can be read as what it says it is."""
    readers: dict[str, Callable[[str], object]] = {
        "toml": tomllib.loads,
        "yaml": yaml.safe_load,
        "json": json.loads,
        "python": lambda text: compile(text, "block", "exec"),
    }
    if block.language in readers:
        readers[block.language](block.text)
        return
    assert block.language in ("text", "csv"), f"nobody runs or reads a block of language {block.language!r}"


def compare(expected: str, actual: str, *, words_only: bool) -> None:
    """Every line that a page shows is printed, wherever a screen broke it; a line of … stands for others."""
    printed = f" {_plain(actual, words_only)} "
    for line in _lines(expected):
        shown = f" {_plain(line, words_only)} "
        assert shown in printed, f"not printed: {line!r}; what was printed: {actual[-1500:]}"


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.strip() and line.strip() not in ("…", "..."):
            yield line


def _plain(line: str, words_only: bool) -> str:
    """Words without their spacing, and, where figures differ from run to run, without them."""
    if words_only:
        line = re.sub(r"\S*\d\S*", "0", line)
    return " ".join(line.replace(".venv/bin/", "").split())
