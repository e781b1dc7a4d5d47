"""What a model, a front or a loss remembers from one forward to the next: tensors, and what attributes hold.

What is left there would carry un-noised data around the privacy line. So engines refuse writing to tensors and put the
rest back; inspection runs the model on public examples only and puts everything back as it was.
"""

from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from adadpigu.errors import ModelError

declared_public: MutableMapping[Tensor, None] = WeakIdKeyDictionary()
"""tensors of which the user says that they may change during a run (`ad.public`)"""


Copied = Callable[[Tensor, str], bool]  # whether a copy of a tensor is kept, by the tensor and its name
_TABLES = {"buffer": "_buffers", "parameter": "_parameters", "attribute": "__dict__"}  # of a module, by what they hold
_NESTED = frozenset(".[")  # what stands in the name of a tensor in a container or an object that is an attribute


class Remembered(NamedTuple):
    """One buffer, parameter or other tensor as it was: the object, how often it had been written to, maybe a copy."""

    path: str
    module: Any
    kind: str
    name: str
    tensor: Tensor
    version: int
    value: Tensor | None

    @property
    def place(self) -> str:
        return f"{self.path}.{self.name}".lstrip(".")


def describe(path: str, module: object) -> str:
    """How errors name a module: dotted path and type.

    >>> describe("features.0", nn.ReLU()), describe("", nn.ReLU())
    ("'features.0' (ReLU)", '<model> (ReLU)')
    """
    whole = getattr(module, "shown_as", None) or f"<model> ({type(module).__name__})"
    return f"{path!r} ({type(module).__name__})" if path else whole


@contextmanager
def refuse_changes(
    model: object, copied: Copied | None = None, *, path: str = "", kinds: tuple[str, ...] = tuple(_TABLES)
) -> Iterator["Snapshot"]:
    """Raises `ModelError` if the body replaced, added or wrote to a tensor of the model; `path` names its root.

    Compares identity and version counter, which is cheap enough for every step, and the values of those that are
    `copied`. Puts plain attributes back as they were, containers and objects with their content.
    """
    # a tensor that the user may write to is compared by value: `Untrained` does not restore it
    declared = (lambda tensor, _: tensor in declared_public) if declared_public else None
    before = Snapshot(model, path, copied or declared)
    try:
        yield before
    finally:
        before.restore()
    before.refuse_differences(kinds)


_OWN = frozenset(vars(nn.Module())) - {"_modules"}  # layers that a forward adds are put back too
_REACH = 4
_PLAIN = frozenset({bool, int, float, str, type(None), torch.Size, torch.dtype, torch.device})
_CODE = (type, ModuleType, FunctionType, MethodType)
_FRAMEWORKS = ("torch.", "lightning.", "pytorch_lightning.")  # their objects, such as optimisers, change by themselves


