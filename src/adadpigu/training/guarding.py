"""Guards a model and an optimiser while a loop of the user's own trains them: only releases may move the weights.

    a backward pass of the user's     refused where it would reach `p.grad`, whatever optimiser would follow
    an optimiser's step               along the release of this batch, once, and along nothing else
    a model that changes              refused by name: whether records stay apart was probed for the one at the start

What is compared are public things: gradients that are releases, parameters, modules and their plain attributes.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from adadpigu.errors import InputError, ModelError, PrivacyLineError
from adadpigu.training.hooked import hooks_of

_guarded: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""modules that an open loop trains"""
_held: MutableMapping[Tensor, None] = WeakIdKeyDictionary()
"""their parameters, which other modules may hold too"""
_PLAIN = (bool, int, float, str, bytes, type(None))
_INTERNAL = frozenset(vars(nn.Module()))


class Guard:
    """Watches one model and one optimiser until it is taken off."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, trained: set[str], loss: object = None
    ) -> None:
        _refuse_guarded(model)
        self._model, self._optimizer, self._trained, self._loss = model, optimizer, trained, loss
        self._named = dict(model.named_parameters())
        self._state = _anatomy(model)
        self.hooks = hooks_of(model, loss)
        """of the user's own, as they were when the loop was made"""
        self._release: dict[str, Tensor] | None = None
        self._stepping = False
        _check_optimizer(self._named, trained, optimizer)
        for module in model.modules():
            _guarded.add(module)
        _held.update(dict.fromkeys(self._named.values()))
        watched: list[Any] = [p for p in self._named.values() if p.requires_grad]
        self._handles = [p.register_post_accumulate_grad_hook(_refuse_backward) for p in watched]
        self._waits = True
        self._pre: Any = optimizer.register_step_pre_hook(self._before_step)
        self._post: Any = optimizer.register_step_post_hook(self._after_step)
        self._used: Callable[[], None] = lambda: None

    def await_release(self) -> None:
        """A batch was drawn: there is nothing to step along until its release."""
        self._waits, self._release = True, None

    def begin(self) -> None:
        """The model is in training mode now; but for that it must be as it was when it was probed."""
        now = _anatomy(self._model)
        for place, found in now.items():
            if isinstance(found, _Module) and isinstance(self._state.get(place), _Module):
                self._state[place] = replace(self._state[place], training=found.training)  # type: ignore[type-var]
        self._compare(now)

    def take_off(self) -> None:
        """From here on model and optimiser are the user's alone; gradients are gone."""
        for handle in (*self._handles, self._pre, self._post):
            handle.remove()
        for module in self._model.modules():
            _guarded.discard(module)
        for parameter in self._named.values():
            _held.pop(parameter, None)
            parameter.grad = None

    def check_model(self) -> None:
        """Refuses a model that is not the one that was probed."""
        _check_optimizer(self._named, self._trained, self._optimizer)
        for name, parameter in self._model.named_parameters():
            if self._named.get(name) is not parameter:
                raise ModelError(f"parameter {name!r} is another than when the loop began; allowed: make another loop")
            if parameter.requires_grad and name not in self._trained:
                raise ModelError(
                    f"parameter {name!r} was frozen when the loop began, so its gradient has no bound; allowed: make "
                    "the loop with all that will be trained, and freeze later"
                )
        self._compare(_anatomy(self._model))
        now, before = (
            {(where, id(hook)) for where, hook in each} for each in (hooks_of(self._model, self._loss), self.hooks)
        )
        for where, _ in now ^ before:
            raise ModelError(
                f"a {where} was put on or taken off since the loop began, and the statement names those that were "
                "there; allowed: hooks as they were, or another loop"
            )

    def _compare(self, now: dict[str, object]) -> None:
        for place in sorted(self._state.keys() | now.keys()):
            if self._state.get(place) != now.get(place):
                raise ModelError(
                    f"the model has changed at {place!r} since the loop began (or is in evaluation mode there), so "
                    "that records stay apart in it is not known; allowed: as it was, or another loop"
                )

    @contextlib.contextmanager
    def thawed(self) -> Iterator[None]:
        """Within, all that was trained when the loop began counts as such, also what was frozen since."""
        frozen = [self._named[name] for name in self._trained if not self._named[name].requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)

    def released(self, used: Callable[[], None]) -> None:
        """`p.grad` is a release now: the next step of the optimiser may use it, and then `used` is called."""
        self._release = {}
        for name in self._trained:
            parameter = self._named[name]
            if not parameter.requires_grad:
                parameter.grad = None
            elif parameter.grad is not None:
                self._release[name] = parameter.grad
                parameter.grad = parameter.grad.clone()  # the user may write to what they see, not to the release
        self._pre.remove()
        self._pre = self._optimizer.register_step_pre_hook(self._before_step)  # again: after all other hooks
        self._used, self._waits = used, False

    def _before_step(self, _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Nothing but a release, once, may be stepped along."""
        if any(given is not None and given is not self._optimizer for given in (*args, kwargs.get("closure"))):
            raise InputError("optimizer.step(closure): a closure would compute un-noised gradients; call it without")
        if self._waits:
            raise PrivacyLineError("optimizer.step() before batch.backward(): there is no release to step along")
        if self._release is None:
            raise PrivacyLineError("optimizer.step() twice on one release; allowed: once a batch")
        _check_optimizer(self._named, self._trained, self._optimizer)
        for name, parameter in self._named.items():
            kept, found = self._release.get(name), parameter.grad
            if (kept is None) != (found is None) or (kept is not None and not torch.equal(kept, _given(found))):
                raise PrivacyLineError(
                    f"{name}.grad is not what batch.backward() released: zero_grad() or a change in place came after "
                    "it; allowed: optimizer.step() right after batch.backward()"
                )
        self._stepping = True

    def _after_step(self, *_: object) -> None:
        if not self._stepping:
            raise PrivacyLineError("optimizer.step() without the loop's check before it: its hook was taken away")
        self._stepping, self._release = False, None
        self._used()


def _refuse_guarded(model: nn.Module) -> None:
    """A module, or the memory of a parameter, is in one open loop at a time."""
    if any(module in _guarded for module in model.modules()):
        raise InputError("the model is in another private loop that has not ended: end that one first (finish())")
    held = {_memory(parameter) for parameter in _held} - {0}
    for name, parameter in model.named_parameters():
        if _memory(parameter) in held:
            raise InputError(
                f"parameter {name!r} is trained by another private loop, through another module, and that loop has not "
                "ended: end that one first (finish())"
            )


def _memory(parameter: Tensor) -> int:
    """Where its values lie; 0 where it has none."""
    return parameter.untyped_storage().data_ptr() if parameter.layout is torch.strided else 0


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _refuse_backward(_: Tensor) -> None:
    raise PrivacyLineError(
        "a backward pass of your own reached a parameter's grad: it would hold un-noised gradients; allowed: "
        "batch.backward() of the private loop, loss.backward() on a batch of the loader that was made private, or "
        "torch.autograd.grad for values that stay out of the training"
    )


def _check_optimizer(named: dict[str, nn.Parameter], trained: set[str], optimizer: torch.optim.Optimizer) -> None:
    """What the optimiser moves must be the model's, and all that is trained must be moved by it."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError("optimizer=LBFGS asks for the loss several times a step; allowed: one gradient a step")
    own = {id(parameter): name for name, parameter in named.items()}
    held = set()
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in own:
                raise InputError(
                    f"optimizer: parameter {place} of group {number}, of shape {tuple(parameter.shape)}, is not the "
                    "model's; allowed: parameters of the model that is made private"
                )
            held.add(own[id(parameter)])
    for name in sorted(trained - held):
        raise InputError(f"optimizer does not hold parameter {name!r}, which is trained; allowed: freeze it, or add it")


@dataclass(frozen=True)
class _Module:
    """A module as it stands in a model."""

    identity: int
    kind: type
    training: bool


def _anatomy(model: nn.Module) -> dict[str, object]:
    """Everything about a model that decides how it treats records, but its tensors: by dotted place."""
    found: dict[str, object] = {}
    for path, module in model.named_modules():
        found[path or "model"] = _Module(id(module), type(module), module.training)
        for key, value in vars(module).items():
            place = f"{path}.{key}" if path else key
            if key in _INTERNAL:
                if key.endswith("hooks"):
                    found[place] = tuple(map(id, value.values()))
            elif isinstance(value, _PLAIN):
                found[place] = value
            elif isinstance(value, tuple | list) and all(isinstance(item, _PLAIN) for item in value):
                found[place] = tuple(value)
            else:
                found[place] = id(value)
    return found
