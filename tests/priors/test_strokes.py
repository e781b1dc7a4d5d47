"""Drawings and mixtures: reproducible, strokes where their curves run, mixtures between what they are made of."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from adadpigu.errors import InputError
from adadpigu_paper import drawings as subject
from adadpigu_paper.drawings import MixedImages, _distance, drawings


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_seed_fixes_the_images_and_another_gives_others() -> None:
    make = MixedImages(side=16, leaves=1)
    made = make(12, chance())
    assert made.shape == (12, 3, 16, 16)
    assert torch.equal(made, make(12, chance()))
    assert not torch.equal(made, make(12, chance(1)))
    assert 0 <= float(made.min()) < float(made.max()) <= 1


def test_the_distance_is_that_to_the_nearest_piece_of_the_line() -> None:
    """By brute force: the nearest of two thousand points along the pieces, in float64."""
    points = 2 * torch.rand(3, 5, 2, generator=chance()) - 1
    found = _distance(points, 16).double().numpy()
    where = np.linspace(-1, 1, 16)
    x, y = np.meshgrid(where, where)
    for place, line in enumerate(points.double().numpy()):
        dense = np.concatenate([np.linspace(a, b, 500) for a, b in itertools.pairwise(line)])
        apart = np.hypot(x[..., None] - dense[:, 0], y[..., None] - dense[:, 1]).min(-1)
        assert np.abs(found[place] - apart).max() < 0.01


def test_a_drawing_has_two_colours_and_what_is_between_them() -> None:
    """Each pixel is ground + share·(ink − ground), one share for all three colours."""
    made = drawings(64, 24, chance()).double()
    low, high = made.amin((2, 3), keepdim=True), made.amax((2, 3), keepdim=True)
    share = (made - low) / (high - low).clamp(min=1e-9)
    contrast = (high - low)[:, :, 0, 0]
    strong = contrast.argmax(1)
    for image, place in enumerate(strong):
        for colour in range(3):
            if contrast[image, colour] > 0.05:
                same = share[image, colour] - share[image, place]
                turned = share[image, colour] + share[image, place] - 1
                assert min(same.abs().max(), turned.abs().max()) < 1e-3


def test_mixtures_lie_between_their_parts() -> None:
    make = MixedImages(side=16, leaves=0)
    parts = super(MixedImages, make).textures(12, chance())
    made = make.textures(12, chance())
    changed = [not torch.equal(a, b) for a, b in zip(made, parts, strict=True)]
    assert 0 < sum(changed) < 12
    low, high = torch.minimum(parts, parts.roll(1, 0)), torch.maximum(parts, parts.roll(1, 0))
    assert ((made >= low - 1e-5) & (made <= high + 1e-5)).all()


def test_one_image_in_so_many_is_a_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "drawings", lambda count, side, rng: torch.full((count, 3, side, side), 0.25))
    made = MixedImages(side=16, leaves=0, one_in=4)(8, chance())
    assert [bool((image == 0.25).all()) for image in made].count(True) == 2
    with pytest.raises(InputError, match="one_in=0"):
        MixedImages(one_in=0)
