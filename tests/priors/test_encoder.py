"""The encoder without its batch norms is the encoder with them at rest, treats records alone, and standardises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

from adadpigu.errors import InputError
from adadpigu.priors.encoder import EncoderMaps, EncoderShape
from adadpigu_paper.encoder import Encoder, encoder_constants, process_images

SMALL = EncoderShape(widths=(4, 6, 8), blocks=(1, 2, 1))


@pytest.fixture(scope="module")
def encoder() -> Iterator[Encoder]:
    """With statistics and gains that are none of the defaults."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = Encoder(SMALL)
        for module in made.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                torch.nn.init.uniform_(module.weight, 0.5, 1.5)
                torch.nn.init.normal_(module.bias)
        for _ in range(4):
            made(torch.rand(16, 3, 16, 16))
        yield made.eval()


def images(count: int = 5, side: int = 16) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def test_stages_halve_the_side_and_have_their_widths(encoder: Encoder) -> None:
    assert [tuple(made.shape[1:]) for made in encoder(images())] == [(4, 16, 16), (6, 8, 8), (8, 4, 4)]


def test_maps_are_residual_blocks_written_out(encoder: Encoder) -> None:
    c, relu = encoder.folded(), F.relu

    def block(x: torch.Tensor, name: str, stride: int) -> torch.Tensor:
        first = relu(F.conv2d(x, c[f"{name}.first.weight"], c[f"{name}.first.bias"], stride, 1))
        second = F.conv2d(first, c[f"{name}.second.weight"], c[f"{name}.second.bias"], 1, 1)
        if f"{name}.shortcut.weight" in c:
            x = F.conv2d(x, c[f"{name}.shortcut.weight"], c[f"{name}.shortcut.bias"], stride)
        return relu(x + second)

    stem = relu(F.conv2d((images() - 0.5) * 4, c["stem.weight"], c["stem.bias"], 1, 1))
    one = block(stem, "stage0.block0", 1)
    two = block(block(one, "stage1.block0", 2), "stage1.block1", 1)
    three = block(two, "stage2.block0", 2)
    for found, expected in zip(encoder(images()), (one, two, three), strict=True):
        assert torch.allclose(found, expected, atol=1e-4)


def test_folded_constants_give_the_maps_of_the_encoder_at_rest(encoder: Encoder) -> None:
    constants = encoder.folded()
    for stage, width in enumerate(SMALL.widths):
        constants[f"stage{stage}.mean"] = torch.arange(width) / 10
        constants[f"stage{stage}.std"] = 1 + torch.arange(width) / 5
    found = EncoderMaps(SMALL, constants)(images()).split((4, 6, 8), 1)
    for stage, made in enumerate(encoder(images())):
        pooled = F.adaptive_avg_pool2d(made, 4)
        mean, std = (constants[f"stage{stage}.{part}"][:, None, None] for part in ("mean", "std"))
        assert torch.allclose(found[stage], (pooled - mean) / std, atol=1e-4)


def test_maps_treat_each_record_alone_and_take_none(encoder: Encoder) -> None:
    maps = EncoderMaps(SMALL, encoder_constants(encoder, [images(8)]))
    together = maps(images())
    for i in range(5):
        assert torch.allclose(maps(images()[i : i + 1])[0], together[i], atol=1e-5)
    assert maps(images()[:0]).shape == (0, 18, 4, 4)
    assert not list(maps.parameters())
    assert not maps(images().requires_grad_()).requires_grad


def test_on_the_images_of_its_statistics_every_channel_has_mean_0_and_deviation_1(encoder: Encoder) -> None:
    seen = [images(6), images(12)[6:]]
    made = EncoderMaps(SMALL, encoder_constants(encoder, seen))(torch.cat(seen))
    alive = made.std((0, 2, 3)) > 1e-3  # a channel that is 0 everywhere stays so
    assert alive.sum() > 9
    assert made.mean((0, 2, 3)).abs().max() < 1e-3
    assert (made.std((0, 2, 3), correction=0)[alive] - 1).abs().max() < 0.02


def test_a_missing_constant_is_named(encoder: Encoder) -> None:
    constants = encoder.folded()
    del constants["stage1.block0.shortcut.bias"]
    with pytest.raises(InputError, match=r"stage1\.block0\.shortcut\.bias"):
        EncoderMaps(SMALL, constants)


@pytest.mark.slow
def test_process_images_come_as_many_as_asked_for() -> None:
    made = process_images(520, torch.Generator().manual_seed(0))
    assert [len(part) for part in made] == [512, 8]
    assert made[1].shape == (8, 3, 32, 32)


@pytest.mark.parametrize("bad", [{"widths": ()}, {"widths": (4, 4)}, {"blocks": (1, 0, 1)}])
def test_a_plan_that_does_not_fit_is_named(bad: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(InputError, match="widths="):
        EncoderShape(**bad)
