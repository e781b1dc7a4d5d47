"""Per-sample weight gradients of nn.Conv2d without its patches in memory. Sensitive in, sensitive out.

    ∂ℓ_i/∂W[o, c, u, v] = Σ_p dy_i[o, p] · pad(x_i)[c, stride·p + dilation·(u, v)]

One program computes some output channels o by some kernel entries (c, u, v) of one record, as a matrix product whose
right side is read from x where it lies. For groups=1 and zero padding.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from adadpigu.core.kernels._triton import check_rows, jit, power_of_two, tl
from adadpigu.errors import InputError

Pair = tuple[int, ...]  # two numbers, as layers have them
Precision = Literal["ieee", "tf32x3"]
"""how float32 numbers are multiplied: one by one, or as three products of shorter ones on tensor cores"""
_ENTRIES_AT_MOST = 2**14


class Blocks(NamedTuple):
    """What one program computes: `outputs` by `entries` of the weight, `positions` at a time; powers of two from 16."""

    outputs: int
    entries: int
    positions: int
    warps: int = 4
    stages: int = 2


def weight_gradients(
    x: Tensor,
    dy: Tensor,
    into: Tensor,
    *,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    copies: int = 1,
    blocks: Blocks | None = None,
) -> None:
    """Writes each record's weight gradient to its row of `into` [b, O·C·KH·KW], whose rows may lie apart.

    x [b·copies, C, H, W] and dy [b·copies, O, H', W'] may lie in any order; the copies of a record are added up.
    `padding` is (top, left); what is read outside the image is zero. `blocks` change speed and rounding alone.
    """
    b, outputs, entries = _sizes(x, dy, into, kernel_size, copies)
    if not b or not outputs * entries:
        return
    (height, width), (out_height, out_width) = x.shape[2:], dy.shape[2:]
    spans = [
        (out - 1) * step + spread * (size - 1) - before
        for out, step, spread, size, before in zip(dy.shape[2:], stride, dilation, kernel_size, padding, strict=True)
    ]
    outside = any(padding) or spans[0] >= height or spans[1] >= width
    chosen, precision = _chosen(outputs, entries, kernel_size[0] * kernel_size[1])
    blocks = blocks or chosen
    grid = (b, -(-outputs // blocks.outputs), -(-entries // blocks.entries))
    _gradients[grid](
        *(x, dy, into, *x.stride(), *dy.stride(), into.stride(0)),
        *(height, width, out_width, out_height * out_width, copies * out_height * out_width, outputs, entries),
        *(*kernel_size, *stride, *padding, *dilation, copies, outside, precision, *blocks[:3]),
        num_warps=blocks.warps,
        num_stages=blocks.stages,
    )


def _sizes(x: Tensor, dy: Tensor, into: Tensor, kernel_size: Pair, copies: int) -> tuple[int, int, int]:
    """Records, output channels and kernel entries C·KH·KW; refuses shapes that do not belong together."""
    check_rows("weight_gradients, into", into)
    b, outputs, entries = len(into), dy.shape[1], x.shape[1] * kernel_size[0] * kernel_size[1]
    if not len(x) == len(dy) == b * copies or into.shape[1] != outputs * entries:
        raise InputError(
            f"weight_gradients: x {tuple(x.shape)}, dy {tuple(dy.shape)}, kernel_size={kernel_size}, copies={copies} "
            f"for into {tuple(into.shape)}; allowed: [b·copies, C, H, W], [b·copies, O, H', W'] and [b, O·C·KH·KW]"
        )
    return b, outputs, entries


def worthwhile(outputs: int, entries: int) -> bool:
    """Whether to take this instead of patches and one product of matrices: for weights that are not large."""
    return outputs * entries <= _ENTRIES_AT_MOST


def _chosen(outputs: int, entries: int, window: int) -> tuple[Blocks, Precision]:
    """Blocks and arithmetic, set with an H200 in mind, for O channels, C·KH·KW entries and a window of KH·KW pixels."""
    wide = power_of_two(outputs) >= 32
    if window >= 16:  # reading x is most of the work
        return (Blocks(32, 32, 16, warps=2) if wide else Blocks(16, 64, 16)), "ieee"
    return (Blocks(32, 64, 32) if wide and entries > 32 else Blocks(16, 32, 32, warps=2)), "tf32x3"


@jit()
def _gradients(
    x,
    dy,
    into,
    x_record,
    x_channel,
    x_row,
    x_column,
    dy_record,
    dy_channel,
    dy_row,
    dy_column,
    into_record,
    height,
    width,
    out_width,
    image,
    positions,
    outputs,
    entries,
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    STEP_DOWN: tl.constexpr,
    STEP_RIGHT: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    SPREAD_DOWN: tl.constexpr,
    SPREAD_RIGHT: tl.constexpr,
    COPIES: tl.constexpr,
    OUTSIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ENTRIES: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """into[record, o, entry] = Σ_p dy[o, p] · x[entry at p]; a record's copies are further positions."""
    record = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    entry = tl.program_id(2) * ENTRIES + tl.arange(0, ENTRIES)
    down = entry // KERNEL_WIDTH % KERNEL_HEIGHT * SPREAD_DOWN
    right = entry % KERNEL_WIDTH * SPREAD_RIGHT
    at_entry = entry // (KERNEL_HEIGHT * KERNEL_WIDTH) * x_channel + down * x_row + right * x_column
    x += record * COPIES * x_record
    dy += record * COPIES * dy_record
    total = tl.zeros((OUTPUTS, ENTRIES), tl.float32)
    for start in range(0, positions, POSITIONS):
        p = start + tl.arange(0, POSITIONS)
        copy, q = p // image, p % image
        out_row, out_column = q // out_width, q % out_width
        at_dy = copy * dy_record + out_row * dy_row + out_column * dy_column
        known = (o[:, None] < outputs) & (p[None, :] < positions)
        left_side = tl.load(dy + o[:, None] * dy_channel + at_dy[None, :], mask=known, other=0.0).to(tl.float32)
        from_row, from_column = out_row * STEP_DOWN - TOP, out_column * STEP_RIGHT - LEFT
        at_position = copy * x_record + from_row * x_row + from_column * x_column
        inside = (p[:, None] < positions) & (entry[None, :] < entries)
        if OUTSIDE:
            x_at, y_at = from_column[:, None] + right[None, :], from_row[:, None] + down[None, :]
            inside = inside & (x_at >= 0) & (x_at < width) & (y_at >= 0) & (y_at < height)
        right_side = tl.load(x + at_position[:, None] + at_entry[None, :], mask=inside, other=0.0).to(tl.float32)
        total = tl.dot(left_side, right_side, total, input_precision=PRECISION)
    into += record * into_record
    keep = (o[:, None] < outputs) & (entry[None, :] < entries)
    tl.store(into + o[:, None] * entries + entry[None, :], total, mask=keep)
