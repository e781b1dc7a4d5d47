"""Numbers that are added before the clip: their law, that each row is its own coin's, and what a mask leaves alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch.nn import functional as F

from adadpigu.core.bounding import Bounder, GradientSum, MappedSum, Query
from adadpigu.core.gradients import choose_engine
from adadpigu.core.perturbation import normal_rows, perturbed
from adadpigu.core.sensitive import Presence, Records, unseal
from adadpigu.errors import PrivacyLineError
from float64_world import splitmix
from trials import small_digits, small_net

COINS = torch.rand(400, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_rows_are_those_of_the_definition(length: int) -> None:
    wanted = np.stack([splitmix(coin, length) for coin in COINS[:20].tolist()])
    np.testing.assert_allclose(normal_rows(COINS[:20], length).numpy(), wanted, atol=1e-12)


def test_rows_are_standard_normal_and_independent() -> None:
    """800,000 numbers of coins that are neighbours, against closed forms: a false alarm below 1e-7 in all.

    Mean, variance, tails and what neighbours in a row and in a column share lie within 6 standard errors each.
    """
    z = normal_rows(0.3 + torch.arange(400, dtype=torch.float64) * 2**-53, 2000).numpy()
    count = z.size
    tails = [(np.abs(z) > edge).mean() for edge in (0.5, 1.0, 2.0, 3.0, 4.0)]
    for edge, seen in zip((0.5, 1.0, 2.0, 3.0, 4.0), tails, strict=True):
        chance = 2 * norm.sf(edge)
        assert abs(seen - chance) < 6 * math.sqrt(chance * (1 - chance) / count)
    assert abs(z.mean()) < 6 / math.sqrt(count)
    assert abs((z**2).mean() - 1) < 6 * math.sqrt(2 / count)
    for one, other in ((z[:, 1:], z[:, :-1]), (z[1:], z[:-1]), (z[:, :1000], z[:, 1000:])):
        assert abs((one * other).mean()) < 6 / math.sqrt(one.size)
        assert abs(((one**2 - 1) * (other**2 - 1)).mean()) < 6 * 2 / math.sqrt(one.size)


def test_a_row_is_a_function_of_its_own_coin() -> None:
    every = normal_rows(COINS, 33)
    assert torch.equal(normal_rows(COINS[100:200].flip(0), 33).flip(0), every[100:200])
    assert len({tuple(row) for row in every[:, :2].tolist()}) == 400


def test_only_active_entries_are_perturbed_and_their_number_is_the_dimension() -> None:
    """‖ζ‖² is (κC)² on average, over 400 rows: within 6 standard errors, a false alarm below 1e-8."""
    active = torch.arange(50) % 5 == 0
    z = torch.randn(400, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    made = perturbed(z.clone(), COINS, active, 0.3)
    assert torch.equal(made[:, ~active], z[:, ~active])
    assert (made != z)[:, active].all()
    squares = float((made - z).square().sum(dim=1).mean())
    assert squares == pytest.approx(0.09, abs=6 * 0.09 * math.sqrt(2 / 10 / 400))
    assert torch.equal(perturbed(z.clone(), COINS, torch.zeros(50, dtype=torch.bool), 0.3), z)


QUERIES: dict[str, Query] = {
    "plain": GradientSum(clip_norm=0.3, perturbation=0.5),
    "masked, standardised, top-k, automatic": GradientSum(
        clip_norm=0.3,
        active=torch.arange(910) % 3 > 0,
        center=torch.full((910,), 0.01),
        scale=torch.linspace(0.5, 2.0, 910),
        top_k=0.4,
        stability=0.1,
        perturbation=0.5,
    ),
    "mapped": MappedSum(name="m", of=lambda rows: rows[:, :20] * 3, clip_norm=0.3, perturbation=0.5),
    "mapped by a coin": MappedSum(
        name="c", of=lambda rows, coins: rows * coins[:, None], clip_norm=0.3, coin=True, perturbation=0.5
    ),
}


@pytest.mark.parametrize("name", QUERIES)
def test_both_ways_through_rows_add_up_what_each_record_gives_alone(name: str) -> None:
    """Slices of an engine and whole rows; every record's own part has norm C at most; absent rows give nothing."""
    query = QUERIES[name]
    assert isinstance(query, GradientSum | MappedSum)
    inputs, targets = small_digits().train.take(torch.arange(24))
    engine = choose_engine(small_net(), F.cross_entropy, (inputs[:3], targets[:3]), engine="ghost")
    coins = torch.rand(24, query.tosses, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    here = torch.arange(24) % 3 > 0
    alone = []
    for i in here.nonzero().flatten().tolist():
        one = slice(i, i + 1)
        alone.append(unseal(engine.mapped_sums(Records((inputs[one], targets[one])), [query], [coins[one]])[0]))
        assert float(alone[-1].norm()) <= 0.3
    records = Records((inputs, targets), present=Presence(here))
    wanted = torch.stack(alone).sum(0)
    torch.testing.assert_close(unseal(engine.mapped_sums(records, [query], [coins])[0]), wanted, atol=1e-6, rtol=0)
    bounder = Bounder(query, 910)
    bounder.add(engine.per_sample_gradients(records), coins)
    torch.testing.assert_close(unseal(bounder.result()), wanted, atol=1e-6, rtol=0)
    with pytest.raises(PrivacyLineError, match="takes a coin for each record"):
        engine.mapped_sums(records, [query])


def test_a_map_and_its_perturbation_have_coins_of_their_own() -> None:
    query, plain = (
        QUERIES["mapped by a coin"],
        MappedSum(name="c", of=lambda r, c: r * c[:, None], clip_norm=1, coin=True),
    )
    assert isinstance(query, MappedSum)
    assert (query.tosses, plain.tosses) == (2, 1)
    rows = torch.zeros(5, 4)
    coins = COINS[:10].view(5, 2)
    other = torch.stack([1 - coins[:, 0], coins[:, 1]], dim=1)
    assert torch.equal(query.rows(rows, coins), query.rows(rows, other))  # of zero rows nothing but ζ is left
    assert not torch.equal(query.rows(rows, coins), query.rows(rows, coins.flip(1)))
