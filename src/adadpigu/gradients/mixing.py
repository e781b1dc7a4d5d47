"""Finds modules that mix records: the output for one record must not depend on the others in its batch.

Per-sample clipping bounds a record's influence only if g_i depends on record i alone; a batch statistic breaks that.
One record of a public example is replaced, and the first module whose output for the *others* moves is named.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from adadpigu.errors import ModelError
from adadpigu.gradients.probing import agree, forward, padding_ids, quiet_mode
from adadpigu.gradients.state import describe


@dataclass(frozen=True)
class Passage:
    """What went into and came out of one module call."""

    path: str
    module: nn.Module
    entered: list[Tensor]
    left: list[Tensor]


def refuse_mixing(model: nn.Module, inputs: Tensor) -> None:
    """Raises `ModelError` if records influence each other's output, or if the forward before does.

    Independence is probed, not proved: with ordinary, extreme, non-finite and repeated records, and in a larger batch.
    """
    _refuse_mixing(model, inputs, range(0, len(inputs), len(inputs) - 1))
    _refuse_trimming(model, inputs)
    many = inputs.repeat(_LARGE // len(inputs) + 1, *[1] * (inputs.dim() - 1))
    if inputs.is_floating_point():
        many = many + torch.randn_like(many)
    with torch.no_grad():  # a graph of so many records would take more memory than training does
        _refuse_mixing(model, many, range(1), most=_ORDINARY)


def _refuse_trimming(model: nn.Module, inputs: Tensor) -> None:
    """Of whole numbers: records that end in padding, beside one that does not, which could make them longer."""
    ids = [] if inputs.is_floating_point() or inputs.is_complex() or inputs.dim() < 2 else padding_ids(model)
    for number in ids:
        other = next((each for each in ids if each != number), None)
        if other is not None:
            padded = torch.where(inputs == number, other, inputs)
            padded[..., (inputs.shape[-1] + 1) // 2 :] = number
            _refuse_mixing(model, padded, range(1), longest=torch.full_like(inputs[0], other))


_LARGE = 256
_ORDINARY = 3


def _refuse_mixing(
    model: nn.Module, inputs: Tensor, positions: range, most: int = 7, longest: Tensor | None = None
) -> None:
    """Replaces records in turn by very different ones, or by `longest`."""
    everyone = torch.ones(len(inputs), dtype=torch.bool)
    output = forward(model, inputs).detach()
    for record in positions:
        others = everyone.clone()
        others[record] = False
        values = _values(inputs, record) if longest is None else [longest]
        for number, replaced in enumerate(itertools.islice(_replaced(inputs, record, values), most)):
            try:
                altered = forward(model, replaced).detach()
            except ModelError:
                if number < _ORDINARY:
                    raise
                continue  # a forward that refuses extreme values by itself mixes nothing by them
            if not agree(forward(model, inputs).detach(), output):
                where, _ = _blame(model, [inputs, replaced, inputs], everyone)
                raise ModelError(
                    f"{where}: the same input and seed give another output the second time; keep no state from one "
                    "forward to the next, and draw randomness from torch only"
                )
            if not agree(altered[others], output[others]):
                where, blamed = _blame(model, [inputs, replaced], others)
                raise ModelError(
                    f"{where}: mixes records, one record's output depends on the others; {_remedy(blamed)}"
                )


def refuse_counting(model: nn.Module, inputs: Tensor) -> None:
    """Raises `ModelError` if a record's output depends on how many others came with it."""
    if quiet_mode(model, inputs) is None:
        return
    together, alone = forward(model, inputs)[:1], forward(model, inputs[:1])
    model.train()
    if not agree(alone, together, factor=1 / math.sqrt(torch.finfo(together.dtype).eps)):
        raise ModelError(
            f"{describe('', model)}: a record's output depends on the batch it comes in; make the forward independent "
            "of the batch size"
        )


def _traced(model: nn.Module, inputs: Tensor) -> list[Passage]:
    with _passages(model) as passages:
        forward(model, inputs)
    return passages


@contextmanager
def _passages(model: nn.Module) -> Iterator[list[Passage]]:
    done: list[Passage] = []
    entered: list[list[Tensor]] = []

    def entering(module: nn.Module, args: Any, kwargs: Any) -> None:
        entered.append(_copies((args, kwargs)))

    def leaving(path: str) -> Any:
        return lambda module, _, output: done.append(Passage(path, module, entered.pop(), _copies(output)))

    handles = [module.register_forward_pre_hook(entering, with_kwargs=True) for module in model.modules()]
    handles += [module.register_forward_hook(leaving(path)) for path, module in model.named_modules()]
    try:
        yield done
    finally:
        for handle in handles:
            handle.remove()


def _copies(tree: Any) -> list[Tensor]:
    return [leaf.detach().clone() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _values(inputs: Tensor, record: int) -> list[Tensor]:
    """Records that are very different from one, in the range of the example where values are indices."""
    old = inputs[record]
    if inputs.dtype == torch.bool:
        return [~old]
    if inputs.is_floating_point() or inputs.is_complex():
        largest = torch.finfo(inputs.dtype).max
        far = 10 * torch.randn_like(old) + 3
        values = [far, -far, inputs[1 - min(record, 1)]]  # ordinary
        return values + [torch.full_like(old, value) for value in (0.0, largest, float("inf"), float("nan"))]
    mirrored = inputs.min() + inputs.max() - old
    return [torch.where(mirrored == old, (old == 0).to(old.dtype), mirrored)]


def _replaced(inputs: Tensor, record: int, values: list[Tensor]) -> Iterator[Tensor]:
    """The batch with one record made another, each time."""
    for value in values:
        replaced = inputs.clone()
        replaced[record] = value
        yield replaced


def _blame(model: nn.Module, batches: list[Tensor], rows: Tensor) -> tuple[str, nn.Module]:
    """The first module to finish, hence the innermost, that got the same for these records and gave something else.

    Compares the first of these forwards with the last. Only here is every layer's output kept, which takes many times
    the memory of a forward.
    """
    before, *_, after = [_traced(model, batch) for batch in batches]
    for old, new in zip(before, after, strict=False):
        if old.path != new.path:
            break
        if _same_entered(old, new, rows) and not _same_left(old, new, rows):
            return describe(old.path, old.module), old.module
    return describe("", model), model


def _same_entered(old: Passage, new: Passage, rows: Tensor) -> bool:
    pairs = zip(old.entered, new.entered, strict=False)
    return all(agree(_of(b, rows), _of(a, rows)) for a, b in pairs)


def _same_left(old: Passage, new: Passage, rows: Tensor) -> bool:
    pairs = zip(old.left, new.left, strict=False)
    return all(agree(b[rows], a[rows]) for a, b in pairs if _batched(a, rows) and _batched(b, rows))


def _of(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor[rows] if _batched(tensor, rows) else tensor


def _batched(tensor: Tensor, rows: Tensor) -> bool:
    return tensor.dim() > 0 and len(tensor) == len(rows)


def _remedy(module: nn.Module) -> str:
    if getattr(module, "batch_first", True) is False:
        return "build it with batch_first=True, or give it inputs of [sequence, batch, features]"
    return "use a layer that treats each record on its own, such as nn.GroupNorm or nn.LayerNorm"
