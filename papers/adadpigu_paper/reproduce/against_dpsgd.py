"""Does AdaDPIGU beat DP-SGD? A table of differences per data set and ε, from the cells of the accuracy table.

Both were tuned on held-out training records and run with five seeds. Runs of one cell share nothing but the data, so
differences are tested unpaired (Welch), p is corrected over all comparisons of the table (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.paired import corrected, unpaired, verdict

VARIANTS = {
    "adadpigu": "the whole method, tuned",
    "adadpigu-as-written": "as written",
    "adadpigu-as-coded": "as coded",
}
_HEAD = [
    "data set",
    "ε",
    "AdaDPIGU",
    "its accuracy, %",
    "DP-SGD, %",
    "difference, points [95 %]",
    "p (Holm)",
    "verdict",
]


class Measured(Protocol):
    """What is read of a cell of the accuracy table."""

    @property
    def dataset(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def epsilon(self) -> int | None: ...
    @property
    def found(self) -> tuple[float, ...]: ...
    @property
    def mean(self) -> float | None: ...


def comparison(cells: Sequence[Measured]) -> str:
    """A section of Markdown; empty where no cell of AdaDPIGU was measured beside one of DP-SGD."""
    yardsticks = {(cell.dataset, cell.epsilon): cell for cell in cells if cell.method == "dpsgd"}
    ours = {(cell.dataset, cell.epsilon, cell.method): cell for cell in cells if cell.method in VARIANTS and cell.found}
    family = {key: unpaired(cell.found, yardsticks[key[:2]].found) for key, cell in ours.items()}
    adjusted = corrected(family)
    lines = []
    for key, found in family.items():
        if found is None:
            continue
        p = adjusted[key]
        assert p is not None
        lines.append(
            [
                paper.TITLES[key[0]],
                str(key[1]),
                VARIANTS[key[2]],
                f"{ours[key].mean:.2f}",
                f"{yardsticks[key[:2]].mean:.2f}",
                f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]",
                "< 0.001" if p < 0.001 else f"{p:.3f}",
                verdict(found, p),
            ]
        )
    if not lines:
        return ""
    return "## Does AdaDPIGU beat DP-SGD?\n\n" + tabled(_HEAD, lines) + "\n"
