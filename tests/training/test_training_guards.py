"""What a run keeps to itself: nothing private is written, quoted or smuggled out, and its randomness is its own."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import adadpigu as ad
from adadpigu.accounting import read_ledger
from adadpigu.core.randomness import ReproducibleRandomness, isolated
from adadpigu.methods import DPSGD, AdaDPIGU
from adadpigu.training.earlier import earlier_runs
from trials import SHORT, arrays, small_net, weights


def test_nothing_sensitive_is_written_unless_diagnostics_are_on(tmp_path: Path) -> None:
    common: dict[str, Any] = {"records": 240, "method": DPSGD(), "noise_multiplier": 1.0, **SHORT}
    quiet = ad.train(small_net(), arrays(), out=tmp_path / "quiet", **common)
    loud = ad.train(small_net(), arrays(), out=tmp_path / "loud", diagnostics=True, **common)
    assert not (tmp_path / "quiet" / "diagnostics.jsonl").exists()
    rows = [json.loads(line) for line in (tmp_path / "loud" / "diagnostics.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    assert {"batch_size", "loss_mean", "norm_max"} <= rows[0].keys()
    text = "".join(p.read_text() for p in (tmp_path / "quiet").glob("*.json*"))
    for word in ("loss", "norm_max", "batch_sizes"):
        assert word not in text
    assert "iagnostics" in loud.privacy.statement()
    assert quiet.privacy.diagnostics_exposed is False
    assert loud.privacy.diagnostics_exposed is True


def test_two_runs_on_neighbours_write_the_same_public_facts(tmp_path: Path) -> None:
    """All that is not noise, weights or test accuracy is equal on D and D′: nothing reads the number of records."""
    inputs, targets = arrays()
    for name, part in (("whole", slice(None)), ("without", slice(1, None))):
        earlier_runs.clear()  # D and D′ are worlds apart: neither run is an earlier one of the other
        ad.train(
            small_net(),
            (inputs[part], targets[part]),
            records=240,
            method=AdaDPIGU(importance_steps=2),
            out=tmp_path / name,
            **SHORT,
        )
    both = [json.loads((tmp_path / name / "privacy.json").read_text()) for name in ("whole", "without")]
    assert both[0] == both[1]

    def charges(name: str) -> list[dict[str, Any]]:
        return list(read_ledger(tmp_path / name / "ledger.log").charges)

    assert charges("whole") == charges("without")


def test_an_error_amid_private_records_does_not_quote_them() -> None:
    class Quoting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if float(x.detach().max()) == 1.0:
                raise IndexError(f"pixel {x[0].max()} is odd")
            out: torch.Tensor = self.layer(x.flatten(1))
            return out

    common: dict[str, Any] = {"records": 240, "method": DPSGD(), "noise_multiplier": 1.0, **SHORT}
    with pytest.raises(ad.ModelError, match="message is withheld") as caught:
        ad.train(Quoting(), arrays(), **common)
    assert isinstance(caught.value, IndexError)
    assert str(caught.value).startswith(f"IndexError at {__file__}:")
    assert "pixel" not in str(caught.value) + repr(caught.value)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    with pytest.raises(IndexError, match="pixel"):
        ad.train(Quoting(), arrays(), diagnostics=True, **common)


def test_dropout_follows_the_privacy_generator_and_not_the_users_seed() -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)).eval()

    def train(user_seed: int, noise_seed: int) -> torch.Tensor:
        model = net()
        torch.manual_seed(user_seed)
        before = torch.random.get_rng_state()
        run = ad.train(
            model,
            arrays(),
            records=240,
            method=DPSGD(),
            noise_multiplier=1.0,
            randomness=ReproducibleRandomness(noise_seed),
            **SHORT,
        )
        assert torch.equal(torch.random.get_rng_state(), before)
        return weights(run.model)

    assert torch.equal(train(1, 5), train(2, 5))
    assert not torch.equal(train(1, 5), train(1, 6))


def test_warnings_amid_private_records_are_withheld(recwarn: pytest.WarningsRecorder) -> None:
    class Talkative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if float(x.detach().max()) == 1.0:
                warnings.warn(f"a batch of {len(x)}", stacklevel=1)
            out: torch.Tensor = self.layer(x.flatten(1))
            return out

    ad.train(Talkative(), arrays(), records=240, method=DPSGD(), noise_multiplier=1.0, **SHORT)
    assert not any("a batch of" in str(w.message) for w in recwarn)


def test_a_buffer_written_behind_torchs_back_is_not_saved() -> None:
    class Sneaky(nn.Module):
        largest: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)
            self.register_buffer("largest", torch.tensor(99.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if float(x.detach().max()) == 1.0:
                self.largest.data.fill_(float(x.detach().max()))
            out: torch.Tensor = self.layer(x.flatten(1))
            return out

    model = Sneaky()
    with pytest.raises(ad.ModelError, match="buffer 'largest'"):
        ad.train(model, arrays(), records=240, method=DPSGD(), noise_multiplier=1.0, **SHORT)
    assert float(model.largest) == 99.0


def test_augmentation_in_a_data_set_follows_the_privacy_generator_too() -> None:
    class Augmented(Dataset[Any]):
        def __len__(self) -> int:
            return 240

        def __getitem__(self, index: int) -> Any:
            x, y = arrays()[0][index], arrays()[1][index]
            return x + 0.1 * torch.randn(()) + 0.1 * float(np.random.rand()) + 0.1 * random.random(), y

    def train(user_seed: int) -> torch.Tensor:
        torch.manual_seed(user_seed)
        np.random.seed(user_seed)
        random.seed(user_seed)
        run = ad.train(
            small_net(),
            Augmented(),
            records=240,
            method=DPSGD(),
            noise_multiplier=1.0,
            randomness=ReproducibleRandomness(3),
            **SHORT,
        )
        return weights(run.model)

    assert torch.equal(train(1), train(2))


def test_the_whole_state_of_torchs_generator_is_filled() -> None:
    """Seeds that are equal in their 32 low bits would give equal dropout; a full state does not."""

    class Fixed(ReproducibleRandomness):
        def words(self, count: int) -> torch.Tensor:
            words = super().words(count)
            words[0] = 7
            return words

    drawn = []
    for seed in (1, 2):
        with isolated(Fixed(seed), torch.device("cpu")):
            drawn.append(torch.rand(1000))
    assert not (drawn[0] == drawn[1]).any()
    assert 0.4 < drawn[0].mean() < 0.6


def test_a_frozen_parameter_written_behind_torchs_back_is_put_back_and_refused() -> None:
    class Sly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)
            self.mark = nn.Parameter(torch.tensor(99.0), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if float(x.detach().max()) == 1.0:
                self.mark.data.fill_(1.0)
            out: torch.Tensor = self.layer(x.flatten(1))
            return out

    model = Sly()
    before = weights(model)
    with pytest.raises(ad.ModelError, match="parameter 'mark'"):
        ad.train(model, arrays(), records=240, method=DPSGD(), noise_multiplier=1.0, **SHORT)
    assert torch.equal(weights(model), before)
