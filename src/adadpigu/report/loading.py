"""A finished run read back from its folder: config, model, data. The folder may come from a stranger.

TOML, JSON and safetensors; nothing is unpickled, and no code is imported unless the caller says so. What a file claims
is checked before anything is allocated for it: a model is built as shapes alone first, and must be the stored one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.config import RunConfig, merge, parse
from adadpigu.data import DataSet
from adadpigu.data.description import MOST_CLASSES, ArrayFacts, Description, read_description
from adadpigu.data.own import find_description
from adadpigu.errors import InputError, first_line
from adadpigu.features.front import Fronted
from adadpigu.tensors import Entry, read_header, read_tensors
from adadpigu.training.configured import front_and_body, load_data
from adadpigu.training.run import stored_tensors

DESCRIPTION = "description.toml"
"""the description of own data as it was in training, in the run folder"""

FACTS = "data.json"
"""the public facts of the data set, in the run folder"""
MOST_TEXT = 1 << 22
"""bytes of a file of TOML or JSON"""
MOST_VALUES = 1 << 26
"""numbers in one record"""
MOST_DIMENSIONS = 8
"""of a record"""


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


def load_run(folder: Path, *, trust_code: bool = False) -> LoadedRun:
    """Reads a run folder; the message of a refusal says what is missing or odd.

    A model that the config calls `package.module:function` is code, which only `trust_code` lets run.
    """
    text, facts = text_of(folder, "config.toml"), facts_of(folder)
    stored = file_of(folder, "model.safetensors")
    config = merge(parse(text, str(folder / "config.toml")))
    if not trust_code:
        refuse_code(config, folder)
    description = _description(folder, facts)
    header = read_header(stored, "model").tensors
    if not _is_code(config):
        _check_outline(config, facts, header, folder)
    model = _built(config, facts, folder)
    own = stored_tensors(model)
    _check_fit(own, header, folder)
    for name in sorted(header.keys() - own.keys()):
        raise InputError(f"run={str(folder)!r}: model.safetensors has {name!r}, which the model does not have")
    _fill(own, read_tensors(stored, "model"))
    return LoadedRun(folder, config, model.eval(), facts, description)


def refuse_code(config: RunConfig, folder: Path) -> None:
    """Refuses a config whose model is code; a folder may be a stranger's."""
    if _is_code(config):
        raise InputError(
            f"run={str(folder)!r}: its model={config.model!r} would import and run code; allowed only if you trust "
            "whoever made the folder: --trust-model-code, in Python load_run(folder, trust_code=True)"
        )


def _is_code(config: RunConfig) -> bool:
    return config.model is not None and ":" in config.model


def file_of(folder: Path, name: str) -> Path:
    """A file of the folder; one that a link leads out of it is not."""
    path = folder / name
    try:
        outside = not path.resolve().is_relative_to(folder.resolve())
        there = path.is_file()
    except (OSError, RuntimeError):  # links in a circle
        outside, there = False, False
    if outside:
        raise InputError(f"run={str(folder)!r}: {name} is a link out of the folder; allowed: files within it")
    if not there:
        raise InputError(f"run={str(folder)!r} has no {name}; allowed: a folder that `adadpigu train` wrote")
    return path


