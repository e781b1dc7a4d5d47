"""Every method on every engine: the same run, to rounding. Methods and variants are those of the shared harness."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_every_method import RECORDS
from torch import nn

from adadpigu.core.gradients import ENGINES
from adadpigu.methods import make_method
from method_cases import CASES
from open_method import OpenMethod
from trials import run_small, small_digits, weights


def deep_net() -> nn.Module:
    """Convolution, norm and linear layers, so that engines differ in what they do."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 8), nn.Linear(8, 10)
    )


@pytest.mark.parametrize("case", [*CASES, "all the frame allows"])
def test_the_engine_changes_no_method(case: str, tmp_path: Path) -> None:
    """Same coins, same noise: whichever engine bounds the gradients, the weights agree to rounding.

    Compared as vectors: where two entries of a record are equal to rounding, its top-k may take either.
    """
    name, options = CASES.get(case, ("", {}))
    if "public_model" in options:
        options = {**options, "public_model": str(tmp_path / "model.safetensors")}
        save_file(dict(deep_net().named_parameters()), str(options["public_model"]))
    method = make_method(name, options) if name else OpenMethod()
    runs = {
        engine: weights(run_small(method, data=small_digits(RECORDS), net=deep_net, engine=engine, steps=4).model)
        for engine in ENGINES
        if engine != "auto"
    }
    expected = runs.pop("loop")
    moved = torch.linalg.vector_norm(expected - weights(deep_net()))
    for engine, found in runs.items():
        assert torch.linalg.vector_norm(found - expected) <= 1e-3 * moved, engine
