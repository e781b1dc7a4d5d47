"""Triton where it is installed; without it kernels import, but cannot be launched. Public: shapes and types only."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adadpigu.errors import InputError

try:
    import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ImportError:
    triton = tl = None

__all__ = ["check_contiguous", "check_rows", "jit", "power_of_two", "tl"]

_TAKEN = (torch.float32, torch.float16, torch.bfloat16)


def jit(*varying: str) -> Callable[[Callable[..., Any]], Any]:
    """Compiles a function with Triton. A new value of an argument named in `varying` compiles nothing anew."""

    def compiled(function: Callable[..., Any]) -> Any:
        return function if triton is None else triton.jit(function, do_not_specialize=list(varying))

    return compiled


def power_of_two(count: int) -> int:
    """The least power of two that is at least `count`.

    >>> [power_of_two(count) for count in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return 1 << (count - 1).bit_length()


def check_rows(name: str, rows: Tensor) -> None:
    """Refuses rows that the kernels would misread."""
    if rows.dim() != 2 or rows.dtype not in _TAKEN or (rows.shape[1] > 1 and rows.stride(1) != 1):
        told = f"{name}: {rows.dtype} {tuple(rows.shape)} with strides {rows.stride()}"
        allowed = "[b, n] of float32, float16 or bfloat16, the columns of a row side by side"
        raise InputError(f"{told}; allowed: {allowed}")


def check_contiguous(name: str, part: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> None:
    """Refuses a part that is given and that the kernels would misread."""
    if part is not None and (part.shape != shape or not part.is_contiguous() or part.dtype != (dtype or part.dtype)):
        told = f"{name} {part.dtype} {tuple(part.shape)}"
        raise InputError(f"{told}; allowed: a contiguous {list(shape)} of {dtype or 'any type'}")
