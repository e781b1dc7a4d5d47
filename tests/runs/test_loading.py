"""A model comes back from its folder as it was stored: every model by name, and every kind of front."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from adadpigu.config import RunConfig
from adadpigu.features.front import Fronted
from adadpigu.models import all_models
from adadpigu.runs.loading import front_and_body, load_run
from adadpigu.runs.reading import DataFacts
from adadpigu.runs.run import tensors_of
from adadpigu.tensors import write_tensors

NAMED = [RunConfig(model=name) for name in all_models()]
FRONTED = [
    RunConfig(model="linear", features=features, normalisation=normalisation)
    for features in ("none", "scattering")
    for normalisation in ("none", "record", "group:1", "released", "constants:0.5/2", "orders")
    if (normalisation != "orders" or features == "scattering") and (features, normalisation) != ("none", "none")
    if not (normalisation.startswith("constants") and features == "scattering")
]


@pytest.mark.parametrize("config", [*NAMED, *FRONTED], ids=lambda c: f"{c.model}-{c.features}-{c.normalisation}")
def test_a_stored_model_gives_the_same_outputs(config: RunConfig, tmp_path: Path) -> None:
    shape = all_models()[config.model or ""].shape or (1, 16, 16)
    torch.manual_seed(0)
    front, body = front_and_body(config, DataFacts(shape, 7))
    model = (body if front is None else Fronted(front, body)).eval()
    (tmp_path / "config.toml").write_text(config.to_toml())
    (tmp_path / "data.json").write_text(json.dumps({"shape": shape, "classes": 7}))
    write_tensors(tmp_path / "model.safetensors", tensors_of(model))
    x = torch.rand(2, *shape)
    loaded = load_run(tmp_path)
    assert torch.equal(loaded.model(x), model(x))
    assert not loaded.model.training
    assert {tensor.device.type for tensor in loaded.model.state_dict().values()} == {"cpu"}
