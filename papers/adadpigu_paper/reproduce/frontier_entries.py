"""What the public leaderboard asks for, filled in from measured cells: a text that a person sends.

The form is that of its issue template: paper, code, claims with data, model, ε, δ, accuracy, accountant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from adadpigu.config import merge, read_preset
from adadpigu_paper.reproduce import paper

_HEAD = """# Entries for Private-MachineLearning.github.io

One issue a data set, template "Submit Report". What is in braces is for the person who sends it.

**Name**: {paper or report}

**Authors**: {names}

**Paper**: {URL}

**Code**: {URL of this repository, at the commit of the rows}

**Venue**: {venue if published}

**Venue Date**: {date if published}
"""


class Measured(Protocol):
    """What is read of a cell."""

    @property
    def dataset(self) -> str: ...
    @property
    def epsilon(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def ours(self) -> str: ...
    @property
    def found(self) -> Sequence[float]: ...


def entries(cells: Sequence[Measured]) -> str:
    """The text, with a claim for every cell that was measured."""
    parts = [_HEAD]
    for dataset, title in paper.TITLES.items():
        claims = [_claim(cell) for cell in cells if cell.dataset == dataset and cell.found]
        parts.append(f"## {title}\n\n**claims:**\n\n" + ("\n".join(claims) if claims else "None is measured yet.\n"))
    return "\n".join(parts)


def _claim(cell: Measured) -> str:
    config = merge(read_preset(cell.name))
    features = {"none": "", "scattering": " on ScatterNet features"}.get(config.features)
    if features is None:
        features = " on an encoder trained on images of random processes, beside ScatterNet"
    return (
        "- **public_data:** none (no image of anything; an encoder, where there is one, saw images of random processes)"
        f"\n\n    **model:** {config.model}{features}\n\n    **epsilon:** {cell.epsilon}\n\n    **delta:** "
        f"{config.delta:g}\n\n    **private_accuracy:** {cell.ours}% ({len(cell.found)} runs)\n\n"
        f"    **dp_accountant:** PLD (dp_accounting), Poisson sampling, add or remove one; preset {cell.name}\n"
    )
