"""The published data sets as the trainer takes them: pixels in [0, 1], the official split, the record count declared.

Pixels are divided by 255, the public end of their range; record count, shape and number of classes come from the
description that is pinned in the package, never from the records.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.fetching import ensure
from adadpigu.data.formats import Pixels, read_cifar, read_idx
from adadpigu.data.published import Published
from adadpigu.data.registry import ALIASES, PUBLISHED
from adadpigu.data.watching import OnScreen, Watcher
from adadpigu.errors import unknown


def find_published(name: str) -> Published:
    """A published data set by its name or alias.

    >>> find_published("fashion").name
    'fashion-mnist'
    """
    found = PUBLISHED.get(ALIASES.get(name, name))
    if found is None:
        raise unknown("dataset", name, PUBLISHED)
    return found


def published_dataset(published: Published, watcher: Watcher | None = None) -> DataSet:
    """A published data set, fetched first where the cache does not hold it; standard error tells so."""
    pieces = ensure(published, watcher=OnScreen() if watcher is None else watcher).pieces
    name = published.name
    return DataSet(
        name=name,
        train=_records(published, published.train, pieces, name),
        test=_records(published, published.test, pieces, f"{name} test"),
        records=published.records,
        classes=published.classes,
        shape=published.shape,
        public=("pixel range 0 to 255", f"{published.classes} classes", f"{published.records:,} records"),
    )


def _records(published: Published, names: tuple[str, ...], pieces: Mapping[str, bytes], title: str) -> TensorRecords:
    images, labels = read_pieces(published, names, pieces)
    inputs = torch.from_numpy(images.astype(np.float32)).div_(255.0)
    return TensorRecords(inputs, torch.from_numpy(labels.astype(np.int64)), name=title, published=True)


def read_pieces(published: Published, names: tuple[str, ...], pieces: Mapping[str, bytes]) -> tuple[Pixels, Pixels]:
    """Images [n, channels, height, width] and labels [n], in the official order."""
    if published.kind == "idx":
        images, labels = (read_idx(pieces[name]) for name in names)
    else:
        batches = [read_cifar(pieces[name]) for name in names]
        images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    return images.reshape(-1, *published.shape), labels
