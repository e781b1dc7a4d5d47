"""Guards a model and an optimiser while a loop of the user's own trains them: only releases may move the weights.

    a backward pass of the user's      refused where it would reach `p.grad`, whatever optimiser would follow
    an optimiser's step                along the release of this batch, once: clipped, scaled or zeroed as users like
    another layer, parameter, buffer   refused at the next step, unless the tensor is declared public
    another plain value, a hook        acts; the statement names it, and whether records stay apart is probed again
    a tensor that an evaluation left   put aside during a step, so that it does not reach the weights

What is compared are public things: gradients that are releases, identities, versions and plain attributes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from adadpigu.core.gradients.state import declared_public, remember
from adadpigu.errors import InputError, ModelError, PrivacyLineError, require

_held: MutableMapping[Tensor, None] = WeakIdKeyDictionary()
"""parameters that an open loop trains"""
_PLAIN = (bool, int, float, str, bytes, type(None))
_INTERNAL = frozenset(vars(nn.Module()))
_MISSING = object()
_NONE: tuple[Tensor | None, int, bool] = (None, 0, False)
_KINDS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
"""tables of a module, and what stands in them"""
_LIBRARIES = frozenset({"torch", "transformers", "peft", "accelerate", "lightning", "torchmetrics", "adadpigu"})
"""packages whose own hooks are part of their layers"""

Hook = tuple[str, Any]
"""where it is, in words, and itself"""


class _PublicFloat(float):
    """A number that the user has declared public."""


class _PublicInt(int):
    """A whole number that the user has declared public."""


V = TypeVar("V", int, float, Tensor)


def public(value: V) -> V:
    """The same number or tensor, declared public: a temperature, a weight of a loss term, the value of a schedule.

    A private loop cannot know where a value comes from that changes in the model. By this call you say that no private
    record has had a part in it, but through releases: `model.temperature = ad.public(0.5)`. A tensor is declared once,
    and may then be written to: `ad.public(model.temperature)`, then `model.temperature.fill_(0.5)`.

    >>> public(0.5) + 1
    1.5
    """
    if isinstance(value, Tensor):
        declared_public[value] = None
        return value
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    require(fits, f"public({value!r}): a {type(value).__name__}; allowed: a number or a tensor")
    return _PublicInt(value) if isinstance(value, int) else _PublicFloat(value)


class Guard:
    """Watches one model and one optimiser until it is taken off."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        trained: set[str],
        loss: object,
        add_caveat: Callable[[str], None],
    ) -> None:
        self._model, self._optimizer, self._trained, self._loss = model, optimizer, trained, loss
        self._add_caveat = add_caveat
        self._named = dict(model.named_parameters())
        taken = {_memory(parameter) for parameter in _held} - {0}
        for name in sorted(trained):
            ended = "is trained by another private loop that has not ended: end that one first (finish())"
            require(_memory(self._named[name]) not in taken, f"parameter {name!r} {ended}")
        _check_optimizer(self._named, trained, optimizer)
        self._modules = dict(model.named_modules())
        self._types = {path: type(module) for path, module in self._modules.items()}
        self._modes = {path: module.training for path, module in self._modules.items()}
        self._attributes = {place: _copied(value) for place, value in _attributes(model).items()}
        self._probed: dict[str, object] = {}
        """by place, the value that acts instead of the one of the start"""
        self._fixed = self._fixed_tensors()
        self._told: set[object] = set()
        self._hooks: list[Hook] = []
        self._released = False
        _held.update(dict.fromkeys(self._named[name] for name in trained))
        watched: list[Any] = [p for p in self._named.values() if p.requires_grad]
        self._handles = [p.register_post_accumulate_grad_hook(_refuse_backward) for p in watched]
        self._waits = True
        self._pre: Any = optimizer.register_step_pre_hook(self._before_step)
        self._post: Any = optimizer.register_step_post_hook(self._after_step)
        self._used: Callable[[], None] = lambda: None

    def await_release(self) -> None:
        """A batch was drawn: there is nothing to step along until its release."""
        self._waits, self._released = True, False

    def begin(self) -> None:
        """The model is in training mode now: in this mode it is trained."""
        self._modes = {path: module.training for path, module in self._modules.items()}

    def take_off(self) -> None:
        """From here on model and optimiser are the user's alone; gradients are gone."""
        for handle in (*self._handles, self._pre, self._post):
            handle.remove()
        for name in self._trained:
            _held.pop(self._named[name], None)
            self._named[name].grad = None

    def name_hooks(self) -> bool:
        """Warns of hooks that were not there before, and has the statement name them; False where there are none."""
        known = {(where, id(hook)) for where, hook in self._hooks}  # held, so that no other gets its id
        found = hooks_of(self._model, self._loss)
        new = tuple((where, hook) for where, hook in found if (where, id(hook)) not in known)
        self._hooks += new
        if new:
            warnings.warn(f"{in_words(new)}; the statement says that it is not covered", stacklevel=4)
            self._add_caveat(in_words(new))
        return bool(new)

    @contextlib.contextmanager
    def as_begun(self, probe: Callable[[], None]) -> Iterator[None]:
        """Within, the model trains as when the loop began: what was frozen since, or put in evaluation mode, is back.

        Refuses other layers, parameters and buffers. Other plain values act; `probe` then looks again whether records
        stay apart.
        """
        self._check_parts()
        modes = [(m, m.training) for path, m in self._modules.items() if m.training != self._modes[path]]
        frozen = [self._named[name] for name in self._trained if not self._named[name].requires_grad]
        aside: list[tuple[dict[str, Any], str, object]] = []
        try:
            for module, mode in modes:
                module.training = not mode
            for parameter in frozen:
                parameter.requires_grad_(True)
            acts = self._changed_attributes(aside)
            if self.name_hooks() or acts:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of what is tried on synthetic records
                    probe()
            yield
        finally:
            for attributes, key, value in aside:
                _set(attributes, key, value)
            for parameter in frozen:
                parameter.requires_grad_(False)
            for module, mode in modes:
                module.training = mode

    def _check_parts(self) -> None:
        """Layers, parameters and fixed tensors must be those of the start."""
        for name, parameter in self._model.named_parameters():
            if self._named.get(name) is not parameter:
                raise ModelError(f"parameter {name!r} is another than when the loop began; allowed: make another loop")
            if parameter.requires_grad and name not in self._trained:
                raise ModelError(
                    f"parameter {name!r} was frozen when the loop began, so its gradient has no bound; allowed: make "
                    "the loop with all that will be trained, and freeze later"
                )
        now = dict(self._model.named_modules())
        for path in sorted(now.keys() | self._modules.keys()):
            if now.get(path) is not self._modules.get(path) or type(now.get(path)) is not self._types.get(path):
                raise ModelError(f"the model has changed at {path!r} since the loop began; allowed: make another loop")
        fixed = self._fixed_tensors()
        for place in sorted(fixed.keys() | self._fixed.keys()):
            (tensor, version, plain), begun = fixed.get(place, _NONE), self._fixed.get(place, _NONE)
            if tensor is not None and tensor in declared_public:
                self._tell_once(f"declared public: {place!r} of the model, which changed during the run")
            elif tensor is begun[0] and version == begun[1]:
                continue
            elif tensor is begun[0] or not (plain or begun[2]):  # other plain tensors are put aside
                raise ModelError(
                    f"{place!r} has changed since the loop began, and what it holds reaches the weights without noise; "
                    "allowed: as it was, or a tensor that you declare public, such as a temperature: ad.public(tensor)"
                )

    def _fixed_tensors(self) -> dict[str, tuple[Tensor | None, int, bool]]:
        """All tensors but trained ones, how often each was written to, and whether it is a plain attribute."""
        trained = {id(self._named[name]) for name in self._trained}
        return {
            f"{entry.path}.{entry.name}".lstrip("."): (entry.tensor, entry.version, entry.kind == "attribute")
            for entry in remember(self._model)
            if id(entry.tensor) not in trained
        }

    def _changed_attributes(self, aside: list[tuple[dict[str, Any], str, object]]) -> bool:
        """Puts tensors aside that are not declared public; returns whether other values act that were not probed."""
        now, acting, kept, probe = _attributes(self._model), [], [], False
        for (path, key), found in [*now.items(), *((k, _MISSING) for k in self._attributes if k not in now)]:
            begun, place = self._attributes.get((path, key), _MISSING), f"{path}.{key}".lstrip(".")
            if _alike(begun, found):
                self._probed.pop(place, None)
                continue
            if isinstance(found, _PublicFloat | _PublicInt) or (isinstance(found, Tensor) and found in declared_public):
                self._tell_once(f"declared public: {place!r} of the model, which changed during the run")
            elif _holds_tensors(begun) or _holds_tensors(found):
                attributes = self._modules[path].__dict__
                aside.append((attributes, key, found))
                _set(attributes, key, _copied(begun))
                kept.append(place)
            else:
                acting.append(place)
                last = self._probed.get(place, _MISSING)
                probe |= not (_alike(last, found) or (type(last) is float and type(found) is float))
                self._probed[place] = _copied(found)
        if new := [place for place in acting if ("acts", place) not in self._told]:
            self._told.update(("acts", place) for place in new)
            told = f"what the training code set on the model during the run: {_listed(new)}"
            warnings.warn(f"{told}; the statement says that it is not covered", stacklevel=5)
            self._add_caveat(f"{told}; computed from private records, it would tell of them without noise")
        if kept := [place for place in kept if place not in self._told]:
            self._told.update(kept)
            warnings.warn(
                f"the model has another tensor at {_listed(kept)} than when the loop began; steps are made with what "
                "was there then; to train with the new one, declare it public: ad.public(tensor)",
                stacklevel=5,
            )
        return probe

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._add_caveat(text)

    def released(self, used: Callable[[], None]) -> None:
        """`p.grad` is a release now: the next step of the optimiser may use it, and then `used` is called."""
        for name in self._trained:
            parameter = self._named[name]
            if not parameter.requires_grad:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = parameter.grad.clone()  # the user may write to what they see, not to the release
        self._used, self._waits, self._released = used, False, True

    def _before_step(self, _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Nothing but a release, once, may be stepped along."""
        closure = any(given is not None and given is not self._optimizer for given in (*args, kwargs.get("closure")))
        require(not closure, "optimizer.step(closure): a closure would compute un-noised gradients; call it without")
        if self._waits or not self._released:
            early = "before batch.backward(): there is no release to step along"
            late = "twice on one release; allowed: once a batch"
            raise PrivacyLineError(f"optimizer.step() {early if self._waits else late}")
        _check_optimizer(self._named, self._trained, self._optimizer)
        if all(parameter.grad is None for parameter in self._named.values()):
            warnings.warn(
                "optimizer.step() after zero_grad(): the release is gone, so the step moves nothing; "
                "call zero_grad() before batch.backward(), or after the step",
                stacklevel=4,
            )

    def _after_step(self, *_: object) -> None:
        self._released = False
        self._used()


def _refuse_backward(parameter: Tensor) -> None:
    parameter.grad = None  # un-noised, and the error may be caught
    raise PrivacyLineError(
        "a backward pass of your own reached a parameter's grad: it would hold un-noised gradients; allowed: "
        "batch.backward() of the private loop, loss.backward() on a batch of the loader that was made private, or "
        "torch.autograd.grad for values that stay out of the training"
    )


def _check_optimizer(named: dict[str, nn.Parameter], trained: set[str], optimizer: torch.optim.Optimizer) -> None:
    """What the optimiser moves must be the model's, and all that is trained must be moved by it."""
    once = "optimizer=LBFGS asks for the loss several times a step; allowed: one gradient a step"
    require(not isinstance(optimizer, torch.optim.LBFGS), once)
    own = {id(parameter): name for name, parameter in named.items()}
    held = set()
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            require(
                id(parameter) in own,
                f"optimizer: parameter {place} of group {number}, of shape {tuple(parameter.shape)}, is not the "
                "model's; allowed: parameters of the model that is made private",
            )
            held.add(own[id(parameter)])
    for name in sorted(trained - held):
        raise InputError(f"optimizer does not hold parameter {name!r}, which is trained; allowed: freeze it, or add it")


def _attributes(model: nn.Module) -> dict[tuple[str, str], object]:
    """The attributes of every module that torch does not keep itself."""
    return {
        (path, key): value
        for path, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in _INTERNAL
    }


def _copied(value: Any) -> Any:
    """The same, with lists, dicts, sets and arrays of its own, however they are nested; other objects are shared."""
    if isinstance(value, np.ndarray | set):
        return copy.copy(value)
    if type(value) is tuple:
        return tuple(map(_copied, value))
    if not isinstance(value, dict | list | deque):
        return value
    made: Any = copy.copy(value)
    if isinstance(value, dict):
        made.update({key: _copied(item) for key, item in value.items()})
    else:
        made.clear()
        made.extend(map(_copied, value))
    return made


def _alike(one: Any, other: Any) -> bool:
    """Whether plain values and what containers hold are equal, and other objects the same."""
    if one is other and not isinstance(one, dict | list | deque | np.ndarray | set):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | deque) or type(one) is tuple:
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, set):
        return {id(item) for item in one} == {id(item) for item in other} or one == other
    return isinstance(one, _PLAIN) and one == other


