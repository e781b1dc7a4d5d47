"""Times each kernel of ours against what torch's operations do in its place, on random data of the nets' sizes.

    python experiments/time_kernels.py [--records 1024] [--rounds 15] [--only top]

Both are captured in CUDA graphs, as in a training step, and replayed in turns; a figure is the median over the rounds.
They are compared before they are timed. It needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from adadpigu.core import kernels
from adadpigu.core.bounding import GradientSum, aimed_norm, clip_factors
from adadpigu.core.gradients.ghost import OuterLayer, TiledOuterLayer
from adadpigu.core.gradients.rules import patches
from adadpigu.core.kernels import factors, rows, top_k
from adadpigu.core.kernels.convolution import POINTWISE, Geometry, Products
from adadpigu.core.layout import Slot
from adadpigu.core.standardising import Standardiser, largest, weighted_total

GPU = torch.device("cuda")


class Convolution(NamedTuple):
    """A layer's shape; image, kernel, stride and padding are square."""

    inputs: int
    outputs: int
    image: int
    kernel: int
    stride: int
    padding: int


LENGTHS = {"mnist-cnn": 26_010, "cifar-small": 74_362}
LINEAR = {"mnist-cnn 1": (32, 512), "mnist-cnn 2": (10, 32)}
CONVOLUTIONS = {
    "mnist-cnn 1": Convolution(1, 16, image=28, kernel=8, stride=2, padding=2),
    "mnist-cnn 2": Convolution(16, 32, image=12, kernel=4, stride=2, padding=0),
    "cifar-small 1": Convolution(3, 16, image=32, kernel=3, stride=1, padding=1),
    "cifar-small 3": Convolution(16, 32, image=8, kernel=3, stride=1, padding=1),
}
LARGE = {
    "wrn-16-4 1": Convolution(64, 64, image=32, kernel=3, stride=1, padding=1),
    "wrn-16-4 2": Convolution(128, 128, image=16, kernel=3, stride=1, padding=1),
    "wrn-16-4 3": Convolution(256, 256, image=8, kernel=3, stride=1, padding=1),
}
SEQUENCES = {"BERT-base": (768, 768, 128), "BERT-base, wide": (3072, 768, 128), "GPT-2 small": (768, 3072, 512)}
"""outputs, inputs and positions"""
REPLAYS = 20
"""of a graph between two looks at the clock"""

Work = Callable[[], tuple[Tensor, ...]]


class Pair(NamedTuple):
    """Two ways to the same result."""

    name: str
    ours: Work
    torch: Work
    apart: float | None = None
    """how far results may lie apart, of the largest entry, where products are short"""


def standardised(size: int) -> tuple[Standardiser, Tensor, Tensor]:
    """With a centre and a scale for every entry, of which a mask leaves six in ten; and α and w by themselves."""
    query = GradientSum(
        clip_norm=1.0,
        center=0.1 * torch.randn(size, device=GPU),
        scale=torch.rand(size, device=GPU) + 0.1,
        active=torch.rand(size, device=GPU) < 0.6,
    )
    made = Standardiser(query, size, device=GPU)
    assert made.center is not None
    assert made.weight is not None
    return made, made.center, made.weight


def of_rows(b: int, net: str, n: int) -> list[Pair]:
    """Norms, sums and largest entries of rows that stand in memory."""
    g, f = torch.randn(b, n, device=GPU), torch.rand(b, device=GPU, dtype=torch.float64)
    standardiser, center, weight = standardised(n)
    count = n * 3 // 10
    on_device = torch.tensor(count, device=GPU)

    def added_by_torch() -> tuple[Tensor, Tensor]:
        z = standardiser.widened(g)  # once for both, as without kernels
        return torch.linalg.vector_norm(z, dim=1).square(), weighted_total(z, f)

    def picked_by_torch() -> tuple[Tensor, Tensor]:
        z = largest((g - center) * weight, count)
        return z, torch.linalg.vector_norm(z, dim=1, dtype=torch.float64).square()

    shape = f"{net} [{b}, {n}]"
    return [
        Pair(
            f"norms and sum of rows, {shape}",
            lambda: (rows.squared_norms(g, center, weight), rows.weighted_sum(g, f, center, weight)),
            added_by_torch,
        ),
        Pair(
            f"top k of rows and norms, {shape}",
            lambda: top_k.measured_largest(g, center, weight, on_device),
            picked_by_torch,
        ),
    ]


