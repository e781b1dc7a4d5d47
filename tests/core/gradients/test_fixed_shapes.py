"""A record's gradient is the same, bit for bit, whoever else was drawn; so one record moves a sum by at most C."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.bounding import GradientSum
from adadpigu.core.gradients import GradientEngine, choose_engine
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sampling import Drawn
from adadpigu.core.sensitive import Records, padded, unseal
from adadpigu.data.datasets import declare
from adadpigu.methods import DPSGD
from adadpigu.training import TrainingOptions, prepare
from adadpigu.training.micro_batches import MicroBatches

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))
DEVICES = ["cpu", CUDA]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(24, 32), nn.Linear(32, 5)
        self.attention, self.norm = nn.MultiheadAttention(32, 4, batch_first=True), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        left: Tensor = self.leave(self.norm(x).mean(1))
        return left


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.leave = nn.LSTM(24, 32, batch_first=True), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        left: Tensor = self.leave(self.lstm(x)[0][:, -1])
        return left


def mlp(*widths: int) -> nn.Module:
    return nn.Sequential(*(layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.Sigmoid())))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(30, 2), (30,)),
    "wide linear": (lambda: nn.Linear(3969, 10), (3969,)),
    "odd layers": (lambda: mlp(7, 33, 11, 5), (7,)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 13, 3),
            nn.GroupNorm(1, 13),
            nn.ReLU(),
            nn.Conv2d(13, 26, 3, groups=13),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(26 * 9, 10),
        ),
        (3, 10, 10),
    ),
    "signals": (lambda: nn.Sequential(nn.Conv1d(3, 13, 3), nn.ReLU(), nn.Flatten(), nn.Linear(234, 10)), (3, 20)),
    "words": (lambda: nn.Sequential(nn.Embedding(11, 13), nn.Flatten(), nn.Linear(65, 3)), (5,)),
    "recurrent": (Recurrent, (9, 24)),
    "attention": (Attention, (11, 24)),
}


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs.flatten(1) - targets.unsqueeze(1)) ** 2).mean()


def steep(outputs: Tensor, targets: Tensor) -> Tensor:
    """So steep that gradients of rounded residuals are clipped too."""
    return F.mse_loss(outputs * 1e4, targets * 1e4)


def records_for(net: str, count: int) -> tuple[Tensor, Tensor]:
    generator, shape = torch.Generator().manual_seed(1), NETS[net][1]
    if net == "words":
        return torch.randint(11, (count, *shape), generator=generator), torch.randn(count, generator=generator)
    return torch.randn(count, *shape, generator=generator), torch.randn(count, generator=generator)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("engine", ["materialised", "functional", "loop"])
@pytest.mark.parametrize("net", NETS)
def test_neither_place_nor_company_changes_a_gradient(net: str, engine: str, device: str) -> None:
    torch.manual_seed(0)
    if (net, engine, device) == ("recurrent", "functional", "cuda"):
        pytest.skip("vmap refuses LSTM on a GPU, whatever the shape")
    inputs, targets = (part.to(device) for part in records_for(net, 64))
    made = choose_engine(NETS[net][0]().to(device), squared, (inputs[:3], targets[:3]), engine=engine)
    rows = made.slice_length(40, 1)

    def gradients(which: Tensor) -> dict[int, Tensor]:
        batch = padded(Records((inputs[which], targets[which])), 64 if made.rows_alike else rows)
        found = unseal(made.per_sample_gradients(batch)).records_only().gradients
        return dict(zip(which.tolist(), found, strict=True))

    everyone = torch.arange(min(rows, 64))
    before = gradients(everyone)
    shifted = everyone[5:].roll(3)
    for which in (everyone[1:], shifted, everyone[3:4]):
        after = gradients(which)
        assert all(torch.equal(after[record], before[record]) for record in after)


class Last(nn.Module):
    """What a recurrent layer says at the end."""

    def __init__(self, kind: Callable[..., nn.Module], inputs: int = 5, hidden: int = 7) -> None:
        super().__init__()
        self.layer, self.leave = kind(inputs, hidden, batch_first=True), nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        left: Tensor = self.leave(self.layer(x)[0][:, -1])
        return left


class Scaled(nn.Module):
    """A layer of somebody's own."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.m = nn.Parameter(torch.ones(11)), nn.Parameter(torch.ones(11, 5))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w) @ self.m


