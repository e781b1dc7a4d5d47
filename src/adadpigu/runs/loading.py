"""A finished run read back from its folder: config, model, data. The folder may come from a stranger.

TOML, JSON and safetensors; nothing is unpickled, and no code is imported unless the caller says so. What a file claims
is checked before anything is allocated for it: a model is built as shapes alone first, and must be the stored one.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.config import RunConfig, merge, parse
from adadpigu.data import DataSet, is_named, load_dataset
from adadpigu.data.augmentation import parse_views
from adadpigu.data.description import DESCRIPTION, ArrayFacts, Description, read_description
from adadpigu.data.own import find_description
from adadpigu.errors import InputError, first_line, require
from adadpigu.features.front import Front, Fronted, is_own, make_front, whole
from adadpigu.models import make_model
from adadpigu.runs.digests import text_digest
from adadpigu.runs.reading import CONFIG, DataFacts, config_of, file_of, read_data_facts, text_of
from adadpigu.runs.run import MODEL, stored_tensors
from adadpigu.runs.verifying import verify
from adadpigu.tensors import read_tensors


@dataclass(frozen=True)
class LoadedRun:
    """What a run folder holds. The data set itself is not needed to use the model."""

    folder: Path
    config: RunConfig
    model: nn.Module
    facts: DataFacts
    description: Description | None  # of own data: how records are encoded

    def data(self) -> DataSet:
        """The data set, from where it was; refused where its description is not the one of the run."""
        if self.description is not None:
            now = described(self.config)
            said = text_digest(DESCRIPTION, self.description.path.read_bytes())
            if now is None or text_digest(DESCRIPTION, now.path.read_bytes()) != said:
                fault = f"run={str(self.folder)!r}: the description of its data has changed since training"
                raise InputError(f"{fault}; allowed: the one in {str(self.description.path)!r}")
        name, folder, there = self.config.dataset, str(self.folder), "on test records of yours"
        fault = f"run={folder!r}: its data set {name!r} was made in Python and is not kept"
        remedy = f"`adadpigu predict {folder} FILE`, or in Python adadpigu.load({folder!r}, model), {there}"
        require(not self.facts.built or is_named(name) or Path(name).exists(), f"{fault}; allowed: {remedy}")
        return load_data(self.config)


def load_run(folder: Path, *, trust_code: bool = False) -> LoadedRun:
    """Reads a run folder. A model called `package.module:function` is code, which only `trust_code` lets run."""
    text, facts = text_of(folder, CONFIG), read_data_facts(folder)
    path = file_of(folder, MODEL)
    config = _with_model(merge(parse(text, str(folder / CONFIG))), facts, folder)
    if not trust_code:
        refuse_code(config, folder)
    description = _description(folder, facts)
    stored = read_tensors(path, "model")
    if not _is_code(config):
        _check_outline(config, facts, stored, folder)
    model = _built(config, facts, folder)
    _fill(model, stored, folder)
    if further := sorted(stored.keys() - stored_tensors(model).keys()):
        raise InputError(f"run={str(folder)!r}: {MODEL} has {further[0]!r}, which the model does not have")
    return LoadedRun(folder, config, model.eval(), facts, description)


def load_into(folder: Path | str, model: nn.Module, *, front: nn.Module | None = None) -> nn.Module:
    """Gives a model of your own the weights of a run that trained such a model, and returns it; behind `front`, if any.

    The run may be one of the Hugging Face trainer. Warns where the weights are not those that its ledger names.
    """
    folder = Path(folder)
    views = config_of(folder)[1].get("views", "none") if (folder / CONFIG).exists() else "none"
    model = whole(None if front is None else Front.of(front), model, parse_views(str(views)))
    stored, own = read_tensors(file_of(folder, MODEL), "model"), stored_tensors(model)
    alone = own.keys() <= {name.removeprefix("body.") for name in stored} - stored.keys()
    require(not alone, f"run={str(folder)!r} had a front before such a model; allowed: front=, the module before it")
    packed = not own.keys() & stored.keys() and all(name.startswith("model.") for name in stored)
    prefix = "model." if packed else ""
    _fill(model, {name.removeprefix(prefix): tensor for name, tensor in stored.items()}, folder)
    if text := verify(folder).warning:
        warnings.warn(text, UserWarning, stacklevel=2)
    return model


def _with_model(config: RunConfig, facts: DataFacts, folder: Path) -> RunConfig:
    """A config that names no model is of a run from Python: data.json says how its model is built, or whose it is."""
    if config.model is not None:
        return config
    name, activation = facts.built.get("model"), facts.built.get("activation")
    if isinstance(name, str) and isinstance(activation, str | None):
        return replace(config, model=name, activation=activation)
    kind = str(facts.built.get("class", "another class"))
    shown = kind if len(kind) <= 100 and kind.isprintable() else "another class"
    fault = f"was made in Python, with a model of your own ({shown}), which only your code can build"
    raise InputError(f"run={str(folder)!r} {fault}; allowed: in Python, adadpigu.load({str(folder)!r}, model)")


def refuse_code(config: RunConfig, folder: Path) -> None:
    """Refuses a config whose model or features are code, or a file outside the folder, which may be a stranger's."""
    if _is_code(config):
        own = is_own(config.features)
        named = f"features={config.features!r}" if own else f"model={config.model!r}"
        does = "open a file" if own and ":" not in config.features else "import and run code"
        remedy = "--trust-model-code, in Python load_run(folder, trust_code=True)"
        fault = f"run={str(folder)!r}: its {named} would {does}"
        raise InputError(f"{fault}; allowed only if you trust whoever made the folder: {remedy}")


