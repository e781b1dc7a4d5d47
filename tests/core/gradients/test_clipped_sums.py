"""Clipped sums by every engine: equal to float64 numpy on looped gradients, bounded whatever a record holds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gradient_oracle import oracle
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.bounding import BoundedSum, Bounder, GradientSum
from adadpigu.core.gradients import ENGINES, choose_engine
from adadpigu.core.gradients import rule_engine as rule_engine_module
from adadpigu.core.gradients.engine import FunctionalEngine, GradientEngine, LoopEngine
from adadpigu.core.gradients.ghost import GhostEngine
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.rule_engine import RuleEngine
from adadpigu.core.sensitive import Records, unseal
from adadpigu.errors import ModelError, PrivacyLineError
from trials import mask_of

KINDS: tuple[type[GradientEngine], ...] = (GhostEngine, RuleEngine, FunctionalEngine, LoopEngine)
LOSS = RecordLoss(F.cross_entropy, None)


class Shared(nn.Module):
    """A linear layer used twice, one on sequences, one weight shared by two modules, one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(12, 12)
        self.tokens = nn.Linear(6, 6, bias=False)
        self.one = nn.Linear(12, 10)
        self.other = nn.Linear(12, 10)
        self.other.weight = self.one.weight
        self.unused = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        hidden = self.tokens(hidden.view(-1, 2, 6)).flatten(1)
        return self.one(hidden) + self.other(hidden.cos())  # type: ignore[no-any-return]


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.Linear(16, 12),
        nn.Tanh(),
        nn.Linear(12, 10),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "images": (images, (2, 8, 8)),
    "shared": (Shared, (12,)),
    "one layer": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 10, bias=False)), (12,)),
}


def given(name: str, count: int = 7, copies: int = 1) -> tuple[nn.Module, Records]:
    torch.manual_seed(3)
    make, shape = NETS[name]
    model = make()
    inputs, targets = torch.randn(count * copies, *shape), torch.randint(10, (count,))
    return model, Records((inputs, targets), copies=copies)


@functools.cache
def rows_of_net(name: str, copies: int) -> np.ndarray:
    return rows_of(*given(name, copies=copies))


def rows_of(model: nn.Module, records: Records) -> np.ndarray:
    """The looped gradients in float64, a record's copies averaged."""
    inputs, targets = unseal(records)
    gradients, _ = oracle(model, F.cross_entropy, inputs, targets.repeat_interleave(records.copies))
    flat = torch.cat([g.reshape(len(inputs), -1) for g in gradients.values()], dim=1)
    return flat.reshape(len(targets), records.copies, -1).mean(dim=1).double().numpy()


def expected(rows: np.ndarray, query: GradientSum) -> np.ndarray:
    """The definition, in float64 numpy."""
    size = rows.shape[1]
    center = np.zeros(size) if query.center is None else query.center.double().numpy()
    scale = np.ones(size) if query.scale is None else query.scale.double().numpy()
    active = np.ones(size, dtype=bool) if query.active is None else query.active.numpy()
    z = np.where(active, (rows - center) / scale, 0)
    if query.top_k < 1:
        kept = math.floor(query.top_k * active.sum())
        for row in z:
            row[np.argsort(-np.abs(row))[kept:]] = 0
    norms = np.linalg.norm(z, axis=1)
    if query.stability is not None:
        factors = query.clip_norm / (norms + query.stability)
    else:
        factors = np.minimum(1, query.clip_norm / np.maximum(norms, 1e-300))
    return np.asarray((z * factors[:, None]).sum(0))


def query(size: int, **asked: Any) -> GradientSum:
    generator = torch.Generator().manual_seed(5)
    parts: dict[str, Any] = {"clip_norm": 0.5}
    if asked.pop("mask", False):
        parts["active"] = torch.rand(size, generator=generator) < 0.5
    if asked.pop("frozen layers", False):
        parts["active"][: size // 2] = False
    if asked.pop("center", False):
        parts["center"] = 0.3 * torch.randn(size, generator=generator, dtype=torch.float64)
    if asked.pop("scale", False):
        parts["scale"] = 0.5 + torch.rand(size, generator=generator, dtype=torch.float64)
    return GradientSum(**parts, **asked)


ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask": {"mask": True},
    "center": {"center": True},
    "scale": {"scale": True},
    "all": {"mask": True, "center": True, "scale": True},
    "automatic": {"mask": True, "scale": True, "stability": 0.05},
    "top-k": {"mask": True, "center": True, "scale": True, "top_k": 0.3},
    "top-k, whole layers frozen": {"mask": True, "frozen layers": True, "scale": True, "top_k": 0.3},
}


