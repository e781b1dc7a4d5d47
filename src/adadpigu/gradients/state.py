"""What a model remembers from one forward to the next: its buffers and its parameters.

A module that writes to either in a forward would carry un-noised data around the privacy line, so engines watch both;
inspection runs the model on public examples only and puts everything back as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.errors import ModelError


@dataclass(frozen=True)
class Remembered:
    """One buffer or parameter as it was: the object itself and how often it had been written to."""

    path: str
    module: nn.Module
    kind: str
    name: str
    tensor: Tensor
    version: int


def describe(path: str, module: nn.Module) -> str:
    """How errors name a module: dotted path and type.

    >>> describe("features.0", nn.ReLU()), describe("", nn.ReLU())
    ("'features.0' (ReLU)", '<model> (ReLU)')
    """
    return f"{repr(path) if path else '<model>'} ({type(module).__name__})"


def remember(model: nn.Module) -> list[Remembered]:
    """Every buffer, parameter and plain tensor of every module, without copying any."""
    seen = []
    for path, module in model.named_modules():
        plain = {key: value for key, value in vars(module).items() if isinstance(value, Tensor)}
        for kind, tensors in (("buffer", module._buffers), ("parameter", module._parameters), ("attribute", plain)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    version = 0 if tensor.is_inference() else tensor._version
                    seen.append(Remembered(path, module, kind, name, tensor, version))
    return seen


@contextmanager
def refuse_changes(model: nn.Module) -> Iterator[None]:
    """Raises `ModelError` if the body replaced, added or wrote to a buffer or parameter, or wrote to another tensor.

    Compares identity and version counter: free of data, and cheap enough for every step. Plain attributes are put back
    as they were, lists and dicts with their content, so that nothing a forward leaves there stays in the model.
    """
    before, attributes = remember(model), [(module, *_attributes(module)) for module in model.modules()]
    try:
        yield
    finally:
        for module, plain, contents in attributes:
            _put_back(module, plain, contents)
    for old, new in zip_longest(before, remember(model)):
        if old is None or new is None or old.tensor is not new.tensor or old.version != new.version:
            raise changed(new or old)


_CONTAINERS = (list, dict, set, deque)


def _attributes(module: nn.Module) -> tuple[dict[str, object], dict[str, object]]:
    """A module's plain attributes, and copies of those that are containers."""
    plain = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    return plain, {key: copy(value) for key, value in plain.items() if isinstance(value, _CONTAINERS)}


def _put_back(module: nn.Module, plain: dict[str, object], contents: dict[str, object]) -> None:
    for key in [key for key in vars(module) if not key.startswith("_") and key not in plain]:
        del vars(module)[key]
    vars(module).update(plain)
    for key, content in contents.items():
        container: Any = plain[key]
        container.clear()
        refill: Any = container.extend if isinstance(container, list | deque) else container.update
        refill(content)


def changed(entry: Remembered) -> ModelError:
    """The refusal of a module that writes to its own state."""
    return ModelError(
        f"{describe(entry.path, entry.module)}: a training forward changes {entry.kind} {entry.name!r}, which would "
        "carry data around the noise; remove it, use a layer without such state, or set it in __init__ and leave it"
    )


def copy_of_buffers(model: nn.Module) -> dict[str, Tensor]:
    """What the buffers hold before training."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def refuse_buffer_changes(model: nn.Module, before: dict[str, Tensor]) -> None:
    """Raises `ModelError` if a buffer holds something else than before training, and puts it back.

    The last net: a write that leaves no trace in the version counter would otherwise be saved with the model.
    """
    for name, buffer in model.named_buffers():
        value = before.get(name)
        if value is None or not _identical(value, buffer.detach()):
            if value is not None:
                buffer.data.copy_(value)
            raise ModelError(f"buffer {name!r} changed during training, which would carry data around the noise")


def _identical(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, so that a NaN equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)))


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Leaves the model and torch's random state bit-identical, whatever the body does to them.

    Covers parameters, buffers, training flags and plain attributes that the forward sets.
    """
    attributes = [(module, dict(vars(module)), _attributes(module)) for module in model.modules()]
    tables = [(table, dict(table)) for module in model.modules() for table in (module._buffers, module._parameters)]
    values = [(entry.tensor, entry.tensor.detach().clone()) for entry in remember(model)]
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call, unused-ignore]
    devices = range(torch.cuda.device_count()) if cuda else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, everything, plain in attributes:
            vars(module).clear()
            vars(module).update(everything)
            _put_back(module, *plain)
        for table, entries in tables:
            table.clear()
            table.update(entries)  # type: ignore[arg-type]
        for tensor, value in values:
            tensor.data.copy_(value)  # .data: a graph the caller still holds stays usable
