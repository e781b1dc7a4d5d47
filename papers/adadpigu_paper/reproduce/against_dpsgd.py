"""Does AdaDPIGU beat DP-SGD? A table of differences per data set and ε, from the cells of the accuracy table.

Both were tuned on held-out training records and run with five seeds. Runs of one cell share nothing but the data, so
differences are tested unpaired (Welch), p is corrected over all comparisons of the table (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.paired import Paired, corrected, unpaired, verdict

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

_UNEQUAL = (
    "The grids of the two sides are not equal, in learning rates on CIFAR-10 at ε = 4 among others: [how they were "
    "tuned](../../docs/results.md#does-adadpigu-beat-dp-sgd)."
)


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


@dataclass(frozen=True, kw_only=True)
class _Compared:
    ours: Measured
    yardstick: Measured
    difference: Paired
    p: float

    @property
    def verdict(self) -> str:
        return verdict(self.difference, self.p)


def _compared(cells: Sequence[Measured]) -> list[_Compared]:
    """Each cell of AdaDPIGU beside DP-SGD's, corrected over all of them."""
    yardsticks = {(cell.dataset, cell.epsilon): cell for cell in cells if cell.method == "dpsgd"}
    ours = {(cell.dataset, cell.epsilon, cell.method): cell for cell in cells if cell.method in VARIANTS and cell.found}
    family = {key: unpaired(cell.found, yardsticks[key[:2]].found) for key, cell in ours.items()}
    adjusted = corrected(family)
    return [
        _Compared(ours=ours[key], yardstick=yardsticks[key[:2]], difference=found, p=p)
        for key, found in family.items()
        if found is not None and (p := adjusted[key]) is not None
    ]


def wins(cells: Sequence[Measured]) -> dict[str, list[int | None]]:
    """The ε at which the whole method is better than DP-SGD, by data set."""
    found: dict[str, list[int | None]] = {}
    for each in _compared(cells):
        if each.ours.method == "adadpigu" and each.verdict == "better":
            found.setdefault(each.ours.dataset, []).append(each.ours.epsilon)
    return found


def comparison(cells: Sequence[Measured]) -> str:
    """A section of Markdown; empty where no cell of AdaDPIGU was measured beside one of DP-SGD."""
    lines = [
        [
            paper.TITLES[each.ours.dataset],
            str(each.ours.epsilon),
            VARIANTS[each.ours.method],
            f"{each.ours.mean:.2f}",
            f"{each.yardstick.mean:.2f}",
            f"{each.difference.mean:+.2f} [{each.difference.low:+.2f}, {each.difference.high:+.2f}]",
            "< 0.001" if each.p < 0.001 else f"{each.p:.3f}",
            each.verdict,
        ]
        for each in _compared(cells)
    ]
    if not lines:
        return ""
    return f"## Does AdaDPIGU beat DP-SGD?\n\n{tabled(_HEAD, lines)}\n\n{_UNEQUAL}\n"