def of_outer_products(b: int, layer: str, m: int, n: int) -> list[Pair]:
    """Norms and sums of a linear layer's gradients, which neither way builds."""
    left, right = torch.randn(b, m, device=GPU), torch.randn(b, n, device=GPU)
    _, center, weight = standardised(m * n)
    f = torch.rand(b, device=GPU, dtype=torch.float64)
    slot, vectors = Slot("weight", torch.Size((m, n)), 0, m * n), (weight.view(m, n), center.view(m, n))
    ours, theirs = TiledOuterLayer(slot, left, right, *vectors, copies=1), OuterLayer(slot, left, right, *vectors)
    shape = f"{layer} [{b}, {m}·{n}]"
    return [
        Pair(f"norms of outer products, {shape}", lambda: (ours.squares().sum(dim=0),), lambda: (theirs.squares(),)),
        Pair(f"sum of outer products, {shape}", lambda: (ours.total(f),), lambda: (theirs.total(f),)),
    ]


def of_factors(b: int) -> list[Pair]:
    """Clip factors from the squared norms of 32 parts of each record."""
    parts = torch.rand(32, b, device=GPU, dtype=torch.float64)
    return [
        Pair(
            f"clip factors [32, {b}]",
            lambda: (factors.record_factors([parts], None, aim=aimed_norm(1.0, 16_384)),),
            lambda: (clip_factors(parts.sum(dim=0).sqrt(), 1.0, length=16_384),),
        )
    ]


def of_convolution(b: int, layer: str, given: Convolution) -> list[Pair]:
    """Per-sample gradients of a convolution's weight, written to their place among others."""
    kernel, stride, padding = ((size, size) for size in (given.kernel, given.stride, given.padding))
    module = nn.Conv2d(given.inputs, given.outputs, kernel, stride, padding).to(GPU)
    x = torch.randn(b, given.inputs, given.image, given.image, device=GPU)
    with torch.no_grad():
        dy = torch.randn_like(module(x))
    n = module.weight.numel()
    ours, theirs = (torch.empty(b, n + given.outputs, device=GPU)[:, :n] for _ in range(2))

    def by_kernel() -> tuple[Tensor]:
        Products(x, dy, Geometry(kernel, stride, padding, (1, 1))).write(ours)
        return (ours,)

    def by_patches() -> tuple[Tensor]:
        product = torch.bmm(dy.flatten(2), patches(module, x).flatten(1, 3).flatten(2).mT)
        return (theirs.copy_(product.flatten(1)),)

    return [Pair(f"convolution, {layer} [{b}, {given.outputs}·{n // given.outputs}]", by_kernel, by_patches)]


def of_products(b: int, layer: str, given: Convolution) -> list[Pair]:
    """The norms of a large convolution's gradients, and their sum, against the sum alone: ordinary training's product.

    With α and w, and without; ordinary training takes TF32 there unless told otherwise, and so do both.
    """
    kernel, stride, padding = ((size, size) for size in (given.kernel, given.stride, given.padding))
    x = torch.randn(b, given.inputs, given.image, given.image, device=GPU)
    shape = (given.outputs, given.inputs, *kernel)
    y = nn.functional.conv2d(x, torch.zeros(shape, device=GPU), None, stride, padding)
    return _products(
        f"norms and sum, {layer} [{b}, {given.outputs}·{shape[1] * kernel[0] ** 2}]",
        Products(x, torch.randn_like(y), Geometry(kernel, stride, padding, (1, 1)), precision="tf32"),
        lambda its, dy: conv2d_weight(its, shape, dy, stride, padding),  # type: ignore[no-untyped-call, unused-ignore]
    )


