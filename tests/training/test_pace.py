"""How many steps are charged at once: one, unless the ledger would cost over 2 % of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import adadpigu as ad
from adadpigu.accounting import read_ledger
from adadpigu.core.sampling import Population
from adadpigu.methods import DPSGD
from adadpigu.training import pace
from trials import arrays, prepare_small, small_net


@pytest.mark.parametrize(
    ("record", "step", "steps"),
    [
        (1e-3, 1.0, 1),
        (1e-3, 0.05, 1),  # just 2 %
        (1e-3, 0.049, 2),
        (1e-3, 0.01, 8),
        (1e-3, 1e-3, 64),
        (1e-2, 1e-4, 128),  # no more than that, whatever the disk
        (1e-3, float("inf"), 1),
    ],
)
def test_as_many_as_keep_it_under_two_per_cent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record: float, step: float, steps: int
) -> None:
    monkeypatch.setattr(pace, "append_seconds", lambda folder: record)
    monkeypatch.setattr(pace, "step_seconds", lambda prepared: step)
    assert pace.steps_to_reserve(prepare_small(DPSGD(), steps=10_000), tmp_path) == steps
    assert pace.steps_to_reserve(prepare_small(DPSGD(), steps=60), tmp_path) == min(steps, 3)  # what a crash may cost


def test_both_times_are_taken_without_a_private_record_or_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = prepare_small(DPSGD())
    taken: list[int] = []
    take = type(ready.data.train).take

    def watched(self: Population, index: Tensor) -> tuple[Tensor, Tensor]:
        taken.append(len(index))
        return take(self, index)

    monkeypatch.setattr(type(ready.data.train), "take", watched)
    before = {name: tensor.clone() for name, tensor in ready.model.state_dict().items()}
    state = torch.get_rng_state()
    assert pace.step_seconds(ready) > 0
    assert pace.append_seconds(tmp_path) > 0
    assert set(taken) == {0}  # the shape of no record at all
    assert all(torch.equal(before[name], tensor) for name, tensor in ready.model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reserve", [1, 5])
def test_what_was_asked_for_is_what_the_ledger_has(tmp_path: Path, reserve: int) -> None:
    options: dict[str, Any] = {"batch_size": 40, "steps": 7, "lr": 0.5, "reserve": reserve}
    ad.train(small_net(), arrays(), records=240, method=DPSGD(), noise_multiplier=2.0, out=tmp_path / "run", **options)
    record = read_ledger(tmp_path / "run" / "ledger.log")
    assert record.header["reserve"] == reserve
    assert record.steps == 7
    reserved = [line["reserve"] for line in record.lines if "reserve" in line]
    assert (
        (reserved, len(record.charges)) == ([], 7) if reserve == 1 else (reserved, len(record.charges)) == ([5, 2], 0)
    )


@pytest.mark.slow
def test_spare_steps_cost_noise_and_are_in_the_claim(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 40, "steps": 6, "lr": 0.5, "reserve": 1}
    budget = ad.Budget(epsilon=4)
    plain, spare = (
        ad.train(small_net(), arrays(), records=240, method=DPSGD(), privacy=budget, spare_steps=count, **options)
        for count in (0, 3)
    )
    assert spare.privacy.noise_multiplier > plain.privacy.noise_multiplier
    assert spare.epsilon <= 4
    assert spare.privacy.epsilon_spent < plain.privacy.epsilon_spent <= 4
    assert [group.count for group in spare.privacy.events] == [9]
