"""Norms and sums of products at many positions by Triton: rows that autograd builds, standardised, as oracle."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from adadpigu.core.bounding import GradientSum, clip_factors
from adadpigu.core.gradients import ghost
from adadpigu.core.gradients.ghost import GhostEngine, ProductLayer
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.rule_engine import RuleEngine
from adadpigu.core.kernels.convolution import Blocks, Geometry, Products
from adadpigu.core.sensitive import Records, unseal
from adadpigu.core.standardising import Standardiser, weighted_total
from adadpigu.errors import InputError

CPU = torch.device("cpu")
SMALL = Blocks(16, 16, 16)
"""so small that there are several parts and a rest in every direction"""
PLAIN = Geometry((3, 3), (1, 1), (1, 1), (1, 1))
STRIDED = Geometry((3, 2), (2, 1), (1, 0), (1, 2))


class Drawn:
    """A layer's x and dℓ/dy, with a centre, a scale and a mask for its weight."""

    def __init__(self, walk: Geometry = PLAIN, *, channels: int = 4, copies: int = 1, records: int = 3) -> None:
        generator = torch.Generator().manual_seed(0)
        outputs, (down, right) = 18, walk.kernel_size
        self.x = torch.randn(records * copies, channels, 4, 5, generator=generator)
        y = nn.functional.conv2d(self.x, torch.zeros(outputs, channels, down, right), None, *walk[1:])
        self.dy = torch.randn(y.shape, generator=generator)
        self.walk, self.copies, self.records = walk, copies, records
        self.size = outputs * channels * down * right
        self.factors = torch.rand(records, generator=generator, dtype=torch.float64)
        self.query = GradientSum(
            clip_norm=1.0,
            center=torch.randn(self.size, generator=generator, dtype=torch.float64),
            scale=torch.rand(self.size, generator=generator, dtype=torch.float64) + 0.1,
            active=torch.rand(self.size, generator=generator) < 0.7,
        )

    def products(self, blocks: Blocks | None = None) -> Products:
        return Products(self.x, self.dy, self.walk, self.copies, "ieee", blocks)

    @property
    def parts(self) -> tuple[Tensor | None, Tensor | None]:
        standardiser = Standardiser(self.query, self.size, device=CPU)
        return standardiser.center, standardiser.weight

    def z(self) -> Tensor:
        """Rows in float64, by autograd, standardised."""
        rows = []
        for part in torch.split(torch.arange(len(self.x)), self.copies):
            weight = torch.zeros(18, self.x.shape[1], *self.walk.kernel_size, dtype=torch.float64, requires_grad=True)
            y = nn.functional.conv2d(self.x[part].double(), weight, None, *self.walk[1:])
            rows.append(torch.autograd.grad((y * self.dy[part].double()).sum(), weight)[0].flatten())
        return Standardiser(self.query, self.size, device=CPU).widened(torch.stack(rows))

    def check(self, blocks: Blocks | None = None) -> None:
        z, found = self.z(), self.products(blocks)
        torch.testing.assert_close(found.squares(*self.parts).sum(0), z.square().sum(1), rtol=1e-5, atol=0)
        total = weighted_total(z, self.factors)
        torch.testing.assert_close(found.total(self.factors, *self.parts), total, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("blocks", [SMALL, None])
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("walk", [PLAIN, STRIDED])
def test_norms_and_sums_are_those_of_the_rows(walk: Geometry, copies: int, blocks: Blocks | None) -> None:
    Drawn(walk, copies=copies).check(blocks)


@pytest.mark.parametrize("channels", [3, 17])
def test_channels_side_by_side_are_taken_in_their_order(channels: int) -> None:
    drawn = Drawn(channels=channels)
    drawn.x, drawn.dy = (part.contiguous(memory_format=torch.channels_last) for part in (drawn.x, drawn.dy))
    drawn.check(SMALL)


@pytest.mark.parametrize("missing", ["center", "weight", "both"])
def test_a_missing_centre_is_zero_and_a_missing_weight_is_one(missing: str) -> None:
    drawn = Drawn()
    center, scale = drawn.query.center, drawn.query.scale
    drawn.query = GradientSum(
        clip_norm=1.0, center=center if missing == "weight" else None, scale=scale if missing == "center" else None
    )
    drawn.check()


@pytest.mark.parametrize("channels", [4, 17])
def test_what_is_normed_is_what_is_summed_to_the_last_bit(channels: int) -> None:
    """One record alone with factor 1: its sum is z itself, and must have the norm found."""
    drawn = Drawn(records=2, channels=channels)
    if channels > 16:
        drawn.x = drawn.x.contiguous(memory_format=torch.channels_last)
    products = drawn.products()
    norms = products.squares(*drawn.parts).sum(0)
    for record, one in enumerate(torch.eye(2, dtype=torch.float64)):
        z = products.total(one, *drawn.parts)
        assert norms[record].item() == pytest.approx(math.fsum(v * v for v in z.tolist()), rel=1e-14)
        assert torch.equal(z, z.float().double())


def test_it_is_what_a_row_holds_too() -> None:
    drawn = Drawn()
    rows = torch.empty(3, drawn.size)
    drawn.products(SMALL).write(rows)
    one = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert torch.equal(drawn.products(SMALL).total(one, None, None), rows[1].double())


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_record_that_is_not_finite_is_left_out_of_the_sum(odd: float) -> None:
    drawn = Drawn(records=4)
    before = drawn.products().squares(*drawn.parts).sum(0)
    drawn.x[2, 3, 1, 1] = odd
    norms = drawn.products().squares(*drawn.parts).sum(0)
    assert not norms[2].isfinite()
    assert torch.equal(norms[[0, 1, 3]], before[[0, 1, 3]])
    factors = clip_factors(norms.sqrt(), 1.0, length=drawn.size)
    assert factors[2] == 0
    assert drawn.products().total(factors, *drawn.parts).isfinite().all()


def test_nothing_adds_up_to_zero_and_what_would_be_misread_is_refused() -> None:
    drawn = Drawn()
    none = Products(drawn.x[:0], drawn.dy[:0], PLAIN)
    assert none.squares(None, None).shape == (1, 0)
    assert torch.equal(none.total(drawn.factors[:0], None, None), torch.zeros(drawn.size, dtype=torch.float64))
    for x, dy, copies in ((drawn.x[:2], drawn.dy, 1), (drawn.x[0], drawn.dy, 1), (drawn.x, drawn.dy, 2)):
        with pytest.raises(InputError, match="products"):
            Products(x, dy, PLAIN, copies).squares(None, None)
    with pytest.raises(InputError, match="float64"):
        Products(drawn.x.double(), drawn.dy.double(), PLAIN).squares(None, None)
    with pytest.raises(InputError, match="center or weight"):
        drawn.products().squares(torch.zeros(3), None)
    with pytest.raises(InputError, match="factors"):
        drawn.products().total(torch.ones(3), None, None)


class Words(nn.Module):
    """Two layers at several positions, and one at one."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.leave = nn.Linear(6, 20), nn.Linear(20, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.leave(torch.tanh(self.down(torch.tanh(self.up(x)))).mean(1))
        return found


def images() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 2, padding=1), nn.Tanh(), nn.Conv2d(4, 18, 2, stride=2), nn.GroupNorm(2, 18)),
        *(nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(18, 3)),
    )


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers count as large that the interpreter gets through in time."""
    monkeypatch.setattr(ghost, "_TILED_FROM", 50)
    monkeypatch.setattr(ghost, "_WIDE", 50)


@pytest.mark.usefixtures("low_limits")
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("kind", ["images", "words"])
def test_engines_agree_on_clipped_sums(kind: str, copies: int) -> None:
    torch.manual_seed(0)
    model, shape = (images(), (3, 4, 4)) if kind == "images" else (Words(), (5, 6))
    inputs, targets = torch.randn(2 * copies, *shape), torch.tensor([0, 1])
    size = sum(parameter.numel() for parameter in model.parameters())
    query = GradientSum(clip_norm=0.1, center=0.001 * torch.randn(size), scale=torch.rand(size) + 0.5)
    records = Records((inputs, targets), copies=copies)
    found = [unseal(engine_of(kind, model).clipped_sum(records, query)) for kind in (GhostEngine, RuleEngine)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)


def engine_of(kind: type[RuleEngine], model: nn.Module) -> RuleEngine:
    """Without the rehearsals of a choice, which take minutes in the interpreter."""
    loss = RecordLoss.of(nn.CrossEntropyLoss(), torch.zeros(2, 3), torch.tensor([0, 1]))
    return kind(model, loss, "")


@pytest.mark.usefixtures("low_limits")
def test_wide_layers_at_many_positions_are_never_built(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    seen: list[type] = []
    own = GhostEngine.outer_layers

    def noted(self: GhostEngine, *args: object) -> object:
        layers = own(self, *args)  # type: ignore[arg-type]
        seen.extend(type(layer) for layer in layers)
        return layers

    monkeypatch.setattr(GhostEngine, "outer_layers", noted)
    records = Records((torch.randn(2, 3, 4, 4), torch.tensor([0, 1])))
    engine_of(GhostEngine, images()).clipped_sum(records, GradientSum(clip_norm=1.0))
    assert seen.count(ProductLayer) == 1
