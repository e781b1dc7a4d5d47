"""How many records go through a net together: one length for all slices of a run, from public numbers alone.

A product rounds a row otherwise among 129 rows than among 128, and the last rows of a slice otherwise than the first.
So every slice has the same length, padded with absent rows. On a CPU a record's place is chosen by its input: then its
gradient depends on no other record, by construction. That takes time, and is left out (the last slice may be shorter by
whole blocks too) where no synthetic row was seen to change with its place in a rehearsal: evidence, not a proof.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from adadpigu.core.gradients.probing import removing
from adadpigu.core.trees import Tree, map_tensors, select

BLOCK = 32  # rows that a CPU's kernels take at a time, twice a vector
_VECTOR = 16


def length_for_all(expected: float) -> int:
    """B plus three standard deviations: on a GPU padding takes less time than a second slice."""
    return math.ceil((expected + 3 * math.sqrt(expected)) / BLOCK) * BLOCK


def rounded(length: int) -> int:
    """The largest length up to this one that kernels take whole: a multiple of `BLOCK`, or a power of two below it.

    >>> rounded(70), rounded(31), rounded(3)
    (64, 16, 1)
    """
    if length >= BLOCK:
        return length // BLOCK * BLOCK
    return 1 if length < 4 else 1 << (length.bit_length() - 1)


def computes_rows_alike(
    compute: Callable[[Tree, Tensor], Tensor],
    example: Tree,
    targets: Tensor,
    most: int,
    copies: int = 1,
    draws: Sequence[Callable[..., Tensor]] = (torch.randn, torch.rand),
) -> bool:
    """Whether no row of what is computed, [b, d], was seen to change with its place or with the number of blocks.

    Rehearsed on `most` synthetic rows for each draw, of which most lie at two places. Floats are drawn, other leaves
    take their values from the example, entry by entry. False for a model that fails on such rows, or makes no numbers.
    """
    kinds = (most - 1) // 2 | 1  # odd: a row's places lie otherwise in a vector
    which = torch.arange(most) % kinds
    shown = (which[:, None] * copies + torch.arange(copies)).flatten()
    generator = torch.Generator().manual_seed(0)

    def synthetic(draw: Callable[..., Tensor], leaf: Tensor) -> Tensor:
        shape = (kinds * copies, *leaf.shape[1:])
        if not leaf.is_floating_point():
            return leaf.gather(0, torch.randint(len(leaf), shape, generator=generator))
        rows = draw(shape, generator=generator, dtype=leaf.dtype)
        rows[1::2] *= 8 if draw is torch.randn else 1  # beside a bias, small products would hide their last bits
        return rows

    try:
        for number, draw in enumerate(draws):
            inputs, first = map_tensors(functools.partial(synthetic, draw), example), None
            for rows in [most, *(rows for rows in (BLOCK, 3 * BLOCK) if rows < most and number == 0)]:
                found = compute(select(inputs, shown[: rows * copies]), targets[which[:rows] % len(targets)])
                first = found if first is None else first
                if not all(torch.equal(part, first[: len(part)]) for part in torch.split(found, kinds)):
                    return False
    except Exception:  # of a model that takes other numbers than these
        return False
    return True


@contextmanager
def counted_operations(model: nn.Module) -> Iterator[list[float]]:
    """Within, each call of a layer notes its multiply-adds for each row, about: its parameters times its positions."""
    noted: list[float] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output
        parameters = list(module.parameters(recurse=False))
        if parameters and isinstance(output, Tensor) and output.dim() > 0 and len(output) > 0:
            channels = parameters[0].shape[0] if parameters[0].dim() > 0 else 1
            positions = max(1.0, output.numel() / len(output) / max(1, channels))
            noted.append(positions * sum(parameter.numel() for parameter in parameters))

    with removing([module.register_forward_hook(note) for module in model.modules()]):
        yield noted


@contextmanager
def aligned(model: nn.Module, *, attention: bool) -> Iterator[None]:
    """Within, narrow linear layers on a CPU take rows padded with zeros to whole vectors of 16.

    Else a product of few columns rounds a row by its address, so that one more record changes the others. `attention`
    makes attention of plain products too.
    """
    narrow = [
        module
        for module in model.modules()
        if is_narrow(module)
        and "forward" not in vars(module)  # one of its own, which somebody put there
        and module.weight.device.type == "cpu"
    ]
    with (
        other_forwards({module: functools.partial(_aligned_forward, module) for module in narrow}),
        sdpa_kernel(SDPBackend.MATH) if attention else nullcontext(),
    ):
        yield


@contextmanager
def other_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Within, these modules run these functions in place of their forwards."""
    own = {module: vars(module)["forward"] for module in forwards if "forward" in vars(module)}
    try:
        for module, function in forwards.items():
            vars(module)["forward"] = function
        yield
    finally:
        for module in forwards:
            del vars(module)["forward"]
        for module, function in own.items():
            vars(module)["forward"] = function


def is_narrow(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a layer's products have so few columns that where they lie in memory decides how they round."""
    if type(layer) is not nn.Linear:
        return False
    return layer.in_features % _VECTOR != 0 and min(layer.in_features, layer.out_features) < _VECTOR


def _aligned_forward(layer: nn.Linear, input: Tensor) -> Tensor:  # noqa: A002  (as the layer's own calls it)
    more = (0, -layer.in_features % _VECTOR)
    return F.linear(F.pad(input, more), F.pad(layer.weight, more), layer.bias)


def aligned_product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, [b, m, p] @ [b, p, n], each record's from where a vector begins, for the same reason."""
    wide = F.pad(right, (0, -right.shape[2] % _VECTOR)).contiguous()
    return torch.bmm(left.contiguous(), wide)[..., : right.shape[2]]
