"""A finished run read back from its folder: config, model, data. TOML and safetensors; nothing is unpickled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from adadpigu.config import RunConfig, merge, read_config
from adadpigu.data import DataSet, load_dataset
from adadpigu.errors import InputError
from adadpigu.models import make_model


@dataclass(frozen=True)
class LoadedRun:
    """What a run folder holds."""

    config: RunConfig
    model: nn.Module
    data: DataSet


def data_and_model(config: RunConfig, seed: int | None = None) -> tuple[DataSet, nn.Module]:
    """The data set that a config names, and a model for it (a small MLP where none is named)."""
    data = load_dataset(config.dataset, records=config.records, classes=config.classes)
    return data, make_model(config.model or "mlp", shape=data.shape, classes=data.classes or 10, seed=seed)


def load_run(folder: Path) -> LoadedRun:
    """Reads a run folder; the message of a refusal says what is missing."""
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    for name in ("config.toml", "model.safetensors"):
        if not (folder / name).is_file():
            raise InputError(f"run={str(folder)!r} has no {name}; allowed: a folder that `adadpigu train` wrote")
    config = merge(read_config(folder / "config.toml"))
    data, model = data_and_model(config)
    try:
        load_model(model, folder / "model.safetensors")
    except (SafetensorError, RuntimeError, OSError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"run={str(folder)!r}: model.safetensors does not fit: {first}") from None
    return LoadedRun(config, model.eval(), data)
