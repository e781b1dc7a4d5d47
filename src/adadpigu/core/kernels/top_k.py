"""The k largest magnitudes of each standardised row, exactly k of them, and their norm. Sensitive in, sensitive out.

The bits of |z| order as the numbers do, so the k-th largest is found bit by bit, counting what lies above. Of the
entries equal to it the first stay, as in `standardising.largest`. What is no number is the largest of all and
always stays, so that the clip finds and drops its record.

A thread holds 32 entries as 32 planes: a word of plane j has bit j of each. So one `popc` counts 32 entries.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, assignment"

from __future__ import annotations

import torch
from torch import Tensor

from adadpigu.core.kernels._triton import jit, power_of_two, tl
from adadpigu.core.kernels.rows import check_standardised, load_column, standardised

WIDEST = 32768  # the longest row that one program holds in registers; longer ones are read again for each round

CHUNK = 4096  # how much of a longer row is read at a time

WORDS = 2  # words of 32 entries that one thread of a shorter row's program holds


def measured_largest(
    rows: Tensor, center: Tensor | None, weight: Tensor | None, count: int | Tensor
) -> tuple[Tensor, Tensor]:
    """z = (g − α) · w for rows g, but for its `count` largest magnitudes zero, [b, n] in float32; and ‖·‖² of that.

    Of equal ones the first stay. `count` may be an int64 tensor of no dimensions on the rows' device, so that a
    captured graph can change it. The squared norms are [b] in float64: inf or nan for a row that is not finite. center
    α and weight w are as in `rows.squared_norms`.
    """
    check_standardised("measured_largest", rows, center, weight)
    b, n = rows.shape
    kept = torch.empty(rows.shape, dtype=torch.float32, device=rows.device)
    if not b or not n:
        return kept, torch.zeros(b, dtype=torch.float64, device=rows.device)
    squares = torch.empty(b, dtype=torch.float64, device=rows.device)
    if n > WIDEST:
        kernel, warps = _wide, max(1, min(power_of_two(n) // 1024, 16))
        blocks: tuple[int, ...] = (min(power_of_two(n), CHUNK),)
    else:
        threads, warps = _shape(n)
        kernel, blocks = _narrow, (threads, -(-n // (4 * threads)))
    # One row has no other to share them with: as float32 they are half the bytes and registers.
    center, weight = (None if part is None else part.float() for part in (center, weight))
    parts = rows, center, weight, kept, squares, count
    kernel[(b,)](*parts, n, rows.stride(0), isinstance(count, Tensor), *blocks, num_warps=warps)
    return kept, squares


def _shape(n: int) -> tuple[int, int]:
    """How many words of 32 entries a row of n is, a power of two, and how many warps hold them.

    >>> _shape(45), _shape(9626), _shape(26010)
    ((32, 1), (512, 8), (1024, 16))
    """
    words = power_of_two(max(32, -(-n // 32)))
    return words, max(1, words // (32 * WORDS))


@jit()
def _standardised(here, center, weight, columns, inside):
    """z of some columns, and the bits of |z|, which order as |z| does; -1 beyond the row."""
    alpha, w = load_column(center, columns, inside, 0.0), load_column(weight, columns, inside, 1.0)
    z = standardised(tl.load(here + columns, mask=inside, other=0.0), alpha, w)
    return z, tl.where(inside, z.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1)


@jit()
def _wanted(count, n, ON_DEVICE: tl.constexpr):
    wanted = tl.load(count) if ON_DEVICE else count
    return tl.minimum(wanted, n).to(tl.int32)


# Nothing is specialised for its alignment: a thread reads entries far apart, and wider reads would have it hold others.
@jit("rows", "center", "weight", "out", "count", "n", "stride")
def _narrow(
    rows,
    center,
    weight,
    out,
    squares,
    count,
    n,
    stride,
    ON_DEVICE: tl.constexpr,
    THREADS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """One row, held in registers: entry THREADS · i + t is bit i of word t of each plane, i below 4 · CHUNKS."""
    row = tl.program_id(0).to(tl.int64)
    here, there = rows + row * stride, out + row * n
    wanted = _wanted(count, n, ON_DEVICE)
    words = ()
    for chunk in tl.static_range(8):
        if chunk < CHUNKS:
            columns, inside = _places(n, chunk, CHUNKS, THREADS)
            z, _ = _standardised(here, center, weight, columns, inside)
            words = words + _four(tl.where(inside, z, 0.0).to(tl.uint32, bitcast=True))
        else:
            words = words + (tl.zeros((THREADS,), tl.uint32),) * 4
    planes = _transposed(words)
    kept = _kept(planes, wanted)
    kept_planes = ()
    for j in tl.static_range(32):
        kept_planes = kept_planes + (planes[j] & kept,)  # noqa: RUF005
    words = _transposed(kept_planes)
    total = tl.zeros((THREADS, 4), tl.float64)
    for chunk in tl.static_range(CHUNKS):
        columns, inside = _places(n, chunk, CHUNKS, THREADS)
        z = _joined(words[4 * chunk], words[4 * chunk + 1], words[4 * chunk + 2], words[4 * chunk + 3])
        z = z.to(tl.float32, bitcast=True)
        tl.store(there + columns, z, mask=inside)
        total += z.to(tl.float64) * z.to(tl.float64)
    tl.store(squares + row, tl.sum(total))


@jit()
def _places(n, chunk: tl.constexpr, CHUNKS: tl.constexpr, THREADS: tl.constexpr):
    """The columns of four entries of each thread, and which of them there are: only the last chunk need look."""
    columns = 4 * THREADS * chunk + tl.arange(0, 4)[None, :] * THREADS + tl.arange(0, THREADS)[:, None]
    return columns, columns < n if chunk == CHUNKS - 1 else tl.full((THREADS, 4), True, tl.int1)


@jit()
def _four(z):
    """The columns of [t, 4], one by one."""
    even, odd = tl.split(tl.reshape(z, (z.shape[0], 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@jit()
def _joined(a, b, c, d):
    """Four words as [t, 4]: the inverse of `_four`."""
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (a.shape[0], 4))


@jit()
def _transposed(words):
    """Of 32 words the 32 × 32 bits transposed: bit i of word j becomes bit j of word i."""
    for stage in tl.static_range(5):
        words = _exchanged(words, 16 >> stage)
    return words


@jit()
def _exchanged(words, STEP: tl.constexpr):
    """Of 2 · STEP words by as many bits, all along the diagonal, the two quarters off the diagonal change places."""
    low: tl.constexpr = 0xFFFFFFFF // ((1 << STEP) + 1)
    high: tl.constexpr = 0xFFFFFFFF - low
    exchanged = ()
    for i in tl.static_range(32):
        if i & STEP:
            word = ((words[i - STEP] >> STEP) & low) | (words[i] & high)
        else:
            word = (words[i] & low) | ((words[i + STEP] << STEP) & high)
        exchanged = exchanged + (word,)  # noqa: RUF005
    return exchanged


@jit()
def _kept(planes, wanted):
    """Which entries stay, a bit for each: the `wanted` largest, or all but zeros if fewer, and what is no number."""
    open_, fraction, special = planes[0], planes[0], planes[30]
    for j in tl.static_range(1, 31):
        open_ = open_ | planes[j]
        if j < 23:
            fraction = fraction | planes[j]
        elif j < 30:
            special = special & planes[j]
    # Those above what is known of the k-th largest stay, those equal to it so far are open, and of these `left` stay;
    # left is 0 where all of them do.
    size, reached = _two_sums(_ones(open_), _ones(open_ & planes[30]))
    above, left = open_ & 0, tl.where(size > wanted, wanted, 0)
    open_ = tl.where(wanted > 0, open_, above)
    if left > 0:
        exact = reached == left
        above, open_, left = _parted(above, open_, planes[30], left, reached)
        left = tl.where(exact, 0, left)
    for pair in tl.static_range(15):
        if left > 0:
            high, low = planes[29 - 2 * pair], planes[28 - 2 * pair]
            threes, twos, ones = _digits(open_, high, low)
            reached = threes + twos
            exact, then = reached == left, tl.where(reached >= left, threes, ones)
            above, open_, left = _parted(above, open_, high, left, reached)
            exact = exact | (then == left)
            above, open_, left = _parted(above, open_, low, left, then)
            left = tl.where(exact, 0, left)
    if left > 0:
        open_ = _first_ones(open_, left)
    return above | open_ | (special & fraction)


@jit()
def _parted(above, open_, plane, left, reached):
    """One more bit of the k-th largest: `reached` of the open ones have it."""
    enough = reached >= left
    flipped = tl.where(enough, 0, 0xFFFFFFFF).to(tl.uint32)
    return above | (open_ & plane & flipped), open_ & (plane ^ flipped), tl.where(enough, left, left - reached)


@jit()
def _first_ones(bits, left):
    """The first `left` of the bits that are set, in the order of the columns: by bit first, then by word."""
    whole, before = left * 0, left * 0  # before bit `whole` there are `before`, fewer than are left
    for stage in tl.static_range(5):
        further = whole + (16 >> stage)
        reached = tl.sum(_ones(bits & ((1 << further) - 1).to(tl.uint32)).to(tl.int32))
        whole, before = tl.where(reached < left, further, whole), tl.where(reached < left, reached, before)
    last = (bits >> whole.to(tl.uint32)) & 1
    stays = tl.cumsum(last.to(tl.int32), 0) <= left - before
    below = ((1 << whole) - 1).to(tl.uint32)
    return (bits & below) | tl.where(stays, last << whole.to(tl.uint32), 0)


@jit()
def _ones(bits):
    """How many bits of each word are set; LLVM makes one instruction of it."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    return (((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24