def _is_code(config: RunConfig) -> bool:
    return (config.model is not None and ":" in config.model) or is_own(config.features)


def _description(folder: Path, facts: DataFacts) -> Description | None:
    """How records of own data are encoded; it must be of the data that the model was built for."""
    if not (folder / DESCRIPTION).is_symlink() and not (folder / DESCRIPTION).exists():
        return None
    text_of(folder, DESCRIPTION)
    found = read_description(folder / DESCRIPTION)
    shape = facts.shape if isinstance(found.facts, ArrayFacts) else found.facts.shape
    if (shape, len(found.classes)) != (facts.shape, facts.classes):
        fault = f"{DESCRIPTION} tells of records of shape {shape} in {len(found.classes)} classes"
        allowed = f"what data.json tells, {facts.shape} in {facts.classes}"
        raise InputError(f"run={str(folder)!r}: {fault}; allowed: {allowed}")
    odd = [name for name in found.classes if not name.isprintable()]
    if odd:
        raise InputError(f"run={str(folder)!r}: {DESCRIPTION} has a class {odd[0]!r}; allowed: printable names")
    return found


def _check_outline(config: RunConfig, facts: DataFacts, stored: Mapping[str, Tensor], folder: Path) -> None:
    """Refuses a model that is not the stored one before memory is taken for it: here it has shapes alone."""
    plain = (config.features, config.normalisation, config.views) == ("none", "none", "none")
    fronted = facts.shape is not None and not plain
    with torch.device("meta"):
        outline = _built(replace(config, normalisation="none"), facts, folder)
    own = stored_tensors(outline.body if isinstance(outline, Fronted) else outline)
    _check_fit({f"body.{name}" if fronted else name: tensor for name, tensor in own.items()}, stored, folder)


def _built(config: RunConfig, facts: DataFacts, folder: Path) -> nn.Module:
    try:  # where weights started does not matter: the run's own take their place
        front, body = front_and_body(replace(config, initialisation="default"), facts)
    except (ValueError, TypeError, ArithmeticError, IndexError, RuntimeError, MemoryError) as error:
        why = error if isinstance(error, InputError) else f"its model cannot be built: {first_line(error)}"
        raise InputError(f"run={str(folder)!r}: {why}") from None
    return whole(front, body, parse_views(config.views))


def _check_fit(own: Mapping[str, Tensor], stored: Mapping[str, Tensor], folder: Path) -> None:
    """Every tensor of the model must be stored, in its own shape and type: nothing is cast or broadcast."""
    for name, tensor in sorted(own.items()):
        wanted, found = _shown(tensor), _shown(stored.get(name))
        if found != wanted:
            raise InputError(f"run={str(folder)!r}: {MODEL}: {name!r} is {found}; the model has {wanted}")


def _shown(tensor: Tensor | None) -> str:
    if tensor is None:
        return "missing"
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


@torch.no_grad()
def _fill(model: nn.Module, stored: Mapping[str, Tensor], folder: Path) -> None:
    own = stored_tensors(model)
    _check_fit(own, stored, folder)
    for name, tensor in own.items():
        tensor.copy_(stored[name])


def load_data(config: RunConfig) -> DataSet:
    describe = None if config.describe is None else Path(config.describe)
    return load_dataset(config.dataset, records=config.records, classes=config.classes, describe=describe)


def described(config: RunConfig) -> Description | None:
    """The description of own data that a config goes by; None where there is none."""
    describe = None if config.describe is None else Path(config.describe)
    return None if is_named(config.dataset) else find_description(Path(config.dataset), describe)


def front_and_body(
    config: RunConfig, data: DataSet | DataFacts, seed: int | None = None
) -> tuple[Front | None, nn.Module]:
    """The fixed front that a config names, if any, and a model for what it makes (a small MLP where none is named)."""
    front, shape = None, data.shape
    if shape is not None:
        bounds = {"normalisation_clip": config.normalisation_clip, "normalisation_noise": config.normalisation_noise}
        front, shape = make_front(config.features, config.normalisation, shape, views=config.feature_views, **bounds)
    how: dict[str, Any] = {"activation": config.activation, "initialisation": config.initialisation}
    return front, make_model(config.model or "mlp", shape=shape, classes=data.classes or 10, seed=seed, **how)
