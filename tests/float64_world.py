"""The small run in float64, recorded, and what an oracle needs of it: who was drawn, gradients and losses by loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from adadpigu.audit.coins import RecordedCoins
from adadpigu.audit.tapes import Recorder
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sampling import Owners
from adadpigu.data import TensorRecords
from adadpigu.methods import Method
from adadpigu.training import Run
from trials import run_small, small_digits, small_net

B, N, LR, SIGMA = 40, 240, 0.5, 1.5
RECORDS = small_digits(N).train
assert isinstance(RECORDS, TensorRecords)
JITTER = 1e-3 * torch.randn(RECORDS.inputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
DATA = replace(small_digits(N), train=TensorRecords(RECORDS.inputs.double() + JITTER, RECORDS.targets), test=None)
"""without equal pixels, so that neither rounding nor a tie decides which entry is the k-th largest"""


def net() -> nn.Module:
    return small_net().double()


@dataclass
class Recorded:
    """A run, draw by draw."""

    run: Run
    recorder: Recorder
    coins: RecordedCoins
    per_owner: int

    def drawn(self, draw: int, batch_size: int = B) -> torch.Tensor:
        coins = self.coins.coins[draw][torch.arange(N) // self.per_owner]
        return (coins < batch_size / N).nonzero().flatten()

    def total(self, draw: int, query: int = 0) -> np.ndarray:
        """A sum before its noise."""
        return self.recorder.calls[draw][query].total.numpy()

    def released(self, draw: int, name: str = "gradient") -> np.ndarray:
        return self.recorder.released[draw][name].value.double().numpy()


def record(method: Method, per_owner: int = 1, **options: Any) -> Recorded:
    """Consecutive records have one owner, `per_owner` of them each."""
    owners = None if per_owner == 1 else Owners.of(torch.arange(N) // per_owner, cap=per_owner)
    recorder, coins = Recorder(), RecordedCoins(ReproducibleRandomness(11))
    chosen = {"momentum": 0.0, "lr": LR, "batch_size": B, "sigma": SIGMA} | options
    data = replace(DATA, owners=owners)
    run = run_small(method, data=data, net=net, tape=recorder, randomness=coins, **chosen)
    return Recorded(run, recorder, coins, per_owner)


def gradients(theta: np.ndarray, drawn: torch.Tensor) -> list[np.ndarray]:
    """By autograd, one record at a time."""
    model = _at(theta)
    rows = []
    for x, y in zip(*DATA.train.take(drawn), strict=True):
        grads = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]).numpy())
    return rows


def losses(theta: np.ndarray, drawn: torch.Tensor) -> np.ndarray:
    model = _at(theta)
    pairs = zip(*DATA.train.take(drawn), strict=True)
    return np.array([F.cross_entropy(model(x[None]), y[None]).item() for x, y in pairs])


def clipped_sum(rows: Sequence[np.ndarray], bound: float) -> np.ndarray:
    """Σ z·min(1, C/‖z‖)."""
    return np.asarray(sum(z * min(1.0, bound / max(float(np.linalg.norm(z)), 1e-30)) for z in rows))


def splitmix(coin: float, length: int) -> np.ndarray:
    """The numbers that perturbed clipping makes of a coin, word after word in whole numbers of Python."""
    state, first, second = int(coin * 2**53), [], []
    for _ in range(math.ceil(length / 2)):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        word = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        high, low = divmod(word ^ word >> 31, 2**32)
        radius, angle = math.sqrt(-2 * math.log((high + 1) / 2**32)), 2 * math.pi * low / 2**32
        first.append(radius * math.cos(angle))
        second.append(radius * math.sin(angle))
    return np.array((first + second)[:length])


def _at(theta: np.ndarray) -> nn.Module:
    model = net()
    torch.nn.utils.vector_to_parameters(torch.tensor(theta), model.parameters())
    return model
