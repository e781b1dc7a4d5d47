"""Tensors that remember how a script made them from its batch, so that its loss can be computed record by record.

    output = model(data); loss = criterion(output, target)     what the script sees: ordinary values of its batch
    ℓ_i = the same functions on record i as a batch of one      what is differentiated, clipped and noised

A loss that mixes the records of a batch (a weighted mean, batch statistics) cannot mix them here. Before the noise:
values, recipes and losses are sensitive; the script that holds them is the user's own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from adadpigu.compat.opacus.numbers import FromBatch, bare, marked
from adadpigu.errors import InputError, PrivacyLineError

if TYPE_CHECKING:
    from adadpigu.compat.opacus.shapes import Shape

INPUT, TARGET, OUTPUT, RECORDS = "input", "target", "output", "records"
_SMALL = 10**6


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
    told: bool = False
    """whether the script knew values of a batch when it was made: its constants may come from there"""


Recipe = Leaf | Made


class Traced(Tensor):
    """A tensor with its recipe and storage of its own. It has no graph: `backward` of a loss is that of its batch."""

    recipe: Recipe
    alias: bool
    """whether plain torch would have it share memory with another: what is written to one would show in the other"""

    @staticmethod
    def of(value: Tensor, recipe: Recipe, *, alias: bool = False) -> Traced:
        traced = value.detach().as_subclass(Traced)
        traced.recipe, traced.alias = recipe, alias
        return traced

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Stored as the plain value it is, without the batch that its recipe holds."""
        plain: Any = self.as_subclass(Tensor)
        return plain.__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return _backward(*args, **kwargs)
        _refuse_odd(func, kwargs)
        into = _written(func, args)
        plain = [found for found in within((args, kwargs)) if isinstance(found, Tensor) and type(found) is not Traced]
        before = [found.clone() for found in plain if found.numel() <= _SMALL]
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            result = func(*_mapped(bare, args), **_mapped(bare, dict(kwargs)))
        small = [found for found in plain if found.numel() <= _SMALL]
        if not all(map(same, before, small)):  # some functions write without a trace in the version counter
            raise InputError(
                f"{name_of(func)} has written what depends on a private batch into a tensor that keeps it, such as a "
                "layer's running statistics; allowed: functions that keep nothing"
            )
        function = _on_a_copy(func) if into is not None else func
        made = Made(
            function, _recipes(args), _recipes(kwargs), told=any(told(batch) for batch in _batches(args, kwargs))
        )
        if into is not None:
            into.recipe = made
            return into
        return _answer(func, result, made, [found for found in within((args, kwargs)) if isinstance(found, Tensor)])


_SIZES = ("size", "numel", "nelement")
_VALUES = ("item", "tolist")
_FORM = ("__get__", "dim", "ndimension", "stride", "is_floating_point", "is_complex", "is_contiguous", "element_size")
"""what they tell is of a tensor's form, not of its values"""


def _answer(func: Any, result: Any, made: Made, given: list[Tensor]) -> Any:
    """What a script gets for what it asked: tensors with their recipe, numbers with the mark of their batch."""
    name = name_of(func)
    if isinstance(result, Tensor):
        if any(result is each for each in given):  # such as `to` where nothing is to be done
            return result
        return _own(result, made, given)
    if name in _SIZES or getattr(getattr(func, "__self__", None), "__name__", "") == "shape":
        if isinstance(result, tuple):
            first = [_length(size, _part(made, 0)) for size in result[:1]]
            return torch.Size([*first, *result[1:]])
        return _length(result, made) if name != "size" or made.args[1:] in ((0,), ()) else result
    if isinstance(result, tuple | list) and any(isinstance(part, Tensor) for part in result):
        return type(result)(
            [_own(each, _part(made, n), given) if isinstance(each, Tensor) else each for n, each in enumerate(result)]
        )
    if name not in _FORM:
        for leaf in leaves(made):
            tell(leaf.batch)
    if name in _VALUES:
        return _mapped(lambda value: marked(value, None), result)
    return result.copy() if isinstance(result, np.ndarray) else result


def _length(size: int, made: Made) -> Any:
    """A size that counts records is that of a batch of one where a record is by itself; others are taken anew."""
    for leaf in leaves(made):
        if len(leaf.value) == size:
            return marked(size, Leaf(RECORDS, leaf.batch, leaf.value))
    return marked(size, made)


def _own(result: Tensor, made: Made, given: list[Tensor]) -> Traced:
    """The result in memory of its own; where torch shares memory, neither may be written to from here on."""
    with torch._C.DisableTorchFunctionSubclass():  # nobody is told anything
        here = result.untyped_storage().data_ptr()
        shared = [each for each in given if each.untyped_storage().data_ptr() == here and result.numel()]
    for each in shared:
        if isinstance(each, Traced):
            each.alias = True
    return Traced.of(result.clone() if shared else result, made, alias=bool(shared))


