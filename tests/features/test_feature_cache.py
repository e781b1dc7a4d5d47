"""Features are computed once, found by content, and never taken from a damaged file or left half-written."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from adadpigu.errors import InputError
from adadpigu.features.cache import CacheWarning, cached, computed
from adadpigu.features.scattering import Scattering


class Doubled(nn.Module):
    """A transform that counts its calls on records."""

    def __init__(self, signature: str = "doubled v1") -> None:
        super().__init__()
        self.signature = signature
        self.records = 0

    def forward(self, x: Tensor) -> Tensor:
        self.records += len(x)
        return 2 * x.flatten(1)


@pytest.fixture
def inputs() -> Tensor:
    return torch.rand(1203, 2, 3, generator=torch.Generator().manual_seed(0))


def stored(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_features_are_computed_once_and_then_found(tmp_path: Path, inputs: Tensor) -> None:
    told: list[tuple[int, int]] = []
    first, again = Doubled(), Doubled()
    made = cached(inputs, first, folder=tmp_path / "new", progress=lambda done, total: told.append((done, total)))
    found = cached(inputs.clone(), again, folder=tmp_path / "new", progress=lambda *_: pytest.fail("computed again"))
    assert torch.equal(made, 2 * inputs.flatten(1))
    assert torch.equal(found, made)
    assert (first.records, again.records) == (1203, 0)
    assert told[-1] == (1203, 1203)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert torch.equal(load_file(stored(tmp_path / "new")[0])["features"], made)


def test_scattering_features_from_the_cache_equal_the_transform(tmp_path: Path) -> None:
    images = torch.rand(7, 1, 28, 28)
    transform = Scattering((1, 28, 28))
    for _ in range(2):
        assert torch.allclose(cached(images, transform, folder=tmp_path), transform(images), atol=1e-6)


def test_other_inputs_shapes_types_or_signatures_are_other_entries(tmp_path: Path, inputs: Tensor) -> None:
    changed = inputs.clone()
    changed[700, 1, 2] += 1e-3
    for other in (inputs, changed, inputs.reshape(1203, 3, 2), inputs.view(torch.int32), inputs[:-1]):
        cached(other, Doubled(), folder=tmp_path)
    cached(inputs, Doubled("doubled v2"), folder=tmp_path)
    assert len(stored(tmp_path)) == 6


def test_changing_what_was_found_leaves_the_file_alone(tmp_path: Path, inputs: Tensor) -> None:
    cached(inputs, Doubled(), folder=tmp_path)
    cached(inputs, Doubled(), folder=tmp_path).zero_()
    again = Doubled()
    assert torch.equal(cached(inputs, again, folder=tmp_path), 2 * inputs.flatten(1))
    assert again.records == 0


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _of_others(file: Path) -> None:
    """A whole, valid file under the wrong name."""
    cached(torch.zeros(3, 2, 3), Doubled(), folder=file.parent / "others").sum()
    file.write_bytes(stored(file.parent / "others")[0].read_bytes())


@pytest.mark.parametrize("damage", [_cut, _flip, _empty, _of_others])
def test_a_damaged_file_is_found_and_made_again(tmp_path: Path, inputs: Tensor, damage: Callable[[Path], None]) -> None:
    cached(inputs, Doubled(), folder=tmp_path)
    damage(stored(tmp_path)[0])
    with pytest.warns(CacheWarning, match="damaged and computed again") as said:
        assert torch.equal(cached(inputs, Doubled(), folder=tmp_path), 2 * inputs.flatten(1))
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    again = Doubled()
    cached(inputs, again, folder=tmp_path)
    assert again.records == 0


def test_a_full_disk_leaves_nothing_behind_and_is_told_in_one_line(
    tmp_path: Path, inputs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CacheWarning, match="not kept: cache=.* cannot be written") as said:
        assert torch.equal(cached(inputs, Doubled(), folder=tmp_path), 2 * inputs.flatten(1))
    assert len(said) == 1
    assert [file.suffix for file in tmp_path.iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path, inputs: Tensor) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(CacheWarning, match="computed but not kept: cache=.* cannot be written") as said:
        assert torch.equal(cached(inputs, Doubled(), folder=tmp_path / "file"), 2 * inputs.flatten(1))
    assert len(said) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_still_gives_what_it_holds(tmp_path: Path, inputs: Tensor) -> None:
    cached(inputs, Doubled(), folder=tmp_path)
    tmp_path.chmod(0o500)
    try:
        again = Doubled()
        cached(inputs, again, folder=tmp_path)
        assert again.records == 0
        with pytest.warns(CacheWarning, match="not kept"):
            cached(inputs[:5], Doubled(), folder=tmp_path)
    finally:
        tmp_path.chmod(0o700)


def _at_once(folder: Path, barrier: object, results: multiprocessing.Queue[float]) -> None:
    torch.set_num_threads(1)
    values = torch.arange(12_000.0).reshape(2000, 2, 3)
    barrier.wait()  # type: ignore[attr-defined]
    results.put(float(cached(values, Doubled(), folder=folder).double().sum()))


@pytest.mark.slow
def test_processes_at_once_do_not_break_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_at_once, args=(tmp_path, barrier, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert found == [2.0 * sum(range(12_000))] * 2
    assert {file.suffix for file in tmp_path.iterdir()} == {".safetensors", ".lock"}


def test_an_interrupted_computation_leaves_nothing(tmp_path: Path, inputs: Tensor) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(inputs, Doubled(), folder=tmp_path, progress=interrupt)
    assert not stored(tmp_path)


@pytest.mark.filterwarnings("ignore::adadpigu.features.cache.CacheWarning")
def test_wrong_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\[records, 1, 28, 28\]"):
        cached(torch.zeros(2, 1, 8, 8), Scattering((1, 28, 28)), folder=tmp_path)


def test_no_records_have_no_features(tmp_path: Path) -> None:
    for _ in range(2):
        assert cached(torch.zeros(0, 2, 3), Doubled(), folder=tmp_path).shape == (0, 6)
    assert computed(torch.zeros(0, 1, 28, 28), Scattering((1, 28, 28))).shape == (0, 81, 7, 7)
