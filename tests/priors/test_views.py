"""Views: crops stay inside the image and within their area, and colours change as they are told to."""

from __future__ import annotations

import pytest
import torch

from adadpigu.errors import InputError
from adadpigu_paper.views import Views

PLAIN = Views(smallest=0.25, jitter=0.0, hue=0.0, gray=0.0)


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 8) -> torch.Tensor:
    return torch.rand(count, 3, 32, 32, generator=chance(9))


def test_a_crop_is_a_window_of_the_image_of_an_allowed_area() -> None:
    """Of an image whose channels are its own coordinates, a crop shows where it was taken."""
    where = (torch.arange(48) + 0.5) / 48
    ramp = torch.stack([where.expand(48, 48), where[:, None].expand(48, 48), torch.zeros(48, 48)])
    seen = PLAIN.cropped(ramp.expand(64, 3, 48, 48), chance())
    columns, rows = seen[:, 0], seen[:, 1]
    assert seen.min() >= 0
    assert seen[:, :2].max() <= 1
    width = (columns[:, 16, -2] - columns[:, 16, 1]).abs() * 32 / 29
    height = (rows[:, -2, 16] - rows[:, 1, 16]) * 32 / 29
    assert (height > 0).all()
    area = width * height
    assert area.min() > 0.2
    assert area.max() <= 1.01
    assert area.max() - area.min() > 0.3


def test_crops_are_mirrored_half_the_time() -> None:
    """Of 400 crops, each mirrored with probability 1/2, 140 to 260 are: false alarm below 1e-6, and a fixed seed."""
    ramp = torch.linspace(0, 1, 32).expand(400, 3, 32, 32)
    seen = PLAIN.cropped(ramp, chance())
    assert 140 < int((seen[:, 0, 16, -1] < seen[:, 0, 16, 0]).sum()) < 260


def test_without_jitter_colours_stay() -> None:
    before = images()
    assert torch.allclose(PLAIN.coloured(before, chance()), before, atol=1e-6)


def test_a_gray_view_has_three_equal_channels_of_the_same_brightness() -> None:
    before = images()
    seen = Views(jitter=0.0, hue=0.0, gray=1.0).coloured(before, chance())
    expected = 0.299 * before[:, 0] + 0.587 * before[:, 1] + 0.114 * before[:, 2]
    for channel in range(3):
        assert torch.allclose(seen[:, channel], expected, atol=1e-6)


def test_a_turned_hue_keeps_gray_pixels_and_the_distance_of_others_from_gray() -> None:
    gray = torch.rand(4, 1, 8, 8, generator=chance()).expand(4, 3, 8, 8)
    turn = Views(jitter=0.0, hue=0.4, gray=0.0)
    assert torch.allclose(turn.coloured(gray, chance()), gray, atol=1e-6)
    before = images()
    level = (before * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    colour, turned = before - level, turn.coloured(before, chance()) - level
    assert torch.allclose(colour.norm(dim=1), turned.norm(dim=1), atol=1e-5)
    assert torch.allclose(colour.sum(1), turned.sum(1), atol=1e-5)
    assert (colour - turned).abs().max() > 0.1


def test_jitter_changes_brightness_within_its_bounds() -> None:
    flat = torch.full((200, 3, 8, 8), 0.5)
    seen = Views(jitter=0.4, hue=0.0, gray=0.0).coloured(flat, chance()).mean((1, 2, 3))
    assert seen.min() >= 0.3 - 1e-6
    assert seen.max() <= 0.7 + 1e-6
    assert seen.max() - seen.min() > 0.3


def test_views_of_one_image_differ_and_a_seed_fixes_them() -> None:
    before, view = images(), Views()
    assert torch.equal(view(before, chance()), view(before, chance()))
    assert not torch.equal(view(before, chance()), view(before, chance(1)))


@pytest.mark.parametrize("bad", [{"smallest": 0.0}, {"smallest": 1.5}, {"jitter": -0.1}, {"hue": 2.0}, {"gray": 1.1}])
def test_what_is_out_of_range_is_named(bad: dict[str, float]) -> None:
    name, value = next(iter(bad.items()))
    with pytest.raises(InputError, match=f"{name}={value}"):
        Views(**bad)  # type: ignore[arg-type]
