"""How a preset was chosen, from the scores on held-out training records: how many settings, and whether it was best.

Un-noised scores: on private records such a choice would be outside the guarantee; these data sets are public.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adadpigu.config import merge
from adadpigu.methods import make_method
from adadpigu_paper.reproduce.jobs import Row


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What is known of a choice."""

    grid: int
    """different settings that were scored for the cell"""
    scored: bool
    """whether the chosen one is among them"""
    best: bool
    """whether none of them has a higher mean score"""
    typed: int = 0
    """scores among them that were typed from a printed log"""

    def marks(self) -> str:
        """Footnote marks: ‡ not scored itself, † another scored higher, § some scores typed."""
        rank = "" if not self.grid else "‡" if not self.scored else "" if self.best else "†"
        return rank + ("§" if self.typed else "")


def settings_of(config: Mapping[str, Any]) -> str:
    """What a run is defined by, as text: all of its config, defaults of the method included, but how it is computed."""
    return _settings_of(json.dumps(dict(config), sort_keys=True))


@functools.cache
def _settings_of(config: str) -> str:
    made = merge(json.loads(config))
    options = make_method(made.method, made.method_options).options()
    return replace(made, engine="auto", device="auto", seed=None, method_options=options).to_toml()


def tuned(name: str, settings: str | None, rows: Sequence[Row]) -> Tuned:
    """How a preset was chosen: rows of its cell, and those of its very settings under another name."""
    found: dict[str, list[float]] = {}
    typed = 0
    for row in rows:
        if row["score"] != "held-out":
            continue
        key = settings_of(row["config"])
        if row["name"].split()[0].startswith(name) or key == settings:
            found.setdefault(key, []).append(float(row["accuracy"]))
            typed += "source" in row
    means = {key: statistics.fmean(scores) for key, scores in found.items()}
    scored = settings in means
    best = scored and means[str(settings)] >= max(means.values())
    return Tuned(grid=len(means), scored=scored, best=best, typed=typed)
