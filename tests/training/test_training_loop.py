"""The loop: what a run reports, writes and refuses; memory bounds that change nothing; interruption."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import adadpigu as ad
from adadpigu.accounting import read_ledger
from adadpigu.data import TensorRecords
from adadpigu.methods import DPSGD, AdaDPIGU
from adadpigu.randomness import ReproducibleRandomness
from adadpigu.training import Facts, Metrics, Run
from adadpigu.training.ema import WeightAverage
from trials import run_small, small_digits, small_net, weights


def arrays() -> tuple[torch.Tensor, torch.Tensor]:
    records = small_digits().train
    assert isinstance(records, TensorRecords)
    return records.inputs, records.targets


SHORT: dict[str, Any] = {"batch_size": 40, "steps": 6, "lr": 0.5}


def test_physical_batch_size_changes_nothing_but_memory() -> None:
    method = AdaDPIGU(importance_steps=2, top_k=0.5)
    whole = run_small(method)
    for size in (1, 7, 1000):
        split = run_small(method, physical_batch_size=size)
        torch.testing.assert_close(weights(split.model), weights(whole.model), atol=1e-6, rtol=1e-5)


def test_a_run_in_python_reports_accuracy_epsilon_and_a_statement(tmp_path: Path) -> None:
    run = ad.train(
        small_net(),
        arrays(),
        records=240,
        test=arrays(),
        method=ad.AdaDPIGU(retention=0.6),
        privacy=ad.Budget(epsilon=4, delta=1e-5),
        out=tmp_path / "run",
        **SHORT,
    )
    assert run.accuracy is not None
    assert 3.99 < run.epsilon <= 4
    assert "0.00001" in run.privacy.statement() or "1e-05" in run.privacy.statement()
    files = {p.name for p in (tmp_path / "run").iterdir()}
    assert {"config.toml", "metrics.jsonl", "privacy.json", "ledger.jsonl", "model.safetensors"} <= files
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == 6


def test_a_map_style_dataset_trains_like_its_tensors() -> None:
    runs = []
    for source in (arrays(), TensorDataset(*arrays())):
        runs.append(
            ad.train(
                small_net(),
                source,
                records=240,
                method=DPSGD(),
                noise_multiplier=1.0,
                randomness=ReproducibleRandomness(1),
                **SHORT,
            )
        )
    assert torch.equal(weights(runs[0].model), weights(runs[1].model))


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
        lines = (tmp_path / name / "ledger.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if "time" not in k and k != "utc"} for line in lines]

    assert charges("whole") == charges("without")


class StopAfter:
    """An observer that presses Ctrl-C."""

    def __init__(self, step: int) -> None:
        self._step = step
        self.ended: Run | None = None

    def begin(self, facts: Facts) -> None:
        return None

    def update(self, metrics: Metrics) -> None:
        if metrics.step == self._step:
            raise KeyboardInterrupt

    def end(self, run: Run) -> None:
        self.ended = run


def test_an_interrupted_run_says_what_was_spent_and_still_claims_the_whole_budget(tmp_path: Path) -> None:
    watcher = StopAfter(3)
    run = ad.train(
        small_net(),
        arrays(),
        records=240,
        method=DPSGD(),
        privacy=ad.Budget(epsilon=4),
        observers=[watcher],
        out=tmp_path / "run",
        **(SHORT | {"steps": 40}),
    )
    assert run.interrupted
    assert run.steps == 3
    assert watcher.ended is run
    stored = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert 0 < stored["epsilon_spent"] < stored["epsilon_pld"] <= 4
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_reproducible_noise_is_stamped_not_private() -> None:
    run = run_small(DPSGD())
    assert "NOT PRIVATE" in run.privacy.statement()
    assert run.privacy.private is False


def test_the_average_of_the_weights_is_what_is_kept() -> None:
    last, averaged = run_small(DPSGD(), steps=5), run_small(DPSGD(), steps=5, ema=0.9)
    assert not torch.equal(weights(last.model), weights(averaged.model))
    average = WeightAverage(0.5, torch.zeros(2))
    average.update(torch.tensor([1.0, 1.0]))
    decay = 2 / 11
    torch.testing.assert_close(average.value, torch.full((2,), 1 - decay))
    average.update(average.value.clone())
    assert average.value.tolist() == pytest.approx([1 - decay] * 2)


def test_a_high_delta_warns_in_the_statement_and_runs() -> None:
    run = ad.train(
        small_net(), arrays(), records=240, method=DPSGD(), privacy=ad.Budget(epsilon=4, delta=0.01), **SHORT
    )
    assert any("delta=0.01" in warning for warning in run.privacy.warnings)
    assert "0.01" in run.privacy.statement()


def bad_label() -> Any:
    inputs, targets = arrays()
    return inputs, targets.clone().index_fill_(0, torch.tensor([5]), 12)


def nan_record() -> Any:
    inputs, targets = arrays()
    return inputs.clone().index_fill_(0, torch.tensor([7]), float("nan")), targets


class Unsized(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return arrays()[0][index], arrays()[1][index]


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], dict[str, Any], str]] = {
    "no record count": (small_net, arrays, {"records": None}, "records=60_000"),
    "zero records": (small_net, arrays, {"records": 0}, "records=0"),
    "label out of range": (small_net, bad_label, {}, "record 5 has label 12"),
    "nan": (small_net, nan_record, {}, "record 7 has a NaN"),
    "zero steps": (small_net, arrays, {"steps": 0}, "steps=0"),
    "no steps": (small_net, arrays, {"steps": None}, "give one of them"),
    "both": (small_net, arrays, {"epochs": 3}, "give one of them"),
    "negative lr": (small_net, arrays, {"lr": -1.0}, "lr=-1.0"),
    "batch above records": (small_net, arrays, {"batch_size": 500}, "batch_size=500"),
    "no such device": (small_net, arrays, {"device": "abacus"}, "device='abacus'"),
    "no such optimizer": (small_net, arrays, {"optimizer": "sdg"}, "did you mean"),
    "ema": (small_net, arrays, {"ema": 1.5}, "ema=1.5"),
    "sigma": (small_net, arrays, {"noise_multiplier": 0.0}, "noise_multiplier=0.0"),
    "budget too small": (small_net, arrays, {"noise_multiplier": 0.5, "steps": 50}, "too small for steps=50"),
    "batch norm": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10)),
        arrays,
        {},
        "BatchNorm1d",
    ),
    "output shape": (lambda: nn.Conv2d(1, 10, 3), arrays, {}, "output has shape"),
    "input shape": (lambda: nn.Linear(63, 10), arrays, {}, "does not take records of shape"),
    "unsized": (small_net, lambda: Unsized(), {}, "map-style"),
    "lengths": (small_net, lambda: (arrays()[0], arrays()[1][:5]), {}, "240 inputs but 5 targets"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line_that_names_it_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    net, source, change, words = CASES[case]
    options: dict[str, Any] = {"records": 240, "privacy": ad.Budget(epsilon=4), "method": DPSGD(), **SHORT} | change
    with pytest.raises(ad.InputError) as caught:
        ad.train(net(), source(), out=tmp_path / "run", **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("x")
    with pytest.raises(ad.InputError, match="already holds"):
        ad.train(small_net(), arrays(), records=240, out=tmp_path, **SHORT)
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]


def test_an_error_amid_private_records_does_not_quote_them() -> None:
    class Quoting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 8:
                raise IndexError(f"pixel {x[0].max()} is odd")
            out: torch.Tensor = self.layer(x.flatten(1))
            return out

    common: dict[str, Any] = {"records": 240, "method": DPSGD(), "noise_multiplier": 1.0, **SHORT}
    with pytest.raises(ad.ModelError, match="message is withheld") as caught:
        ad.train(Quoting(), arrays(), **common)
    assert "pixel" not in str(caught.value)
    assert caught.value.__suppress_context__
    with pytest.raises(IndexError, match="pixel"):
        ad.train(Quoting(), arrays(), diagnostics=True, **common)
