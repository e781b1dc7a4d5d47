"""Are the keys of two generators, and of two processes, different ones? Draws of its own: no record comes near it.

Noise from a constant key passes every test of its shape, and is no noise to whoever knows the key.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, product

import torch

from adadpigu.core.randomness import Tier, choose_randomness
from adadpigu.errors import require

_COUNT = 256  # numbers of either kind; that two generators share one of them has a chance of 2·256²/2⁵² < 1e-10
_PATIENCE = 300  # seconds after which a process that draws so few numbers is taken to hang
_PROGRAM = """
import json, sys, torch
from adadpigu.core.randomness import choose_randomness
source = choose_randomness(sys.argv[1] or None, torch.device(sys.argv[2]))
print(json.dumps([source.normal({count}).tolist(), source.uniform({count}).tolist()]))
"""

Drawn = tuple[frozenset[float], frozenset[float]]  # normal and uniform numbers


def drawn_here(tier: Tier | None, device: torch.device) -> list[Drawn]:
    """By two generators of this process. What one generator of the process draws on takes `drawn_elsewhere`."""
    sources = [choose_randomness(tier, device) for _ in range(2)]
    return [(frozenset(s.normal(_COUNT).tolist()), frozenset(s.uniform(_COUNT).tolist())) for s in sources]


def drawn_elsewhere(tier: Tier | None, device: torch.device) -> list[Drawn]:
    """By two processes, at the same time: nothing is handed to them but tier and device."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(_by_a_process, [tier or ""] * 2, [str(device)] * 2))


def equal_numbers(here: Sequence[Drawn], elsewhere: Sequence[Drawn] = ()) -> Iterator[str]:
    """Which generators, or processes, have drawn the same number."""
    pairs = {
        "generators": [*combinations(here, 2)],
        "processes": [*combinations(elsewhere, 2), *product(elsewhere, here)],
    }
    for what, them in pairs.items():
        for kind, name in enumerate(("noise", "coins")):
            if same := max((len(one[kind] & other[kind]) for one, other in them), default=0):
                yield f"two {what} draw the same {name}: {same} of {_COUNT} numbers, so their key is constant"


def _by_a_process(tier: str, device: str) -> Drawn:
    path = os.pathsep.join(filter(None, sys.path))  # the package that is audited, wherever it was found
    command = [sys.executable, "-c", _PROGRAM.format(count=_COUNT), tier, device]
    env = {**os.environ, "PYTHONPATH": path}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_PATIENCE)
        reason = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"none within {_PATIENCE} s"
    require(not reason, f"numbers: a second process could not draw any ({reason}); allowed: a machine that starts one")
    normal, uniform = map(frozenset, json.loads(done.stdout.splitlines()[-1]))
    return normal, uniform