def _memory(parameter: Tensor) -> int:
    """Where its numbers lie; 0 where they lie nowhere."""
    return parameter.untyped_storage().data_ptr()


def _holds_tensors(value: object) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))


def _set(attributes: dict[str, Any], key: str, value: object) -> None:
    if value is _MISSING:
        attributes.pop(key, None)
    else:
        attributes[key] = value


def _listed(places: list[str]) -> str:
    shown = ", ".join(map(repr, places[:3]))
    return shown if len(places) <= 3 else f"{shown} and {len(places) - 3} more"


def hooks_of(model: nn.Module, loss: object = None) -> tuple[Hook, ...]:
    """The hooks of the user's own that private records would pass: on modules, parameters, and on all modules at once.

    >>> net = nn.Sequential(nn.Linear(2, 1))
    >>> _ = net[0].register_forward_hook(print)
    >>> [where for where, _ in hooks_of(net)]
    ["forward hook print on '0'"]
    """
    found = [*_global_hooks(), *_hooks_on(model, "")]
    if isinstance(loss, nn.Module):
        found += _hooks_on(loss, "loss")
    return tuple((f"{kind} {_name(hook)} on {place}", hook) for kind, hook, place in found if _is_users(hook))


def in_words(hooks: tuple[Hook, ...]) -> str:
    """The line of a statement that names them."""
    named = ", ".join(dict.fromkeys(where for where, _ in hooks))
    return f"what hooks of the user's own keep or write of the records that pass them: {named}"


def _global_hooks() -> Iterator[tuple[str, Any, str]]:
    for table, kind in _KINDS.items():
        for hook in getattr(every_module, f"_global{table}", {}).values():
            yield kind, hook, "all modules"


def _hooks_on(model: nn.Module, prefix: str) -> Iterator[tuple[str, Any, str]]:
    for path, module in model.named_modules(prefix=prefix):
        for table, kind in _KINDS.items():
            for hook in getattr(module, table).values():
                yield kind, hook, repr(path) if path else "the model"
    for name, parameter in model.named_parameters(prefix=prefix):
        for hook in (parameter._backward_hooks or {}).values():
            yield "gradient hook", hook, repr(name)


def _plain(hook: Any) -> Any:
    """The function behind a bound method or a partial, or the class of an object that is called."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    hook = getattr(hook, "__func__", hook)
    return hook if hasattr(hook, "__qualname__") else type(hook)


def _name(hook: Any) -> str:
    return str(_plain(hook).__qualname__).rpartition("<locals>.")[2]


def _is_users(hook: Any) -> bool:
    return str(_plain(hook).__module__).partition(".")[0] not in _LIBRARIES
