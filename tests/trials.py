"""Small real runs for tests: the embedded digits, cut short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from adadpigu.accounting import Budget
from adadpigu.audit.tapes import Recorder
from adadpigu.core.randomness import Randomness, ReproducibleRandomness
from adadpigu.data import DataSet, TensorRecords, load_dataset
from adadpigu.features.front import Front
from adadpigu.methods import Method, make_method
from adadpigu.training import Preparation, Run, TrainingOptions, prepare, train_prepared


@cache
def small_digits(count: int = 240) -> DataSet:
    """The first records of the digits, and of their test records."""
    data = load_dataset("digits")
    assert isinstance(data.train, TensorRecords)
    assert isinstance(data.test, TensorRecords)
    return replace(
        data,
        train=TensorRecords(data.train.inputs[:count], data.train.targets[:count]),
        test=TensorRecords(data.test.inputs[:100], data.test.targets[:100]),
        records=count,
    )


def small_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


def prepare_small(
    method: Method,
    data: DataSet | None = None,
    *,
    net: Callable[[], nn.Module] = small_net,
    sigma: float | None = 1.5,
    epsilon: float = 4.0,
    seed: int = 0,
    front: Front | None = None,
    **options: Any,
) -> Preparation:
    """A short run; `sigma` None calibrates the noise to `epsilon`."""
    chosen: dict[str, Any] = {"batch_size": 40, "steps": 8, "lr": 0.5, "evaluate_every": 8, "reserve": 1}
    chosen |= fit_optimiser(method) | options
    return prepare(
        net(),
        data or small_digits(),
        method=method,
        budget=Budget(epsilon=epsilon) if sigma is None and method.private else None,
        delta=1e-5,
        options=TrainingOptions(noise_multiplier=sigma if method.private else None, **chosen),
        seed=seed,
        front=front,
    )


def fit_optimiser(method: Method) -> dict[str, Any]:
    """What else a run of this method needs by default: an optimiser with a second moment, where it goes by that."""
    return {"optimizer": "rmsprop", "lr": 0.01} if method.needs_second_moment else {}


def run_small(
    method: Method,
    *,
    randomness: Randomness | None = None,
    tape: Recorder | None = None,
    **options: Any,
) -> Run:
    return train_prepared(
        prepare_small(method, **options),
        randomness=randomness or ReproducibleRandomness(7),
        mechanism=None if tape is None else tape.mechanism,
    )


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


SHORT: dict[str, Any] = {"batch_size": 40, "steps": 6, "lr": 0.5, "reserve": 1}


def arrays() -> tuple[torch.Tensor, torch.Tensor]:
    """Training records as a user would pass them."""
    records = small_digits().train
    assert isinstance(records, TensorRecords)
    return records.inputs, records.targets


def other_arrays() -> tuple[torch.Tensor, torch.Tensor]:
    """Test records as a user would pass them."""
    records = small_digits().test
    assert isinstance(records, TensorRecords)
    return records.inputs, records.targets


def mask_of(positions: object, size: int) -> torch.Tensor:
    """The mask of the given positions, [size] of bool."""
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.as_tensor(positions)] = True
    return mask


def method_case(case: tuple[str, dict[str, object]], folders: pytest.TempPathFactory) -> Method:
    """A method by name and options; the public model that an option asks for is made."""
    name, options = case
    if "public_model" in options:
        options = {**options, "public_model": str(folders.mktemp("public") / "model.safetensors")}
        save_file(dict(small_net(seed=5).named_parameters()), str(options["public_model"]))
    return make_method(name, options)
