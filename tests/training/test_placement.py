"""Where features live: private ones never on disk, published ones computed once, all variants held where they fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from adadpigu.config import RunConfig
from adadpigu.data import DataSet, TensorRecords
from adadpigu.data.augmentation import Augmentation
from adadpigu.features.front import Front
from adadpigu.features.scattering import Scattering
from adadpigu.methods import DPSGD
from adadpigu.models import make_model
from adadpigu.training import placement
from adadpigu.training.micro_batches import View
from adadpigu.training.options import TrainingOptions
from adadpigu.training.placement import settle
from trials import prepare_small

CPU = torch.device("cpu")
DECLARED, TRAIN, TEST = 700, 600, 60
"""more records than one chunk holds; the declared count is another than the true one"""
FEATURES = Scattering((1, 8, 8)).features
MOVED = Augmentation(copies=2, shift=2, shift_step=2, flip=True)
MIRRORED = Augmentation(flip=True)


def images(count: int, seed: int) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def data(*, train: bool = False, test: bool = False, count: int = TRAIN) -> DataSet:
    """A data set of which the parts named are published."""
    return DataSet(
        name="rand",
        train=TensorRecords(images(count, 1), torch.arange(count) % 10, published=train),
        test=TensorRecords(images(TEST, 2), torch.arange(TEST) % 7, published=test),
        records=DECLARED,
        shape=(1, 8, 8),
    )


def front() -> Front:
    return Front(Scattering((1, 8, 8)), torch.nn.GroupNorm(9, FEATURES[0], affine=False))


def settled(
    records: DataSet, augmentation: Augmentation | None = None, told: list[float | None] | None = None
) -> tuple[DataSet, View]:
    return settle(
        records,
        front(),
        CPU,
        augmentation=augmentation or Augmentation(),
        progress=None if told is None else told.append,
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place to write to that a run is told of."""
    for name in ("ADADPIGU_DATA", "XDG_CACHE_HOME", "HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def transformed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each call of the transform is given."""
    sizes: list[int] = []
    genuine = Scattering.forward

    def counted(self: Scattering, x: Tensor) -> Tensor:
        sizes.append(len(x))
        return genuine(self, x)

    monkeypatch.setattr(Scattering, "forward", counted)
    return sizes


def kept_rows(folder: Path) -> list[int]:
    """The number of records of each file of features on disk."""
    return sorted(len(load_file(file)["features"]) for file in folder.rglob("*.safetensors"))


@pytest.mark.parametrize("augmentation", [Augmentation(), MOVED], ids=["plain", "augmented"])
def test_features_of_private_records_are_never_on_disk(folder: Path, augmentation: Augmentation) -> None:
    settled(data(count=50), augmentation)
    assert list(folder.rglob("*")) == []


@pytest.mark.parametrize("options", [{}, {"copies": 2, "shift": 1}], ids=["plain", "augmented"])
def test_a_run_on_private_records_is_made_ready_without_a_file(folder: Path, options: dict[str, Any]) -> None:
    ready = prepare_small(
        DPSGD(), net=lambda: make_model("scatter-linear", shape=FEATURES, seed=0), front=front(), **options
    )
    assert (ready.view.variants is None) == (not options)
    assert list(folder.rglob("*")) == []


def test_each_part_is_kept_only_if_it_is_published_itself(folder: Path) -> None:
    settled(data(test=True))
    assert kept_rows(folder) == [TEST]
    settled(data(train=True))
    assert kept_rows(folder) == [TEST, TRAIN]


def test_features_of_published_records_are_computed_once_and_found_again(folder: Path, transformed: list[int]) -> None:
    first, _ = settled(data(train=True, test=True))
    assert sum(transformed) == TRAIN + TEST
    assert kept_rows(folder) == [TEST, TRAIN]
    transformed.clear()
    again, _ = settled(data(train=True, test=True))
    assert sum(transformed) == 0
    for ours, theirs in ((first.train, again.train), (first.test, again.test)):
        assert isinstance(ours, TensorRecords)
        assert isinstance(theirs, TensorRecords)
        assert torch.equal(ours.inputs, theirs.inputs)


def test_private_features_are_computed_anew_each_time(transformed: list[int]) -> None:
    for _ in range(2):
        transformed.clear()
        settled(data())
        assert sum(transformed) == TRAIN + TEST


@pytest.mark.parametrize("published", [False, True])
def test_a_record_keeps_its_target_and_becomes_its_features_with_the_normaliser_left_to_do(published: bool) -> None:
    placed, view = settled(data(train=published, test=published))
    transform = Scattering((1, 8, 8))
    for part, seed, classes in ((placed.train, 1, 10), (placed.test, 2, 7)):
        assert isinstance(part, TensorRecords)
        assert part.targets.tolist() == [k % classes for k in range(len(part))]
        torch.testing.assert_close(part.inputs, transform(images(len(part), seed)))
    assert isinstance(view.front, torch.nn.GroupNorm)
    assert view.variants is None
    assert placed.records == DECLARED


@pytest.mark.slow
def test_every_variant_of_every_record_is_the_features_of_what_the_augmentation_shows() -> None:
    """One record and one variant at a time; records beyond the first chunk too."""
    placed, view = settled(data(), MOVED)
    transform = Scattering((1, 8, 8))
    assert view.variants is not None
    assert view.variants.shape == (TRAIN, MOVED.variants, *FEATURES)
    for record in (0, 1, 499, 500, TRAIN - 1):
        for variant in range(MOVED.variants):
            shown = MOVED.show(images(TRAIN, 1)[record : record + 1], torch.tensor([variant]))
            torch.testing.assert_close(view.variants[record, variant], transform(shown)[0])
    positions, test = placed.train, placed.test
    assert isinstance(positions, TensorRecords)
    assert positions.inputs.tolist() == list(range(TRAIN))
    assert positions.targets.tolist() == [k % 10 for k in range(TRAIN)]
    assert isinstance(test, TensorRecords)
    torch.testing.assert_close(test.inputs, transform(images(TEST, 2)))  # test records are shown as they are
    assert isinstance(view.front, torch.nn.GroupNorm)


def test_variants_are_held_where_four_bytes_each_of_the_declared_records_fit_three_fifths_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The true number of records is private: what is held depends on the declared one alone."""
    needed = 4 * DECLARED * MOVED.variants * FEATURES[0] * FEATURES[1] * FEATURES[2] / 0.6
    for count in (40, 41):
        for share, fits in ((1 - 1e-6, False), (1 + 1e-6, True)):
            monkeypatch.setattr(placement, "free_memory", lambda _, free=needed * share: free)
            placed, view = settled(data(count=count), MOVED)
            assert (view.variants is not None) == fits
            assert isinstance(view.front, torch.nn.GroupNorm if fits else Front)
            inputs, _ = placed.train.take(torch.arange(3))
            assert inputs.ndim == (1 if fits else 4)


@pytest.mark.parametrize("augmentation", [Augmentation(), MIRRORED], ids=["plain", "augmented"])
def test_progress_on_published_records_is_a_share_that_ends_at_one(augmentation: Augmentation) -> None:
    told: list[float | None] = []
    settled(data(train=True, test=True), augmentation, told)
    parts = augmentation.variants
    training = [(part + share) / parts for part in range(parts) for share in (500 / TRAIN, 1.0)]  # chunks of 500
    assert told == [*training, 1.0]  # then the test records


@pytest.mark.parametrize("augmentation", [Augmentation(), MIRRORED], ids=["plain", "augmented"])
def test_progress_on_private_records_tells_no_share(augmentation: Augmentation) -> None:
    told: list[float | None] = []
    settled(data(), augmentation, told)
    assert told == [None] * (2 * augmentation.variants + 1)


def test_records_without_a_transform_are_left_as_they_are(transformed: Sequence[int]) -> None:
    given = data(train=True)
    for before in (None, Front(None, torch.nn.LayerNorm((1, 8, 8), elementwise_affine=False))):
        placed, view = settle(given, before, CPU, augmentation=MOVED)
        assert (placed, view.front, view.variants) == (given, before, None)
    assert not transformed


def test_python_and_the_command_line_choose_the_device_alike() -> None:
    """A run from Python on a machine with a GPU trained on its CPU."""
    assert TrainingOptions(steps=1).device == RunConfig().device == "auto"
