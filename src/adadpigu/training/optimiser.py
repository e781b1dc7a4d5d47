"""Any `torch.optim` optimiser behind the privacy line: it is fed releases, and frozen weights stay bit-identical.

Momentum, weight decay and the optimiser's own state move on active coordinates only; a frozen coordinate behaves as
if the optimiser had never seen it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.core.layout import Layout
from adadpigu.core.mechanism import Release, look
from adadpigu.core.state import State, as_tensor
from adadpigu.errors import InputError, check_range, require, unknown

OptimiserFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

WITH_MOMENTUM = ("sgd", "rmsprop")  # names of optimisers that are given `momentum`
_UNFIT = (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)  # cannot be fed one noisy gradient a step


def all_optimisers() -> dict[str, type[torch.optim.Optimizer]]:
    """Optimisers of `torch.optim` that can be fed one noisy gradient a step, by name in lower case."""
    return {
        key.lower(): value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value not in _UNFIT
    }


def optimiser_factory(
    name: str, *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0, body_lr: float = 1.0
) -> OptimiserFactory:
    """An optimiser of `torch.optim` by name, case ignored. `momentum` is for `WITH_MOMENTUM`.

    All layers but the last, which begins with the last parameter of two or more dimensions, have `body_lr` of the rate.
    """
    known = all_optimisers()
    if name.lower() not in known:
        raise unknown("optimizer", name, known)
    check_range("lr", lr, "a finite number above 0")
    check_range("momentum", momentum, "in [0, 1)")
    check_range("weight_decay", weight_decay, "a finite number of at least 0")
    kind: Callable[..., torch.optim.Optimizer] = known[name.lower()]
    options: dict[str, Any] = {"lr": lr}
    if name.lower() in WITH_MOMENTUM:
        options["momentum"] = momentum
    if weight_decay:
        options["weight_decay"] = weight_decay
    check_range("body_lr", body_lr, "a finite number above 0")
    if body_lr == 1:
        return lambda parameters: kind(parameters, **options)

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        last = max((place for place, parameter in enumerate(parameters) if parameter.ndim > 1), default=0)
        body, head = {"params": parameters[:last], "lr": body_lr * lr}, {"params": parameters[last:]}
        return kind([body, head] if last else parameters, **options)

    return make


_SECOND_MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, Callable[[dict[str, Any], float], float]]] = {
    torch.optim.Adam: ("exp_avg_sq", lambda group, steps: 1 - group["betas"][1] ** steps),
    torch.optim.NAdam: ("exp_avg_sq", lambda group, steps: 1 - group["betas"][1] ** steps),
    torch.optim.RAdam: ("exp_avg_sq", lambda group, steps: 1 - group["betas"][1] ** steps),
    torch.optim.RMSprop: ("square_avg", lambda group, steps: 1 - group["alpha"] ** steps),
    torch.optim.Adadelta: ("square_avg", lambda group, steps: 1 - group["rho"] ** steps),
    torch.optim.Adagrad: ("sum", lambda group, steps: steps),
}
"""where an optimiser keeps the mean square of its gradients, and how much of it has been seen (AdamW is an Adam)"""


class MaskedOptimiser:
    """Steps a model's parameters along a release, on the release's active coordinates."""

    def __init__(self, model: nn.Module, layout: Layout, factory: OptimiserFactory) -> None:
        self._parameters = layout.parameters(model)
        self._model, self._layout = model, layout
        self.weights = layout.read(model)  # θ as one vector, always in the same place
        try:
            self.inner = factory(self._parameters)
        except (TypeError, ValueError) as error:
            raise InputError(f"optimizer: cannot be made for this model: {error}; allowed: a name or class") from None
        self._factor = 1.0
        self._active: Tensor | None = None
        self._before: dict[tuple[str, int], Tensor] = {}
        self._rates = [group["lr"] for group in self.inner.param_groups]
        fits, name = not isinstance(self.inner, _UNFIT[1:]), type(self.inner).__name__
        require(fits, f"optimizer={name} cannot be fed one noisy gradient a step; use another")

    def scale_lr(self, factor: float) -> None:
        """Sets the learning rate to this share of the one it was made with."""
        for group, rate in zip(self.inner.param_groups, self._rates, strict=True):
            if isinstance(group["lr"], Tensor):
                if factor != self._factor:
                    group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor
        self._factor = factor

    def keep_lr_on_device(self) -> bool:
        """Has the learning rate read from the device at every step, for steps that are recorded; False if it cannot."""
        groups, device = self.inner.param_groups, self._parameters[0].device
        if isinstance(self.inner, torch.optim.SGD):
            settings = {"fused": True, "foreach": False}
        elif device.type != "cpu" and all("capturable" in group for group in groups):
            settings = {"capturable": True}
        else:
            return False
        for group in groups:
            group.update(settings, lr=torch.tensor(float(group["lr"]), device=device))
        return True

    def step(self, direction: Release) -> None:
        """One optimiser step along ĝ. `p.grad` holds a release for its duration and nothing afterwards."""
        self.expose(direction)
        try:
            self.inner.step()
        finally:
            for parameter in self._parameters:
                parameter.grad = None
        self.settle()

    @torch.no_grad()
    def expose(self, direction: Release) -> None:
        """Puts ĝ where an optimiser looks for it, and remembers what its step must leave alone."""
        value, active = look(direction)
        # SGD only reads p.grad; others may write to it
        gradients = value if type(self.inner) is torch.optim.SGD else value.clone()
        self._active = active
        self._before = {} if active is None else {key: _flat(kind) for key, (_, kind) in self._states().items()}
        for parameter, gradient in zip(self._parameters, _split(gradients, self._parameters), strict=True):
            parameter.grad = gradient.to(parameter)

    @torch.no_grad()
    def settle(self) -> None:
        """After the optimiser's step: weights and its state where frozen are again what they were."""
        active, before = self._active, self._before
        self._active, self._before = None, {}
        if active is None:
            self.refresh()
            return
        weights = [parameter.detach() for parameter in self._parameters]
        torch.where(active, _flat(weights), self.weights, out=self.weights)
        written, kept = weights, _split(self.weights, weights)
        masks = _split(active, weights)
        for key, (owners, kind) in self._states().items():
            mask = active if len(owners) == len(masks) else _flat([masks[owner] for owner in owners])
            # state that this step has made starts at zero where frozen
            old = before[key] if key in before else torch.zeros_like(_flat(kind))
            written, kept = written + kind, kept + _split(torch.where(mask, _flat(kind), old), kind)
        torch._foreach_copy_(written, kept)

    @torch.no_grad()
    def refresh(self) -> None:
        """Reads θ from the model."""
        self.weights.copy_(_flat([parameter.detach() for parameter in self._parameters]))

    @property
    def second_moment(self) -> Callable[[], Tensor] | None:
        """Reads v, the mean square of the directions so far, [d], 0 where there was none; None if it keeps no such."""
        kinds = [place for kind, place in _SECOND_MOMENTS.items() if isinstance(self.inner, kind)]
        return (lambda: self._mean_squares(*kinds[0])) if kinds else None

    @torch.no_grad()
    def _mean_squares(self, key: str, seen: Callable[[dict[str, Any], float], float]) -> Tensor:
        groups = {id(p): group for group in self.inner.param_groups for p in group["params"]}
        found = []
        for parameter in self._parameters:
            state = self.inner.state.get(parameter, {})
            share = seen(groups[id(parameter)], float(state["step"])) if key in state else 0.0
            found.append(state[key] / share if share > 0 else torch.zeros_like(parameter))
        return _flat(found)

    def state(self) -> State:
        """Momentum and the like, for a checkpoint."""
        kept = self.inner.state_dict()["state"]
        found: State = {}
        for owner, state in kept.items():
            for key, value in state.items():
                if value is not None:
                    found[f"{owner}.{key}"] = value if isinstance(value, Tensor) else as_tensor(value)
        return found

    def snapshot(self) -> State:
        """A copy of `state`, to undo a rejected update."""
        return {name: value.clone() for name, value in self.state().items()}

    def load(self, state: State) -> None:
        """Takes `state` again, on any device; θ is read from the model."""
        kept: dict[int, dict[str, Any]] = {}
        for name, value in state.items():
            owner, key = name.split(".", 1)
            kept.setdefault(int(owner), {})[key] = value
        self.inner.load_state_dict({**self.inner.state_dict(), "state": kept})
        self.refresh()

    def _states(self) -> dict[tuple[str, int], tuple[list[int], list[Tensor]]]:
        """The optimiser's state that has its parameter's shape, by name and how many have it; whose it is, and it."""
        found: dict[str, tuple[list[int], list[Tensor]]] = {}
        for owner, parameter in enumerate(self._parameters):
            for key, value in self.inner.state.get(parameter, {}).items():
                if isinstance(value, Tensor) and value.shape == parameter.shape and value.ndim > 0:
                    owners, kind = found.setdefault(key, ([], []))
                    owners.append(owner)
                    kind.append(value)
        return {(key, len(owners)): (owners, kind) for key, (owners, kind) in found.items()}


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _split(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for tensor, part in zip(tensors, parts, strict=True)]
