"""A method of your own, in one file: DP-SGD whose releases pass a low-pass filter before the optimiser sees them.

    m_t = a·m_(t−1) + (1 − a)·(g̃_t + g̃_(t−1))/2      c_t = a·c_(t−1) + (1 − a)      ĝ_t = m_t / c_t

Gradients change slowly from step to step and noise does not, so that an average over steps keeps the one and
dampens the other (in the manner of DOPPLER, Zhang et al. 2024). It sees releases alone, so it costs nothing.

python examples/new_method.py --steps 100
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

import adadpigu as ad
from adadpigu.core.mechanism import require_release
from adadpigu.core.state import State, as_tensor
from adadpigu.methods.base import Batches, MethodState, Positive, RunContext, Stage, mean_gradient, register


@register
@dataclass(frozen=True, kw_only=True)
class LowPass(ad.Method):
    """DP-SGD with a first-order low-pass filter on its releases. Its fields are its options, all with defaults."""

    name: ClassVar[str] = "low-pass"
    source: ClassVar[str] = "after Zhang et al. 2024 (DOPPLER)"
    adds: ClassVar[str] = "an average over the last releases, in the place of the last one"
    costs: ClassVar[str] = "one event a step; the filter is free"

    clip_norm: Positive = 0.5
    """C"""
    memory: Annotated[float, "in [0, 1)"] = 0.5
    """a, the share of the average that a step keeps"""

    def begin(self, context: RunContext) -> MethodState:
        return _State(self, context)


class _State(MethodState):
    """One run of it: what it asks for, and what it keeps from step to step."""

    def __init__(self, options: LowPass, context: RunContext) -> None:
        self._query = ad.GradientSum(clip_norm=options.clip_norm)
        self._batch_size = context.batch_size  # B, the expected one: how many were drawn is private
        self._memory = options.memory
        self._last: Tensor | None = None
        self._sum = torch.zeros_like(context.weights)
        self._weight = 0.0

    def step(self, batches: Batches, stage: Stage, index: int) -> ad.Release:
        """Asks for one clipped, noised and charged sum, and returns the direction to descend along."""
        return self._filtered(mean_gradient(batches, self._query, self._batch_size))

    def _filtered(self, gradient: ad.Release) -> ad.Release:
        """Learned state takes a release and nothing else; what follows from releases is a release."""
        value = require_release(gradient).value
        last = value if self._last is None else self._last
        self._sum = self._memory * self._sum + (1 - self._memory) * (value + last) / 2
        self._weight = self._memory * self._weight + (1 - self._memory)
        self._last = value
        mean = self._sum / self._weight
        return gradient.map(lambda _: mean)

    def state(self) -> State:
        """What a checkpoint keeps, so that a run can go on after a crash."""
        found = {"sum": self._sum, "weight": as_tensor(self._weight)}
        return found if self._last is None else found | {"last": self._last}

    def load(self, state: State) -> None:
        self._sum, self._weight = state["sum"].to(self._sum), float(state["weight"])
        self._last = state["last"].to(self._sum) if "last" in state else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    for method in (ad.DPSGD(), LowPass()):
        run = ad.train(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)),
            ad.load_dataset("digits"),
            method=method,
            privacy=ad.Budget(epsilon=4, delta=1e-5),
            batch_size=512,
            steps=steps,
            lr=1.0,
        )
        print(f"{method.name}: test accuracy {run.accuracy or 0:.1%}, epsilon {run.epsilon:.3f}")


if __name__ == "__main__":
    main()
