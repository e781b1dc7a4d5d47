"""A look on from the public side: what a run asks for before each draw, and what it is answered. Releases alone.

Whoever watches sees what a method sees, and changes nothing: sums, noise and recorded steps are as without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from adadpigu.bounding import Query
from adadpigu.mechanism import Release
from adadpigu.records import Records
from adadpigu.training.draws import Draws


class Watch(Protocol):
    """Is told of every draw that is run in Python; a replayed step is told of once, while a device records it."""

    def asked(self, draw: str, queries: Sequence[Query]) -> None:
        """Before the draw is charged and its coins are tossed."""
        ...

    def answered(self, draw: str, queries: Sequence[Query], releases: dict[str, Release]) -> None:
        """With what was released; within a recording, tensors that every replay fills anew."""
        ...


class WatchedDraws:
    """The draws of a run, with somebody looking on."""

    def __init__(self, draws: Draws, watch: Watch) -> None:
        self._draws, self._watch = draws, watch
        self._ahead = False

    def ahead(self, *queries: Query, draw: str = "gradient") -> Records:
        self._watch.asked(draw, queries)
        self._ahead = True
        return self._draws.ahead(*queries, draw=draw)

    def release(self, *queries: Query, draw: str = "gradient") -> dict[str, Release]:
        if not self._ahead:
            self._watch.asked(draw, queries)
        self._ahead = False
        releases = self._draws.release(*queries, draw=draw)
        self._watch.answered(draw, queries, releases)
        return releases
