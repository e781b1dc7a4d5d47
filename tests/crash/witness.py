"""What really happened in a process that is about to be killed, written down apart from the ledger.

A witness is put into a process that was just forked. It appends one letter to a file of its own for all that matters
here; a letter that was written stays written when the process is killed.

    h  the ledger is made, or opened again        n  one vector of noise is about to be drawn (before, never after)
    s  steps begin, or go on after a checkpoint   e  the last step is done, the end is written down
    c  a checkpoint is written                    f  all is written down but the figures

What counts as drawn is the number of n, all processes of a run together. It comes from the generators themselves
(`normal` of both tiers), or from the replay of a recorded step, of which each draws one vector on a GPU; so it depends
on neither the loop's idea of a step nor on the ledger's. DP-SGD and AdaDPIGU
draw one vector a step, so n counts steps; an undisturbed run proves that (n = steps = charged). A letter may be there
for a vector that was never used: that counts against us.

It also keeps the first numbers of every vector (of a replay, a hash of what it releases), since no two may be equal,
and can be told to kill its own process at the k-th call to the disk or the generator of a phase: before it, after it,
or in the middle of what it writes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PHASES = {
    "": "before the ledger",
    "h": "header",
    "s": "steps",
    "c": "checkpoint",
    "e": "final writes",
    "f": "after the end",
}
BLOCK = 64
"""bytes kept of each vector of noise: eight numbers"""
_DISK = ("pwrite", "fdatasync", "fsync", "ftruncate", "mkdir", "rename", "replace")


@dataclass(frozen=True, kw_only=True)
class Planted:
    """The process kills itself at the call number `call` of a phase."""

    phase: str
    call: int
    moment: Literal["before", "amid", "after"]


@dataclass(frozen=True, kw_only=True)
class Testimony:
    """What a witness has written down of one process."""

    letters: str
    blocks: tuple[bytes, ...]

    @property
    def drawn(self) -> int:
        return self.letters.count("n")

    @property
    def phase(self) -> str:
        """Where the process was last."""
        return PHASES[self.letters.replace("n", "")[-1:]]

    @property
    def trained(self) -> bool:
        """Whether it got as far as its first step."""
        return "s" in self.letters


def read(path: Path) -> Testimony:
    letters = path.read_text() if path.exists() else ""
    data = _blocks(path).read_bytes() if _blocks(path).exists() else b""
    whole = len(data) - len(data) % BLOCK
    return Testimony(letters=letters, blocks=tuple(data[start : start + BLOCK] for start in range(0, whole, BLOCK)))


def _blocks(path: Path) -> Path:
    return path.with_suffix(".noise")


class Witness:
    """Watches this process from now on."""

    def __init__(self, path: Path, planted: Planted | None = None) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._letters, self._noise = os.open(path, flags, 0o600), os.open(_blocks(path), flags, 0o600)
        self._planted = planted
        self._phase, self._calls = "", 0

    def mark(self, letter: str) -> None:
        os.write(self._letters, letter.encode())
        if letter != "n":
            self._phase = letter

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Makes a call, at which the process may have to die."""
        planted = self._planted
        if planted is None or self._phase != planted.phase:
            return function(*arguments, **options)
        self._calls += 1
        if self._calls != planted.call:
            return function(*arguments, **options)
        if planted.moment == "amid" and function.__name__ == "pwrite":
            descriptor, data, offset = arguments
            function(descriptor, data[: len(data) // 2], offset)
        elif planted.moment == "after":
            function(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
        return signal.pause()

    def watch(self) -> None:
        """Puts itself between the program and what it calls."""
        from adadpigu.accounting import Ledger
        from adadpigu.core.randomness import DeviceChaCha, DeviceRandomness, SystemRandomness
        from adadpigu.training.cuda_graphs import ReplayedDraws
        from adadpigu.training.loop import Session

        for name in _DISK:
            setattr(os, name, functools.partial(self.call, getattr(os, name)))
        shutil.rmtree = functools.partial(self.call, shutil.rmtree)  # type: ignore[assignment]
        for kind in (SystemRandomness, DeviceChaCha, DeviceRandomness):
            kind.normal = self._drawing(kind.normal)  # type: ignore[method-assign]
        ReplayedDraws.replay = self._replaying(ReplayedDraws.replay)  # type: ignore[method-assign]
        self._around(Ledger, "__init__", "h")
        Ledger.resume = self._marked(Ledger.resume, "h")  # type: ignore[method-assign]
        self._around(Session, "begin", "s")
        self._around(Session, "save", "c", "s")
        self._around(Session, "finish", "e", "f")

    def _drawing(self, normal: Callable[..., Any]) -> Callable[..., Any]:
        from adadpigu.core.mechanism import capturing

        def witnessed(source: Any, count: int) -> Any:
            if capturing():  # nothing is drawn yet
                return normal(source, count)
            self.mark("n")
            drawn = self.call(normal, source, count)
            self._keep(drawn[: BLOCK // 8].cpu().numpy().tobytes())
            return drawn

        return witnessed

    def _replaying(self, replay: Callable[..., bool]) -> Callable[..., bool]:
        def witnessed(draws: Any, recorded: Any, run: Callable[[], None]) -> bool:
            def drawing() -> None:
                self.mark("n")
                self.call(run)

            fitted = replay(draws, recorded, drawing)
            if fitted:
                released = next(iter(recorded.recorded.releases.values())).value
                self._keep(hashlib.sha256(released.cpu().numpy().tobytes()).digest())
            return fitted

        return witnessed

    def _keep(self, block: bytes) -> None:
        os.write(self._noise, block.ljust(BLOCK))

    def _marked(self, function: Callable[..., Any], before: str, after: str = "") -> Callable[..., Any]:
        def marked(*arguments: Any, **options: Any) -> Any:
            self.mark(before)
            found = function(*arguments, **options)
            if after:
                self.mark(after)
            return found

        return marked

    def _around(self, kind: type, name: str, before: str, after: str = "") -> None:
        setattr(kind, name, self._marked(getattr(kind, name), before, after))
