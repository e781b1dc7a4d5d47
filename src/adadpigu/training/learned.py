"""All that a run has learned: weights, the states of optimiser and method, an average. Functions of releases: public.

It comes back from a checkpoint in the same parts. Weights come first, because the others are made for them.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from adadpigu.core.mechanism import Release, look
from adadpigu.core.state import State, as_tensor, named, part
from adadpigu.errors import InputError, first_line
from adadpigu.runs.run import stored_tensors
from adadpigu.training.normalising import STAGE
from adadpigu.training.optimiser import MaskedOptimiser
from adadpigu.training.preparation import Preparation


class WeightAverage:
    """θ̄ ← θ̄ + w_t (θ − θ̄), with w_t = share(t), t from 1. w_t lies beside θ̄, where a recorded step finds it."""

    def __init__(self, share: Callable[[int], float], start: Tensor) -> None:
        self._share = share
        self._steps = 0
        self._filled = 1.0
        self._weight = torch.ones((), dtype=start.dtype, device=start.device)
        self.value = start.clone()

    def begin_step(self) -> None:
        self._steps += 1
        if (share := self._share(self._steps)) != self._filled:
            self._weight.fill_(share)
            self._filled = share

    def update(self, weights: Release) -> None:
        """Takes the weights after a step: a function of releases, and accepted as such only."""
        self.value.lerp_(look(weights)[0], self._weight)

    def state(self) -> State:
        return {"value": self.value, "steps": as_tensor(self._steps)}

    def load(self, state: State) -> None:
        self.value.copy_(state["value"])
        self._steps = int(state["steps"])


def exponential(decay: float) -> Callable[[int], float]:
    """w_t = 1 − min(decay, (1 + t)/(10 + t)), so that early weights are forgotten fast."""
    return lambda step: 1 - min(decay, (1 + step) / (10 + step))


def tail_mean(share: float, steps: int) -> Callable[[int], float]:
    """The plain mean of the weights of the last `share` of the steps; before those begin, the weights themselves."""
    first = steps - max(1, math.ceil(share * steps - 1e-9))
    return lambda step: 1 / max(1, step - first)


class Learned:
    """What learns in one run."""

    def __init__(
        self, prepared: Preparation, state: State | None = None, optimiser: type[MaskedOptimiser] = MaskedOptimiser
    ) -> None:
        self._modules: dict[str, nn.Module] = {"model": prepared.model}
        if prepared.released_norm is not None:
            self._modules["normaliser"] = prepared.released_norm
        if state is not None:
            for name, module in self._modules.items():
                _put_back(module, part(name, state))
        self.optimiser = optimiser(prepared.model, prepared.engine.layout, prepared.options.factory())
        self.method_state = prepared.method.begin(prepared.run_context(self.optimiser))
        self.average = _average(prepared, self.optimiser.weights)
        if state is not None:
            try:
                self.optimiser.load(part("optimiser", state))
                self.method_state.load(part("method", state))
                if self.average is not None:
                    self.average.load(part("average", state))
            except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
                other = "if another version began the run, go on with that one"
                raise InputError(f"the checkpoint does not fit the run: {first_line(error)}; {other}") from None

    def state(self) -> State:
        """What a checkpoint keeps. The caller has put back what is not trained (`Untrained`), or was refused."""
        found = named("optimiser", self.optimiser.state()) | named("method", self.method_state.state())
        for name, module in self._modules.items():
            found |= named(name, stored_tensors(module))
        return found if self.average is None else found | named("average", self.average.state())


@torch.no_grad()
def _put_back(module: nn.Module, stored: State) -> None:
    own = stored_tensors(module)
    odd = sorted(own.keys() ^ stored.keys()) or sorted(key for key in own if own[key].shape != stored[key].shape)
    if odd:
        raise InputError(f"the checkpoint does not fit the model at {odd[0]!r}")
    for key, tensor in own.items():
        tensor.copy_(stored[key])


def _average(prepared: Preparation, start: Tensor) -> WeightAverage | None:
    options = prepared.options
    if options.ema is not None:
        return WeightAverage(exponential(options.ema), start)
    if options.tail is not None:
        steps = sum(stage.steps for stage in prepared.stages if stage.name != STAGE)
        return WeightAverage(tail_mean(options.tail, steps), start)
    return None
