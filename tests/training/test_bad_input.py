"""Bad input to `train` is refused in one line that names it, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset, TensorDataset

import adadpigu as ad
from adadpigu.methods import DPSGD
from trials import SHORT, arrays, other_arrays, small_net


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
    "epsilon": (small_net, arrays, {"epsilon": 4}, "allowed: privacy=Budget(epsilon=4, delta=1e-5)"),
    "clip bound": (small_net, arrays, {"max_grad_norm": 2}, "e.g. method=DPSGD(clip_norm=2)"),
    "method option": (small_net, arrays, {"retention": 0.5}, "e.g. method=AdaDPIGU(retention=0.5)"),
    "unknown option": (small_net, arrays, {"epoch": 3}, "did you mean 'epochs'"),
    "misspelt argument": (small_net, arrays, {"records": None, "recods": 240}, "did you mean 'records'"),
    "argument of another library": (small_net, arrays, {"criterion": len}, "did you mean 'loss'? "),
    "bound by another name": (small_net, arrays, {"clip_norm": 2, "method": None}, "e.g. method=AdaDPIGU(clip_norm=2)"),
    "class weight": (small_net, arrays, {"class_weight": [1, 2]}, "loss=nn.CrossEntropyLoss(weight="),
    "loader's option": (small_net, arrays, {"drop_last": True}, "leave it out"),
    "made optimizer": (small_net, arrays, {"optimizer": SGD([torch.zeros(1)], lr=0.1)}, "allowed: a name or class"),
    "option called options": (small_net, arrays, {"options": {}}, "unknown option of train 'options'"),
    "test is train": (small_net, arrays, {"test": arrays()}, "there are training records among"),
    "test of another type": (
        small_net,
        arrays,
        {"test": (other_arrays()[0].half(), other_arrays()[1])},
        "test: records are (torch.float16",
    ),
    "delta twice": (small_net, arrays, {"delta": 1e-6}, "contradicts the budget"),
    "words": (small_net, lambda: (["a"] * 240, arrays()[1]), {}, "inputs[0] is a str"),
    "rows": (small_net, lambda: {"x": arrays()[0], "y": arrays()[1][:5]}, {}, "['y'] has 5 rows"),
    "three parts for a loss": (small_net, lambda: (*arrays(), arrays()[1]), {}, "allowed: losses=f"),
    "two losses": (small_net, arrays, {"loss": nn.CrossEntropyLoss(), "losses": len}, "loss and losses are both given"),
    "loader": (small_net, lambda: DataLoader(TensorDataset(*arrays())), {}, "its .dataset"),
    "method name": (small_net, arrays, {"method": "dpsdg"}, "did you mean 'dpsgd'"),
    "half": (small_net, lambda: (arrays()[0].half(), arrays()[1]), {}, "torch.float16"),
    "labels in a column": (small_net, lambda: (arrays()[0], arrays()[1][:, None]), {}, "labels.squeeze(1)"),
    "table with its label": (
        small_net,
        lambda: arrays()[0].flatten(1),
        {},
        "such as (table[features], table[label])",
    ),
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


def test_a_shuffled_or_partial_copy_of_the_training_records_is_no_test_set() -> None:
    inputs, targets = arrays()
    order = torch.randperm(240)
    others = torch.cat([inputs[:120], arrays()[0][120:] + 1])  # half of them
    told: dict[str, tuple[Any, ...]] = {
        "these are the training records": ((inputs[order], targets[order]), (others, targets)),
        "there are training records among": ((inputs[1:], targets[1:]), TensorDataset(inputs, targets)),
    }
    for message, test in ((message, test) for message, tests in told.items() for test in tests):
        with pytest.raises(ad.InputError, match=f"test: {message}"):
            ad.train(small_net(), (inputs, targets), records=240, test=test, method=DPSGD(), **SHORT)
