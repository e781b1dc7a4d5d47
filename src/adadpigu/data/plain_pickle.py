"""Reads the few plain values and byte arrays in a CIFAR-10 python batch without unpickling it.

Unpickling runs whatever the file says. Here the file's instructions are only walked: the dozen kinds that the
official batches consist of build dicts, lists, tuples, numbers and strings, names of classes stay names, and any other
instruction or name is refused. Nothing is imported, nothing is called. Instructions, containers (and with them how
deep they nest) and keys are bounded, so that a file cannot make Python's own recursion overflow.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np

from adadpigu.data.formats import Pixels, SourceError

_NAMES = frozenset(
    f"{module} {name}"
    for module, name in (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
    )
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "INT", "LONG1"})
_STRINGS = frozenset({"STRING", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "UNICODE", "BINBYTES", "SHORT_BINBYTES"})
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_CONTAINERS = frozenset({"EMPTY_DICT", "EMPTY_LIST", "TUPLE", "REDUCE", *_TUPLES})
_MARK = object()

MOST_INSTRUCTIONS = 200_000
"""an official batch has about 30,000, three for each record"""
MOST_CONTAINERS = 64
"""an official batch has about ten; none can nest deeper than there are containers"""


@dataclass
class _Made:
    """What a call would have made: its name and arguments, and the state it would have been given."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_batch(payload: bytes) -> tuple[Pixels, list[int]]:
    """The pixels [n, 3072] and labels of a batch."""
    batch = walk(payload)
    if not isinstance(batch, dict):
        raise SourceError("it holds no dict")
    labels, data = batch.get(b"labels"), batch.get(b"data")
    if not isinstance(labels, list) or not all(isinstance(label, int) and 0 <= label < 256 for label in labels):
        raise SourceError("it holds no list of labels")
    return _bytes_array(data), labels


def walk(payload: bytes) -> Any:
    """The value that a file's instructions describe, with arrays left as descriptions; strings come as bytes."""
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(payload)):
            if count == MOST_INSTRUCTIONS:
                raise SourceError(f"it has more instructions than allowed: {MOST_INSTRUCTIONS}")
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeError) as error:
        raise SourceError(f"it is no readable batch ({type(error).__name__})") from None
    raise SourceError("it is no readable batch")


class _Machine:
    """The stack and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._containers = 0

    def step(self, name: str, argument: Any) -> None:
        if name in _CONTAINERS:
            self._containers += 1
            if self._containers > MOST_CONTAINERS:
                raise SourceError(f"it has more dicts, lists and tuples than allowed: {MOST_CONTAINERS}")
        if name in _PUTS:
            self._memo[int(argument)] = self.stack[-1]
        elif name in _GETS:
            self.stack.append(self._memo[int(argument)])
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _NUMBERS:
            self.stack.append(argument)
        elif name in _STRINGS:
            self.stack.append(argument if isinstance(argument, bytes) else argument.encode("latin-1"))
        elif name == "MARK":
            self.stack.append(_MARK)
        elif name == "EMPTY_DICT":
            self.stack.append({})
        elif name == "EMPTY_LIST":
            self.stack.append([])
        elif name in _TUPLES or name == "TUPLE":
            self.stack.append(tuple(self._above_mark() if name == "TUPLE" else self._top(_TUPLES[name])))
        elif name != "PROTO":
            self._combine(name, argument)

    def _combine(self, name: str, argument: Any) -> None:
        if name in ("APPEND", "APPENDS"):
            items = self._above_mark() if name == "APPENDS" else self._top(1)
            self.stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._above_mark() if name == "SETITEMS" else self._top(2)
            for key in items[::2]:
                if not isinstance(key, (bytes, int)):
                    raise SourceError(f"it has a {type(key).__name__} as a key; allowed: strings and whole numbers")
            self.stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name == "GLOBAL":
            if argument not in _NAMES:
                raise SourceError(f"it names {argument.replace(' ', '.')!r}, which no official batch does")
            self.stack.append(argument)
        elif name == "REDUCE":
            called, arguments = self._top(2)
            if not isinstance(called, str) or not isinstance(arguments, tuple):
                raise SourceError("it calls a plain value, which no official batch does")
            self.stack.append(_Made(called, arguments))
        elif name == "BUILD":
            (state,) = self._top(1)
            if not isinstance(self.stack[-1], _Made):
                raise SourceError("it gives a state to a plain value, which no official batch does")
            self.stack[-1].state = state
        else:
            raise SourceError(f"it holds the instruction {name}, which no official batch does")

    def _top(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError(count)
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def _above_mark(self) -> list[Any]:
        where = len(self.stack) - 1
        while self.stack[where] is not _MARK:  # from the top: what is passed over is taken off, so that it stays linear
            where -= 1
        items = self.stack[where + 1 :]
        del self.stack[where:]
        return items


def _bytes_array(made: Any) -> Pixels:
    """The array a description stands for: version, shape, type, Fortran order, bytes."""
    if not isinstance(made, _Made) or not made.name.endswith("_reconstruct") or not isinstance(made.state, tuple):
        raise SourceError("it holds no array of pixels")
    if len(made.state) != 5:
        raise SourceError("its array of pixels has an unknown form")
    _, shape, kind, fortran, data = made.state
    plain = isinstance(kind, _Made) and kind.name == "numpy dtype" and kind.arguments[:1] == (b"u1",)
    if not plain or fortran not in (False, 0) or not isinstance(data, bytes) or not isinstance(shape, tuple):
        raise SourceError("its array of pixels has an unknown form")
    if len(shape) != 2 or not all(isinstance(size, int) and size > 0 for size in shape):
        raise SourceError("its array of pixels has an unknown form; allowed: images × values")
    if math.prod(shape) != len(data):
        raise SourceError("its array of pixels is not as long as it says")
    return np.frombuffer(data, np.uint8).reshape(shape)
