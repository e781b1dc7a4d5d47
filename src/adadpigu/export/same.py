"""That an exported model predicts what the trained one does: compared on synthetic records before a file is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from adadpigu.durable import write_bytes
from adadpigu.errors import InputError, ModelError, first_line
from adadpigu.export.synthetic import Synthetic

TOLERANCE = 1e-4
"""how far outputs may be apart, in units of the largest output or of 1, whichever is more"""
_BATCHES = (1, 2, 3, 16)
"""sizes that are tried: the first dimension is free, and programs like to specialise for one and two"""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file that was written, and how far its outputs were from the model's."""

    path: Path
    bytes: int
    difference: float
    """the largest that was seen, in the units of `TOLERANCE`, which it does not exceed"""


@torch.no_grad()
def difference(model: nn.Module, exported: Callable[[Tensor], Tensor], synthetic: Synthetic) -> float:
    """The largest difference between two models' outputs, relative to the largest output where that is above 1."""
    found = 0.0
    for size in _BATCHES:
        inputs = synthetic.draw(size, seed=size)
        wanted, got = model(inputs), exported(inputs)
        if wanted.shape != got.shape or not bool(torch.isfinite(wanted).all()):
            raise ModelError(
                f"outputs of shape {tuple(got.shape)} for {size} synthetic records; allowed: finite ones of the "
                f"model's shape {tuple(wanted.shape)}"
            )
        apart = (wanted.double() - got.double()).abs().max() / wanted.double().abs().max().clamp(min=1.0)
        found = max(found, float(apart.nan_to_num(nan=float("inf"))))
    return found


def require_same(model: nn.Module, exported: Callable[[Tensor], Tensor], synthetic: Synthetic, *, kind: str) -> float:
    """`difference`, refused beyond `TOLERANCE`."""
    try:
        apart = difference(model, exported, synthetic)
    except ModelError as error:
        raise ModelError(f"{kind} of this model was not written: {error}") from None
    except Exception as error:
        raise ModelError(f"{kind} of this model was not written: it does not run: {first_line(error)}") from error
    if not apart <= TOLERANCE:
        raise ModelError(
            f"{kind} of this model was not written: its outputs are up to {apart:.3g} from the model's on synthetic "
            f"records; allowed: up to {TOLERANCE:g}"
        )
    return apart


def check_new(path: Path, suffix: str = "") -> None:
    """Refuses a file that is there, since nothing is written over, and a name that its readers would not take."""
    if path.suffix != suffix and suffix:
        raise InputError(f"out={str(path)!r}; allowed: a name that ends in {suffix}, by which its readers know it")
    if path.exists() or path.is_symlink():
        raise InputError(f"out={str(path)!r} is there already; allowed: a new file")
    if not path.absolute().parent.is_dir():
        raise InputError(f"out={str(path)!r}: its folder is not there; allowed: a file in a folder that is")


def written(path: Path, content: bytes, apart: float) -> Exported:
    """Writes a file, whole or not at all."""
    try:
        write_bytes(path, content)
    except OSError as error:
        raise InputError(f"out={str(path)!r} cannot be written: {error.strerror}") from None
    return Exported(path=path, bytes=len(content), difference=apart)
