"""How many runs a search makes, of which candidates, and which of them have begun: on disk before anything is drawn.

    header: candidates, law, budget, the event reserved, the draw K and whose turn each run is
    begun i -> (ended i, with whether it was the best so far)

A run that has begun and not ended was lost to a crash: it has no score, and nobody makes it again, so that no more than
K runs are ever made. K is not to be told: the folder is the user's own, and no part of what a search gives out.
"""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from adadpigu.accounting.events import event_to_json
from adadpigu.accounting.journal import Journal, head_path, now, read_journal, strict_json
from adadpigu.accounting.plan import Budget, Plan
from adadpigu.accounting.repeating import Repeats
from adadpigu.errors import LedgerError

FORMAT = "adadpigu-tuning-1"
FILE = "tuning.log"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is fixed before the first run."""

    candidates: tuple[str, ...]  # as TOML
    repeats: Repeats  # with the plan that every run is charged as
    budget: Budget

    @property
    def plan(self) -> Plan:
        assert self.repeats.run is not None
        return self.repeats.run

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "candidates": list(self.candidates),
            "repeats": self.repeats.to_json(),
            "budget": vars(self.budget).copy(),
            "plan": self.plan.to_json(),
            "reserved": event_to_json(self.repeats.event(self.plan)),
        }
        return told


def has_drawn(folder: Path) -> bool:
    """Whether a search has written its draw down, be it damaged since."""
    chain = read_journal(folder / FILE) if (folder / FILE).is_file() else None
    return chain is not None and bool(chain.bodies or chain.damage)


@contextlib.contextmanager
def _closed_by_errors(journal: Journal) -> Iterator[None]:
    try:
        yield
    except BaseException:
        journal.close()
        raise


class Draws:
    """The draw of a search, and how far it has come."""

    def __init__(self, journal: Journal, header: dict[str, Any], lines: Sequence[dict[str, Any]]) -> None:
        self._journal, self._header = journal, header
        self.turns: list[int] = header["turns"]  # the candidate of each run
        self.begun = sum("begun" in line for line in lines)
        bests = [line["ended"] for line in lines if line.get("best")]
        self.best: int | None = bests[-1] if bests else None

    @classmethod
    def make(cls, folder: Path, terms: Terms) -> Self:
        """Draws K and whose turn each run is, and writes it down."""
        rng = np.random.default_rng(secrets.randbits(256))
        turns = rng.integers(len(terms.candidates), size=terms.repeats.draw(rng)).tolist()
        header = {"tuning": FORMAT, "time": now(), **terms.to_json(), "turns": turns}
        for path in (folder / FILE, head_path(folder / FILE)):  # of a process that died before it had drawn
            path.unlink(missing_ok=True)
        journal = Journal(folder / FILE, new=True)
        with _closed_by_errors(journal):
            journal.append(strict_json(header))
        return cls(journal, header, ())

    @classmethod
    def resume(cls, folder: Path, terms: Terms) -> Self:
        """Goes on with a search whose process has ended, on the same terms; the draw stays."""
        path = folder / FILE
        chain = read_journal(path)
        header = chain.bodies[0] if chain.bodies else {}
        if chain.damage or header.get("tuning") != FORMAT:
            raise LedgerError(f"search={str(path)!r} cannot go on: {chain.damage or 'it is no search'}")
        for key, value in strict_json(terms.to_json()).items():
            if header[key] != value:
                raise LedgerError(f"search={str(path)!r} began on other terms: {key} differs; allowed: the same ones")
        found = cls(Journal(path, new=False), header, chain.bodies[1:])
        if chain.torn:  # what was being written may have been the beginning of a run
            with _closed_by_errors(found._journal):
                found._note({"torn": chain.torn})
                if found.begun < len(found.turns) and "begun" not in chain.bodies[-1]:
                    found.begin()
        return found

    @property
    def left(self) -> range:
        """The runs that nobody has begun."""
        return range(self.begun, len(self.turns))

    def begin(self) -> None:
        self._note({"begun": self.begun})
        self.begun += 1

    def end(self, *, best: bool) -> None:
        """The run that was begun last has ended, and what it left is on disk."""
        self._note({"ended": self.begun - 1, "best": best})
        self.best = self.begun - 1 if best else self.best

    def close(self) -> None:
        self._journal.close()

    def _note(self, line: dict[str, Any]) -> None:
        self._journal.append({**line, "time": now()})