def of_sequences(b: int, layer: str, m: int, n: int, length: int) -> list[Pair]:
    """The same of a linear layer at many positions, where ordinary training takes float32 unless told otherwise."""
    x, dy = (torch.randn(b, length, width, device=GPU) for width in (n, m))
    return _products(
        f"norms and sum, {layer} [{b}·{length}, {m}·{n}]",
        Products(x.mT.unsqueeze(3), dy.mT.unsqueeze(3)),
        lambda its, dy: dy[..., 0].transpose(0, 1).flatten(1) @ its[..., 0].transpose(0, 1).flatten(1).mT,
    )


def _products(name: str, made: Products, ordinary: Callable[[Tensor, Tensor], Tensor]) -> list[Pair]:
    b, m, n = made.shape
    ones, (_, center, weight) = torch.ones(b, device=GPU, dtype=torch.float64), standardised(m * n)
    last = made._replace(
        **{key: getattr(made, key).contiguous(memory_format=torch.channels_last) for key in ("x", "dy")}
    )
    found = []
    for order, its in (("", made), (", channels last", last))[: 1 if made.geometry == POINTWISE else None]:

        def ours(its: Products, *vectors: Tensor | None) -> tuple[Tensor, ...]:
            its.squares(*vectors)
            return (its.total(ones, *vectors),)

        def theirs(its: Products, center: Tensor | None, weight: Tensor | None) -> tuple[Tensor, ...]:
            total = ordinary(its.x, its.dy).flatten().double()
            return (total if center is None or weight is None else (total - b * center) * weight,)

        plain = Pair(
            f"{name}{order}", functools.partial(ours, its, None, None), functools.partial(theirs, its, None, None), 0.01
        )
        found.append(plain)
        standard = functools.partial(ours, its, center, weight)
        found.append(Pair(f"{name}{order}, α, w", standard, functools.partial(theirs, its, center, weight), 0.01))
    return found


def pairs(b: int) -> Iterator[Pair]:
    for net, n in LENGTHS.items():
        yield from of_rows(b, net, n)
    for layer, (m, n) in LINEAR.items():
        yield from of_outer_products(b, layer, m, n)
    yield from of_factors(b)
    for layer, shape in CONVOLUTIONS.items():
        yield from of_convolution(b, layer, shape)
    for layer, shape in LARGE.items():
        yield from of_products(b, layer, shape)
    for layer, (m, n, length) in SEQUENCES.items():
        yield from of_sequences(b // 32, layer, m, n, length)


def captured(work: Work) -> Callable[[], None]:
    """The work as a graph; run before, so that nothing is compiled within."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # type: ignore[no-untyped-call, unused-ignore]
        work()
    return graph.replay


def micros(replay: Callable[[], None]) -> float:
    """One replay, of several in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call, unused-ignore]
    start.record()
    for _ in range(REPLAYS):
        replay()
    end.record()
    end.synchronize()
    return float(1000 * start.elapsed_time(end) / REPLAYS)


def show(pair: Pair, rounds: int) -> None:
    expected = pair.torch()
    atol = 1e-3 if pair.apart is None else pair.apart * max(float(part.abs().max()) for part in expected)
    torch.testing.assert_close(pair.ours(), expected, rtol=1e-4, atol=atol)
    ways = [captured(pair.ours), captured(pair.torch)]
    times = [[micros(way) for way in ways] for _ in range(rounds + 1)][1:]
    ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"{pair.name:58s} {ours:10.1f} {theirs:10.1f} {theirs / ours:13.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1024, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="those whose name holds this")
    given = parser.parse_args()
    if not torch.cuda.is_available() or not kernels.usable(torch.zeros(1, device=GPU)):
        raise SystemExit("time_kernels.py: no CUDA GPU with Triton is here, and kernels run nowhere else")
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'':58s} {'ours, µs':>10s} {'torch, µs':>10s} {'torch / ours':>13s}")
    for pair in pairs(given.records):
        if given.only in pair.name:
            show(pair, given.rounds)


if __name__ == "__main__":
    main()
