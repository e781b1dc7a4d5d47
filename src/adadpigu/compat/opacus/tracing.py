"""Tensors that remember how a script made them from its batch, so that its loss can be computed record by record.

    output = model(data); loss = criterion(output, target)     what the script sees: ordinary values of its batch
    ℓ_i = the same functions on record i as a batch of one      what is differentiated, clipped and noised

A loss that mixes the records of a batch (a weighted mean, batch statistics) cannot mix them here. Before the noise:
values, recipes and losses are sensitive; the script that holds them is the user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from adadpigu.errors import InputError, PrivacyLineError

INPUT, TARGET, OUTPUT = "input", "target", "output"


@dataclass(frozen=True, eq=False)
class Leaf:
    """Where a recipe begins: the batch's inputs or targets, or what the model made of it."""

    name: str
    batch: object
    """the batch that it belongs to"""
    value: Tensor
    made_from: Recipe | None = None
    """of the model's output: what the model was called with"""


@dataclass(frozen=True, eq=False)
class Made:
    """What a function made; `args` and `kwargs` hold recipes in the place of tensors that have one."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    part: int | None = None
    """which of several results"""


Recipe = Leaf | Made


class Traced(Tensor):
    """A tensor with its recipe. It has no graph: `backward` of a loss is the private one of its batch."""

    recipe: Recipe

    @staticmethod
    def of(value: Tensor, recipe: Recipe) -> Traced:
        traced = value.detach().as_subclass(Traced)
        traced.recipe = recipe
        return traced

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return _backward(*args, **kwargs)
        if kwargs.get("out") is not None:
            raise InputError(f"{_name(func)}(out=...) on what depends on a private batch; allowed: without out")
        into = _written(func, args)
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            result = func(*args, **kwargs)
        made = Made(_on_a_copy(func) if into is not None else func, _recipes(args), _recipes(kwargs))
        if into is not None:
            into.recipe = made
            return result
        return _traced(result, made)


def _traced(result: Any, made: Made) -> Any:
    """The result with its recipe: a tensor, or a plain or named tuple of tensors; anything else is a plain value."""
    if isinstance(result, Tensor):
        return Traced.of(result, made)
    if isinstance(result, tuple | list) and any(isinstance(part, Tensor) for part in result):
        parts = [
            Traced.of(part, Made(made.function, made.args, made.kwargs, part=number))
            if isinstance(part, Tensor)
            else part
            for number, part in enumerate(result)
        ]
        return type(result)(parts)
    return result


def _written(func: Any, args: tuple[Any, ...]) -> Traced | None:
    """The tensor that a function writes to, if it has a recipe."""
    name = _name(func)
    in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    in_place = in_place or (name.startswith("__i") and name not in ("__invert__", "__index__", "__int__"))
    if not (in_place and args and isinstance(args[0], Tensor)):
        return None
    if not isinstance(args[0], Traced):
        raise InputError(
            f"{name} writes what depends on a private batch into another tensor, which would keep it; allowed: a new "
            "tensor"
        )
    return args[0]


def _on_a_copy(func: Callable[..., Any]) -> Callable[..., Tensor]:
    """A function that writes to its first argument, as one that makes a new tensor."""

    def made(first: Tensor, *rest: Any, **options: Any) -> Tensor:
        copy = first.clone()
        func(copy, *rest, **options)
        return copy

    return made


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


def _recipes(value: Any) -> Any:
    """The same structure, with recipes for tensors that have one."""

    def recipe(found: Any) -> Any:
        if isinstance(found, Traced):
            return found.recipe
        if isinstance(found, Tensor) and found.requires_grad:
            raise InputError(
                "the loss has a term that depends on parameters other than through the model's output, which has no "
                "gradient of a record's own; allowed: weight_decay of the optimizer for such terms"
            )
        return found

    return _mapped(recipe, value)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(change, item) for key, item in value.items()}
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return type(value)(_mapped(change, item) for item in value)
    return change(value)


def _backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
    if any(value is not None and value is not False for value in (*args, *kwargs.values())):
        raise InputError("loss.backward() with arguments: a private batch has one gradient; allowed: without arguments")
    assert isinstance(loss, Traced)
    if loss.numel() != 1:
        raise InputError(f"backward() of a loss of shape {tuple(loss.shape)}; allowed: one number, such as its mean")
    batches = {id(leaf.batch): leaf.batch for leaf in leaves(loss.recipe)}
    if len(batches) != 1:
        raise InputError(f"the loss depends on {len(batches)} batches; allowed: one, which is charged for one release")
    batch: Any = next(iter(batches.values()))
    batch.backward(loss)


def leaves(recipe: Recipe) -> list[Leaf]:
    """Where a recipe begins, each leaf once; what the model was called with is not part of it."""
    found: dict[int, Leaf] = {}
    seen: set[int] = set()
    waiting: list[Any] = [recipe]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Leaf):
            found[id(item)] = item
        elif isinstance(item, Made) and id(item) not in seen:
            seen.add(id(item))
            waiting += [part for value in (item.args, item.kwargs) for part in _within(value)]
    return list(found.values())


def _within(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            yield from _within(item)
    else:
        yield value


def remade(recipe: Recipe, given: Mapping[str, Tensor]) -> Tensor:
    """Follows a recipe with other leaves, such as a batch of one record."""
    known: dict[int, Any] = {}

    def value(item: Any) -> Any:
        if isinstance(item, Leaf):
            return given[item.name]
        if not isinstance(item, Made):
            return item
        if id(item) not in known:
            result = item.function(*_mapped(value, item.args), **_mapped(value, dict(item.kwargs)))
            known[id(item)] = result if item.part is None else result[item.part]
        return known[id(item)]

    made: Tensor = value(recipe)
    return made


class ScriptLoss:
    """The loss of the script's latest `backward`, as a function of outputs and targets of any number of records."""

    def __init__(self) -> None:
        self.recipe: Recipe | None = None
        self.kind: tuple[str, ...] | None = None
        """the functions it is made of"""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.recipe is None:  # until a script has computed one: to see what a model does to its records
            return outputs.float().square().flatten(1).sum(dim=1)
        return remade(self.recipe, {OUTPUT: outputs, TARGET: targets})


def shown_inputs(leaf: Leaf, inputs: Tensor) -> Tensor:
    """What the script has made of the inputs before it called the model, computed for each record by itself."""
    recipe = leaf.made_from
    assert recipe is not None
    if isinstance(recipe, Leaf):
        if recipe.name != INPUT:
            raise PrivacyLineError(f"the model was called with the batch's {recipe.name}; allowed: its inputs")
        return inputs

    def alone(record: Tensor) -> Tensor:
        return remade(recipe, {INPUT: record.unsqueeze(0)}).squeeze(0)

    if {source.name for source in leaves(recipe)} != {INPUT}:
        raise InputError("the model was called with more than the batch's inputs; allowed: a function of these alone")
    try:
        shown: Tensor = vmap(alone, randomness="different")(inputs)
    except RuntimeError:  # some functions have no batching rule: the same values, one record at a time
        shown = torch.stack([alone(record) for record in inputs])
    return shown
