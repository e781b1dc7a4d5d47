"""Tables of the documentation that a script writes: each stands between two marks in its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_BEGIN, _END = "<!-- table: begin -->", "<!-- table: end -->"


def write_table(page: str, lines: Sequence[str]) -> None:
    """Replaces the table of a page."""
    path = DOCS / page
    top, rest = path.read_text(encoding="utf-8").split(_BEGIN)
    table = "\n".join(lines)
    path.write_text(f"{top}{_BEGIN}\n{table}\n{_END}{rest.split(_END)[1]}", encoding="utf-8")


def first_cells(page: str) -> list[str]:
    """The first cell of each line of a page's table, its head left out."""
    text = (DOCS / page).read_text(encoding="utf-8").split(_BEGIN)[1].split(_END)[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in text.strip().splitlines()[2:]]
