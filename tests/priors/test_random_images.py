"""Images of random processes: reproducible, within range, with the spectrum and the edges that they are made for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adadpigu.errors import InputError
from adadpigu.priors.random_images import RandomImages, coloured_noise, dead_leaves, untrained_net


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_seed_fixes_the_images_and_another_gives_others() -> None:
    make = RandomImages(side=32, leaves=3)
    assert torch.equal(make(4, chance()), make(4, chance()))
    assert not torch.equal(make(4, chance()), make(4, chance(1)))


def test_images_of_one_draw_differ() -> None:
    images = RandomImages(side=32, leaves=3)(6, chance()).flatten(1)
    assert (torch.cdist(images, images) + 1e9 * torch.eye(6)).min() > 1


def test_values_are_from_0_to_1_and_use_that_range() -> None:
    images = RandomImages(side=32, leaves=6)(32, chance())
    assert images.shape == (32, 3, 32, 32)
    assert images.min() >= 0
    assert images.max() <= 1
    assert 0.3 < images.mean() < 0.65
    assert images.std((1, 2, 3)).min() > 0.05


@pytest.mark.parametrize("texture", [coloured_noise, untrained_net])
def test_a_texture_has_mean_0_and_variance_1(texture: object) -> None:
    assert callable(texture)
    made: Tensor = texture(5, 32, chance())
    assert made.mean((1, 2, 3)).abs().max() < 1e-4
    assert (made.var((1, 2, 3), correction=0) - 1).abs().max() < 1e-3


def test_coloured_noise_has_the_power_of_its_exponents() -> None:
    """Amplitudes fall as |f|^−a with a from 0.8 to 2, so power does with slopes from −4 to −1.6, along and across."""
    spectrum = torch.fft.fft2(coloured_noise(256, 32, chance()).double()).abs().square().mean((0, 1))
    for line in (spectrum[0], spectrum[:, 0]):
        slope = torch.log(line[8] / line[2]) / torch.log(torch.tensor(4.0))
        assert -4 < slope < -1.6


def test_leaves_have_edges_that_noise_has_not() -> None:
    """Differences of neighbours: Gaussian in coloured noise (kurtosis 3), heavy-tailed where shapes hide others."""
    textures = coloured_noise(24, 48, chance())
    assert kurtosis(textures).median() < 3.5
    assert kurtosis(dead_leaves(textures, 24, chance(1))).median() > 5


def kurtosis(images: Tensor) -> Tensor:
    """Of horizontal differences, image by image."""
    steps = images.diff(dim=3).flatten(1)
    steps = steps - steps.mean(1, keepdim=True)
    return steps.pow(4).mean(1) / steps.square().mean(1).square()


def test_without_leaves_an_image_is_its_texture_but_for_exposure() -> None:
    make = RandomImages(side=32, leaves=0)
    images, textures = make(4, chance()), make.textures(4, chance())
    for image, texture in zip(images, textures, strict=True):
        inside = (image > 0) & (image < 1)
        assert torch.corrcoef(torch.stack([image[inside], texture[inside]]))[0, 1] > 0.9999


@pytest.mark.parametrize(("bad", "told"), [({"side": 20}, "side=20"), ({"side": 0}, "side=0"), ({"leaves": -1}, "-1")])
def test_what_cannot_be_drawn_is_named(bad: dict[str, int], told: str) -> None:
    with pytest.raises(InputError, match=told):
        RandomImages(**bad)
