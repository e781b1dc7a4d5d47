"""The theorems against problems whose truth is known: bounds as printed, as corrected, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
from adadpigu_paper.reproduce.jobs import Row


def compute(scale: Scale) -> list[Row]:
    """Rows of all problems; no private record is involved."""
    from adadpigu_paper.theory import measure_rows

    rows: Any = measure_rows(scale.quick)
    return list(rows)


def draw(rows: Sequence[Row]) -> Drawn:
    """The table of bounds, and their figure."""
    from adadpigu_paper import theory

    markdown, figure = theory.draw(list(rows))
    return Drawn(markdown="# Bounds against measurement\n\n" + markdown, rows=rows, figures={"theory": figure})


THEORY = Artefact(
    name="theory",
    about="the convergence theorems and the energy-retention lemma: bounds against measurement (docs/theory.md)",
    rows="paper/theory.jsonl",
    draw=draw,
    compute=compute,
)
