"""What a LightningModule remembers from one training_step to the next, outside its parameters: put back, and named.

A training_step that is followed leaves stand-ins where it would have left losses and outputs of records. They are taken
out again; what it would have kept is told by its name, and refused where it would have come into a later loss.
"""

from __future__ import annotations

import copy
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torchmetrics
from torch import Tensor, fx, nn

from adadpigu.errors import ModelError

CONSTANT = "_tensor_constant"
"""how attributes begin that tracing itself adds"""
_COUNTS = (bool, int, float, str)
"""attributes of these types keep what training_step makes of them"""
_CONTAINERS = (list, dict, set, deque)
_REACH, _MANY = 4, 1000
"""levels that are looked into, and items of a container up to which each is"""
_OWN = frozenset(vars(nn.Module())) - {"_parameters", "_buffers", "_modules"}
"""tables of hooks and the like, which every module has"""
_CLOSED = (Tensor, nn.Module, pl.Trainer, type, types.ModuleType, types.FunctionType, types.MethodType, fx.Proxy)
"""neither containers nor things with attributes to be looked at"""
_MACHINERY = frozenset({"adadpigu", "lightning", "torch"})
"""packages whose objects move on by themselves during a step: optimisers, loops, strategies"""


class Memory:
    """Attributes of all modules of a LightningModule, and what lies in them, as they are now."""

    def __init__(self, module: nn.Module, besides: dict[str, Any] | None = None) -> None:
        """`besides`: other attributes that are to be put back, as `vars` gives them."""
        self._seen: dict[int, tuple[str, Any, Any]] = {}
        """by identity: its name, itself, and a copy of it as it was"""
        self._attributes = [vars(part) for part in module.modules()]
        for path, part in module.named_modules():
            if not isinstance(part, torchmetrics.Metric | torchmetrics.MetricCollection):
                self._visit(path, vars(part), 0)
        if besides is not None:
            self._visit("trainer", besides, 0)
        tensors = [*module.named_parameters(), *module.named_buffers(), *self._plain_tensors()]
        self._versions = [(name, tensor, tensor._version) for name, tensor in tensors if not tensor.is_inference()]

    def refuse_tensors(self, where: str) -> None:
        """Refuses that a tensor was replaced by a value of the batch, or changed, by its name."""
        for label, value, content in self._seen.values():
            for key, before in content.items() if isinstance(content, dict) else ():
                if isinstance(before, Tensor) and isinstance(value.get(key), fx.Proxy):
                    raise ModelError(
                        f"{where} puts a value of the batch in place of the tensor {_below(label, key)!r}, which would "
                        "carry it from step to step; allowed: tensors that stay as they are"
                    )
        for name in self.rewritten():
            raise ModelError(f"{where} changes the tensor {name!r} in place; allowed: tensors that stay as they are")

    def rewritten(self) -> list[str]:
        """Names of the tensors that were changed in place."""
        return [name for name, tensor, version in self._versions if tensor._version != version]

    def kept(self) -> tuple[str, ...]:
        """What has changed, by its name, besides attributes in which training_step counts."""
        found, modules = list[str](), {*map(id, self._attributes)}
        for label, value, content in self._seen.values():
            if not isinstance(value, dict):
                found += [label] if [*map(id, value)] != [*map(id, content)] else []
                continue
            counts = id(value) in modules
            for key, now in value.items():
                same = key in content and content[key] is now
                counted = counts and type(now) in _COUNTS
                if not (same or counted or str(key).startswith(CONSTANT)):
                    found.append(_below(label, key))
        return tuple(dict.fromkeys(found))

    def counted(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Numbers and words that attributes have become: for after `put_back`."""
        return [(each, {key: now for key, now in each.items() if type(now) in _COUNTS}) for each in self._attributes]

    def put_back(self) -> None:
        """Makes everything what it was; what did not change is not touched."""
        for _, value, content in self._seen.values():
            if isinstance(value, dict):
                if len(value) != len(content) or any(value.get(key) is not old for key, old in content.items()):
                    value.clear()
                    value.update(content)
            elif [*map(id, value)] != [*map(id, content)]:
                value.clear()
                (value.update if isinstance(value, set) else value.extend)(content)

    def _visit(self, label: str, value: Any, depth: int) -> None:
        if id(value) in self._seen or depth > _REACH or isinstance(value, _CLOSED):
            return
        if not isinstance(value, _CONTAINERS):
            if type(value).__module__.partition(".")[0] in _MACHINERY:
                return
            if isinstance(attributes := getattr(value, "__dict__", None), dict):
                self._visit(label, attributes, depth + 1)
            return
        self._seen[id(value)] = (label, value, copy.copy(value))
        if len(value) <= _MANY:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                if depth > 0 or key not in _OWN:
                    self._visit(_below(label, key), item, depth + 1)

    def _plain_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for label, _, content in self._seen.values():
            for key, value in content.items() if isinstance(content, dict) else ():
                if isinstance(value, Tensor):
                    yield _below(label, key), value


def _below(label: str, key: object) -> str:
    return f"{label}.{key}".removeprefix(".")
