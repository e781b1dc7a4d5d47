"""A loader is taken if it decides nothing but the batch size; what else it decides is refused by name, or told."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import adadpigu as ad
from adadpigu.integrations.loaders import DROP_LAST, tell_ignored, validate_loader

DATA = TensorDataset(torch.zeros(6, 2))


class Endless(IterableDataset[Any]):
    """No length, no positions."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class OwnLoader(DataLoader[Any]):
    """Chooses by itself."""

    def __iter__(self) -> Any:
        return iter(())


class OwnSequence(SequentialSampler):
    """May go another way than the class it derives from."""


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: [DATA], "mine: a list makes its own batches; allowed: a DataLoader"),
        (lambda: OwnLoader(DATA), "mine: a OwnLoader makes its own batches"),
        (lambda: DataLoader(Endless()), "mine: Endless has no length or no positions.*map-style Dataset"),
        (lambda: DataLoader(TensorDataset(torch.zeros(0, 2))), "mine: there is no record; allowed: at least 1"),
        (lambda: DataLoader(DATA, batch_size=None), "mine: a batch_sampler of your own.*allowed: batch_size"),
        (lambda: DataLoader(DATA, batch_sampler=[[0], [1]]), "mine: a batch_sampler of your own"),
        (
            lambda: DataLoader(DATA, batch_sampler=type("Own", (BatchSampler,), {})(range(6), 2, False)),
            "mine: a batch_sampler of your own",
        ),
        (lambda: DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 6, 6)), "sampler=WeightedRandomSampler choos"),
        (lambda: DataLoader(DATA, sampler=SubsetRandomSampler(range(3))), "sampler=SubsetRandomSampler chooses"),
        (lambda: DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)), "sampler=RandomSampler chooses"),
        (lambda: DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=3)), "sampler=RandomSampler chooses"),
        (lambda: DataLoader(DATA, sampler=OwnSequence(DATA)), "sampler=OwnSequence chooses records"),
    ],
)
def test_what_decides_who_comes_together_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ad.InputError, match=told):
        validate_loader(make(), "mine")


def test_what_has_no_effect_is_found_and_told() -> None:
    loader = DataLoader(DATA, batch_size=2, shuffle=True, drop_last=True, num_workers=1)
    found, ignored = validate_loader(loader, "mine")
    assert found is loader
    assert ignored == ("shuffle=True", DROP_LAST, "num_workers=1")
    with pytest.warns(UserWarning, match="mine: shuffle=True and drop_last=True and num_workers=1 has no effect"):
        tell_ignored(ignored, "mine")


def test_a_plain_loader_is_taken_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, ignored = validate_loader(DataLoader(DATA, batch_size=2), "mine")
        tell_ignored(ignored, "mine")
    assert ignored == ()