class Snapshot:
    """All that a module or an object holds, a few levels deep: its tensors, and copies of containers and arrays.

    `copied` chooses tensors of which a copy is kept too. `whole` includes what every module has, as its training flag.
    """

    def __init__(self, root: object, path: str = "", copied: Copied | None = None, *, whole: bool = False) -> None:
        self.tensors: list[Remembered] = []
        self._tables: list[tuple[str, Any, str, Any, Any]] = []
        self._held: dict[int, tuple[Any, Any]] = {}  # values by id; content None: nothing to put back
        self._left = frozenset() if whole else _OWN
        waiting: deque[tuple[Any, int, str, Any, str, str]] = deque([(root, 0, path, root, "attribute", "")])
        while waiting:
            value, depth, path, owner, kind, name = waiting.popleft()
            if isinstance(value, Tensor):
                if id(value) not in self._held or _NESTED.isdisjoint(name):
                    plain = value.layout == torch.strided and not value.is_meta and not value.is_quantized
                    kept = value.detach().clone() if plain and copied is not None and copied(value, name) else None
                    version = 0 if value.is_inference() else value._version
                    self.tensors.append(Remembered(path, owner, kind, name, value, version, kept))
                    self._held[id(value)] = value, None
            elif id(value) in self._held or depth > _REACH:
                continue
            elif isinstance(value, nn.Module):
                for place, module in value.named_modules():
                    if id(module) not in self._held:
                        self._held[id(module)] = module, None
                        here = (path, owner) if name else (f"{path}.{place}".strip("."), module)
                        inner = f"{name}.{place}.".replace("..", ".") if name else ""
                        waiting += [(getattr(module, table), 0, *here, what, inner) for what, table in _TABLES.items()]
            elif isinstance(value, np.ndarray):
                self._held[id(value)] = value, value.copy()
            elif isinstance(value, dict | list | tuple | set | deque):
                content: Any = dict(value) if isinstance(value, dict) else list(value)
                if kind == "attribute":
                    self._held[id(value)] = value, content
                else:  # is not put back: what changes it is refused
                    self._tables.append((path, owner, kind, value, content))
                left = self._left if depth == 0 else ()
                form = "{}{}" if name[-1:] in ("", ".") else "{}[{!r}]"
                waiting += [
                    (item, depth + 1, path, owner, kind, form.format(name, key))
                    for key, item in (content.items() if isinstance(content, dict) else enumerate(content))
                    if key not in left and type(item) not in _PLAIN and not isinstance(item, np.generic)
                ]
            elif depth == 0 or not (isinstance(value, _CODE) or type(value).__module__.startswith(_FRAMEWORKS)):
                state: Any = None if isinstance(value, _CODE) else object.__getstate__(value)
                slots = state[1] if isinstance(state, tuple) else {}
                self._held[id(value)] = value, slots
                inner = f"{name}." if name else ""
                parts = (slots, getattr(value, "__dict__", {}))
                waiting += [(part, depth and depth + 1, path, owner, kind, inner) for part in parts]

    @property
    def modules(self) -> list[nn.Module]:
        return [value for value, _ in self._held.values() if isinstance(value, nn.Module)]

    def restore(self) -> None:
        """Undoes what was changed, but in tensors; what was not is not touched."""
        for value, content in self._held.values():
            if isinstance(value, np.ndarray):
                if not np.array_equal(value, content, equal_nan=value.dtype.kind == "f"):
                    value[...] = content
            elif isinstance(value, dict):
                if list(map(id, (*value, *value.values()))) != list(map(id, (*content, *content.values()))):
                    left = self._left if "_parameters" in content else ()
                    kept = {k: v for k, v in value.items() if k in left}
                    value.clear()
                    value.update(kept | {k: v for k, v in content.items() if k not in left})
            elif isinstance(value, list | set | deque):
                if list(map(id, value)) != list(map(id, content)):
                    value.clear()
                    (value.update if isinstance(value, set) else value.extend)(content)
            elif isinstance(content, dict):
                for key, item in content.items():
                    if getattr(value, key, None) is not item:
                        object.__setattr__(value, key, item)

    def refuse_differences(self, kinds: tuple[str, ...]) -> None:
        """Raises `ModelError` where a tensor was written to, replaced or added; copies are compared bit for bit."""
        for path, owner, kind, table, content in self._tables:
            if kind in kinds and list(map(id, table.values())) != list(map(id, content.values())):
                other = [key for key in {**table, **content} if table.get(key) is not content.get(key)]
                raise changed(path, owner, kind, *other)
        for path, owner, kind, name, tensor, version, kept in self.tensors:
            written = version != (0 if tensor.is_inference() else tensor._version)
            if kind in kinds and (written or (kept is not None and not identical(kept, tensor.detach()))):
                raise changed(path, owner, kind, name)


def changed(path: str, module: object, kind: str, *names: str) -> ModelError:
    """The refusal of a module that writes to its own state."""
    return ModelError(
        f"{describe(path, module)}: a training forward changes {kind} {''.join(names[:1])!r}, which would carry data "
        "around the noise; remove it, use a layer without such state, or set it in __init__ and leave it"
    )


class Untrained:
    """A copy of every tensor that training must leave alone: buffers, frozen parameters, plain tensors.

    Finds writes that leave no trace in the version counter before they are saved with the model.
    """

    def __init__(self, model: nn.Module) -> None:
        trained = {id(p) for p in model.parameters() if p.requires_grad}
        self._model = model
        kept = Snapshot(model, copied=lambda t, name: id(t) not in trained and _NESTED.isdisjoint(name))
        self._before = [entry for entry in kept.tensors if entry.value is not None]

    def restore(self) -> ModelError | None:
        """Restores all of them but those declared public; the refusal names the first that was changed.

        A plain tensor in whose place another lies is put back without one: an evaluation has left it there.
        """
        present = {(e.path, e.kind, e.name): e.tensor for e in Snapshot(self._model).tensors}
        refusal = None
        for entry in self._before:
            assert entry.value is not None
            found = present.get((entry.path, entry.kind, entry.name))
            if found is not None and found in declared_public:
                continue
            left_by_evaluation = entry.kind == "attribute" and found is not entry.tensor
            if not left_by_evaluation and (found is None or not identical(entry.value, found.detach())):
                refusal = refusal or changed(*entry[:4])
            entry.tensor.data.copy_(entry.value)
            getattr(entry.module, _TABLES[entry.kind])[entry.name] = entry.tensor
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
    before = Snapshot(model, copied=lambda *_: True, whole=True)
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call, unused-ignore]
    devices = range(torch.cuda.device_count()) if cuda else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        before.restore()
        for entry in before.tensors:
            if entry.value is not None and not identical(entry.value, entry.tensor.detach()):
                entry.tensor.data.copy_(entry.value)  # .data: a graph the caller still holds stays usable
