"""Presets of this package: one for each cell of the table, each able to run as it stands.

Those beside methods of other packages are tested there (`tests/papers/systems`).
"""

from __future__ import annotations

import re
from importlib import resources

import pytest
import torch

from adadpigu.config import all_presets, merge, read_preset
from adadpigu.data import load_dataset
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.published import find_published
from adadpigu.methods import Method, make_method
from adadpigu.models import all_models
from adadpigu.runs.loading import front_and_body
from adadpigu.training.configured import configured

OWN = sorted(
    file.name.removesuffix(".toml")
    for file in (resources.files("adadpigu") / "presets").iterdir()
    if file.name.endswith(".toml")
)
CELL = re.compile(r"(mnist|fashion|cifar10)-([a-z-]+)-eps(1|2|4|8)")
SETS = ("mnist", "fashion", "cifar10")
FREEZING = ("parameter-freezing", "parameter-selection")
BY_EPSILON = {
    (2, 4, 8): ("dpsgd", "adadpigu", "adadpigu-as-written", "adadpigu-as-coded"),
    (1, 2, 4, 8): ("best",),
    (2, 4): ("ts", "hf", "dpsur", "adaclip", "quantile", "random-freeze", *FREEZING),
}
TRAINS = dict.fromkeys(("ts", "hf", "best"), "dpsgd") | {"parameter-selection": "parameter-freezing"}
"""what a name's method is, where the name has another"""


def test_every_cell_of_the_table_and_every_yardstick_has_a_preset() -> None:
    cells = {
        f"{s}-{m}-eps{e}" for budgets, methods in BY_EPSILON.items() for s in SETS for m in methods for e in budgets
    }
    assert cells | {f"{s}-sgd" for s in SETS} | {"mnist-quick"} <= all_presets().keys()


@pytest.mark.parametrize("name", OWN)
def test_a_preset_does_what_its_name_says(name: str) -> None:
    config = merge(read_preset(name))
    cell = CELL.fullmatch(name)
    if cell is not None:
        short, method, epsilon = cell.groups()
        assert config.dataset == find_published(short).name
        assert config.epsilon == float(epsilon)
        assert config.method == TRAINS.get(method, "adadpigu" if method.startswith("adadpigu") else method)
        assert (config.features != "none") == (method in ("hf", "dpsur", "best"))
        assert (config.activation or "tanh").startswith("tempered") == (method == "ts")
    assert config.delta == 1e-5
    assert config.noise_multiplier is None
    assert all_presets()[name].startswith("# ")


def method_of(preset: str) -> Method:
    config = merge(read_preset(preset))
    return make_method(config.method, config.method_options)


@pytest.mark.parametrize("name", [name for name in OWN if "adadpigu" in name and "as-coded" not in name])
def test_what_is_called_adadpigu_is_the_whole_method(name: str) -> None:
    """The name stands for stage 1, a mask, unfreezing and moving statistics: parts of it have names of their own."""
    options = method_of(name).options()
    for key in ("retention", "mean_decay", "variance_decay"):
        assert options[key] != 1, f"{name} has {key} = 1"
    assert options["schedule"] != "constant"


@pytest.mark.slow
def test_the_paper_as_written_and_as_coded_is_told_apart_by_resolved_settings() -> None:
    nets = {"mnist": (46_490, 26_010), "fashion": (46_490, 26_010), "cifar10": (74_362, 550_570)}
    for name, (written, coded) in nets.items():
        for epsilon in (2, 4, 8):
            pair = [f"{name}-adadpigu-as-{how}-eps{epsilon}" for how in ("written", "coded")]
            for preset, size in zip(pair, (written, coded), strict=True):
                config, method = merge(read_preset(preset)), method_of(preset)
                assert (config.batch_size, config.epochs, config.lr, config.momentum) == (1000, 200, 0.1, 0)
                assert all_models()[str(config.model)].parameters() == size
                assert method.stages(12_000)[0].steps == 900  # 15 of 200 epochs
            first, second = (method_of(preset).options() for preset in pair)
            shared = {"retention": 0.6, "clip_norm": 5.0, "score": "absolute", "beta": 1.0, "top_k_of": "all"}
            whole = {"schedule": "linear", "mean_decay": 0.9, "variance_decay": 0.999, "top_k": 0.6, "offset": 1e-6}
            held = {"schedule": "constant", "mean_decay": 1.0, "variance_decay": 1.0, "top_k": 0.4}
            assert shared.items() | whole.items() | {("floor", 1e-6), ("ceiling", 1e6)} <= first.items()
            assert shared.items() | held.items() <= second.items()


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


@pytest.mark.parametrize("name", OWN)
def test_a_presets_model_takes_what_its_front_makes_of_its_records(name: str) -> None:
    config = merge(read_preset(name))
    data = stand_in(config.dataset)
    front, body = front_and_body(config, data, seed=0)
    inputs, _ = data.train.take(torch.arange(2))
    assert body(inputs if front is None else front(inputs)).shape == (2, 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist-hf-eps2", "fashion-adadpigu-eps8", "mnist-dpsur-eps4"])
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
