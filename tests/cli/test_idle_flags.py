"""A flag of `adadpigu train` that nothing would look at is refused; the same value in a preset is not."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adadpigu.cli.training_settings import refuse_idle
from adadpigu.config import RunConfig, merge
from adadpigu.errors import InputError
from adadpigu.models import all_models
from adadpigu.models.cards import TemperedSigmoid
from adadpigu.training.optimiser import all_optimisers, optimiser_factory

NOTHING: dict[str, object] = {field.name: None for field in fields(RunConfig)}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "linear", "--activation", "tempered:2,2,1"], "activation=tempered:2,2,1 does nothing with model="),
        (["--model", "scatter-linear", "--activation", "relu"], "does nothing with model='scatter-linear'"),
        (["--optimizer", "adam", "--momentum", "0.5"], "momentum=0.5 does nothing with optimizer='adam'"),
        (["--optimizer", "muon", "--momentum", "0.5"], "with optimizer='muon'; allowed with 'sgd' or 'rmsprop'"),
        (["--shift-step", "2"], "shift_step=2 does nothing with shift=0"),
        (["--shift-step", "1", "--flip"], "shift_step=1 does nothing with shift=0"),
        (["--optimizer", "adma", "--momentum", "0.5"], "did you mean 'adam"),
    ],
)
def test_a_flag_that_nothing_looks_at_is_refused_in_one_line(call: Any, flags: list[str], words: str) -> None:
    code, out, err = call("train", *flags, "--out", "run")
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("preset", "given"),
    [
        ({"optimizer": "adam", "momentum": 0.5, "shift_step": 2, "model": "linear", "activation": "relu"}, {}),
        ({"shift": 4}, {"shift_step": 2}),
        ({"optimizer": "RMSprop"}, {"momentum": 0.5}),
        ({"model": "mnist-cnn"}, {"activation": "relu"}),
        ({}, {"activation": "relu", "momentum": 0.5}),
        ({"activation": "relu"}, {"model": "linear"}),
        ({"model": "package.module:function"}, {"activation": "relu"}),  # refused where models are made
    ],
)
def test_what_a_preset_holds_or_something_looks_at_passes(preset: dict[str, object], given: dict[str, object]) -> None:
    refuse_idle(NOTHING | given, merge(preset, given))
    refuse_idle(NOTHING, merge(preset, given))


def test_a_flag_is_judged_by_the_settings_that_a_preset_decides() -> None:
    with pytest.raises(InputError, match=r"momentum=0\.9 does nothing with optimizer='adam'"):
        refuse_idle(NOTHING | {"momentum": 0.9}, merge({"optimizer": "adam"}, {"momentum": 0.9}))


@pytest.mark.parametrize("name", all_models())
def test_a_model_has_an_activation_exactly_where_one_is_built_into_it(name: str) -> None:
    card = all_models()[name]
    built = card.build(card.shape or (1, 4, 4), 10, "tempered:2,2,1")
    has_one = any(isinstance(module, TemperedSigmoid) for module in built.modules())
    with nullcontext() if has_one else pytest.raises(InputError, match="activation=relu does nothing with model="):
        refuse_idle(NOTHING | {"activation": "relu"}, merge({"model": name}, {"activation": "relu"}))


@pytest.mark.parametrize("name", all_optimisers())
def test_momentum_is_refused_exactly_where_it_would_not_reach_the_optimiser(name: str) -> None:
    made = optimiser_factory(name, lr=0.1, momentum=0.5)([nn.Parameter(torch.zeros(2, 2))])
    reaches = made.defaults.get("momentum") == 0.5
    with nullcontext() if reaches else pytest.raises(InputError, match=r"momentum=0\.5 does nothing with optimizer="):
        refuse_idle(NOTHING | {"momentum": 0.5}, merge({"optimizer": name}, {"momentum": 0.5}))
