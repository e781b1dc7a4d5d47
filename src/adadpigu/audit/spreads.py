"""How large noise is, over what is claimed: of a whole release, of a tensor, of a coordinate.

Pure functions of what was heard on public records or stand-ins (`listening`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from adadpigu.accounting import PlannedDraw
from adadpigu.audit.laws import Check, Counts, Numbers, most_scale, scale_p, spread_p
from adadpigu.audit.listening import Heard, Part
from adadpigu.core.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Kind:
    """All noise of one named release, or of one tensor in it."""

    draw: PlannedDraw
    name: str
    share: float
    squares: float
    count: int
    settled: bool
    """whether nothing but the plan decides how many numbers these are"""
    tensor: str | None = None

    @property
    def spread(self) -> float:
        """The standard deviation, over what is claimed."""
        return math.sqrt(self.squares / self.count)

    @property
    def p(self) -> float:
        return settled_or_not_p(self.squares, self.count, self.settled)

    def most(self, significance: float) -> float:
        """The standard deviation, over what is claimed, that would give so little noise with that probability."""
        from scipy.stats import chi2

        if not self.settled:
            return most_scale(self.squares, self.count, significance)
        return math.sqrt(self.squares / chi2.ppf(significance, self.count))

    def summary(self, confidence: float) -> dict[str, object]:
        from scipy.stats import chi2

        side = (1 - confidence) / 2
        ends = chi2.isf([side, 1 - side], self.count)
        return {
            "draw": self.draw.name,
            "name": self.name,
            "numbers": self.count,
            "noise_multiplier": self.draw.noise_multiplier / math.sqrt(self.share),
            "stddev": self.spread,
            "stddev_interval": [math.sqrt(self.squares / end) for end in ends],
        }


def settled_or_not_p(squares: float, count: int, settled: bool) -> float:
    """Of a sum of squares; exact where the count is settled, else by a bet."""
    return spread_p(squares, count) if settled else float(scale_p(squares, count))


def by_release(parts: Sequence[Part]) -> list[Kind]:
    """The noise of every named release of every planned draw."""
    found = []
    for (draw, name), them in _grouped(parts).items():
        z, settled = flat(them), all(part.due.all() for part in them)
        share = min(part.share for part in them)
        found.append(Kind(draw=draw, name=name, share=share, squares=float(z @ z), count=len(z), settled=settled))
    return found


def _grouped(parts: Sequence[Part]) -> dict[tuple[PlannedDraw, str], list[Part]]:
    found: dict[tuple[PlannedDraw, str], list[Part]] = {}
    for part in parts:
        if part.due.any():
            found.setdefault((part.draw, part.name), []).append(part)
    return found


def flat(parts: Sequence[Part]) -> Numbers:
    """All numbers that were due, in the order in which they were drawn."""
    return np.concatenate([part.z[part.due] for part in parts])


@dataclass(frozen=True)
class Tensors:
    """The noise of gradients, tensor by tensor and coordinate by coordinate, over all steps and runs."""

    kinds: list[Kind]
    squares: Numbers
    """of each coordinate, summed"""
    counts: Counts
    layout: Layout

    @classmethod
    def of(cls, heard: Heard) -> Tensors:
        size, kinds = heard.layout.size, list[Kind]()
        all_squares, all_counts = np.zeros(size), np.zeros(size, dtype=np.int64)
        for (draw, name), parts in _grouped(heard.whole.parts).items():
            squares, counts = np.zeros(size), np.zeros(size, dtype=np.int64)
            for part in parts:
                if part.places is not None:
                    squares[part.places] += part.z**2
                    counts[part.places] += part.due
            all_squares, all_counts = all_squares + squares, all_counts + counts
            facts = {"draw": draw, "name": name, "share": min(part.share for part in parts), "settled": False}
            for slot in heard.layout.slots:
                where = slice(slot.start, slot.stop)
                if count := int(counts[where].sum()):
                    total = float(squares[where].sum())
                    kinds.append(Kind(**facts, squares=total, count=count, tensor=slot.name))  # type: ignore[arg-type]
        return cls(kinds, all_squares, all_counts, heard.layout)

    def checks(self) -> Iterator[Check]:
        """The worst tensor and the worst coordinate, for as many as there are in the layout."""
        if not self.kinds:
            return
        worst = min(self.kinds, key=lambda kind: kind.p)
        yield Check(
            name="spread of a tensor",
            p=min(1.0, worst.p * len(self.kinds)),
            told=f"the noise on {worst.tensor!r} has {worst.spread:.4g} times the standard deviation that is claimed",
        )
        chances = scale_p(self.squares, self.counts.astype(np.float64))
        place = int(np.argmin(chances))
        slot = next(slot for slot in self.layout.slots if place < slot.stop)
        spread = math.sqrt(self.squares[place] / max(1, self.counts[place]))
        yield Check(
            name="spread of a coordinate",
            p=min(1.0, float(chances[place]) * len(chances)),
            told=f"the noise on number {place - slot.start} of {slot.name!r} has {spread:.4g} times the standard "
            f"deviation that is claimed, over {self.counts[place]} releases",
        )
