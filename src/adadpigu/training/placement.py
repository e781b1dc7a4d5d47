"""Where records and their features live while a run trains: features computed once, tensors on the device if they fit.

Features are as sensitive as the records they are made of: they are kept on disk for published benchmarks only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from adadpigu.data.augmentation import Augmentation
from adadpigu.data.cache import cache_folder
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.features.front import Front
from adadpigu.sampling import Population
from adadpigu.training.memory import free_memory

_SHARE_OF_MEMORY = 0.6
"""of a device's free memory that records and features may take"""

Progress = Callable[[float | None], None]
"""told the share of features that are computed; None where the number of records, hence any share, is private"""


@dataclass(frozen=True)
class Placement:
    """The data set as it is drawn from, and what is left to do for each drawn record."""

    data: DataSet
    front: nn.Module | None
    variants: Tensor | None = None
    """the features of every variant of every record, where records are augmented and these fit"""


def settle(
    data: DataSet,
    front: Front | None,
    device: torch.device,
    *,
    augmentation: Augmentation,
    progress: Progress | None = None,
) -> Placement:
    """Computes features beforehand where that is possible, and moves records to the device where they fit.

    Without augmentation a record has one set of features. With it, a record has as many as there are variants of it;
    where they do not all fit, features are computed for each drawn copy.
    """
    features = None if front is None else front.features
    if front is None or features is None or not isinstance(data.train, TensorRecords):
        return Placement(_on_device(data, device), front)
    if not augmentation:
        return Placement(_on_device(_featurised(data, features, device, progress), device), front.normaliser)
    shape = features(data.train.inputs[:0].to(device)).shape[1:]
    if 4 * data.records * augmentation.variants * math.prod(shape) > _SHARE_OF_MEMORY * free_memory(device):
        return Placement(_on_device(data, device), front)
    variants = _variants(data.train, features, augmentation, device, progress)
    positions = TensorRecords(torch.arange(len(data.train)), data.train.targets)
    test = _featurised(replace(data, train=positions), features, device, progress, parts=("test",)).test
    return Placement(_on_device(replace(data, train=positions, test=test), device), front.normaliser, variants)


def _featurised(
    data: DataSet,
    features: nn.Module,
    device: torch.device,
    progress: Progress | None,
    parts: tuple[str, ...] = ("train", "test"),
) -> DataSet:
    made: dict[str, Population] = {}
    for name in parts:
        records = getattr(data, name)
        if isinstance(records, TensorRecords):
            values = _features(records, features, device, progress)
            made[name] = TensorRecords(values, records.targets, name=data.name)
    return replace(data, **made)  # type: ignore[arg-type]


def _features(records: TensorRecords, features: nn.Module, device: torch.device, progress: Progress | None) -> Tensor:
    from adadpigu.features.cache import cached, computed

    told = _told(records, progress)
    if records.published:
        return cached(records.inputs, features, folder=cache_folder() / "features", device=device, progress=told)
    return computed(records.inputs, features, device=device, progress=told)


def _told(records: TensorRecords, progress: Progress | None) -> Callable[[int, int], None]:
    """Passes on how far a loop over records is: of private records only that it goes on."""

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(done / total if records.published else None)

    return tell


@torch.no_grad()
def _variants(
    records: TensorRecords,
    features: nn.Module,
    augmentation: Augmentation,
    device: torch.device,
    progress: Progress | None,
) -> Tensor:
    """[n, v, ...] on the device."""
    features.to(device)
    inputs, told = records.inputs, _told(records, progress)
    shape = features(inputs[:0].to(device)).shape[1:]
    made = torch.empty(len(inputs), augmentation.variants, *shape, device=device)
    from adadpigu.features.cache import at_once

    chunk = at_once(device)
    for start in range(0, len(inputs), chunk):
        part = inputs[start : start + chunk].to(device)
        for variant in range(augmentation.variants):
            which = torch.full((len(part),), variant, device=device)
            made[start : start + chunk, variant] = features(augmentation.show(part, which))
        told(min(start + chunk, len(inputs)), len(inputs))
    return made


def _on_device(data: DataSet, device: torch.device) -> DataSet:
    """Records on a GPU where they fit; drawing them there saves a copy a step and changes nothing else."""
    if device.type != "cuda":
        return data
    sets = {name: getattr(data, name) for name in ("train", "test")}
    held = {name: records for name, records in sets.items() if isinstance(records, TensorRecords)}
    if sum(records.inputs.nbytes for records in held.values()) > _SHARE_OF_MEMORY * free_memory(device):
        return data
    return replace(data, **{name: records.to(device) for name, records in held.items()})  # type: ignore[arg-type]
