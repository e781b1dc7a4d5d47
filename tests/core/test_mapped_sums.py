"""Sums under a map of gradients: what is clipped is what the map makes of each record, on every engine, bounded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from adadpigu.core.bounding import Bounder, MappedSum
from adadpigu.core.gradients import GradientEngine, choose_engine
from adadpigu.core.gradients.probing import refuse_mixing
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.sensitive import Presence, Records, unseal
from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.methods.base import Batches, Method, MethodState, RunContext, Stage
from trials import run_small, small_digits, small_net

C = 0.3
BASIS = torch.linalg.qr(torch.randn(910, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "projected": lambda rows: rows @ BASIS.to(rows),
    "the rest": lambda rows: rows - (rows @ BASIS.to(rows)) @ BASIS.to(rows).T,
    "whole": lambda rows: rows,
    "not linear": lambda rows: rows / (1 + rows.abs()),
}


def engine(name: str) -> GradientEngine:
    inputs, targets = small_digits().train.take(torch.arange(3))
    return choose_engine(small_net(), F.cross_entropy, (inputs, targets), engine=name)


def asked(of: str) -> MappedSum:
    return MappedSum(name=of, of=MAPS[of], clip_norm=C)


def looped(of: str, inputs: Tensor, targets: Tensor) -> np.ndarray:
    """In float64, one record at a time."""
    model, total = small_net().double(), 0.0
    for x, y in zip(inputs.double(), targets, strict=True):
        grads = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        z = MAPS[of](torch.cat([g.flatten() for g in grads])[None])[0].numpy()
        total = total + z * min(1.0, C / np.linalg.norm(z))
    return np.asarray(total)


@pytest.mark.parametrize("name", ["ghost", "materialised", "functional", "loop"])
def test_every_engine_gives_the_sum_of_the_definition(name: str) -> None:
    inputs, targets = small_digits().train.take(torch.arange(40))
    queries = [asked(of) for of in MAPS]
    for query, total in zip(queries, engine(name).mapped_sums(Records((inputs, targets)), queries), strict=True):
        np.testing.assert_allclose(unseal(total).numpy(), looped(query.name, inputs, targets), atol=1e-5)
        assert total.query is query
        assert total.sensitivity == C


@pytest.mark.parametrize("of", MAPS)
def test_one_record_moves_the_sum_by_at_most_the_bound(of: str) -> None:
    """Whatever the record holds; rows that are no records count for nothing."""
    inputs, targets = small_digits().train.take(torch.arange(16))
    chosen, here = engine("ghost"), torch.ones(16, dtype=torch.bool)
    whole = unseal(chosen.mapped_sums(Records((inputs, targets)), [asked(of)])[0])
    for value in (0.0, 1e4, float("nan"), float("inf"), 1e-40):
        odd = inputs.clone()
        odd[5] = value
        here[5] = False
        without = unseal(chosen.mapped_sums(Records((odd, targets), present=Presence(here)), [asked(of)])[0])
        there = unseal(chosen.mapped_sums(Records((odd, targets)), [asked(of)])[0])
        assert float((there - without).norm()) <= C * (1 + 1e-9)
        assert float((whole - without).norm()) <= C * (1 + 1e-9)


def test_slices_and_a_draw_of_nobody() -> None:
    inputs, targets = small_digits().train.take(torch.arange(32))
    chosen, query = engine("ghost"), asked("projected")
    whole = unseal(chosen.mapped_sums(Records((inputs, targets)), [query])[0])
    bounder = Bounder(query, 910)
    for part in (slice(0, 8), slice(8, 24), slice(24, 32), slice(32, 32)):
        bounder.add_clipped(chosen.mapped_sums(Records((inputs[part], targets[part])), [query])[0])
    torch.testing.assert_close(unseal(bounder.result()), whole, atol=1e-9, rtol=0)
    nobody = chosen.mapped_sums(Records((inputs[:0], targets[:0])), [query])[0]
    assert nobody.size == 20
    assert not unseal(nobody).any()


def test_beside_other_queries_it_is_the_same_sum() -> None:
    """Of a draw that a method asks for several kinds of sums, gradients are whole: `Bounder.add`."""
    inputs, targets = small_digits().train.take(torch.arange(12))
    chosen, query = engine("ghost"), asked("the rest")
    bounder = Bounder(query, 910)
    bounder.add(chosen.per_sample_gradients(Records((inputs, targets))))
    alone = unseal(chosen.mapped_sums(Records((inputs, targets)), [query])[0])
    torch.testing.assert_close(unseal(bounder.result()), alone, atol=1e-9, rtol=0)


def test_a_bound_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"clip_norm=0.0 of 'x'"):
        MappedSum(name="x", of=lambda rows: rows, clip_norm=0.0)


@pytest.mark.parametrize(
    "of",
    [
        lambda rows: rows - rows.mean(0),
        lambda rows: rows / rows.norm(dim=1).max().clamp(min=1e-9) if len(rows) else rows,
        lambda rows: rows / (rows.norm(dim=1).median() + 1e-9) if len(rows) else rows,
        lambda rows: rows.cumsum(0),
        lambda rows: rows[:1].expand_as(rows),
    ],
    ids=["centred", "scaled by the loudest", "by the median", "added up", "the first alone"],
)
def test_a_map_under_which_records_mix_is_refused(of: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(PrivacyLineError, match="'x': what its map makes of a gradient changes"):
        refuse_mixing(MappedSum(name="x", of=of, clip_norm=C), torch.empty(0, 910), set())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("of", MAPS)
def test_a_map_of_each_row_by_itself_is_tried_once(of: str, dtype: torch.dtype) -> None:
    tried: set[object] = set()
    refuse_mixing(asked(of), torch.empty(0, 910, dtype=dtype), tried)
    assert len(tried) == 1
    refuse_mixing(MappedSum(name=of, of=MAPS[of], clip_norm=2 * C), torch.empty(0), tried)


@pytest.mark.parametrize("of", [lambda rows: torch.cat([rows, rows]), lambda rows: rows.sum(1), lambda rows: rows[:1]])
def test_a_map_that_makes_no_row_of_each_is_refused(of: Callable[[Tensor], Tensor]) -> None:
    query, (inputs, targets) = MappedSum(name="x", of=of, clip_norm=C), small_digits().train.take(torch.arange(4))
    with pytest.raises(PrivacyLineError, match=r"'x' makes \[.*\] of gradients \[.*910\]; allowed: \[b, k\]"):
        engine("ghost").mapped_sums(Records((inputs, targets)), [query])


def by_coin(rows: Tensor, coins: Tensor) -> Tensor:
    return rows * coins[:, None]


def test_a_coin_goes_with_its_record_through_slices_and_past_rows_that_are_no_records() -> None:
    inputs, targets = small_digits().train.take(torch.arange(24))
    chosen, query = engine("ghost"), MappedSum(name="x", of=by_coin, clip_norm=C, coin=True)
    coins = torch.rand(24, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one_by_one = [
        chosen.mapped_sums(Records((inputs[i : i + 1], targets[i : i + 1])), [query], [coins[i : i + 1]])[0]
        for i in range(24)
    ]
    here = torch.arange(24) % 3 > 0
    wanted = torch.stack([unseal(total) for total, there in zip(one_by_one, here, strict=True) if there]).sum(0)
    records = Records((inputs, targets), present=Presence(here))
    torch.testing.assert_close(unseal(chosen.mapped_sums(records, [query], [coins])[0]), wanted, atol=1e-6, rtol=0)
    bounder = Bounder(query, 910)
    bounder.add(chosen.per_sample_gradients(records), coins)
    torch.testing.assert_close(unseal(bounder.result()), wanted, atol=1e-6, rtol=0)


def test_a_query_that_takes_coins_is_not_answered_without() -> None:
    inputs, targets = small_digits().train.take(torch.arange(4))
    query = MappedSum(name="x", of=by_coin, clip_norm=C, coin=True)
    with pytest.raises(PrivacyLineError, match="'x' takes a coin for each record"):
        engine("ghost").mapped_sums(Records((inputs, targets)), [query])


class Centred(Method):
    """A method whose map takes the mean of the batch away."""

    name, source, adds, costs = "centred", "", "", ""

    def begin(self, context: RunContext) -> MethodState:
        return _Centred()


class _Centred(MethodState):
    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        of: Callable[[Tensor], Tensor] = lambda rows: rows - rows.mean(0) if len(rows) else rows  # noqa: E731
        return batches.release(MappedSum(name="gradient", of=of, clip_norm=C))["gradient"]


def test_a_run_refuses_a_map_under_which_records_mix_before_it_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[object] = []
    monkeypatch.setattr(GaussianMechanism, "charge", lambda *_, **given: charged.append(given))
    with pytest.raises(PrivacyLineError, match="'gradient': what its map makes"):
        run_small(Centred())
    assert not charged