@pytest.mark.parametrize(("asked", "copies"), [*((asked, 1) for asked in ASKED), ("all", 3), ("top-k", 3)])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_engine_gives_the_same_clipped_sum(kind: type[GradientEngine], net: str, asked: str, copies: int) -> None:
    model, records = given(net, copies=copies)
    engine = kind(model, LOSS, "")
    wanted = query(engine.layout.size, **ASKED[asked])
    total = engine.clipped_sum(records, wanted)
    found = unseal(total).numpy()
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected(rows_of_net(net, copies), wanted), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("kind", [GhostEngine, RuleEngine])
def test_slices_change_nothing(kind: type[GradientEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    model, records = given("images", count=24, copies=2)
    engine = kind(model, LOSS, "")
    wanted = query(engine.layout.size, mask=True, center=True, scale=True)
    whole = unseal(engine.clipped_sum(records, wanted))
    for size in (8 * 2**20, 4000, 1):
        monkeypatch.setattr(rule_engine_module, "_SLICE_BYTES", {"cpu": size})
        torch.testing.assert_close(unseal(engine.clipped_sum(records, wanted)), whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("asked", ["plain", "all", "automatic"])
@pytest.mark.parametrize("value", [3e38, 1e20, -1e6, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_no_record_moves_the_sum_by_more_than_the_clip_norm(
    kind: type[GradientEngine], value: float, asked: str
) -> None:
    model, records = given("images")
    inputs, targets = unseal(records)
    engine = kind(model, LOSS, "")
    wanted = query(engine.layout.size, **ASKED[asked])
    without = unseal(engine.clipped_sum(records, wanted))
    for place in (0, 3, 7):
        more = torch.cat([inputs[:place], torch.full_like(inputs[:1], value), inputs[place:]])
        labels = torch.cat([targets[:place], targets[:1], targets[place:]])
        found = unseal(engine.clipped_sum(Records((more, labels)), wanted))
        assert torch.linalg.vector_norm(found - without) <= wanted.clip_norm * (1 + 1e-6)


def test_terms_that_cancel_do_not_hide_a_record() -> None:
    """A centre far larger than the gradients: the norm of the difference must not come out too small."""
    model, records = given("one layer", count=1)
    engine = GhostEngine(model, LOSS, "")
    row = torch.from_numpy(rows_of(model, records))[0]
    for size in (1e3, 1e6, 1e8):
        wanted = GradientSum(clip_norm=1e-3, center=size * torch.ones_like(row) + row)
        total = unseal(engine.clipped_sum(records, wanted))
        assert torch.linalg.vector_norm(total) <= wanted.clip_norm * (1 + 1e-9)


def test_a_layer_whose_mask_is_empty_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, records = given("images")
    engine = GhostEngine(model, LOSS, "")
    last = engine.layout.slots[-2]
    wanted = GradientSum(clip_norm=0.5, active=mask_of(range(last.start, last.stop, 2), engine.layout.size))
    asked: list[nn.Module] = []
    genuine = rule_engine_module.captured

    def watched(net: nn.Module, chosen: rule_engine_module.Selection) -> Any:
        asked.extend(module for _, module in chosen.layers)
        return genuine(net, chosen)

    monkeypatch.setattr(rule_engine_module, "captured", watched)
    found = unseal(engine.clipped_sum(records, wanted)).numpy()
    assert asked == [model.get_submodule(last.layer)]
    np.testing.assert_allclose(found, expected(rows_of(model, records), wanted), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_has_an_empty_sum(kind: type[GradientEngine]) -> None:
    model, _ = given("images")
    engine = kind(model, LOSS, "")
    empty = Records((torch.zeros(0, 2, 8, 8), torch.zeros(0, dtype=torch.long)))
    found = unseal(engine.clipped_sum(empty, GradientSum(clip_norm=1.0, active=mask_of([1, 5], engine.layout.size))))
    assert found.tolist() == [0.0] * engine.layout.size


def test_a_bounder_takes_only_what_was_clipped_for_its_query() -> None:
    mine, same = GradientSum(clip_norm=1.0), GradientSum(clip_norm=1.0)
    bounder = Bounder(mine, 3)
    for wrong in (BoundedSum(torch.zeros(3), same, size=3, dtype=torch.float32), torch.zeros(3), None):
        with pytest.raises(PrivacyLineError, match="BoundedSum for 'gradient'"):
            bounder.add_clipped(wrong)  # type: ignore[arg-type]
    bounder.add_clipped(BoundedSum(torch.ones(3).double(), mine, size=3, dtype=torch.float32))
    assert unseal(bounder.result()).tolist() == [1.0] * 3


@pytest.mark.parametrize("name", [engine for engine in ENGINES if engine != "auto"])
def test_an_engine_can_be_asked_for_by_name(name: str) -> None:
    example = torch.zeros(3, 2, 8, 8), torch.zeros(3, dtype=torch.long)
    assert choose_engine(images(), F.cross_entropy, example, engine=name).name == name


def test_an_engine_that_cannot_be_had_or_does_not_exist_is_refused() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    example = torch.zeros(3, 4), torch.zeros(3, dtype=torch.long)
    assert choose_engine(Own(), F.cross_entropy, example).name == "functional"
    with pytest.raises(ModelError, match="engine='ghost' cannot be used: no layer rule for <model>"):
        choose_engine(Own(), F.cross_entropy, example, engine="ghost")
