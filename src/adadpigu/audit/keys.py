"""Are the keys of two generators, and of two processes, different ones? Draws of its own: no record comes near it.

Noise from a constant key passes every test of its shape, and is no noise to whoever knows the key.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations

import torch

from adadpigu.core.randomness import Tier, choose_randomness
from adadpigu.errors import InputError

_COUNT = 256
"""numbers of either kind; that two generators share one of them has a chance of 2·256²/2⁵² < 1e-10"""
_PATIENCE = 300
"""seconds after which a process that draws so few numbers is taken to hang"""
_PROGRAM = """
import json, sys, torch
from adadpigu.core.randomness import choose_randomness
source = choose_randomness(sys.argv[1] or None, torch.device(sys.argv[2]))
print(json.dumps([source.normal({count}).tolist(), source.uniform({count}).tolist()]))
"""

Drawn = tuple[frozenset[float], frozenset[float]]
"""normal and uniform numbers"""


class Keys:
    """What generators of one tier have drawn, each made afresh: here, and in processes of their own."""

    def __init__(self) -> None:
        self._drawn: dict[str, list[Drawn]] = {"generators": [], "processes": []}

    @property
    def processes(self) -> int:
        """that were started to draw"""
        return len(self._drawn["processes"])

    def here(self, tier: Tier | None, device: torch.device) -> None:
        """Two generators of this process: keys that are constant agree already here.

        A generator that the whole process shares does not, since it goes on between them: that takes `elsewhere`.
        """
        for _ in range(2):
            source = choose_randomness(tier, device)
            self._drawn["generators"].append(_sets([source.normal(_COUNT).tolist(), source.uniform(_COUNT).tolist()]))

    def elsewhere(self, tier: Tier | None, device: torch.device) -> None:
        """Two processes: nothing is handed to them but tier and device."""
        command = [sys.executable, "-c", _PROGRAM.format(count=_COUNT), tier or "", str(device)]
        path = os.pathsep.join(filter(None, sys.path))  # the package that is audited, wherever it was found
        pipe = subprocess.PIPE
        started = [
            subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=pipe, stderr=pipe, text=True)
            for _ in range(2)
        ]
        try:
            self._drawn["processes"] += [_sets(_answer(process)) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()

    def findings(self) -> Iterator[str]:
        """Which of them have drawn the same number."""
        for what, drawn in self._drawn.items():
            others = self._drawn["generators"] if what == "processes" else []
            pairs = [*combinations(drawn, 2), *((one, other) for one in drawn for other in others)]
            for kind, name in enumerate(("noise", "coins")):
                if same := max((len(one[kind] & other[kind]) for one, other in pairs), default=0):
                    yield f"two {what} draw the same {name}: {same} of {_COUNT} numbers, so their key is constant"


def _answer(process: subprocess.Popen[str]) -> Sequence[Sequence[float]]:
    try:
        said, complaint = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"numbers: a second process drew none within {_PATIENCE} s; allowed: one that starts"
        ) from None
    if process.returncode:
        last = (complaint.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(f"numbers: a second process could not draw any ({last}); allowed: a machine that starts one")
    found: Sequence[Sequence[float]] = json.loads(said.splitlines()[-1])
    return found


def _sets(found: Sequence[Sequence[float]]) -> Drawn:
    normal, uniform = found
    return frozenset(normal), frozenset(uniform)
