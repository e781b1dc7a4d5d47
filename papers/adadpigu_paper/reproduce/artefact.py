"""What a table or figure of the paper is made from: rows that were measured, and how they are drawn.

    measure (long, once, on whatever machine) -> rows in a file of JSON lines -> draw (anywhere) -> markdown, figures

Drawing is a function of the rows alone, so that a table redraws byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adadpigu_paper.reproduce.jobs import Job, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAMP = "Diagnostics: un-noised values of training records, outside the guarantee"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured."""

    quick: bool
    """minutes on two cores, on what is cached, to see that all works; else as the paper does it"""
    seeds: int | None = None
    """runs of each setting; None: as many as the artefact thinks right"""

    def runs(self, full: int) -> range:
        """The seeds of a setting."""
        return range(self.seeds or (1 if self.quick else full))


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A table as markdown, with figures by file name and the same as JSON-able rows."""

    markdown: str
    rows: Sequence[Row]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    """further files, by name"""
    exposed: bool = False
    """whether it shows un-noised values: then everything drawn carries the stamp"""


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """A table or figure of the paper. One of `jobs` (trainings) and `compute` (all else) makes its rows."""

    name: str
    about: str
    rows: str
    """file of its rows, in the folder of results; several artefacts may share one"""
    draw: Callable[[Sequence[Row]], Drawn]
    beside: tuple[str, ...] = ()
    """further files that are drawn from where they are there, as patterns"""
    jobs: Callable[[Scale], list[Job]] | None = None
    then: Callable[[Scale, Sequence[Row]], list[Job]] | None = None
    """further trainings, which depend on the rows of the first: at the rates that they choose"""
    compute: Callable[[Scale], list[Row]] | None = None
