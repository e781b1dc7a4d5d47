"""A device that records and replays, without a GPU: operations are noted as torch dispatches them, and run again.

As with a CUDA graph, recording leaves no trace in any tensor, Python is not run by a replay, and a step that has to
look at a number cannot be recorded.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adadpigu.core import mechanism

_LOOKS = ("_local_scalar_dense", "nonzero", "equal", "masked_select")


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self._own: set[int] = set()
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name.removeprefix("aten::") in _LOOKS:
            raise RuntimeError("operation not permitted when stream is capturing")
        for argument, value in zip(func._schema.arguments, args, strict=False):
            self._remember(argument, value)
        for argument in func._schema.arguments:
            if argument.name in kwargs:
                self._remember(argument, kwargs[argument.name])
        made = func(*args, **kwargs)
        if not any(result.alias_info for result in func._schema.returns):
            self._own |= {t.untyped_storage().data_ptr() for t in tree_leaves(made) if isinstance(t, Tensor)}
        self._kept.append(made)
        self.operations.append((func, args, kwargs, made))
        return made

    def _remember(self, argument: Any, value: Any) -> None:
        """What stood in a tensor from outside before the recording wrote to it."""
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for tensor in tree_leaves(value):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._own and storage.data_ptr() not in self._before:
                self._before[storage.data_ptr()] = storage, storage.clone()

    def undo(self) -> None:
        for storage, before in self._before.values():
            storage.copy_(before)


@torch.no_grad()
def _replay(operations: list[tuple[Any, Any, Any, Any]]) -> None:
    for func, args, kwargs, made in operations:
        new = func(*args, **kwargs)
        if any(result.alias_info for result in func._schema.returns):
            continue  # a view, or the tensor that was written to
        for old, value in zip(tree_leaves(made), tree_leaves(new), strict=True):
            if isinstance(old, Tensor):
                old.detach().copy_(value)


@contextlib.contextmanager
def _blindfold() -> Iterator[None]:
    """Ways to look at a tensor's numbers that torch does not dispatch where they lie on the CPU."""

    def refuse(self: Tensor) -> NoReturn:
        raise RuntimeError("operation not permitted when stream is capturing")

    with mock.patch.object(Tensor, "tolist", refuse), mock.patch.object(Tensor, "numpy", refuse):
        yield


class ReplayedOperations:
    """A recorder for tests."""

    name = "replayed operations"

    def __init__(self, *generators: torch.Generator) -> None:
        self._generators = generators
        self.recorded = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        states = [generator.get_state() for generator in self._generators]
        notes = _Notes()
        try:
            with notes, _blindfold(), mock.patch.object(mechanism, "capturing", return_value=True):
                work()
        finally:
            notes.undo()
            for generator, state in zip(self._generators, states, strict=True):
                generator.set_state(state)
        self.recorded += 1
        return functools.partial(_replay, notes.operations)

    def concurrent(self) -> ReplayedOperations:
        return self
