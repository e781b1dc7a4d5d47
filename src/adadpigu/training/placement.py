"""Where records and their features live while a run trains: features computed once, tensors on the device if they fit.

Features are as sensitive as the records they are made of: they are kept on disk for published benchmarks only.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from adadpigu.core.gradients.slicing import BLOCK
from adadpigu.core.randomness import SystemRandomness, isolated
from adadpigu.core.sampling import Population
from adadpigu.core.trees import Tree, count_rows, select, to_device
from adadpigu.data.augmentation import Augmentation
from adadpigu.data.cache import cache_folder
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.features.cache import at_once, cached, computed
from adadpigu.features.front import Front, apply_front
from adadpigu.training.memory import free_memory
from adadpigu.training.micro_batches import View, front_rows_alike

_SHARE_OF_MEMORY = 0.6  # of a device's free memory that records and features may take

_READ_TWICE = 32  # records that are read twice, to see whether they change

Progress = Callable[[float | None], None]
"""told the share of features that are computed; None where the number of records, hence any share, is private"""


def settle(
    data: DataSet,
    front: Front | None,
    device: torch.device,
    *,
    augmentation: Augmentation,
    progress: Progress | None = None,
) -> tuple[DataSet, View]:
    """Computes features beforehand where that is possible, and moves records to the device where they fit.

    Returns the data set as it is drawn from, and what is left to do for each drawn record. An augmented record has
    features of each of its variants; where these do not all fit, they are computed for each drawn copy.
    """
    tell: Progress = progress or (lambda _: None)
    features, records = None if front is None else front.features, data.train
    left: nn.Module | None = front
    variants: Tensor | None = None
    if front is None or features is None:
        pass
    elif not front.is_known or not isinstance(records, TensorRecords):
        kept = None if augmentation else _kept_in_memory(data, features, device, tell)
        data, left = (data, front) if kept is None else (kept, front.normaliser)
    elif not augmentation:
        data, left = _featurised(data, features, device, tell), front.normaliser
    else:
        every, told = _EveryVariant(features, augmentation), _told(records, tell)
        size = 4 * data.records * math.prod(every(records.inputs[:0].to(device)).shape[1:])
        if size <= _SHARE_OF_MEMORY * free_memory(device):
            variants = computed(records.inputs, every, device=device, progress=told, kept_on=device)
            left = front.normaliser
            positions = TensorRecords(torch.arange(len(records)), records.targets)
            data = _featurised(replace(data, train=positions), features, device, tell, parts=("test",))
    return _on_device(data, device), View(augmentation=augmentation, front=left, device=device, variants=variants)


def _kept_in_memory(data: DataSet, features: nn.Module, device: torch.device, progress: Progress) -> DataSet | None:
    """The features that any front makes of any records; None where items change at every reading, or do not fit."""
    parts = {name: found for name in ("train", "test") if (found := getattr(data, name)) is not None}
    if not all(_reads_alike(records) for records in parts.values()):
        return None
    with torch.no_grad():
        row = apply_front(features, to_device(data.train.take(torch.zeros(1, dtype=torch.long))[0], device))
    size = sum(leaf.nbytes for leaf in tree_leaves(row)) * sum(map(len, parts.values()))
    if size > _SHARE_OF_MEMORY * free_memory(torch.device("cpu")):
        return None
    with isolated(SystemRandomness(), device):  # items that are augmented now and then
        made = {name: _made_of(records, features, device, progress) for name, records in parts.items()}
    return replace(data, **made)  # type: ignore[arg-type]


@torch.no_grad()
def _made_of(records: Population, features: nn.Module, device: torch.device, progress: Progress) -> TensorRecords:
    parts = []
    example = records.take(torch.arange(0))[0]
    example = example[0] if isinstance(example, tuple | list) else example
    alike = device.type == "cpu" and front_rows_alike(features, example, 512)
    for places in torch.split(torch.arange(len(records)), at_once(device)):
        inputs, targets = records.take(places)
        made = _features_of(to_device(inputs, device), features, device, alike)
        parts.append(to_device((made, targets), torch.device("cpu")))
        progress(None)
    inputs, targets = tree_map(lambda *leaves: torch.cat(leaves), *parts)
    made = TensorRecords(inputs, targets, name=getattr(records, "name", "data"))
    made.whole = getattr(records, "whole", False)
    return made


def _features_of(inputs: Tree, features: nn.Module, device: torch.device, alike: bool) -> Tree:
    """The features of some records, each of which depends on no other record.

    A CPU may round a row by its place: unless a rehearsal has shown that it does not (`alike`), records go one at a
    time; else in whole blocks, whose last rows repeat the first record.
    """
    count = count_rows(inputs)
    if device.type != "cpu" or count == 0:
        return apply_front(features, inputs)
    if alike:
        filled = torch.arange(-(-count // BLOCK) * BLOCK)
        return select(apply_front(features, select(inputs, torch.where(filled < count, filled, 0))), slice(count))
    made = [apply_front(features, select(inputs, slice(row, row + 1))) for row in range(count)]
    return tree_map(lambda *leaves: torch.cat(leaves), *made)


def _reads_alike(records: Population) -> bool:
    """Whether records are the same at every reading: not if a data set augments them at random."""
    if isinstance(records, TensorRecords):
        return True
    places = torch.arange(min(len(records), _READ_TWICE))
    with isolated(SystemRandomness(), torch.device("cpu")):
        once, again = (tree_leaves(records.take(places)) for _ in range(2))
    return all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def _featurised(
    data: DataSet,
    features: nn.Module,
    device: torch.device,
    progress: Progress,
    parts: tuple[str, ...] = ("train", "test"),
) -> DataSet:
    made: dict[str, Population] = {}
    for name in parts:
        records = getattr(data, name)
        if isinstance(records, TensorRecords):
            kept = partial(cached, folder=cache_folder() / "features") if records.published else computed
            values = kept(records.inputs, features, device=device, progress=_told(records, progress))
            made[name] = TensorRecords(values, records.targets, name=data.name)
    return replace(data, **made)  # type: ignore[arg-type]


def _told(records: TensorRecords, progress: Progress) -> Callable[[int, int], None]:
    """Passes on how far a loop over records is: of private records only that it goes on."""
    return lambda done, total: progress(done / total if records.published else None)


class _EveryVariant(nn.Module):
    """The features of every variant of each record, [n, v, ...]."""

    def __init__(self, features: nn.Module, augmentation: Augmentation) -> None:
        super().__init__()
        self._features, self._augmentation = features, augmentation

    def forward(self, inputs: Tensor) -> Tensor:
        which = inputs.new_zeros(len(inputs), dtype=torch.long)
        shown = (self._augmentation.show(inputs, which + variant) for variant in range(self._augmentation.variants))
        return torch.stack([self._features(images) for images in shown], dim=1)


def _on_device(data: DataSet, device: torch.device) -> DataSet:
    """Records on a GPU where they fit; drawing them there saves a copy a step and changes nothing else."""
    if device.type != "cuda":
        return data
    sets = {name: getattr(data, name) for name in ("train", "test")}
    held = {name: records for name, records in sets.items() if isinstance(records, TensorRecords)}
    if sum(records.nbytes for records in held.values()) > _SHARE_OF_MEMORY * free_memory(device):
        return data
    return replace(data, **{name: records.to(device) for name, records in held.items()})  # type: ignore[arg-type]
