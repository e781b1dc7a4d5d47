"""Every command's help ends with an example, and every example does what it says when it is typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from adadpigu.cli.app import app, run
from adadpigu.data.published import PUBLISHED


def helped(command: Any, parent: Any = None) -> Iterator[tuple[str, str]]:
    """Every command's path and help text, at 80 columns as anywhere."""
    context = command.make_context(command.name or "adadpigu", ["--help"], parent=parent, resilient_parsing=True)
    context.terminal_width = 80
    yield context.command_path, command.get_help(context)
    for child in getattr(command, "commands", {}).values():
        yield from helped(child, context)


HELP = dict(helped(typer.main.get_command(app)))
EXAMPLE = re.compile(r"^ +(?:For example: )?(adadpigu .+)$", re.MULTILINE)
EXAMPLES = list(dict.fromkeys(line for text in HELP.values() for line in EXAMPLE.findall(text)))
FIRST = ("--out runs/first", "ledger create", "--from downloads")
"""what others go by: a run, a shared ledger, data in the cache"""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], int]]:
    """A folder with what a user would have: files of records, and what the first examples have made."""
    folder, done = tmp_path_factory.mktemp("workshop"), dict[str, int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "data"))
        from tiny_published import digits_files, put, tiny_digits

        patch.setenv("ADADPIGU_DATA", str(folder / "cache"))
        patch.chdir(folder)
        put(folder / "downloads", digits_files())
        np.save(folder / "new.npy", np.zeros((5, 1, 8, 8), dtype=np.float32))
        (folder / "patients.csv").write_text("age,dose,outcome\n61,2.5,well\n")

        def typed(example: str) -> int:
            with pytest.MonkeyPatch.context() as registry:
                if "data get" in example:
                    registry.setitem(PUBLISHED, "mnist", tiny_digits(name="mnist"))
                if example not in done:
                    done[example] = run(shlex.split(example)[1:])
            return done[example]

        for part in FIRST:
            typed(next(example for example in EXAMPLES if part in example))
        yield typed


def test_all_commands_are_found() -> None:
    assert {"adadpigu", "adadpigu train", "adadpigu data get", "adadpigu ledger create", "adadpigu report"} <= set(HELP)
    assert len(HELP) > 20


@pytest.mark.parametrize("command", HELP)
def test_every_help_has_an_example_of_its_own_and_fits_80_columns(command: str) -> None:
    found = EXAMPLE.findall(HELP[command])
    assert any(f"{line} ".startswith(f"{command} ") for line in found)
    assert [line for line in HELP[command].splitlines() if len(line) > 80] == []


def test_the_flags_of_train_come_in_groups() -> None:
    sections = re.split(r"^(\S.*):$", HELP["adadpigu train"], flags=re.MULTILINE)[1:]
    by_title = dict(zip(sections[0::2], sections[1::2], strict=True))
    assert list(by_title)[:2] == ["What to train", "Privacy"]
    assert "--preset" in by_title["What to train"]
    assert "--epsilon" in by_title["Privacy"]
    assert re.findall(r"^  (--\S+)", by_title["Other options"], re.MULTILINE) == ["--json", "--help"]


def test_no_line_of_the_list_of_commands_is_cut_short() -> None:
    lists = [text for text in HELP.values() if "Commands:" in text]
    assert len(lists) == 4
    assert [line for text in lists for line in text.splitlines() if line.endswith("...") and "Usage" not in line] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_works(workshop: Callable[[str], int], example: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert workshop(example) == 0, capfd.readouterr().err
    for made in re.findall(r"(?:--out|create) (\S+)", example):
        assert Path(made).exists()
