"""What a model remembers from one forward to the next: its buffers and its parameters.

A module that writes to either in a forward would carry un-noised data around the privacy line, so engines watch both;
inspection runs the model on public examples only and puts everything back as it was.
"""

from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import zip_longest
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from adadpigu.errors import ModelError

declared_public: MutableMapping[Tensor, None] = WeakIdKeyDictionary()
"""tensors of which the user says that they may change during a run (`ad.public`)"""


@dataclass(frozen=True)
class Remembered:
    """One buffer, parameter or plain tensor as it was: the object, how often it had been written to, maybe a copy."""

    path: str
    module: nn.Module
    kind: str
    name: str
    tensor: Tensor
    version: int
    value: Tensor | None

    @property
    def place(self) -> str:
        return f"{self.path}.{self.name}".lstrip(".")


def describe(path: str, module: nn.Module) -> str:
    """How errors name a module: dotted path and type.

    >>> describe("features.0", nn.ReLU()), describe("", nn.ReLU())
    ("'features.0' (ReLU)", '<model> (ReLU)')
    """
    whole = getattr(module, "shown_as", None) or f"<model> ({type(module).__name__})"
    return f"{path!r} ({type(module).__name__})" if path else whole


def remember(model: nn.Module, copied: Callable[[Tensor], bool] | None = None) -> list[Remembered]:
    """Every buffer, parameter and plain tensor of every module, with copies of those that `copied` chooses."""
    seen = []
    for path, module in model.named_modules():
        plain = {key: value for key, value in vars(module).items() if isinstance(value, Tensor)}
        for kind, tensors in (("buffer", module._buffers), ("parameter", module._parameters), ("attribute", plain)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    version = 0 if tensor.is_inference() else tensor._version
                    value = tensor.detach().clone() if copied is not None and copied(tensor) else None
                    seen.append(Remembered(path, module, kind, name, tensor, version, value))
    return seen


def refuse_differences(before: list[Remembered], now: list[Remembered]) -> None:
    """Raises `ModelError` where a tensor was replaced, added or written to; copies are compared bit for bit."""
    for old, new in zip_longest(before, now):
        if old is None or new is None or old.tensor is not new.tensor or old.version != new.version:
            raise changed(new or old)
        if old.value is not None and not identical(old.value, new.tensor.detach()):
            raise changed(old)


@contextmanager
def refuse_changes(model: nn.Module, copied: Callable[[Tensor], bool] | None = None) -> Iterator[None]:
    """Raises `ModelError` if the body replaced, added or wrote to a buffer, parameter or other tensor of the model.

    Compares identity and version counter, which is cheap enough for every step, and the values of those that are
    `copied`. Puts plain attributes back as they were, lists and dicts with their content.
    """
    # a tensor that the user may write to is compared by value: `Untrained` does not restore it
    before = remember(model, copied or (declared_public.__contains__ if declared_public else None))
    kept = AttributeSnapshot(model)
    try:
        yield
    finally:
        kept.restore()
    refuse_differences(before, remember(model))


_OWN = frozenset(vars(nn.Module()))
_REACH = 4
_PLAIN = frozenset({bool, int, float, str, type(None), torch.Size, torch.dtype, torch.device})


class AttributeSnapshot:
    """Copies of attributes, containers and arrays, a few levels deep, to undo what a forward or a loss leaves there.

    Tensors are watched elsewhere. `whole` includes what every module has (tables of tensors, the training flag).
    """

    def __init__(self, root: object, *, whole: bool = False) -> None:
        self._seen: dict[int, tuple[Any, Any]] = {}
        modules = root.modules() if isinstance(root, nn.Module) else [root]
        waiting = deque([(getattr(module, "__dict__", None), 0) for module in modules])
        while waiting:
            value, depth = waiting.popleft()
            if value is None or id(value) in self._seen or depth > _REACH:
                continue
            if isinstance(value, np.ndarray):
                self._seen[id(value)] = (value, value.copy())
            elif isinstance(value, list | dict | set | deque):
                own = _OWN if depth == 0 and not whole else frozenset()
                content = {k: v for k, v in value.items() if k not in own} if isinstance(value, dict) else copy(value)
                self._seen[id(value)] = (value, content)
                items = content.values() if isinstance(content, dict) else content
                waiting += [(item, depth + 1) for item in items if type(item) not in _PLAIN]
            elif not isinstance(value, Tensor | nn.Module | type | ModuleType | FunctionType | MethodType):
                waiting.append((getattr(value, "__dict__", None), depth + 1))

    def restore(self) -> None:
        """Undoes what was changed; what was not is not touched."""
        for value, content in self._seen.values():
            if isinstance(value, np.ndarray):
                if not np.array_equal(value, content, equal_nan=value.dtype.kind == "f"):
                    value[...] = content
            elif isinstance(value, dict):
                own = {k: v for k, v in value.items() if k in _OWN and k not in content}
                if [(k, id(v)) for k, v in value.items() if k not in own] != [(k, id(v)) for k, v in content.items()]:
                    value.clear()
                    value.update(own | content)
            elif list(map(id, value)) != list(map(id, content)):
                value.clear()
                (value.update if isinstance(value, set) else value.extend)(content)


def changed(entry: Remembered) -> ModelError:
    """The refusal of a module that writes to its own state."""
    return ModelError(
        f"{describe(entry.path, entry.module)}: a training forward changes {entry.kind} {entry.name!r}, which would "
        "carry data around the noise; remove it, use a layer without such state, or set it in __init__ and leave it"
    )


class Untrained:
    """A copy of every tensor that training must leave alone: buffers, frozen parameters, plain tensors.

    Finds writes that leave no trace in the version counter before they are saved with the model.
    """

    def __init__(self, model: nn.Module) -> None:
        trained = {id(p) for p in model.parameters() if p.requires_grad}
        self._model = model
        self._before = remember(model, lambda tensor: id(tensor) not in trained)

    def restore(self) -> ModelError | None:
        """Restores all of them but those declared public; the refusal names the first that was changed.

        A plain tensor in whose place another lies is put back without one: an evaluation has left it there.
        """
        present = {(e.path, e.kind, e.name): e.tensor for e in remember(self._model)}
        refusal = None
        for entry in self._before:
            if entry.value is None:
                continue
            found = present.get((entry.path, entry.kind, entry.name))
            if found is not None and found in declared_public:
                continue
            left_by_evaluation = entry.kind == "attribute" and found is not entry.tensor
            if not left_by_evaluation and (found is None or not identical(entry.value, found.detach())):
                refusal = refusal or changed(entry)
            entry.tensor.data.copy_(entry.value)
            tables: dict[str, Any] = {"buffer": entry.module._buffers, "parameter": entry.module._parameters}
            tables.get(entry.kind, vars(entry.module))[entry.name] = entry.tensor
        return refusal


def identical(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, so that a NaN equals itself; of sharded tensors, the part that this process holds."""
    one, other = (getattr(tensor, "_local_tensor", tensor) for tensor in (one, other))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)))


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Leaves the model (tensors, training flags, plain attributes) and torch's random state bit-identical."""
    kept, before = AttributeSnapshot(model, whole=True), remember(model, lambda _: True)
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call, unused-ignore]
    devices = range(torch.cuda.device_count()) if cuda else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        kept.restore()
        for entry in before:
            assert entry.value is not None
            entry.tensor.data.copy_(entry.value)  # .data: a graph the caller still holds stays usable