@jit()
def _two_sums(whole, part):
    """Two sums over a program, at most 2¹⁵ each, in one; no word has more of the second."""
    both = tl.sum(part | ((whole - part) << 16))
    part = (both & 0xFFFF).to(tl.int32)
    return part + (both >> 16).to(tl.int32), part


@jit()
def _digits(open_, high, low):
    """How many of the open ones have the two bits 11, 10 and 01."""
    tops = open_ & high
    threes = _ones(tops & low)
    # were a count itself shifted, LLVM would not know it for a count of bits
    packed = threes | ((_ones(tops) - threes) << 16)
    both, ones = tl.split(tl.sum(tl.join(packed, _ones((open_ ^ tops) & low)), 0))
    return (both & 0xFFFF).to(tl.int32), (both >> 16).to(tl.int32), ones.to(tl.int32)


@jit("count")
def _wide(rows, center, weight, out, squares, count, n, stride, ON_DEVICE: tl.constexpr, COLUMNS: tl.constexpr):
    """One row, read chunk by chunk for each round; a round counts above three thresholds, so that there are half."""
    row = tl.program_id(0).to(tl.int64)
    here = rows + row * stride
    wanted = _wanted(count, n, ON_DEVICE)
    low, high, above = 0, 0x7FFFFFFF, 0  # `wanted` are >= low, not >= high: `above`, or -1 if just `wanted` are >= low
    while high - low > 1:
        quarter, second = (high - low) // 4, low + (high - low) // 2
        first, third = low + quarter, second + quarter
        firsts = tl.zeros((COLUMNS,), tl.int32)
        seconds = tl.zeros((COLUMNS,), tl.int32)
        thirds = tl.zeros((COLUMNS,), tl.int32)
        for start in range(0, n, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            _, sizes = _standardised(here, center, weight, columns, columns < n)
            firsts += (sizes >= first).to(tl.int32)
            seconds += (sizes >= second).to(tl.int32)
            thirds += (sizes >= third).to(tl.int32)
        low, high, above = _closer(low, high, above, first, tl.sum(firsts), wanted)
        low, high, above = _closer(low, high, above, second, tl.sum(seconds), wanted)
        low, high, above = _closer(low, high, above, third, tl.sum(thirds), wanted)
    cut = n
    if (low > 0) & (above >= 0):
        cut, spare = 0, wanted - above
        for start in range(0, n, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            _, sizes = _standardised(here, center, weight, columns, columns < n)
            tied = (sizes == low).to(tl.int32)
            stay = (tied == 1) & (tl.cumsum(tied, 0) <= spare)
            cut = tl.maximum(cut, tl.max(tl.where(stay, columns + 1, 0)))
            spare -= tl.sum(tied)
    total = tl.zeros((COLUMNS,), tl.float64)
    for start in range(0, n, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        z, sizes = _standardised(here, center, weight, columns, columns < n)
        kept = (sizes > low) | ((sizes == low) & (columns < cut)) | (sizes > 0x7F800000)
        z = tl.where(kept, z, 0.0)
        tl.store(out + row * n + columns, z, mask=columns < n)
        total += z.to(tl.float64) * z.to(tl.float64)
    tl.store(squares + row, tl.sum(total))


@jit()
def _closer(low, high, above, threshold, reached, wanted):
    """The bracket after one more count; it closes where exactly `wanted` are reached."""
    inner = (threshold > low) & (threshold < high)
    enough, exact, short = inner & (reached >= wanted), inner & (reached == wanted), inner & (reached < wanted)
    above = tl.where(exact, -1, tl.where(short, reached, above))
    low = tl.where(enough, threshold, low)
    high = tl.where(exact, threshold + 1, tl.where(short, threshold, high))
    return low, high, above
