"""A finished run read back from its folder: config, model, data. TOML and safetensors; nothing is unpickled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from adadpigu.config import RunConfig, merge, read_config
from adadpigu.data import DataSet
from adadpigu.data.description import Description, read_description
from adadpigu.data.own import find_description
from adadpigu.errors import InputError, first_line
from adadpigu.features.front import Fronted
from adadpigu.training.configured import front_and_body, load_data
from adadpigu.training.run import stored_tensors

DESCRIPTION = "description.toml"
"""the description of own data as it was in training, in the run folder"""


@dataclass(frozen=True)
class Facts:
    """Public facts of the data set that a run was trained on."""

    shape: tuple[int, ...] | None
    classes: int | None


@dataclass(frozen=True)
class LoadedRun:
    """What a run folder holds. The data set itself is not needed to use the model."""

    folder: Path
    config: RunConfig
    model: nn.Module
    facts: Facts
    description: Description | None
    """of own data: how records are encoded"""

    def data(self) -> DataSet:
        """The data set, from where it was; refused where its description is not the one of the run."""
        if self.description is not None:
            describe = None if self.config.describe is None else Path(self.config.describe)
            now = find_description(Path(self.config.dataset), describe)
            if now is None or now.path.read_text(encoding="utf-8") != self.description.path.read_text(encoding="utf-8"):
                raise InputError(
                    f"run={str(self.folder)!r}: the description of its data has changed since training; allowed: "
                    f"the one in {str(self.description.path)!r}"
                )
        return load_data(self.config)


def load_run(folder: Path) -> LoadedRun:
    """Reads a run folder; the message of a refusal says what is missing."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    for name in ("config.toml", "data.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise InputError(f"run={str(folder)!r} has no {name}; allowed: a folder that `adadpigu train` wrote")
    config, facts = merge(read_config(folder / "config.toml")), _facts(folder)
    front, body = front_and_body(config, facts)
    model = body if front is None else Fronted(front, body)
    try:
        stored = load_file(folder / "model.safetensors")
    except (SafetensorError, OSError) as error:
        raise InputError(f"run={str(folder)!r}: model.safetensors cannot be read: {first_line(error)}") from None
    _fill(model, stored, folder)
    kept = folder / DESCRIPTION
    return LoadedRun(folder, config, model.eval(), facts, read_description(kept) if kept.is_file() else None)


def _facts(folder: Path) -> Facts:
    try:
        stored = json.loads((folder / "data.json").read_text(encoding="utf-8"))
        shape = stored["shape"]
        return Facts(None if shape is None else tuple(int(n) for n in shape), stored["classes"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"run={str(folder)!r}: data.json cannot be read; allowed: as `train` wrote it") from None


@torch.no_grad()
def _fill(model: nn.Module, stored: dict[str, Tensor], folder: Path) -> None:
    """Copies stored tensors into a model; names and shapes must be the model's own."""
    own = stored_tensors(model)
    odd = sorted(own.keys() ^ stored.keys()) or sorted(n for n in own if own[n].shape != stored[n].shape)
    if odd:
        raise InputError(f"run={str(folder)!r}: model.safetensors does not fit the model at {odd[0]!r}")
    for name, tensor in own.items():
        tensor.copy_(stored[name])
