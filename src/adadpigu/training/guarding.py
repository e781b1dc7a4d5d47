"""Guards a model and an optimiser while a loop of the user's own trains them: only releases may move the weights.

    a backward pass of the user's      refused where it would reach `p.grad`, whatever optimiser would follow
    an optimiser's step                along the release of this batch, once: clipped, scaled or zeroed as users like
    another layer, parameter, buffer   refused at the next step, unless the tensor is declared public
    another plain value, a hook        acts; the statement names it, and whether records stay apart is probed again
    a tensor that an evaluation left   put aside during a step, so that it does not reach the weights

What is compared are public things: gradients that are releases, identities, versions and plain attributes.
"""

import contextlib
import copy
import functools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from adadpigu.core.gradients.state import Remembered, Snapshot, declared_public
from adadpigu.errors import InputError, ModelError, PrivacyLineError, require

if TYPE_CHECKING:
    from adadpigu.training.own_loop import PrivateLoop

_held: MutableMapping[Tensor, None] = WeakIdKeyDictionary()  # parameters that an open loop trains
_COMPARED = (bool, int, float, str, bytes, set)  # types of attributes that are compared by value
_INTERNAL = frozenset(vars(nn.Module()))
_MISSING = object()
_KINDS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
"""tables of a module, and what stands in them"""
_LIBRARIES = ("torch", "torchvision", "transformers", "peft", "accelerate", "lightning", "torchmetrics", "adadpigu")
"""packages whose own code (hooks of layers, losses, data sets) is not the user's"""


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
        self, model: nn.Module, optimizer: torch.optim.Optimizer, trained: set[str], loss: object, loop: "PrivateLoop"
    ) -> None:
        self._model, self._optimizer, self._loss, self._loop = model, optimizer, loss, loop
        self._named = dict(model.named_parameters())
        self._trained = {name: self._named[name] for name in sorted(trained)}
        taken = {parameter.untyped_storage().data_ptr() for parameter in _held} - {0}
        for name, parameter in self._trained.items():
            ended = "is trained by another private loop that has not ended: end that one first (finish())"
            require(parameter.untyped_storage().data_ptr() not in taken, f"parameter {name!r} {ended}")
        self._check_optimizer()
        self._modules = _modules_of(model, loss)
        self._modes: dict[str, bool] = {}
        self._attributes = {place: _copied(value) for place, value in _attributes(self._modules).items()}
        self._fixed = self._fixed_tensors()
        self._told: set[tuple[str, str]] = set()
        self._probed: dict[str, object] = {"": [hook for _, hook in hooks_of(model, loss)]}
        """what acts besides the model as it began, by place, when it was last probed; hooks under no place"""
        _held.update(dict.fromkeys(self._trained.values()))
        watched: list[Any] = [p for p in self._named.values() if p.requires_grad]
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            *(parameter.register_post_accumulate_grad_hook(_refuse_backward) for parameter in watched),
        ]

    def begin(self) -> None:
        """The model is in training mode now: in this mode it is trained."""
        self._modes = {path: module.training for path, module in self._modules.items()}

    def take_off(self) -> None:
        """From here on model and optimiser are the user's alone; gradients are gone."""
        for handle in self._handles:
            handle.remove()
        for parameter in self._trained.values():
            _held.pop(parameter, None)
            parameter.grad = None

    def name_hooks(self) -> list[Any]:
        """All hooks of the user's; warns of those that were not named before, and has the statement name them."""
        found = hooks_of(self._model, self._loss)
        if new := self._first_time("hook", [where for where, _ in found]):
            warnings.warn(f"{hook_caveat(new)}; the statement says that it is not covered", stacklevel=4)
            self._loop.add_caveat(hook_caveat(new))
        return [hook for _, hook in found]

    @contextlib.contextmanager
    def as_begun(self, probe: Callable[[], None]) -> Iterator[None]:
        """Within, the model trains as when the loop began: what was frozen since, or put in evaluation mode, is back.

        Refuses other layers, parameters and buffers. Other plain values and hooks act; `probe` then checks again that
        records do not mix.
        """
        with contextlib.ExitStack() as undo:
            for path, module in self._modules.items():
                if module.training != self._modes[path]:
                    undo.callback(setattr, module, "training", module.training)
                    module.training = self._modes[path]
            for parameter in self._trained.values():
                if not parameter.requires_grad:
                    undo.callback(parameter.requires_grad_, False)
                    parameter.requires_grad_(True)
            acting = {"": self.name_hooks(), **self._changed_attributes(undo, self._check_parts())}
            if not _alike(acting, self._probed):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of what is tried on synthetic records
                    probe()
                self._probed = _copied(acting)
            yield

    def _check_parts(self) -> dict[str, object]:
        """Layers, parameters and fixed tensors must be those of the start; returns tensors of objects that are not."""
        now = {**_modules_of(self._model, self._loss), **dict(self._model.named_parameters())}
        acting: dict[str, object] = {}
        then = {**self._modules, **self._named}
        for place in sorted(now.keys() | then.keys()):
            if now.get(place) is not then.get(place):
                raise ModelError(f"the model has changed at {place!r} since the loop began; allowed: make another loop")
        for name, parameter in self._named.items():
            if parameter.requires_grad and name not in self._trained:
                told = f"parameter {name!r} was frozen when the loop began, so its gradient has no bound"
                raise ModelError(f"{told}; allowed: make the loop with all that will be trained, and freeze later")
        fixed = self._fixed_tensors()
        for place in sorted(fixed.keys() | self._fixed.keys()):
            begun, found = self._fixed.get(place), fixed.get(place)
            if found is not None and found.tensor in declared_public:
                self._loop.add_caveat(_declared(place))
                continue
            refused = all(entry is None or entry.kind != "attribute" for entry in (begun, found))  # those are put aside
            if begun is not None and found is not None and begun.tensor is found.tensor:
                refused = begun.version != found.version
            if refused and found is not None and "." in re.sub(r"\[.*?\]", "", found.name):  # an object's
                acting[place] = Tensor
            elif refused:
                told = f"{place!r} has changed since the loop began, and it reaches the weights without noise"
                remedy = "a tensor that you declare public, such as a temperature: ad.public(tensor)"
                raise ModelError(f"{told}; allowed: as it was, or {remedy}")
        return acting

    def _fixed_tensors(self) -> dict[str, Remembered]:
        trained = set(map(id, self._trained.values()))
        every = (*Snapshot(self._loss, "<loss>").tensors, *Snapshot(self._model).tensors)
        return {entry.place: entry for entry in every if id(entry.tensor) not in trained}

    def _changed_attributes(self, undo: contextlib.ExitStack, acting: dict[str, object]) -> dict[str, object]:
        """Puts tensors aside that are not declared public; adds the other values that act, all numbers alike."""
        now = _attributes(self._modules)
        kept = []
        for path, key in {**now, **self._attributes}:
            begun, found = (held.get((path, key), _MISSING) for held in (self._attributes, now))
            place = f"{path}.{key}".lstrip(".")
            if _alike(begun, found):
                continue
            if isinstance(found, _PublicFloat | _PublicInt) or (isinstance(found, Tensor) and found in declared_public):
                self._loop.add_caveat(_declared(place))
            elif any(isinstance(leaf, Tensor) for leaf in tree_leaves((begun, found))):
                attributes = self._modules[path].__dict__
                gone = found is _MISSING
                undo.callback(
                    *((attributes.pop, key, None) if gone else (attributes.update, {key: attributes.pop(key)}))
                )
                attributes |= {} if begun is _MISSING else {key: _copied(begun)}
                kept.append(place)
            else:
                acting[place] = float if type(found) is float else found
        if new := self._first_time("acts", acting):
            told = f"what the training code set on the model during the run: {_listed(new)}"
            warnings.warn(f"{told}; the statement says that it is not covered", stacklevel=5)
            self._loop.add_caveat(f"{told}; computed from private records, it would tell of them without noise")
        if new := self._first_time("put aside", kept):
            told = f"the model has another tensor at {_listed(new)} than when the loop began; steps are made with what"
            remedy = "to train with the new one, declare it public: ad.public(tensor)"
            warnings.warn(f"{told} was there then; {remedy}", stacklevel=5)
        return acting

    def _first_time(self, what: str, places: Iterable[str]) -> list[str]:
        """Those of which this was not said before."""
        new = [place for place in dict.fromkeys(places) if (what, place) not in self._told]
        self._told.update((what, place) for place in new)
        return new

    def hand_over(self) -> None:
        """`p.grad` is a release now: the next step of the optimiser may use it."""
        for parameter in self._trained.values():
            if not parameter.requires_grad:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = parameter.grad.clone()  # the user may write to what they see, not to the release

    def _before_step(self, _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Nothing but a release, once, may be stepped along."""
        closure = any(given is not None and given is not self._optimizer for given in (*args, kwargs.get("closure")))
        require(not closure, "optimizer.step(closure): a closure would compute un-noised gradients; call it without")
        batch = self._loop.batch
        if batch is not None and batch.state == "used":
            raise PrivacyLineError("optimizer.step() twice on one release; allowed: once a batch")
        if batch is None or batch.state != "released":
            raise PrivacyLineError("optimizer.step() before batch.backward(): there is no release to step along")
        self._check_optimizer()
        if all(parameter.grad is None for parameter in self._named.values()):
            told = "optimizer.step() after zero_grad(): the release is gone, so the step moves nothing"
            warnings.warn(f"{told}; call zero_grad() before batch.backward(), or after the step", stacklevel=4)

    def _after_step(self, *_: object) -> None:
        assert self._loop.batch is not None
        self._loop.batch.settle()

    def _check_optimizer(self) -> None:
        """What the optimiser moves must be the model's, and all that is trained must be moved by it."""
        names = {id(parameter): name for name, parameter in self._named.items()}
        held = set()
        for number, group in enumerate(self._optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                told = f"parameter {place} of group {number}, of shape {tuple(parameter.shape)}, is not the model's"
                allowed = "allowed: parameters of the model that is made private"
                require(id(parameter) in names, f"optimizer: {told}; {allowed}")
                held.add(names[id(parameter)])
        for name in sorted(self._trained.keys() - held):
            allowed = "which is trained; allowed: freeze it, or add it"
            raise InputError(f"optimizer does not hold parameter {name!r}, {allowed}")


def _refuse_backward(parameter: Tensor) -> None:
    parameter.grad = None  # un-noised, and the error may be caught
    told = "a backward pass of your own reached a parameter's grad: it would hold un-noised gradients"
    allowed = "batch.backward() of the private loop, loss.backward() on a batch of the loader that was made private"
    raise PrivacyLineError(f"{told}; allowed: {allowed}, or torch.autograd.grad for values that do not train")


def _declared(place: str) -> str:
    return f"declared public: {place!r} of the model, which changed during the run"


def _modules_of(model: nn.Module, loss: object) -> dict[str, nn.Module]:
    """Those of a model by their paths, and those that its loss has besides."""
    found = dict(model.named_modules())
    return found | dict(loss.named_modules(set(found.values()), "<loss>") if isinstance(loss, nn.Module) else ())


def _attributes(modules: dict[str, nn.Module]) -> dict[tuple[str, str], object]:
    """The attributes of every module that torch does not keep itself."""
    return {
        (path, key): value
        for path, module in modules.items()
        for key, value in vars(module).items()
        if key not in _INTERNAL
    }


def _copied(value: Any) -> Any:
    """The same, with containers and arrays of its own, however they are nested; other objects are shared."""
    return tree_map(lambda leaf: copy.copy(leaf) if isinstance(leaf, np.ndarray | set | dict) else leaf, value)


def _alike(one: Any, other: Any) -> bool:
    """Whether plain values and what containers hold are equal, and other objects the same."""
    (leaves, structure), (others, other_structure) = tree_flatten(one), tree_flatten(other)
    return structure == other_structure and all(map(_same, leaves, others))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())
    if isinstance(one, dict) and type(one) is type(other):  # a subclass, such as a Counter
        return _alike(dict(one), dict(other))
    return one is other or (type(one) is type(other) and isinstance(one, _COMPARED) and bool(one == other))


def _listed(places: list[str]) -> str:
    shown = ", ".join(map(repr, places[:3]))
    return shown if len(places) <= 3 else f"{shown} and {len(places) - 3} more"


def hooks_of(model: nn.Module, loss: object = None) -> list[tuple[str, Any]]:
    """The hooks of the user's own that private records would pass, each after where it is, in words.

    >>> net = nn.Sequential(nn.Linear(2, 1))
    >>> _ = net[0].register_forward_hook(print)
    >>> hooks_of(net)
    [("forward hook print on '0'", <built-in function print>)]
    """
    found = [
        (kind, hook, "all modules")
        for table, kind in _KINDS.items()
        for hook in getattr(every_module, f"_global{table}", {}).values()
    ]
    for path, module in _modules_of(model, loss).items():
        on = repr(path) if path else "the model"
        found += [(kind, hook, on) for table, kind in _KINDS.items() for hook in getattr(module, table).values()]
        for name, parameter in module.named_parameters(path, recurse=False):
            found += [("gradient hook", hook, repr(name)) for hook in (parameter._backward_hooks or {}).values()]
    return [(f"{kind} {own} on {on}", hook) for kind, hook, on in found if (own := own_name(hook))]


def hook_caveat(places: Iterable[str]) -> str:
    """The line of a statement that names hooks, by where they are."""
    return f"what hooks of the user's own keep or write of the records that pass them: {', '.join(places)}"


def own_name(code: Any) -> str:
    """The name of a function, of the one in a bound method or partial, or of an object's class; "" of a library's."""
    while isinstance(code, functools.partial):
        code = code.func
    code = getattr(code, "__func__", code)
    code = code if hasattr(code, "__qualname__") else type(code)
    library = str(code.__module__).partition(".")[0] in _LIBRARIES
    return "" if library else str(code.__qualname__.rpartition("<locals>.")[2])
