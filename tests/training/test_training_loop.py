"""The loop: what a run reports, writes and refuses; memory bounds that change nothing; interruption."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import adadpigu as ad
from adadpigu.accounting import read_ledger
from adadpigu.data import TensorRecords
from adadpigu.isolation import isolated
from adadpigu.methods import DPSGD, AdaDPIGU
from adadpigu.randomness import ReproducibleRandomness
from adadpigu.training import Facts, Metrics, Run
from adadpigu.training.ema import WeightAverage
from trials import run_small, small_digits, small_net, weights


def arrays() -> tuple[torch.Tensor, torch.Tensor]:
    records = small_digits().train
    assert isinstance(records, TensorRecords)
    return records.inputs, records.targets


def other_arrays() -> tuple[torch.Tensor, torch.Tensor]:
    records = small_digits().test
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
        test=other_arrays(),
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
        return [json.loads(line) for line in lines[1:-1]]

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
    "unknown option": (small_net, arrays, {"epoch": 3}, "did you mean 'epochs'"),
    "test is train": (small_net, arrays, {"test": arrays()}, "these are the training records"),
    "test of another type": (
        small_net,
        arrays,
        {"test": (other_arrays()[0].double(), other_arrays()[1])},
        "test: records are (torch.float64",
    ),
    "delta twice": (small_net, arrays, {"delta": 1e-6}, "contradicts the budget"),
    "numpy": (small_net, lambda: (arrays()[0].numpy(), arrays()[1]), {}, "torch.as_tensor"),
    "loader": (small_net, lambda: DataLoader(TensorDataset(*arrays())), {}, "its .dataset"),
    "method name": (small_net, arrays, {"method": "dpsdg"}, "did you mean 'dpsgd'"),
    "double": (small_net, lambda: (arrays()[0].double(), arrays()[1]), {}, "torch.float64"),
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
            if float(x.detach().max()) == 1.0:
                raise IndexError(f"pixel {x[0].max()} is odd")
            out: torch.Tensor = self.layer(x.flatten(1))
            return out

    common: dict[str, Any] = {"records": 240, "method": DPSGD(), "noise_multiplier": 1.0, **SHORT}
    with pytest.raises(ad.ModelError, match="message is withheld") as caught:
        ad.train(Quoting(), arrays(), **common)
    assert "pixel" not in str(caught.value)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    with pytest.raises(IndexError, match="pixel"):
        ad.train(Quoting(), arrays(), diagnostics=True, **common)


def test_the_number_of_steps_follows_the_declared_count_not_the_records() -> None:
    inputs, targets = arrays()
    options: dict[str, Any] = {"batch_size": 40, "epochs": 2, "lr": 0.5, "method": DPSGD(), "noise_multiplier": 1.0}
    for count in (240, 150):
        assert ad.train(small_net(), (inputs[:count], targets[:count]), records=240, **options).steps == 12


@pytest.mark.parametrize("options", [{"ema": 0.9}, {}])
@pytest.mark.parametrize("mode", ["prune", "freeze"])
def test_looking_at_the_test_set_changes_nothing(options: dict[str, Any], mode: Any) -> None:
    method = AdaDPIGU(importance_steps=2, retention=0.5, schedule="linear", mode=mode)
    often, once = run_small(method, evaluate_every=1, **options), run_small(method, evaluate_every=8, **options)
    assert torch.equal(weights(often.model), weights(once.model))
    assert [m.step for m in often.metrics] == list(range(1, 9))
    assert [m.step for m in once.metrics] == [8]
    assert often.metrics[1].mask == {"1": 1.0, "3": 1.0}
    layers, size = {"1": 780, "3": 130}, 910
    third = often.metrics[2]
    assert sum(third.mask[k] * n for k, n in layers.items()) == pytest.approx(size // 2)
    assert third.active == pytest.approx((size // 2) / size)


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


def test_a_failure_mid_run_is_reported_and_leaves_the_initial_weights(tmp_path: Path) -> None:
    class Failing(StopAfter):
        def update(self, metrics: Metrics) -> None:
            if metrics.step == 3:
                raise ValueError("the logger broke")

    model = small_net()
    common: dict[str, Any] = {"records": 240, "method": DPSGD(), "privacy": ad.Budget(epsilon=4), **SHORT}
    with pytest.raises(ValueError, match="the logger broke"):
        ad.train(model, arrays(), observers=[Failing(0)], out=tmp_path / "run", **common)
    assert torch.equal(weights(model), weights(small_net()))
    stored = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert 0 < stored["epsilon_spent"] < stored["epsilon_pld"]
    assert "failed" in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[-1]


def test_a_model_that_was_trained_before_is_warned_about() -> None:
    model = small_net()
    common: dict[str, Any] = {"records": 240, "method": DPSGD(), "noise_multiplier": 1.0, **SHORT}
    first, second = (ad.train(model, arrays(), **common) for _ in range(2))
    assert not any("trained before" in warning for warning in first.privacy.warnings)
    assert any("trained before" in warning for warning in second.privacy.warnings)


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


def test_the_clip_norm_and_the_stages_of_the_report_are_those_of_the_run() -> None:
    run = run_small(AdaDPIGU(importance_steps=2, clip_norm=1), steps=6)
    assert run.privacy.clip_norm == 1
    assert [(s.name, s.planned, s.done) for s in run.privacy.stages] == [("importance", 2, 2), ("training", 4, 4)]
    assert [(r.name, r.dimension, r.sensitivity) for r in run.privacy.releases] == [("gradient", 910, 1)]


def test_the_config_of_a_python_run_does_not_invent_what_was_not_said(tmp_path: Path) -> None:
    ad.train(
        small_net(),
        arrays(),
        records=240,
        method=ad.SGD(),
        optimizer=lambda p: torch.optim.Adam(p, lr=0.003),
        out=tmp_path / "run",
        batch_size=40,
        steps=2,
    )
    text = (tmp_path / "run" / "config.toml").read_text()
    assert "epsilon" not in text
    assert "lr =" not in text
    assert "momentum =" not in text


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


def test_a_shuffled_or_partial_copy_of_the_training_records_is_no_test_set() -> None:
    inputs, targets = arrays()
    order = torch.randperm(240)
    for test in ((inputs[order], targets[order]), (inputs[1:], targets[1:]), TensorDataset(inputs, targets)):
        with pytest.raises(ad.InputError, match="these are the training records"):
            ad.train(small_net(), (inputs, targets), records=240, test=test, method=DPSGD(), **SHORT)


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


def test_a_noise_multiplier_without_a_budget_says_what_it_costs() -> None:
    run = ad.train(small_net(), arrays(), records=240, method="dpsgd", noise_multiplier=1.0, **SHORT)
    assert any("no budget was set" in warning for warning in run.privacy.warnings)
    assert run.privacy.target_epsilon is None
