"""Every key of a config reaches the run that is made ready; what cannot be made ready is refused in time."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adadpigu as ad
from adadpigu.accounting import Budget
from adadpigu.config import RunConfig
from adadpigu.core.gradients import choice
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.data import DataSet, TensorRecords
from adadpigu.errors import InputError
from adadpigu.features.scattering import Scattering
from adadpigu.methods import DPSGD, DPSUR, QuantileClipping
from adadpigu.models import make_model
from adadpigu.models.cards import TemperedSigmoid
from adadpigu.runs.loading import front_and_body, load_data
from adadpigu.training import Preparation, TrainingOptions, prepare, train_prepared
from adadpigu.training.configured import configured
from trials import SHORT, arrays, prepare_small, small_digits, weights

SHARED = {field.name: field for field in fields(TrainingOptions)}
OWN = {field.name: field for field in fields(RunConfig)}
OTHER: dict[str, dict[str, Any]] = {
    "batch_size": {"batch_size": 30},
    "steps": {"steps": 5},
    "epochs": {"epochs": 0.5, "steps": None},
    "lr": {"lr": 0.25},
    "momentum": {"momentum": 0.5},
    "body_lr": {"body_lr": 0.1},
    "weight_decay": {"weight_decay": 0.01},
    "optimizer": {"optimizer": "adam"},
    "lr_schedule": {"lr_schedule": "cosine"},
    "warmup": {"warmup": 0.25},
    "ema": {"ema": 0.9},
    "tail": {"tail": 0.5},
    "clipping": {"clipping": "automatic"},
    "clip_stability": {"clip_stability": 0.5},
    "perturbation": {"perturbation": 0.3},
    "denoise": {"denoise": "soft"},
    "public": {"public": "processes:20", "method": "pcdp-sgd", "method_options": {"rank": 6}},
    "copies": {"copies": 2, "flip": True},
    "shift": {"shift": 3},
    "shift_step": {"shift_step": 2, "shift": 2},
    "flip": {"flip": True},
    "views": {"views": "shift:2"},
    "noise_multiplier": {"noise_multiplier": 2.5},
    "private_validation": {"private_validation": 0.25},
    "validation_noise": {"validation_noise": 5.0, "private_validation": 0.25},
    "grid": {"grid": 2.0**-18, "randomness": "exact"},
    "physical_batch_size": {"physical_batch_size": 7},
    "memory_limit": {"memory_limit": "2GiB", "physical_batch_size": "auto"},
    "engine": {"engine": "materialised"},
    "execution": {"execution": "eager"},
    "precision": {"precision": "bf16"},
    "device": {"device": "cpu"},
    "evaluate_every": {"evaluate_every": 3},
    "diagnostics": {"diagnostics": True},
    "spare_steps": {"spare_steps": 2},
    "checkpoint_every": {"checkpoint_every": 3},
    "reserve": {"reserve": 2},
}
"""for each option that a config shares with a run, a value that is not the default, and what it needs beside it"""


def made(data: DataSet | None = None, **keys: Any) -> Preparation:
    chosen: dict[str, Any] = {"method": "dpsgd", "model": "linear", "noise_multiplier": 1.5, "steps": 4, "seed": 3}
    return configured(RunConfig(**(chosen | keys)), data or small_digits())


def test_every_option_of_a_run_is_a_key_of_a_config_with_the_same_default() -> None:
    """But one, for which the program takes a quarter of the records; the others are declared once for both."""
    assert SHARED.keys() <= OWN.keys()
    assert {name for name in SHARED if OWN[name].default != SHARED[name].default} == {"batch_size"}


@pytest.mark.parametrize("name", SHARED)
def test_every_option_of_a_run_is_as_the_config_has_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = OTHER[name]
    monkeypatch.setattr(choice, "_shorten", lambda *_: None)  # bf16 is for a GPU
    assert given[name] != OWN[name].default
    assert getattr(made(**given).options, name) == given[name]


def test_a_gpu_is_taken_where_there_is_one_unless_the_config_names_a_device() -> None:
    assert made(method="sgd", noise_multiplier=None).options.device == "auto"


def test_a_run_of_neither_steps_nor_epochs_is_of_twenty_epochs() -> None:
    assert made(steps=None, method="sgd", noise_multiplier=None).plan.steps == 20 * 4
    assert made(method="sgd", noise_multiplier=None).plan.steps == 4


def test_method_and_its_options_are_as_the_config_has_them() -> None:
    assert made(method_options={"clip_norm": 0.2}).method == DPSGD(clip_norm=0.2)
    assert made(method="quantile", method_options={"quantile": 0.7}).method == QuantileClipping(quantile=0.7)


@pytest.mark.slow
def test_the_budget_is_four_unless_epsilon_or_a_noise_multiplier_is_given() -> None:
    ready = made(noise_multiplier=None, delta=1e-4)
    assert ready.budget == Budget(epsilon=4.0, delta=1e-4)
    assert 3.9 < ready.epsilons["pld"] <= 4
    assert made(noise_multiplier=None, epsilon=2.0, delta=1e-4).budget == Budget(epsilon=2.0, delta=1e-4)
    both = made(noise_multiplier=9.0, epsilon=2.0)
    assert (both.budget, both.noise_multiplier) == (Budget(epsilon=2.0, delta=1e-5), 9.0)


def test_without_a_budget_delta_is_the_configs() -> None:
    ready = made(delta=1e-3)
    assert (ready.budget, ready.delta, ready.noise_multiplier) == (None, 1e-3, 1.5)
    assert ready.epsilons["pld"] < made(delta=1e-6).epsilons["pld"]


@pytest.mark.parametrize(("declared", "batch"), [(240, 60), (243, 60), (2047, 511), (2048, 512), (9000, 512), (3, 1)])
def test_a_batch_is_a_quarter_of_the_declared_records_up_to_512(declared: int, batch: int) -> None:
    ready = made(replace(small_digits(), records=declared), method="sgd", noise_multiplier=None)
    assert ready.options.batch_size == batch
    assert ready.plan.stages[0].draws[0].sample_rate == batch / declared


def test_released_normalisation_is_bounded_and_noised_as_the_config_has_it() -> None:
    ready = made(normalisation="released", normalisation_clip=0.7, normalisation_noise=3.0)
    norm = ready.released_norm
    assert norm is not None
    assert (norm.clip, norm.noise_multiplier) == (0.7, 3.0)
    assert ready.plan.stages[0].draws[0].noise_multiplier == pytest.approx(3.0 / math.sqrt(2))


def test_features_and_normalisation_come_before_a_model_of_their_shape() -> None:
    told: list[float | None] = []
    keys: dict[str, Any] = {"features": "scattering", "normalisation": "group:27"}
    config = RunConfig(method="dpsgd", model="scatter-linear", noise_multiplier=1.5, steps=1, **keys)
    ready = configured(config, small_digits(), told.append)
    assert ready.front is not None
    assert isinstance(ready.front.features, Scattering)
    assert isinstance(ready.front.normaliser, nn.GroupNorm)
    assert ready.front.normaliser.num_groups == 27
    assert told == [None] * 2
    assert ready.whole_model()(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_the_body_is_built_and_initialised_as_the_config_has_it() -> None:
    def body(**keys: Any) -> nn.Module:
        return front_and_body(RunConfig(**keys), small_digits(), seed=1)[1]

    def kinds(model: nn.Module) -> set[type[nn.Module]]:
        return {type(m) for m in model.modules()} & {nn.Tanh, nn.ReLU, TemperedSigmoid}

    assert kinds(body()) == {nn.Tanh}
    assert kinds(body(activation="relu")) == {nn.ReLU}
    assert kinds(body(activation="tempered:2,2,1")) == {TemperedSigmoid}
    assert kinds(body(model="linear")) == set()
    assert any(bool(p.any()) for name, p in body().named_parameters() if name.endswith("bias"))
    assert not any(
        bool(p.any()) for name, p in body(initialisation="xavier").named_parameters() if name.endswith("bias")
    )
    assert torch.equal(weights(body()), weights(make_model("mlp", shape=(1, 8, 8), classes=10, seed=1)))
    three = front_and_body(RunConfig(), replace(small_digits(), classes=3))[1]
    assert three(torch.zeros(1, 1, 8, 8)).shape == (1, 3)


def test_the_seed_fixes_the_weights_and_reaches_the_run() -> None:
    first, second, other = made(seed=5), made(seed=5), made(seed=6)
    assert (first.seed, other.seed) == (5, 6)
    assert torch.equal(weights(first.model), weights(second.model))
    assert torch.equal(weights(first.model), weights(make_model("linear", shape=(1, 8, 8), seed=5)))
    assert not torch.equal(weights(first.model), weights(other.model))
    assert made(seed=None).seed != made(seed=None).seed


def test_a_data_set_of_ones_own_is_described_as_the_config_has_it(tmp_path: Path) -> None:
    table = tmp_path / "people.csv"
    table.write_text("age,y\n0,no\n10,yes\n")
    columns = '\nlabel = "y"\nclasses = ["yes", "no"]\n[columns.age]\nrange = [0, 10]\n'
    table.with_suffix(".toml").write_text(f"records = 60{columns}")
    (tmp_path / "other.toml").write_text(f"records = 77{columns}")
    assert load_data(RunConfig(dataset=str(table))).records == 60
    assert load_data(RunConfig(dataset=str(table), describe=str(tmp_path / "other.toml"))).records == 77


def test_a_file_of_arrays_has_the_records_and_classes_that_the_config_declares(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.zeros((5, 3)), y=np.zeros(5, dtype=int))
    data = load_data(RunConfig(dataset=str(tmp_path / "mine.npz"), records=70, classes=4))
    assert (data.records, data.classes, data.shape) == (70, 4, (3,))


def test_what_a_method_refuses_of_the_noise_leaves_no_folder(tmp_path: Path) -> None:
    method = QuantileClipping(count_noise=0.5)
    with pytest.raises(InputError, match=r"count_noise=0.5 with noise_multiplier=1.5"):
        ad.train(
            make_model("linear", shape=(1, 8, 8)),
            arrays(),
            records=240,
            method=method,
            noise_multiplier=1.5,
            out=tmp_path / "run",
            **SHORT,
        )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"count_noise=0.5"):
        prepare_small(method)


def test_a_draw_of_more_than_the_declared_records_is_refused_by_name() -> None:
    words = "batch_size=1000000 of the draw 'test' is not between 1 and the declared record count 240"
    with pytest.raises(InputError, match=words):
        prepare_small(DPSUR(test_batch_size=10**6))
    with pytest.raises(InputError, match="batch_size=241 of the draw 'test'"):
        prepare_small(DPSUR(test_batch_size=241))
    assert prepare_small(DPSUR(test_batch_size=240)).plan.stages[0].draws[1].sample_rate == 1.0


class Bytes(nn.Module):
    """Pixels of any type from 0 to 16, then one layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x.float().flatten(1) / 16)
        return made


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"copies": 2, "shift": 1, "flip": True}], ids=["plain", "augmented"])
def test_bytes_train_like_the_numbers_they_stand_for(options: dict[str, Any]) -> None:
    inputs, targets = arrays()
    trained = []
    for values in ((16 * inputs).to(torch.uint8), (16 * inputs).round()):
        data = DataSet(name="pixels", train=TensorRecords(values, targets), records=240, classes=10)
        ready = prepare(
            Bytes(),
            data,
            method=DPSGD(),
            budget=None,
            delta=1e-5,
            options=TrainingOptions(noise_multiplier=1.0, **SHORT, **options),
        )
        trained.append(weights(train_prepared(ready, randomness=ReproducibleRandomness(0)).model))
    torch.testing.assert_close(trained[0], trained[1])
    assert not torch.equal(trained[0], weights(Bytes()))
