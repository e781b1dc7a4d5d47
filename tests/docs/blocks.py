"""Fenced blocks of a page, and the commands that a shell block holds.

A fence names its language; `title="people.toml"` makes the block a file that later blocks of the page find. What a
block prints stands below it in an `output` fence, or in a `console` block below the command and its `$`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("adadpigu", "python", "pip", "make", "torchrun", "tensorboard", "mkdocs", "pytest", "source", "cat", "git")
"""what a command begins with; a block that begins so and names no language is a shell's"""
_FENCE = re.compile(r"^(```+)\s*(\S*)(.*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, what it is, and what is in it."""

    page: str
    line: int
    language: str
    title: str | None
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}, line {self.line}"


@dataclass(frozen=True)
class Command:
    """A line for the shell, and what the page says that it prints (None: nothing is said)."""

    line: str
    output: str | None = None

    @property
    def words(self) -> list[str]:
        """The words of the line, comments left out; operators such as > are words of their own."""
        reader = shlex.shlex(self.line, posix=True, punctuation_chars="|&;<>")
        reader.whitespace_split = True
        return list(reader)

    @property
    def plain(self) -> bool:
        """Whether it is one program with arguments: no pipe, redirection, variable or substitution."""
        return not any(re.fullmatch(r"[|&;<>]+", word) or "$" in word for word in self.words)


def blocks(path: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    inside: tuple[str, int, str, str | None] | None = None
    lines: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = _FENCE.match(line)
        if inside is None:
            if match:
                title = re.search(r'title="([^"]+)"', match[3])
                inside, lines = (match[1], number, match[2], title[1] if title else None), []
        elif match and match[1] == inside[0] and not match[2]:
            text = "\n".join(lines) + "\n"
            found.append(Block(path.name, inside[1], inside[2] or _guessed(lines), inside[3], text))
            inside = None
        else:
            lines.append(line)
    assert inside is None, f"{path.name}: the block of line {inside[1] if inside else 0} has no end"
    return found


def _guessed(lines: list[str]) -> str:
    first = next((line for line in lines if line.strip()), "")
    return "sh" if first.split(" ")[0] in PROGRAMS else "text"


def commands(block: Block) -> list[Command]:
    """The commands of a shell block; in a `console` block those are the lines with a $, each with what it prints."""
    if block.language == "console":
        return [_session(part) for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]]
    joined = re.sub(r"\\\n\s*", " ", block.text)
    return [Command(line.strip()) for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def _session(part: str) -> Command:
    line, _, output = part.partition("\n")
    return Command(line.strip(), output if output.strip() else None)


def indented_blocks(path: Path) -> list[str]:
    """Lines of code without a fence (four spaces after an empty line, outside a list): nothing would run them."""
    found, fenced, listed, before = [], False, False, ""
    for line in path.read_text().splitlines():
        if line.startswith("```"):
            fenced = not fenced
        if not fenced and re.match(r"(- |\d+\. )", line):
            listed = True
        elif not fenced and line.strip() and not line.startswith(" "):
            listed = False
        if not fenced and not listed and not before.strip() and line.startswith("    ") and line.strip():
            found.append(line.strip())
        before = line
    return found


def inline_commands(path: Path) -> list[str]:
    """Commands in the running text and in tables: `adadpigu …`, `python experiments/…` and so on, in backticks."""
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    starts = r"adadpigu\s|python -m adadpigu\s|python (?:experiments|tests|examples|docs)/|pytest tests/|make\s"
    spans = re.findall(rf"`((?:[A-Z_]+=\S+ )?(?:{starts})[^`]+)`", prose)
    return [span.replace("\n", " ").replace("\\|", "|") for span in spans]
