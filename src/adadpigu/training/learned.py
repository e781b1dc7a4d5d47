"""All that a run has learned: weights, the states of optimiser and method, an average. Functions of releases: public.

It comes back from a checkpoint in the same parts. Weights come first, because the others are made for them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adadpigu.errors import InputError, first_line
from adadpigu.state import State, named, part
from adadpigu.training.averaging import ExponentialAverage, TailAverage, WeightAverage
from adadpigu.training.normalising import STAGE
from adadpigu.training.optimiser import MaskedOptimiser
from adadpigu.training.preparation import Preparation
from adadpigu.training.run import stored_tensors


class Learned:
    """What learns in one run."""

    def __init__(self, prepared: Preparation, state: State | None = None) -> None:
        """From the start, or from what a checkpoint has kept."""
        self._modules: dict[str, nn.Module] = {"model": prepared.model}
        if prepared.released_norm is not None:
            self._modules["normaliser"] = prepared.released_norm
        if state is not None:
            for name, module in self._modules.items():
                _put_back(module, part(name, state))
        self._untrained = {
            name: _copies_of_untrained(module) for name, module in self._modules.items() if name != "normaliser"
        }
        self.optimiser = MaskedOptimiser(prepared.model, prepared.engine.layout, prepared.options.factory())
        self.running = prepared.method.begin(prepared.setting(self.optimiser))
        self.average = _average(prepared, self.optimiser.weights)
        if state is not None:
            try:
                self._load(state)
            except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
                raise InputError(f"the checkpoint does not fit the run: {first_line(error)}") from None

    def _load(self, state: State) -> None:
        self.optimiser.load(part("optimiser", state))
        self.running.load(part("method", state))
        if self.average is not None:
            self.average.load(part("average", state))

    def state(self) -> State:
        """What a checkpoint keeps; of a model, what is not trained as it was before the first record was seen."""
        found = named("optimiser", self.optimiser.state()) | named("method", self.running.state())
        for name, module in self._modules.items():
            found |= named(name, stored_tensors(module) | self._untrained.get(name, {}))
        return found if self.average is None else found | named("average", self.average.state())


def _copies_of_untrained(module: nn.Module) -> State:
    """Buffers and frozen parameters: a forward that wrote a record into one must not get it into a file."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return {name: tensor.detach().clone() for name, tensor in stored_tensors(module).items() if name not in trained}


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
        return ExponentialAverage(options.ema, start)
    if options.tail is not None:
        return TailAverage(options.tail, sum(s.steps for s in prepared.stages if s.name != STAGE), start)
    return None
