"""Numbers that a script takes out of its batch: sizes, which a record has by itself too, and values, which it has not.

    data.view(data.size(0), -1)      a size: for a record by itself it is that of a batch of one
    loss / loss.item()               a value: it depends on all records, and may not come back into the loss

Both behave as the plain numbers they are. What they are made of goes with them through arithmetic.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from adadpigu.errors import InputError

_TWO = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


class FromBatch:
    """Marks a number of a batch; `recipe` tells how it follows from sizes, and is None where it tells of values."""

    recipe: Any


def _operator(function: Callable[..., Any], reflected: bool) -> Callable[..., Any]:
    def apply(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
        return marked(function(*map(bare, pair)), _combined(function, pair))

    return apply


def bare(value: Any) -> Any:
    """The plain number; anything else is left as it is."""
    if isinstance(value, FromBatch):
        return float(value) if isinstance(value, float) else int(value)  # type: ignore[call-overload]
    return value


def _combined(function: Callable[..., Any], pair: tuple[Any, Any]) -> Any:
    """The recipe of what arithmetic makes; a value spoils it."""
    from adadpigu.compat.opacus.tracing import Made

    if any(isinstance(part, FromBatch) and part.recipe is None for part in pair):
        return None
    return Made(function, tuple(part.recipe if isinstance(part, FromBatch) else part for part in pair), {})


class BatchInt(int, FromBatch):
    """A whole number of a batch."""


class BatchFloat(float, FromBatch):
    """Any other number of a batch."""


for _name in _TWO:
    _function = getattr(operator, _name)
    for _kind in (BatchInt, BatchFloat):
        setattr(_kind, f"__{_name}__", _operator(_function, reflected=False))
        setattr(_kind, f"__r{_name}__", _operator(_function, reflected=True))


def marked(number: Any, recipe: Any) -> Any:
    """The number as one of a batch; what is no number, or a truth, is left as it is."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return number
    made: Any = BatchFloat(number) if isinstance(number, float) else BatchInt(number)
    made.recipe = recipe
    return made


class public(float):  # noqa: N801 - read as a function: public(0.5)
    """A number of the user's own that may change from step to step, such as a weight that follows a public schedule."""

    def __new__(cls, number: float) -> public:
        if isinstance(number, FromBatch):
            raise InputError(
                f"public({number:.4g}): a number that was taken out of a batch is not public; allowed: your own"
            )
        return super().__new__(cls, number)