def text_of(folder: Path, name: str, most: int = MOST_TEXT) -> str:
    """A text file of the folder, if it is one, within it and of at most so many bytes."""
    path = file_of(folder, name)
    try:
        size = path.stat().st_size
        if size > most:
            raise InputError(f"run={str(folder)!r}: {name} has {size} bytes; allowed: up to {most}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"run={str(folder)!r}: {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"run={str(folder)!r}: {name} cannot be read: it is not UTF-8 text") from None


def stored_facts(folder: Path) -> dict[str, Any]:
    """What a run's data.json holds, not yet checked but for shape and classes being there."""
    text, refusal = text_of(folder, FACTS), f"run={str(folder)!r}: {FACTS}"
    try:
        stored = json.loads(text)
    except RecursionError:
        raise InputError(f"{refusal} cannot be read: it nests too deep") from None
    except ValueError as error:
        raise InputError(f"{refusal} cannot be read: {first_line(error)}") from None
    if not isinstance(stored, dict) or not stored.keys() >= {"shape", "classes"}:
        raise InputError(f"{refusal} has no shape or no classes; allowed: as `train` wrote it")
    return stored


def facts_of(folder: Path) -> Facts:
    """The public facts in a run's data.json."""
    stored, refusal = stored_facts(folder), f"run={str(folder)!r}: {FACTS}"
    shape, classes = stored["shape"], stored["classes"]
    if shape is not None and not _is_shape(shape):
        raise InputError(
            f"{refusal}: the shape of a record is odd; allowed: null, or 1 to {MOST_DIMENSIONS} whole numbers of at "
            f"least 1 whose product is at most {MOST_VALUES}"
        )
    if classes is not None and not (type(classes) is int and 1 <= classes <= MOST_CLASSES):
        raise InputError(f"{refusal}: classes is odd; allowed: null, or a whole number from 1 to {MOST_CLASSES}")
    return Facts(None if shape is None else tuple(shape), classes)


def _is_shape(value: object) -> bool:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_DIMENSIONS:
        return False
    return all(type(side) is int and side >= 1 for side in value) and math.prod(value) <= MOST_VALUES


def _description(folder: Path, facts: Facts) -> Description | None:
    """How records of own data are encoded; it must be of the data that the model was built for."""
    if not (folder / DESCRIPTION).is_symlink() and not (folder / DESCRIPTION).exists():
        return None
    text_of(folder, DESCRIPTION)
    found = read_description(folder / DESCRIPTION)
    shape = facts.shape if isinstance(found.facts, ArrayFacts) else found.facts.shape
    if (shape, len(found.classes)) != (facts.shape, facts.classes):
        raise InputError(
            f"run={str(folder)!r}: {DESCRIPTION} tells of records of shape {shape} in {len(found.classes)} classes; "
            f"allowed: what data.json tells, {facts.shape} in {facts.classes}"
        )
    for name in found.classes:
        if not name.isprintable():
            raise InputError(f"run={str(folder)!r}: {DESCRIPTION} has a class {name!r}; allowed: printable names")
    return found


def _check_outline(config: RunConfig, facts: Facts, stored: Mapping[str, Entry], folder: Path) -> None:
    """Refuses a model that is not the stored one before memory is taken for it: here it has shapes alone."""
    fronted = facts.shape is not None and (config.features, config.normalisation) != ("none", "none")
    with torch.device("meta"):
        outline = _built(replace(config, normalisation="none"), facts, folder)
    body = outline.body if isinstance(outline, Fronted) else outline
    own = stored_tensors(body)
    _check_fit({f"body.{name}" if fronted else name: tensor for name, tensor in own.items()}, stored, folder)


def _built(config: RunConfig, facts: Facts, folder: Path) -> nn.Module:
    try:
        front, body = front_and_body(config, facts)
    except InputError as error:
        raise InputError(f"run={str(folder)!r}: {error}") from None
    except (ValueError, TypeError, ArithmeticError, IndexError, RuntimeError, MemoryError) as error:
        raise InputError(f"run={str(folder)!r}: its model cannot be built: {first_line(error)}") from None
    return body if front is None else Fronted(front, body)


def _check_fit(own: Mapping[str, Tensor], stored: Mapping[str, Entry], folder: Path) -> None:
    """Every tensor of the model must be stored, in its own shape and type: nothing is cast or broadcast."""
    for name, tensor in sorted(own.items()):
        where, found = f"run={str(folder)!r}: model.safetensors", stored.get(name)
        if found is None:
            raise InputError(f"{where} has no {name!r}, which the model has")
        if found.shape != tuple(tensor.shape):
            raise InputError(f"{where}: {name!r} has shape {found.shape}; allowed: {tuple(tensor.shape)}")
        if found.dtype != tensor.dtype:
            raise InputError(f"{where}: {name!r} has dtype {_called(found.dtype)}; allowed: {_called(tensor.dtype)}")


def _called(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@torch.no_grad()
def _fill(own: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    for name, tensor in own.items():
        tensor.copy_(stored[name])
