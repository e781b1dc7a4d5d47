"""Per-sample weight gradients at many positions, without patches in memory: built, measured, added up. Sensitive.

    G_i[o, c, u, v] = Σ_p dy_i[o, p] · pad(x_i)[c, stride·p + dilation·(u, v)]
    z_i = (G_i − α) · w in float32,   ‖z_i‖² and Σ_i f_i z_i in float64

One program computes some output channels o by some kernel entries (c, u, v) of one record after the other, each as a
matrix product whose right side is read from x where it lies. For groups=1 and zero padding; a linear layer at P
positions is a convolution of images [P, 1] with a kernel of one entry.

Sensitivity: norms and sums come from one kernel. The product, its order and its precision are the same in both, and no
multiply-add is fused across α, so what is normed is what is summed to the last bit, however short the products are.
Numbers of 16 bits are multiplied as they are, which loses nothing: their products are exact in float32.
Sums are split in a fixed way and added up in a fixed order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from adadpigu.core import kernels
from adadpigu.core.kernels._triton import check_contiguous, check_rows, jit, power_of_two, tl
from adadpigu.core.kernels.rows import added, load_column, standardised
from adadpigu.errors import InputError

Pair = tuple[int, ...]  # two numbers, as layers have them
Precision = Literal["ieee", "tf32", "tf32x3"]
"""how float32 numbers are multiplied: one by one, or as one or three products of shorter ones on tensor cores"""
_ENTRIES_AT_MOST = 2**14
_PROGRAMS = 132 * 4  # how many programs are wanted at once: some for each multiprocessor of the largest GPUs


class Geometry(NamedTuple):
    """How a convolution walks over its input; `padding` is (top, left), and what is read outside the image is zero."""

    kernel_size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def reaches_outside(self, image: Sequence[int], out: Sequence[int]) -> bool:
        """Whether any position reads beyond the image."""
        walks = zip(out, self.stride, self.dilation, self.kernel_size, self.padding, image, strict=True)
        return any(self.padding) or any(
            (end - 1) * step + spread * (size - 1) - before >= length
            for end, step, spread, size, before, length in walks
        )


POINTWISE = Geometry((1, 1), (1, 1), (0, 0), (1, 1))


class Blocks(NamedTuple):
    """What one program computes: `outputs` by `entries` of the weight, `positions` at a time; powers of two from 16."""

    outputs: int
    entries: int
    positions: int
    warps: int = 4
    stages: int = 2


class Products(NamedTuple):
    """The gradients G of one layer's weight, told by what they are products of.

    x [b·copies, C, H, W] and dy [b·copies, O, H', W'] may lie in any order; the copies of a record are added up.
    `blocks` change speed and rounding alone.
    """

    x: Tensor
    dy: Tensor
    geometry: Geometry = POINTWISE
    copies: int = 1
    precision: Precision | None = None
    blocks: Blocks | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Records, output channels and kernel entries C·KH·KW; refuses shapes that do not belong together."""
        x, dy, copies = self.x, self.dy, self.copies
        if not {x.dtype, dy.dtype} <= {torch.float32, torch.float16, torch.bfloat16}:
            raise InputError(f"products: x {x.dtype}, dy {dy.dtype}; allowed: float32, float16 and bfloat16")
        if x.dim() != 4 or dy.dim() != 4 or copies < 1 or len(x) != len(dy) or len(x) % copies:
            told = f"products: x {tuple(x.shape)}, dy {tuple(dy.shape)}, copies={copies}"
            raise InputError(f"{told}; allowed: [b·copies, C, H, W] and [b·copies, O, H', W'] of one or more copies")
        return len(x) // copies, dy.shape[1], x.shape[1] * math.prod(self.geometry.kernel_size)

    def write(self, into: Tensor) -> None:
        """Writes each record's G to its row of `into` [b, O·C·KH·KW], whose rows may lie apart."""
        b, outputs, entries = self.shape
        check_rows("products, into", into)
        if into.shape != (b, outputs * entries):
            raise InputError(f"products: into {tuple(into.shape)}; allowed here: {[b, outputs * entries]}")
        if into.numel():
            blocks, precision = _small(outputs, entries, math.prod(self.geometry.kernel_size))
            self._launch("rows", into, blocks, precision, 1, stride=into.stride(0))

    def squares(self, center: Tensor | None, weight: Tensor | None) -> Tensor:
        """‖z_i‖² in parts, [parts, b] in float64, to be added up; a record that is not finite gives inf or nan.

        `center` and `weight` are [O·C·KH·KW], None for 0 and 1.
        """
        b, outputs, entries = self.shape
        if not b * outputs * entries:
            return torch.zeros(1, b, dtype=torch.float64, device=self.dy.device)
        blocks = self.blocks or _large(outputs, entries)
        tiles = _tiles(outputs, entries, blocks)
        partial = torch.empty(tiles, b, dtype=torch.float64, device=self.dy.device)
        records = max(1, b * tiles // (4 * _PROGRAMS))
        self._launch("norms", partial, blocks, "tf32x3", records, center=center, weight=weight)
        return partial

    def total(self, factors: Tensor, center: Tensor | None, weight: Tensor | None) -> Tensor:
        """Σ_i f_i z_i, [O·C·KH·KW] in float64; a record whose factor is zero is left out, whatever it holds."""
        b, outputs, entries = self.shape
        check_contiguous("products: factors", factors, (b,), torch.float64)
        if not b * outputs * entries:
            return torch.zeros(outputs * entries, dtype=torch.float64, device=self.dy.device)
        blocks = self.blocks or _large(outputs, entries)
        groups = max(1, min(b, _PROGRAMS // _tiles(outputs, entries, blocks)))
        records = -(-b // groups)
        partial = torch.empty(-(-b // records), outputs * entries, dtype=torch.float64, device=self.dy.device)
        self._launch("sums", partial, blocks, "tf32x3", records, center=center, weight=weight, factors=factors)
        total = added(partial)
        return total.view(outputs, -1, self.x.shape[1]).mT.reshape(-1) if self._inner else total

    @property
    def _inner(self) -> bool:
        """Whether kernel entries are taken channel by channel: where those lie side by side, and fill a block."""
        return math.prod(self.geometry.kernel_size) > 1 and self.x.shape[1] >= 16 and self.x.stride(1) == 1

    def _in_order(self, part: Tensor | None) -> Tensor | None:
        """α or w in float32, its kernel entries in the order in which they are taken."""
        check_contiguous("products: center or weight", part, (math.prod(self.shape[1:]),))
        if part is None:
            return None
        part = part.float()
        return part.view(self.dy.shape[1], self.x.shape[1], -1).mT.reshape(-1) if self._inner else part

    def _launch(
        self,
        what: str,
        out: Tensor,
        blocks: Blocks,
        precision: Precision,
        records: int,
        *,
        stride: int = 0,
        center: Tensor | None = None,
        weight: Tensor | None = None,
        factors: Tensor | None = None,
    ) -> None:
        (b, outputs, entries), x, dy, walk = self.shape, self.x, self.dy, self.geometry
        blocks, (height, width), (out_height, out_width) = self.blocks or blocks, x.shape[2:], dy.shape[2:]
        image, outside = out_height * out_width, walk.reaches_outside(x.shape[2:], dy.shape[2:])
        widen = kernels.INTERPRETED or x.dtype != dy.dtype
        _products[_tiles(outputs, entries, blocks), -(-b // records)](
            *(out, stride, self._in_order(center), self._in_order(weight), factors, b, x, dy),
            *(*x.stride(), *dy.stride(), height, width, out_width, image, self.copies * image, outputs, entries),
            *(x.shape[1], *walk.kernel_size, *walk.stride, *walk.padding, *walk.dilation, self.copies, outside),
            *(what != "rows" and self._inner, what, records, *blocks[:3], self.precision or precision, widen),
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            enable_fp_fusion=False,
        )


def worthwhile(outputs: int, entries: int) -> bool:
    """Whether to build rows this way instead of by patches and one product of matrices: for weights that are small."""
    return outputs * entries <= _ENTRIES_AT_MOST


def _tiles(outputs: int, entries: int, blocks: Blocks) -> int:
    return -(-outputs // blocks.outputs) * -(-entries // blocks.entries)


def _small(outputs: int, entries: int, window: int) -> tuple[Blocks, Precision]:
    """Blocks and arithmetic, set with an H200 in mind, for O channels, C·KH·KW entries and a window of KH·KW pixels."""
    wide = power_of_two(outputs) >= 32
    if window >= 16:  # reading x is most of the work
        return (Blocks(32, 32, 16, warps=2) if wide else Blocks(16, 64, 16)), "ieee"
    return (Blocks(32, 64, 32) if wide and entries > 32 else Blocks(16, 32, 32, warps=2)), "tf32x3"


def _large(outputs: int, entries: int) -> Blocks:
    """Blocks for norms and sums, of weights that are not small."""
    left, right = (max(16, min(64, power_of_two(length))) for length in (outputs, entries))
    return Blocks(left, right, 32, warps=4, stages=3)


@jit("records")
def _products(
    out,
    out_stride,
    center,
    weight,
    factors,
    b,
    x,
    dy,
    x_record,
    x_channel,
    x_row,
    x_column,
    dy_record,
    dy_channel,
    dy_row,
    dy_column,
    height,
    width,
    out_width,
    image,
    positions,
    outputs,
    entries,
    channels,
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
    CHANNELS_INNER: tl.constexpr,
    WHAT: tl.constexpr,
    records,
    OUTPUTS: tl.constexpr,
    ENTRIES: tl.constexpr,
    POSITIONS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Of one tile and `records` records: out[record] = G, out[tile, record] = Σ z², or out[part] = Σ f z."""
    across = tl.cdiv(entries, ENTRIES)
    o = tl.program_id(0) // across * OUTPUTS + tl.arange(0, OUTPUTS)
    entry = tl.program_id(0) % across * ENTRIES + tl.arange(0, ENTRIES)
    if CHANNELS_INNER:  # neighbours look at neighbouring channels
        channel, place = entry % channels, entry // channels
    else:
        channel, place = entry // (KERNEL_HEIGHT * KERNEL_WIDTH), entry % (KERNEL_HEIGHT * KERNEL_WIDTH)
    down, right = place // KERNEL_WIDTH * SPREAD_DOWN, place % KERNEL_WIDTH * SPREAD_RIGHT
    at_entry = channel * x_channel + down * x_row + right * x_column
    inside_tile = (o[:, None] < outputs) & (entry[None, :] < entries)
    in_weight = o[:, None].to(tl.int64) * entries + entry[None, :]
    first = tl.program_id(1) * records
    total = tl.zeros((OUTPUTS, ENTRIES), tl.float64)
    for record in range(first, tl.minimum(first + records, b)):
        factor = tl.load(factors + record) if WHAT == "sums" else 1.0
        if factor != 0:
            its_x = x + tl.cast(record, tl.int64) * COPIES * x_record
            its_dy = dy + tl.cast(record, tl.int64) * COPIES * dy_record
            g = tl.zeros((OUTPUTS, ENTRIES), tl.float32)
            for start in range(0, positions, POSITIONS):
                p = start + tl.arange(0, POSITIONS)
                copy, q = p // image, p % image
                out_row, out_column = q // out_width, q % out_width
                at_dy = copy * dy_record + out_row * dy_row + out_column * dy_column
                known = (o[:, None] < outputs) & (p[None, :] < positions)
                left_side = tl.load(its_dy + o[:, None] * dy_channel + at_dy[None, :], mask=known, other=0.0)
                from_row, from_column = out_row * STEP_DOWN - TOP, out_column * STEP_RIGHT - LEFT
                at_position = copy * x_record + from_row * x_row + from_column * x_column
                inside = (p[:, None] < positions) & (entry[None, :] < entries)
                if OUTSIDE:
                    x_at, y_at = from_column[:, None] + right[None, :], from_row[:, None] + down[None, :]
                    inside = inside & (x_at >= 0) & (x_at < width) & (y_at >= 0) & (y_at < height)
                right_side = tl.load(its_x + at_position[:, None] + at_entry[None, :], mask=inside, other=0.0)
                if WIDEN:
                    left_side, right_side = left_side.to(tl.float32), right_side.to(tl.float32)
                g = tl.dot(left_side, right_side, g, input_precision=PRECISION)
            if WHAT == "rows":
                tl.store(out + tl.cast(record, tl.int64) * out_stride + in_weight, g, mask=inside_tile)
            else:
                # α and w are read again for each record: held, they would take the registers of the product
                alpha = load_column(center, in_weight, inside_tile, 0.0)
                w = load_column(weight, in_weight, inside_tile, 1.0)
                z = standardised(g, alpha, w).to(tl.float64)
                if WHAT == "norms":
                    tl.store(out + tl.program_id(0).to(tl.int64) * b + record, tl.sum(z * z))
                else:
                    total += factor * z
    if WHAT == "sums":
        n = tl.cast(outputs, tl.int64) * entries
        tl.store(out + tl.program_id(1) * n + in_weight, total, mask=inside_tile)
