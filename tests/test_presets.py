"""Presets: one for each cell of the table, each able to run as it stands; without fetching any data set."""

from __future__ import annotations

import re

import pytest
import torch

from adadpigu.config import all_presets, merge, read_preset
from adadpigu.data import load_dataset
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.named import find_published
from adadpigu.training.configured import configured, front_and_body

CELL = re.compile(r"(mnist|fashion|cifar10)-(dpsgd|ts|hf|dpsur|adadpigu|best)-eps(2|4)")


def test_every_cell_of_the_table_and_every_yardstick_has_a_preset() -> None:
    sets = ("mnist", "fashion", "cifar10")
    cells = {
        f"{s}-{m}-eps{e}" for s in sets for m in ("dpsgd", "ts", "hf", "dpsur", "adadpigu", "best") for e in (2, 4)
    }
    assert cells | {f"{s}-sgd" for s in sets} | {"mnist-quick"} <= all_presets().keys()


PARTS = {
    "cifar10-adadpigu-eps2": "layers",
    "cifar10-adadpigu-eps4": "masked",
    "fashion-adadpigu-eps2": "layers",
    "fashion-adadpigu-eps4": "layers",
    "mnist-adadpigu-eps2": "masked",
    "mnist-adadpigu-eps4": "layers",
}
"""presets whose names say more than they train"""


@pytest.mark.parametrize("name", all_presets())
def test_a_preset_does_what_its_name_says(name: str) -> None:
    config = merge(read_preset(name))
    cell = CELL.fullmatch(name)
    if cell is not None:
        short, method, epsilon = cell.groups()
        assert config.dataset == find_published(short).name
        assert config.epsilon == float(epsilon)
        trains = {"ts": "dpsgd", "hf": "dpsgd", "best": "dpsgd"}.get(method, method)
        assert config.method == PARTS.get(name, trains)
        assert (config.features != "none") == (method in ("hf", "dpsur", "best"))
        assert (config.activation or "tanh").startswith("tempered") == (method == "ts")
    assert config.delta == 1e-5
    assert config.noise_multiplier is None
    assert all_presets()[name].startswith("# ")


def stand_in(name: str) -> DataSet:
    """A data set with the public facts of a published one, and a few made-up records."""
    if name == "digits":
        return load_dataset(name)
    published = find_published(name)
    images = torch.rand(64, *published.shape, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(64) % published.classes
    return DataSet(
        name=name,
        train=TensorRecords(images, labels),
        records=published.records,
        classes=published.classes,
        shape=published.shape,
    )


@pytest.mark.parametrize("name", all_presets())
def test_a_presets_model_takes_what_its_front_makes_of_its_records(name: str) -> None:
    config = merge(read_preset(name))
    data = stand_in(config.dataset)
    front, body = front_and_body(config, data, seed=0)
    inputs, _ = data.train.take(torch.arange(2))
    assert body(inputs if front is None else front(inputs)).shape == (2, 10)


@pytest.mark.parametrize("name", ["mnist-hf-eps2", "fashion-adadpigu-eps4", "mnist-dpsur-eps4"])
def test_a_preset_is_calibrated_to_the_budget_in_its_name(name: str) -> None:
    config = merge(read_preset(name))
    ready = configured(config, stand_in(config.dataset))
    target = float(name[-1])
    assert target - 0.01 < ready.epsilons["pld"] <= target
    assert sum(stage.steps for stage in ready.stages) == config.steps


@pytest.mark.parametrize(("preset", "dataset"), [("cifar10-hf-eps4", "mnist"), ("mnist-quick", "cifar10")])
def test_a_preset_on_records_of_another_size_is_refused_in_one_line(preset: str, dataset: str) -> None:
    config = merge(read_preset(preset), {"dataset": dataset})
    with pytest.raises(Exception, match=r"shape|channels|normalisation") as refusal:
        configured(config, stand_in(dataset))
    assert type(refusal.value).__name__ in ("InputError", "ModelError")
    assert "\n" not in str(refusal.value)
