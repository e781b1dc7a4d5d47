"""Tables of the documentation that a script writes: each stands between two marks in its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def write_table(page: str, lines: Sequence[str], name: str = "table") -> None:
    """Replaces a table of a page."""
    path, (begin, end) = DOCS / page, _marks(name)
    top, rest = path.read_text(encoding="utf-8").split(begin)
    table = "\n".join(lines)
    path.write_text(f"{top}{begin}\n{table}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def first_cells(page: str, name: str = "table") -> list[str]:
    """The first cell of each line of a page's table, its head left out."""
    begin, end = _marks(name)
    text = (DOCS / page).read_text(encoding="utf-8").split(begin)[1].split(end)[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in text.strip().splitlines()[2:]]
