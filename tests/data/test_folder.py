"""A folder of images as tensors: pixels against arrays they were written from, and every unusable file named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from adadpigu.data.description import ImageFacts
from adadpigu.data.own import class_folders, image_files, read_folder, read_images
from adadpigu.errors import InputError

GRAY = ImageFacts(height=3, width=5, channels=1)
RGB = ImageFacts(height=3, width=5, channels=3)
CLASSES = ("dog", "cat")


def pixels(seed: int, *shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, array: NDArray[np.uint8]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


@pytest.fixture
def gray(tmp_path: Path) -> Path:
    """Two cats and a dog, 3 × 5, gray."""
    folder = tmp_path / "pets"
    save(folder / "cat" / "a.png", pixels(1, 3, 5))
    save(folder / "cat" / "b.bmp", pixels(2, 3, 5))
    save(folder / "dog" / "c.png", pixels(3, 3, 5))
    return folder


def refusal(folder: Path, facts: ImageFacts = GRAY, classes: tuple[str, ...] = CLASSES) -> str:
    with pytest.raises(InputError) as caught:
        read_folder(folder, facts, classes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_gray_images_are_their_pixels_over_255_in_the_declared_order_of_classes(gray: Path) -> None:
    found = read_folder(gray, GRAY, CLASSES)
    expected = np.stack([pixels(seed, 3, 5) for seed in (3, 1, 2)])[:, None] / 255
    assert found.inputs.shape == (3, 1, 3, 5)
    assert np.allclose(found.inputs.numpy(), expected, atol=1e-7)
    assert found.targets.tolist() == [0, 1, 1]
    assert (found.inputs.dtype, found.targets.dtype) == (torch.float32, torch.int64)


def test_colour_images_have_channels_first_and_are_scaled_by_the_declared_constants(tmp_path: Path) -> None:
    arrays = [pixels(seed, 3, 5, 3) for seed in (1, 2)]
    for name, array in zip(CLASSES, arrays, strict=True):
        save(tmp_path / name / "x.png", array)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)
    facts = ImageFacts(height=3, width=5, channels=3, mean=mean, std=std)
    expected = ((np.stack(arrays) / 255 - np.array(mean)) / np.array(std)).transpose(0, 3, 1, 2)
    assert np.allclose(read_folder(tmp_path, facts, CLASSES).inputs.numpy(), expected, atol=1e-5)


def test_an_image_more_changes_no_other_images_pixels(gray: Path) -> None:
    before = read_folder(gray, GRAY, CLASSES).inputs
    save(gray / "dog" / "d.png", pixels(9, 3, 5))
    after = read_folder(gray, GRAY, CLASSES).inputs
    assert torch.equal(after[[0, 2, 3]], before)


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (pixels(0, 5, 3), ["= (5, 3, 'L', 1)", "allowed: (3, 5, 'L', 1)"]),
        (pixels(0, 3, 5, 3), ["= (3, 5, 'RGB', 1)", "allowed: (3, 5, 'L', 1)"]),
        (pixels(0, 3, 5, 4), ["= (3, 5, 'RGBA', 1)", "allowed: (3, 5, 'L', 1)"]),
    ],
)
def test_an_image_of_another_size_or_mode_is_refused_by_name(
    gray: Path, array: NDArray[np.uint8], named: list[str]
) -> None:
    path = save(gray / "cat" / "odd.png", array)
    message = refusal(gray)
    for words in (str(path), *named):
        assert words in message


def test_a_gray_image_among_colour_ones_is_refused_by_name(gray: Path) -> None:
    assert "'L', 1); allowed: (3, 5, 'RGB', 1)" in refusal(gray, RGB)


def test_a_truncated_image_is_refused_by_name(gray: Path) -> None:
    path = save(gray / "cat" / "big.png", pixels(0, 3, 5))
    path.write_bytes(path.read_bytes()[:45])
    message = refusal(gray)
    assert str(path) in message
    assert "it is damaged, or not one of PNG" in message


def test_an_image_with_broken_bytes_is_refused_by_name(gray: Path) -> None:
    path = save(gray / "cat" / "big.png", pixels(0, 3, 5))
    whole = bytearray(path.read_bytes())
    whole[40:48] = b"\xff" * 8
    path.write_bytes(whole)
    assert str(path) in refusal(gray)


def test_a_file_that_is_no_image_is_refused_by_name(gray: Path) -> None:
    (gray / "cat" / "notes.txt").write_text("fed twice a day")
    message = refusal(gray)
    assert str(gray / "cat" / "notes.txt") in message
    assert "not one of PNG" in message


@pytest.mark.parametrize("kind", ["TGA", "DDS"])
@pytest.mark.parametrize("name", ["odd.img", "odd.png"])
def test_an_image_in_a_format_outside_the_list_is_refused_whatever_its_name(gray: Path, kind: str, name: str) -> None:
    """Pillow could read it, mode and size being as declared."""
    path = gray / "cat" / name
    Image.fromarray(pixels(1, 3, 5)).save(path, format=kind)
    with Image.open(path) as image:
        assert (image.format, image.size, image.mode) == (kind, (5, 3), "L")
    message = refusal(gray)
    assert f"image={str(path)!r} cannot be read: it is damaged, or not one of PNG, JPEG" in message
    path.unlink()
    assert len(read_folder(gray, GRAY, CLASSES)) == 3


def test_an_image_with_several_frames_is_refused_by_name(gray: Path) -> None:
    path = gray / "cat" / "film.tiff"
    frames = [Image.fromarray(pixels(seed, 3, 5)) for seed in (1, 2)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    message = refusal(gray)
    assert str(path) in message
    assert "'L', 2)" in message


def test_a_folder_with_one_class_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "a.png", pixels(1, 3, 5))
    assert "no sub-folder 'dog'" in refusal(tmp_path)
    (tmp_path / "dog").mkdir()
    assert "images of ['cat']" in refusal(tmp_path)
    with pytest.raises(InputError, match="has sub-folders"):
        class_folders(tmp_path / "cat")


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    for name in CLASSES:
        (tmp_path / name).mkdir()
    assert "images of []" in refusal(tmp_path)
    assert str(tmp_path) in refusal(tmp_path)


def test_what_belongs_to_no_class_is_refused_unless_ignored(gray: Path) -> None:
    save(gray / "cow" / "e.png", pixels(4, 3, 5))
    assert "'cow'" in refusal(gray).replace(str(gray) + "/", "")
    (gray / "cow" / "e.png").unlink()
    (gray / "cow").rmdir()
    (gray / "README").write_text("pets of the street")
    assert "README" in refusal(gray)
    facts = ImageFacts(height=3, width=5, channels=1, ignore=("README",))
    assert len(read_folder(gray, facts, CLASSES)) == 3


def test_a_folder_inside_a_class_is_refused_by_name(gray: Path) -> None:
    (gray / "cat" / "more").mkdir()
    assert str(gray / "cat" / "more") in refusal(gray)


def test_the_description_hidden_files_and_what_is_beside_are_no_records(gray: Path) -> None:
    (gray / "description.toml").write_text("")
    (gray / "cat" / ".hidden").write_text("x")
    save(gray / "held-out" / "cat" / "a.png", pixels(1, 3, 5))
    assert len(read_folder(gray, GRAY, CLASSES, beside=[gray / "held-out"])) == 3


def test_images_without_labels_are_found_flat_and_in_sub_folders(gray: Path) -> None:
    save(gray / "z.png", pixels(4, 3, 5))
    files = image_files(gray)
    assert [file.relative_to(gray).as_posix() for file in files] == ["cat/a.png", "cat/b.bmp", "dog/c.png", "z.png"]
    assert read_images(files, GRAY).shape == (4, 1, 3, 5)
