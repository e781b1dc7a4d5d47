"""Where records and their features live while a run trains: features computed once, tensors on the device if they fit.

Features are as sensitive as the records they are made of: they are kept on disk for published benchmarks only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
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

_MOST_ON_DISK = 4  # variants of records whose features are kept there: the image and its mirror image, not all shifts

_READ_TWICE = 32  # records that are read twice, to see whether they change

Progress = Callable[[float | None], None]
"""told the share of features that are computed; None where the number of records, hence any share, is private"""


def settle(
    data: DataSet,
    front: Front | None,
    device: torch.device,
    *,
    augmentation: Augmentation,
    views: Augmentation | None = None,
    progress: Progress | None = None,
) -> tuple[DataSet, View]:
    """Computes features beforehand where that is possible, and moves records to the device where they fit.

    Returns the data set as it is drawn from, and what is left to do for each drawn record. An augmented record has
    features of each of its variants; where these do not all fit, they are computed for each drawn copy. A test record
    has features of each of the `views` that outputs are averaged over.
    """
    tell: Progress = progress or (lambda _: None)
    features, records, views = None if front is None else front.features, data.train, views or Augmentation()
    left: nn.Module | None = front
    tested: nn.Module | None = front
    variants: Tensor | None = None
    if front is None or features is None:
        pass
    elif not front.is_known or not isinstance(records, TensorRecords):
        kept = None if augmentation or views else _kept_in_memory(data, features, device, tell)
        if kept is not None:
            data, left, tested = kept, front.normaliser, front.normaliser
    else:
        make = _Maker(features, device, tell)
        if not augmentation:
            data, left = replace(data, train=make.records(records, data.name)), front.normaliser
        elif make.bytes_of(records, augmentation, data.records) <= _SHARE_OF_MEMORY * free_memory(device):
            variants, left = make.variants(records, augmentation, kept_on=device), front.normaliser
            data = replace(data, train=TensorRecords(torch.arange(len(records)), records.targets))
        if isinstance(data.test, TensorRecords) and left is not front:
            data, tested = replace(data, test=make.records(data.test, data.name, views)), front.normaliser
    view = View(
        augmentation=augmentation,
        front=left,
        device=device,
        variants=variants,
        test_front=tested,
        test_views=bool(views) and tested is not front,
    )
    return _on_device(data, device), view


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


@dataclass(frozen=True)
class _Maker:
    """Makes features of records, or of each variant of them; those of published ones are kept on disk."""

    features: nn.Module
    device: torch.device
    progress: Progress

    def records(self, records: TensorRecords, name: str, views: Augmentation | None = None) -> TensorRecords:
        """The features [n, ...], or [n, views, ...], with the targets."""
        made = self.variants(records, views) if views else self._plain(records, self.features, 0, 1)
        return TensorRecords(made, records.targets, name=name)

    def variants(self, records: TensorRecords, looks: Augmentation, kept_on: torch.device | None = None) -> Tensor:
        """The features of every variant of each record, [n, v, ...], in main memory or on a device."""
        made = torch.empty(len(records), looks.variants, *self._shape(records), device=kept_on)
        for variant in range(looks.variants):
            own = self.features if variant == looks.plain else _OneVariant(self.features, looks, variant)
            made[:, variant] = self._plain(records, own, variant, looks.variants)
        return made

    def bytes_of(self, records: TensorRecords, looks: Augmentation, declared: int) -> int:
        """What the features of every variant of so many records take."""
        return 4 * declared * looks.variants * math.prod(self._shape(records))

    def _shape(self, records: TensorRecords) -> tuple[int, ...]:
        with torch.no_grad():
            return tuple(self.features(records.inputs[:0].to(self.device)).shape[1:])

    def _plain(self, records: TensorRecords, features: nn.Module, part: int, parts: int) -> Tensor:
        keep = records.published and parts <= _MOST_ON_DISK
        make = partial(cached, folder=cache_folder() / "features") if keep else computed

        def told(done: int, total: int) -> None:
            """Passes on how far it is: of private records only that it goes on."""
            self.progress((part + done / total) / parts if records.published else None)

        return make(records.inputs, features, device=self.device, progress=told)


class _OneVariant(nn.Module):
    """The features of one variant of each image."""

    def __init__(self, features: nn.Module, looks: Augmentation, variant: int) -> None:
        super().__init__()
        self._features, self._looks, self._variant = features, looks, variant
        self.signature = f"{features.signature} of variant {variant}: {replace(looks, copies=1)}"

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self._features(self._looks.show_one(inputs, self._variant))
        return made


def _on_device(data: DataSet, device: torch.device) -> DataSet:
    """Records on a GPU where they fit; drawing them there saves a copy a step and changes nothing else."""
    if device.type != "cuda":
        return data
    sets = {name: getattr(data, name) for name in ("train", "test")}
    held = {name: records for name, records in sets.items() if isinstance(records, TensorRecords)}
    if sum(records.nbytes for records in held.values()) > _SHARE_OF_MEMORY * free_memory(device):
        return data
    return replace(data, **{name: records.to(device) for name, records in held.items()})  # type: ignore[arg-type]