class Product(nn.Module):
    """The same with products alone, which round few records otherwise at another place."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(inputs, hidden)), nn.Parameter(torch.randn(hidden, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.w) @ self.v


class Einsum(Product):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.einsum("bi,ij->bj", x, self.w)) @ self.v


def sums(
    scale: float, shape: tuple[int, int], engine: str, device: str, **options: Any
) -> Callable[[list[int]], Tensor]:
    """Σ clip(g_i) of chosen records of a regression that fits: what is left of its residuals is rounding."""
    return sums_of(nn.Linear(*shape), (shape[0],), scale, engine, device, **options)


def sums_of(
    net: nn.Module,
    shape: tuple[int, ...],
    scale: float,
    engine: str,
    device: str,
    deleted: int = 699,
    query: GradientSum = GradientSum(clip_norm=1.0),  # noqa: B008
    **options: Any,
) -> Callable[[list[int]], Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(700, *shape, generator=generator) * scale
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        targets = copy.deepcopy(net).double()(inputs.double()).float()
    chosen = TrainingOptions(noise_multiplier=1.0, batch_size=64, steps=2, engine=engine, device=device, **options)
    kept = torch.arange(700) != deleted
    data = declare((inputs[kept], targets[kept]), records=700, name="regression")
    ready = prepare(net, data, method=DPSGD(), budget=None, delta=1e-5, options=chosen, loss=steep, seed=0)
    batches = MicroBatches(ready, ReproducibleRandomness(0))

    def total(records: list[int]) -> Tensor:
        drawn = Drawn(torch.tensor(records, dtype=torch.long, device=ready.device))
        return unseal(batches.sums(drawn, None, (query,), batches.size((query,)))[0])

    return total


SIZES = (1, 3, 15, 31, 32, 33, 64, 96, 128, 255, 256, 400, 511, 600)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e4])
@pytest.mark.parametrize(("engine", "shape"), [("ghost", (20, 1)), ("ghost", (30, 2)), ("functional", (33, 10))])
def test_one_record_moves_the_sum_by_at_most_the_clip_norm(
    engine: str, shape: tuple[int, int], scale: float, device: str
) -> None:
    total = sums(scale, shape, engine, device)
    for size in SIZES:
        others = list(range(1, size + 1))
        base = total(others)
        for place in (0, size // 2, size):
            moved = torch.linalg.vector_norm(total([*others[:place], 650, *others[place:]]) - base)
            assert moved <= 1 + 1e-5, (size, place)


@pytest.mark.parametrize("engine", ["ghost", "materialised"])
def test_the_same_holds_around_a_large_centre(engine: str) -> None:
    """What is subtracted once for all records is as exact as what is subtracted from each."""
    centre = 1e6 * torch.randn(98, generator=torch.Generator().manual_seed(1))
    query = GradientSum(clip_norm=1.0, center=centre, scale=torch.full((98,), 0.01))
    total = sums_of(nn.Linear(48, 2), (48,), 1.0, engine, "cpu", query=query)
    for size in (15, 64, 255, 400, 600):
        others = list(range(1, size + 1))
        assert torch.linalg.vector_norm(total([650, *others]) - total(others)) <= 1 + 1e-12


PLACED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "rnn": (lambda: Last(nn.RNN), (6, 5), "auto"),
    "gru": (lambda: Last(nn.GRU), (6, 5), "auto"),
    "lstm": (lambda: Last(nn.LSTM), (6, 5), "auto"),
    "own": (Scaled, (11,), "functional"),
    "narrow rnn": (lambda: Last(nn.RNN, 12, 6), (3, 12), "auto"),
    "product": (lambda: Product(14, 9), (14,), "auto"),
    "einsum": (lambda: Einsum(20, 30), (20,), "auto"),
}


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e4])
@pytest.mark.parametrize("net", PLACED)
def test_the_same_holds_where_a_row_is_rounded_by_its_place(net: str, scale: float) -> None:
    make, shape, engine = PLACED[net]
    total = sums_of(make(), shape, scale, engine, "cpu")
    for size in (1, 20, 63, 64, 200):
        others = list(range(1, size + 1))
        base = total(others)
        for place in (0, size // 2, size):
            moved = torch.linalg.vector_norm(total([*others[:place], 650, *others[place:]]) - base)
            assert moved <= 1 + 1e-5, (size, place)


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("net", PLACED)
def test_the_same_holds_where_a_record_is_deleted_from_the_middle_of_the_table(net: str, scale: float) -> None:
    """All records behind it move up by one; what they add stays."""
    make, shape, engine = PLACED[net]
    whole = sums_of(make(), shape, scale, engine, "cpu")
    for deleted in (1, 50):
        total = sums_of(make(), shape, scale, engine, "cpu", deleted=deleted)
        for size in (60, 200):
            moved = torch.linalg.vector_norm(total(list(range(size - 1))) - whole(list(range(size))))
            assert moved <= 1 + 1e-5, (size, deleted)


def random_net(kind: str) -> tuple[nn.Module, Tensor]:
    """A small net of random widths, and 256 inputs."""
    width, hidden, steps = (int(torch.randint(2, most, ())) for most in (31, 31, 8))
    if kind in ("rnn", "gru", "lstm"):
        layer = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[kind]
        return Last(layer, width, hidden), torch.randn(256, steps, width)
    if kind == "words":
        return nn.Sequential(nn.Embedding(11, width), Last(nn.GRU, width, hidden)), torch.randint(11, (256, 2))
    net = mlp(width, hidden, 1) if kind == "linear" else {"product": Product, "einsum": Einsum}[kind](width, hidden)
    return net, torch.randn(256, width)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 14), marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm", "words", "product", "einsum", "linear"])
def test_a_random_net_whose_rows_are_said_to_be_computed_alike_computes_them_so(kind: str, seeds: range) -> None:
    """Of records that the rehearsal has not seen, at other places and in other numbers of blocks."""
    for number in seeds:
        torch.manual_seed(number)
        net, inputs = random_net(kind)
        engine = "functional" if kind == "linear" else "auto"
        made = choose_engine(net, squared, (inputs[:4], torch.zeros(4)), engine=engine)
        if not made.rows_alike:
            continue
        records = inputs, torch.randn(256)

        def gradients(which: Tensor, made: GradientEngine = made, records: Any = records) -> Tensor:
            return unseal(made.per_sample_gradients(Records((records[0][which], records[1][which])))).gradients

        everyone = torch.arange(made.slice_length(256, 1))
        whole = gradients(everyone)
        for which in (everyone.roll(1), everyone.roll(5), everyone[:64], everyone[-96:]):
            assert torch.equal(gradients(which), whole[which]), (number, net)


@pytest.mark.parametrize("at_once", [1, 4, 37, 100])
def test_the_same_holds_with_a_physical_batch_size(at_once: int) -> None:
    total = sums(1e4, (30, 1), "ghost", "cpu", physical_batch_size=at_once)
    for size in (1, 4, 33, 100):
        others = list(range(1, size + 1))
        assert torch.linalg.vector_norm(total([0, *others]) - total(others)) <= 1 + 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("inner", [512, 1024, 2048, 3072])
@pytest.mark.parametrize("rows", [128, 256, 1024, 4096])
def test_a_slice_of_a_gpu_computes_each_row_alike(rows: int, inner: int, precision: Any) -> None:
    """The sizes at which one row more changed all others: n and n + 1 records, n records a slice."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(inner, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    inputs, targets = torch.randn(rows + 1, inner, device="cuda"), torch.randn(rows + 1, device="cuda")
    engine = choose_engine(net, squared, (inputs[:3], targets[:3]), precision=precision)
    size = engine.slice_length(rows, 1)

    def gradients(which: Tensor) -> Tensor:
        found = []
        for part in torch.split(which, size):
            batch = unseal(engine.per_sample_gradients(padded(Records((inputs[part], targets[part])), size)))
            found.append(batch.records_only().gradients[:, -128:].clone())
        return torch.cat(found)

    everyone = torch.arange(rows + 1, device="cuda")
    whole = gradients(everyone)
    assert torch.equal(gradients(everyone[:-1]), whole[:-1])
    assert torch.equal(gradients(everyone[1:]), whole[1:])


def test_a_forward_that_somebody_put_into_a_layer_is_run() -> None:
    torch.manual_seed(0)
    net, inputs, targets = nn.Linear(11, 3), torch.randn(7, 11), torch.randn(7)
    plain = net.forward
    net.forward = lambda x: 3 * plain(x)  # type: ignore[method-assign, assignment]
    kept = net.forward
    engine = choose_engine(net, squared, (inputs[:3], targets[:3]))
    found = unseal(engine.per_sample_gradients(Records((inputs, targets)))).gradients
    assert net.forward is kept
    for row, x, y in zip(found, inputs, targets, strict=True):
        expected = torch.autograd.grad(squared(net(x[None]), y[None]), list(net.parameters()))
        torch.testing.assert_close(row, torch.cat([part.flatten() for part in expected]))