def _part(made: Made, number: int) -> Made:
    return replace(made, part=number)


def _batches(*given: Any) -> list[Any]:
    """The batches that tensors and sizes come from."""
    marked_ones = [found for found in within(given) if isinstance(found, Traced | FromBatch)]
    return [leaf.batch for found in marked_ones if found.recipe is not None for leaf in leaves(found.recipe)]


def tell(batch: Any) -> None:
    """The script of this batch knows values of it from here on."""
    if isinstance(loss := getattr(batch, "loss", None), ScriptLoss):
        loss.told = True


def told(batch: Any) -> bool:
    """Whether it does."""
    return isinstance(loss := getattr(batch, "loss", None), ScriptLoss) and loss.told


def _refuse_odd(func: Any, kwargs: Mapping[str, Any]) -> None:
    if kwargs.get("out") is not None:
        raise InputError(f"{name_of(func)}(out=...) on what depends on a private batch; allowed: without out")
    frame = sys._getframe(2)
    for _ in range(6):
        if frame.f_code.co_name == "apply" and frame.f_code.co_filename.endswith(_FUNCTION):
            raise InputError(
                "a custom autograd.Function outside of the model: its backward would not be used; allowed: within it"
            )
        if frame.f_back is None:
            return
        frame = frame.f_back


_FUNCTION = str(Path("torch", "autograd", "function.py"))


def _written(func: Any, args: tuple[Any, ...]) -> Traced | None:
    """The tensor that a function writes to, if it has a recipe."""
    name = name_of(func)
    in_place = name in ("__setitem__", "__set__") or (name.endswith("_") and not name.endswith("__"))
    in_place = in_place or (name.startswith("__i") and name not in ("__invert__", "__index__", "__int__"))
    if not (in_place and args and isinstance(args[0], Tensor)):
        return None
    if not isinstance(args[0], Traced) or name == "__set__":
        raise InputError(
            f"{name} writes what depends on a private batch into another tensor, which would keep it; allowed: a new "
            "tensor"
        )
    if args[0].alias:
        raise InputError(
            f"{name} writes to a tensor of the batch that shares memory with another (a view, a row, .data), so that "
            "both would change; allowed: a new tensor, such as x = x - x.mean()"
        )
    return args[0]


def _on_a_copy(func: Callable[..., Any]) -> Callable[..., Tensor]:
    """A function that writes to its first argument, as one that makes a new tensor."""

    @functools.wraps(func, assigned=("__name__",), updated=())
    def made(first: Tensor, *rest: Any, **options: Any) -> Tensor:
        copy = first.clone()
        func(copy, *rest, **options)
        return copy

    return made


def name_of(func: Any) -> str:
    return str(getattr(func, "__name__", func))


def _recipes(value: Any) -> Any:
    """The same structure, with recipes for tensors that have one."""

    def recipe(found: Any) -> Any:
        if isinstance(found, Traced):
            return found.recipe
        if isinstance(found, FromBatch):
            if found.recipe is None:
                raise InputError(
                    "a number taken out of the batch (item(), tolist()) goes back into what is computed from it, where "
                    "it would tie records together; allowed: sizes, or tensors of the batch"
                )
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
            waiting += [part for value in (item.args, item.kwargs) for part in within(value)]
    return list(found.values())


def within(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            yield from within(item)
    else:
        yield value


def remade(recipe: Recipe, given: Mapping[str, Tensor]) -> Tensor:
    """Follows a recipe with other leaves, such as a batch of one record."""
    known: dict[int, Any] = {}

    def value(item: Any) -> Any:
        if isinstance(item, Leaf):
            return len(next(iter(given.values()))) if item.name == RECORDS else given[item.name]
        if not isinstance(item, Made):
            return item
        if id(item) not in known:
            result = item.function(*_mapped(value, item.args), **_mapped(value, dict(item.kwargs)))
            known[id(item)] = result if item.part is None else result[item.part]
        return known[id(item)]

    made: Tensor = value(recipe)
    return made


def same(one: Any, other: Any) -> bool:
    """Whether two constants are alike."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, float) and isinstance(other, float) and one != one and other != other:
        return True
    return type(one) is type(other) and bool(one == other)


class ScriptLoss:
    """The loss of the script's latest `backward`, as a function of outputs and targets of any number of records."""

    def __init__(self) -> None:
        self.recipe: Recipe | None = None
        self.shape: Shape | None = None
        """of the first one: all others have the same"""
        self.told = False
        """whether the script knows values of a batch, such as loss.item()"""

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

    try:
        shown: Tensor = vmap(alone, randomness="different")(inputs)
    except Exception:  # some functions have no batching rule: the same values, one record at a time
        try:
            shown = torch.stack([alone(record) for record in inputs])
        except Exception as error:
            told = f"what the script does to its inputs fails for one record by itself ({type(error).__name__})"
        else:
            return shown
        raise InputError(f"{told}; allowed: functions of each record by itself") from None
    return shown
