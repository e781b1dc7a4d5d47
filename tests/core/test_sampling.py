"""Poisson batches: each record alone, with the declared rate, whatever the number of records."""

from __future__ import annotations

import pytest
import torch

from adadpigu.core.randomness import SystemRandomness
from adadpigu.core.sampling import PoissonSampler, gather
from adadpigu.core.sensitive import unseal
from adadpigu.data import TensorRecords
from adadpigu.errors import InputError, PrivacyLineError


def population(count: int) -> TensorRecords:
    return TensorRecords(torch.arange(count).float()[:, None], torch.zeros(count, dtype=torch.long))


def test_inclusion_is_independent_with_the_declared_rate() -> None:
    """4000 draws of 200 records; each statistic within 6 standard deviations: false alarm below 1e-6 in all."""
    sampler, randomness, people = PoissonSampler(sample_rate=0.3), SystemRandomness(), population(200)
    hits = torch.zeros(4000, 200)
    for row in hits:
        row[unseal(sampler.toss(people, randomness).drawn())] = 1.0
    rate = hits.mean().item()
    assert abs(rate - 0.3) < 6 * (0.21 / hits.numel()) ** 0.5
    sizes = hits.sum(dim=1)
    spread = 200 * 0.21
    assert abs(sizes.var().item() - spread) < 6 * spread * (2 / 4000) ** 0.5
    per_record = hits.mean(dim=0)
    assert (per_record - 0.3).abs().max().item() < 6.5 * (0.21 / 4000) ** 0.5
    pairs = (hits[:, 0::2] - 0.3).mul(hits[:, 1::2] - 0.3).mean().item()
    assert abs(pairs) < 6 * 0.21 / (4000 * 100) ** 0.5


def test_the_rate_comes_from_the_declared_count_not_from_the_records() -> None:
    sampler = PoissonSampler.expecting(batch_size=10, records=100)
    assert sampler.sample_rate == 0.1
    drawn = gather(population(100_000), sampler.toss(population(100_000), SystemRandomness()).drawn())
    inputs, _ = unseal(drawn)
    assert abs(len(inputs) - 10_000) < 6 * 9000**0.5


@pytest.mark.parametrize(("batch", "records"), [(0, 10), (11, 10), (-1, 10)])
def test_a_batch_that_no_rate_can_give_is_refused(batch: int, records: int) -> None:
    with pytest.raises(InputError, match=f"batch_size={batch}"):
        PoissonSampler.expecting(batch_size=batch, records=records)


def test_a_population_that_returns_several_rows_a_record_is_refused() -> None:
    class Mirrored(TensorRecords):
        def take(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            inputs, targets = super().take(indices)
            return torch.cat([inputs, -inputs]), torch.cat([targets, targets])

    people = Mirrored(torch.ones(50, 1), torch.zeros(50, dtype=torch.long))
    with pytest.raises(PrivacyLineError, match="one input and one target a record"):
        gather(people, PoissonSampler(sample_rate=0.9).toss(people, SystemRandomness()).drawn())
