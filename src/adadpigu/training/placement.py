"""Where records and their features live while a run trains: features computed once, tensors on the device if they fit.

Features are as sensitive as the records they are made of: they are kept on disk for published benchmarks only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from adadpigu.data.cache import cache_folder
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.features.front import Front
from adadpigu.sampling import Population

_SHARE_OF_MEMORY = 0.3
"""of a GPU's free memory that records may take"""

Progress = Callable[[int, int], None]


def settle(
    data: DataSet, front: Front | None, device: torch.device, *, augmented: bool, progress: Progress | None = None
) -> tuple[DataSet, nn.Module | None]:
    """The data set as it is drawn from, and the part of the front that is left to do for each drawn record.

    Augmentation changes a record before its features, so then all of the front is left; otherwise features are
    computed here and the normaliser is left.
    """
    left: nn.Module | None = front
    if front is not None and not augmented and isinstance(data.train, TensorRecords):
        if front.features is not None:
            data = _featurised(data, front.features, device, progress)
        left = front.normaliser
    return _on_device(data, device), left


def _featurised(data: DataSet, features: nn.Module, device: torch.device, progress: Progress | None) -> DataSet:
    parts: dict[str, Population | None] = {}
    for name, records in (("train", data.train), ("test", data.test)):
        if isinstance(records, TensorRecords):
            made = _features(records.inputs, features, device, kept=data.published, progress=progress)
            parts[name] = TensorRecords(made, records.targets, name=data.name)
    return replace(data, **parts)  # type: ignore[arg-type]


def _features(
    inputs: Tensor, features: nn.Module, device: torch.device, *, kept: bool, progress: Progress | None
) -> Tensor:
    from adadpigu.features.cache import cached, computed

    if kept:
        return cached(inputs, features, folder=cache_folder() / "features", device=device, progress=progress)
    return computed(inputs, features, device=device, progress=progress)


def _on_device(data: DataSet, device: torch.device) -> DataSet:
    """Records on a GPU where they fit; drawing them there saves a copy a step and changes nothing else."""
    if device.type != "cuda":
        return data
    free, _ = torch.cuda.mem_get_info(device)
    sets = [records for records in (data.train, data.test) if isinstance(records, TensorRecords)]
    if sum(records.inputs.nbytes for records in sets) > _SHARE_OF_MEMORY * free:
        return data
    moved = {
        name: records.to(device)
        for name, records in (("train", data.train), ("test", data.test))
        if isinstance(records, TensorRecords)
    }
    return replace(data, **moved)  # type: ignore[arg-type]
