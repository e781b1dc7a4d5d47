"""Any `torch.optim` optimiser behind the privacy line: it is fed releases, and frozen weights stay bit-identical.

Momentum, weight decay and the optimiser's own state move on active coordinates only; a frozen coordinate behaves as
if the optimiser had never seen it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.errors import InputError, unknown
from adadpigu.layout import Layout
from adadpigu.mechanism import Release, require_release

OptimiserFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


_UNFIT = (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
"""cannot be fed one noisy gradient a step"""


def optimiser_factory(name: str, *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> OptimiserFactory:
    """An optimiser of `torch.optim` by name, case ignored. `momentum` is for those that have one."""
    known = {
        key.lower(): value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value not in _UNFIT
    }
    if name.lower() not in known:
        raise unknown("optimizer", name, known)
    if not (lr > 0 and lr < float("inf")):
        raise InputError(f"lr={lr} is not a finite number above 0")
    if not 0 <= momentum < 1:
        raise InputError(f"momentum={momentum} is not in [0, 1)")
    if not 0 <= weight_decay < float("inf"):
        raise InputError(f"weight_decay={weight_decay} is not a finite number of at least 0")
    kind = known[name.lower()]
    options: dict[str, Any] = {"lr": lr}
    if name.lower() in ("sgd", "rmsprop"):
        options["momentum"] = momentum
    if weight_decay:
        options["weight_decay"] = weight_decay
    return lambda parameters: kind(parameters, **options)


class MaskedOptimiser:
    """Steps a model's parameters along a release, on the release's active coordinates."""

    def __init__(self, model: nn.Module, layout: Layout, factory: OptimiserFactory) -> None:
        self._parameters = layout.parameters(model)
        self._layout = layout
        try:
            self._optimiser = factory(self._parameters)
        except (TypeError, ValueError) as error:
            raise InputError(f"optimizer: it cannot be made for this model: {error}") from None
        self._rates = [group["lr"] for group in self._optimiser.param_groups]
        if isinstance(self._optimiser, _UNFIT[1:]):
            raise InputError(
                f"optimizer={type(self._optimiser).__name__} cannot be fed one noisy gradient a step; use another"
            )

    def scale_lr(self, factor: float) -> None:
        """Sets the learning rate to this share of the one it was made with."""
        for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    @torch.no_grad()
    def step(self, direction: Release) -> None:
        """One optimiser step along ĝ. `p.grad` holds a release for its duration and nothing afterwards."""
        release = require_release(direction)
        held = None if release.active is None else self._hold(~release.active)
        for parameter, (_, gradient) in zip(self._parameters, self._layout.split(release.value), strict=True):
            parameter.grad = gradient.to(parameter)
        try:
            self._optimiser.step()
        finally:
            for parameter in self._parameters:
                parameter.grad = None
        if held is not None:
            self._put_back(held)

    def snapshot(self) -> dict[str, Any]:
        """The optimiser's state, to undo a rejected update."""
        return copy.deepcopy(self._optimiser.state_dict())

    def undo(self, state: dict[str, Any]) -> None:
        """Back to a snapshot, momentum included."""
        self._optimiser.load_state_dict(state)

    def _hold(self, frozen: Tensor) -> list[tuple[nn.Parameter, Tensor, dict[str, Tensor]]]:
        """Copies of every parameter and of its state before the step, with the frozen part of each marked."""
        held = []
        for parameter, (_, mask) in zip(self._parameters, self._layout.split(frozen), strict=True):
            held.append((parameter, mask, {"": parameter.detach().clone(), **self._state(parameter)}))
        return held

    def _put_back(self, held: list[tuple[nn.Parameter, Tensor, dict[str, Tensor]]]) -> None:
        for parameter, mask, before in held:
            # torch.where, not value[mask] = …: the latter makes a GPU wait for the number of positions
            parameter.copy_(torch.where(mask, before[""], parameter))
            for key, value in self._optimiser.state[parameter].items():
                if _same_shape(value, parameter):
                    value.copy_(torch.where(mask, before.get(key, torch.zeros_like(value)), value))

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self._optimiser.state.get(parameter, {})
        return {key: value.clone() for key, value in state.items() if _same_shape(value, parameter)}


def _same_shape(value: object, parameter: nn.Parameter) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape and value.ndim > 0
