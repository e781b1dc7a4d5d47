"""Where a model's weights start: from a file of another training of the same net, whose last layer starts afresh.

A file is public because whoever made it says so; a run's statement names it by its hash.
"""

import weakref
from pathlib import Path

import torch
from torch import nn

from adadpigu.errors import require
from adadpigu.tensors import digest, read_file

SAVED = ".safetensors"
_started: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


@torch.no_grad()
def start_from(model: nn.Module, file: str) -> nn.Module:
    """Gives a model the weights of a file that holds them all, or all but those of the last layer."""
    stored, metadata = read_file(Path(file), "initialisation")
    own = dict(model.named_parameters())
    last = list(own)[-1].rpartition(".")[0]
    told = f"initialisation={file!r}"
    for name, value in stored.items():
        fits = name in own and own[name].shape == value.shape
        shape = f"the model's is {tuple(own[name].shape)}" if name in own else "the model has none"
        require(fits, f"{told}: {name!r} of shape {tuple(value.shape)}; allowed: weights of this model, {shape}")
    lacking = next((name for name in own.keys() - stored.keys() if name.rpartition(".")[0] != last), None)
    require(lacking is None, f"{told} lacks {lacking!r}; allowed: all weights but those of the last layer, {last!r}")
    for name, value in stored.items():
        own[name].copy_(value)
    whence = metadata.get("trained on", "")[:200]
    said = f", by their file trained on {whence}" if whence and whence.isprintable() else ""
    weights = f"weights of SHA-256 {digest(sorted(stored.items()))[:16]}…{said}"
    _started[model] = f"where the model started: {weights}; only their maker can say that they saw no private record"
    return model


def started_from(model: nn.Module) -> tuple[str, ...]:
    """For the statement: the file that a model's weights came from, if any."""
    return tuple(told for told in [_started.get(model)] if told is not None)
