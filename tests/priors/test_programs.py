"""Random programs: reproducible, many kinds, finite, and one texture in three of what encoders are trained on."""

from __future__ import annotations

import pytest
import torch

from adadpigu.errors import InputError
from adadpigu_paper.programs import ProgramImages, program_images


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_seed_fixes_the_images_and_another_gives_others() -> None:
    make = ProgramImages(side=16, leaves=2)
    assert torch.equal(make(9, chance()), make(9, chance()))
    assert not torch.equal(make(9, chance()), make(9, chance(1)))


def test_programs_give_finite_images_of_mean_0_and_variance_1() -> None:
    """A hundred programs of every depth: none overflows, and a constant image is rare."""
    images = program_images(1600, 16, 5, chance())
    assert images.shape == (1600, 3, 16, 16)
    assert torch.isfinite(images).all()
    assert images.mean((1, 2, 3)).abs().max() < 1e-3
    assert ((images.var((1, 2, 3), correction=0) - 1).abs() < 1e-2).float().mean() > 0.97


def test_images_of_one_program_are_alike_in_kind_and_differ_in_numbers() -> None:
    images = program_images(32, 16, 4, chance()).flatten(1)
    assert len(torch.unique(images, dim=0)) == 32


def test_a_third_of_the_textures_are_programs() -> None:
    """The others are drawn as without programs: 10 of 15 from one stream, which the same seed repeats."""
    make = ProgramImages(side=16, leaves=0)
    own = super(ProgramImages, make).textures(10, chance())
    made = make.textures(15, chance())
    found = [any(torch.equal(image, other) for other in own) for image in made]
    assert sum(found) == 10


def test_none_are_none_and_depth_has_a_bound() -> None:
    assert program_images(0, 16, 2, chance()).shape == (0, 3, 16, 16)
    with pytest.raises(InputError, match="deepest=0"):
        ProgramImages(deepest=0)
