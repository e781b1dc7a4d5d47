"""A finished run read back from its folder: config, model, data. TOML and safetensors; nothing is unpickled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from adadpigu.config import RunConfig, merge, read_config
from adadpigu.data import DataSet
from adadpigu.errors import InputError
from adadpigu.features.front import Fronted
from adadpigu.gradients.losses import first_line
from adadpigu.training.configured import front_and_body, load_data
from adadpigu.training.run import stored_tensors


@dataclass(frozen=True)
class LoadedRun:
    """What a run folder holds."""

    config: RunConfig
    model: nn.Module
    data: DataSet


def load_run(folder: Path) -> LoadedRun:
    """Reads a run folder; the message of a refusal says what is missing."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    for name in ("config.toml", "model.safetensors"):
        if not (folder / name).is_file():
            raise InputError(f"run={str(folder)!r} has no {name}; allowed: a folder that `adadpigu train` wrote")
    config = merge(read_config(folder / "config.toml"))
    data = load_data(config)
    front, body = front_and_body(config, data)
    model = body if front is None else Fronted(front, body)
    try:
        stored = load_file(folder / "model.safetensors")
    except (SafetensorError, OSError) as error:
        raise InputError(f"run={str(folder)!r}: model.safetensors cannot be read: {first_line(error)}") from None
    _fill(model, stored, folder)
    return LoadedRun(config, model.eval(), data)


@torch.no_grad()
def _fill(model: nn.Module, stored: dict[str, Tensor], folder: Path) -> None:
    """Copies stored tensors into a model; names and shapes must be the model's own."""
    own = stored_tensors(model)
    odd = sorted(own.keys() ^ stored.keys()) or sorted(n for n in own if own[n].shape != stored[n].shape)
    if odd:
        raise InputError(f"run={str(folder)!r}: model.safetensors does not fit the model at {odd[0]!r}")
    for name, tensor in own.items():
        tensor.copy_(stored[name])
