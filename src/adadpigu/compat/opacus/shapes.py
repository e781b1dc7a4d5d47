"""The shape of a recipe: what a script computes its loss by, besides the batch. It is public, so it stays the same.

    mean(cross_entropy(output, target, weight=w))     functions, their order and arguments; the constant w

In the first step there is nothing to compare with: there, constants must have been there before the script knew any
value of a batch.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from adadpigu.compat.opacus.numbers import public
from adadpigu.compat.opacus.tracing import Leaf, Made, Recipe, name_of, same
from adadpigu.errors import InputError

_ARITHMETIC = frozenset(("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "truediv", "pow"))
_ARITHMETIC |= {f"r{name}" for name in _ARITHMETIC} | {"floordiv"}


@dataclass(frozen=True)
class Shape:
    """Functions, arguments and leaves, written out in order; and the constants among the arguments."""

    written: tuple[str, ...]
    constants: tuple[Any, ...]
    doubtful: str | None
    """a function that was given a constant when the script knew values of the batch already"""

    @staticmethod
    def of(*recipes: Recipe | None) -> Shape:
        """Without recursion, each node written once: a recipe may be long, and use what it made many times."""
        written: list[str] = []
        constants: list[Any] = []
        doubtful: str | None = None
        numbers: dict[int, int] = {}
        waiting: list[Any] = list(reversed(recipes))
        while waiting:
            item = waiting.pop()
            if isinstance(item, Leaf):
                written.append(item.name)
            elif isinstance(item, Made) and id(item) in numbers:
                written.append(f"#{numbers[id(item)]}")
            elif isinstance(item, Made):
                numbers[id(item)] = len(numbers)
                names = sorted(item.kwargs)
                written.append(f"{name_of(item.function)} {item.part} {len(item.args)} {names}")
                waiting += reversed([*item.args, *(item.kwargs[name] for name in names)])
                doubtful = doubtful or (name_of(item.function) if item.told and any(_chosen(item)) else None)
            elif type(item) in (tuple, list):
                written.append(f"[{len(item)}]")
                waiting += reversed(item)
            else:
                written.append("constant")
                constants.append(0.0 if isinstance(item, public) else item)
        return Shape(tuple(written), tuple(constants), doubtful)

    def refuse_doubtful(self) -> None:
        """Of the first step: no constant may come from its batch."""
        if self.doubtful is not None:
            raise InputError(
                f"{self.doubtful} has a number or tensor that is not of the batch, and the script had taken values out "
                "of it before (item(), numpy(), len(), a condition), so it may come from there and tie records "
                "together; allowed: to compute the loss first, adadpigu.compat.opacus.public(number), size(0)"
            )

    def refuse_other(self, first: Shape) -> None:
        """What is public is the same in every step."""
        if self.written != first.written:
            raise InputError(
                "the script computes its loss in another way than in its first step, which may tell of a batch; "
                "allowed: the same functions of the same arguments in every step"
            )
        for before, now in zip(first.constants, self.constants, strict=True):
            if not same(before, now):
                raise InputError(
                    "a number or tensor in the loss that is not of the batch is another than in the first step, so it "
                    "may have been taken from one; allowed: constants, or adadpigu.compat.opacus.public(number)"
                )


def _chosen(made: Made) -> Iterator[bool]:
    """For each argument whether it is a constant with a value that somebody chose: no default, no place, no kind."""
    defaults = _defaults(made.function)
    counts = name_of(made.function).strip("_") in _ARITHMETIC
    named = [*((None, value) for value in made.args), *made.kwargs.items()]
    for name, value in named:
        for part in value if type(value) in (tuple, list) else (value,):
            number = isinstance(part, float) or (counts and isinstance(part, int) and not isinstance(part, bool))
            if isinstance(part, public) or not (number or isinstance(part, Tensor)):
                yield False
            else:
                yield not (name in defaults and same(defaults[name], part))


def _defaults(function: Callable[..., Any]) -> dict[str | None, Any]:
    with contextlib.suppress(TypeError, ValueError):  # functions written in C do not tell
        return {name: each.default for name, each in inspect.signature(function).parameters.items()}
    return {}


def draws_at_random(recipe: Recipe | None) -> bool:
    """Whether following a recipe twice gives different numbers."""
    names = " ".join(Shape.of(recipe).written)
    return any(word in names for word in ("rand", "dropout", "bernoulli", "multinomial", "normal", "uniform"))
