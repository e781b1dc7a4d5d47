"""The scattering transform equals kymatio's, equals a direct convolution, and treats each record on its own."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.gradients import choose_engine
from adadpigu.errors import InputError
from adadpigu.features.front import make_front
from adadpigu.features.scattering import CHANNELS, OrderNorm, Scattering

GOLDEN = np.load(Path(__file__).parent / "golden" / "scattering.npz")
Plane = NDArray[np.float64]


def golden(name: str) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(GOLDEN[name]).float() / 255, torch.from_numpy(GOLDEN[f"{name}_features"])


@pytest.fixture(scope="module")
def gray() -> Scattering:
    return Scattering((1, 28, 28))


@pytest.mark.parametrize("name", ["gray", "rgb", "wide"])
def test_features_equal_kymatios(name: str) -> None:
    inputs, expected = golden(name)
    found = Scattering(inputs.shape[1:])(inputs)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-5


def _wavelet(scale: int, turn: int, reach: int) -> NDArray[np.complex128]:
    """ψ on [−reach, reach]², from the formula, point by point."""
    angle = (3 - turn) * math.pi / 8
    sigma, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    wave = np.zeros((2 * reach + 1, 2 * reach + 1), dtype=np.complex128)
    bump = np.zeros_like(wave, dtype=np.float64)
    for i in range(-reach, reach + 1):
        for j in range(-reach, reach + 1):
            a, b = i * math.cos(angle) + j * math.sin(angle), -i * math.sin(angle) + j * math.cos(angle)
            bump[i + reach, j + reach] = math.exp(-(a * a + b * b / 4) / (2 * sigma**2)) / (4 * math.pi * sigma**2)
            wave[i + reach, j + reach] = bump[i + reach, j + reach] * np.exp(1j * frequency * a)
    return np.asarray(wave - bump * (wave.sum() / bump.sum()))


def _convolved(plane: Plane, kernel: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """A circular convolution by its sum over the kernel."""
    reach = len(kernel) // 2
    found = np.zeros(plane.shape, dtype=np.complex128)
    for i in range(-reach, reach + 1):
        for j in range(-reach, reach + 1):
            found += kernel[i + reach, j + reach] * np.roll(plane, (i, j), (0, 1))
    return found


def _mean(plane: Plane, step: int) -> Plane:
    """φ at every fourth pixel of the image; on a plane subsampled by `step`, the frequencies of φ that it can hold."""
    n = len(plane)
    matrix = np.zeros((n, n))
    for k in range(-(n // 2), n - n // 2):
        omega = 2 * math.pi * k / (n * step)
        for u in range(n):
            matrix[u] += math.exp(-((1.6 * omega) ** 2) / 2) * np.cos(2 * math.pi * k * (u - np.arange(n)) / n) / n
    averaged = matrix @ plane @ matrix.T
    return np.asarray(averaged[:: 4 // step, :: 4 // step][1:-1, 1:-1])


@pytest.mark.parametrize("turns", [(0, 3), (2, 2), (5, 0), (7, 6)])
def test_paths_equal_a_direct_convolution_in_double_precision(gray: Scattering, turns: tuple[int, int]) -> None:
    image = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(3))
    features = gray(image)[0].double().numpy()
    first, second = turns
    plane = np.pad(image[0, 0].double().numpy(), 4, mode="reflect")
    fine = np.abs(_convolved(plane, _wavelet(0, first, reach=12)))
    coarse = np.abs(_convolved(plane, _wavelet(1, first, reach=18)))[::2, ::2]
    both = np.abs(_convolved(fine, _wavelet(1, second, reach=18)))[::2, ::2]
    assert np.abs(features[0] - _mean(plane, 1)).max() < 1e-4
    assert np.abs(features[1 + first] - _mean(fine, 1)).max() < 1e-4
    assert np.abs(features[9 + first] - _mean(coarse, 2)).max() < 1e-4
    assert np.abs(features[17 + 8 * first + second] - _mean(both, 2)).max() < 1e-4


def test_a_constant_image_has_its_value_and_no_waves(gray: Scattering) -> None:
    features = gray(torch.full((1, 1, 28, 28), 0.7))[0]
    assert (features[0] - 0.7).abs().max() < 1e-4
    assert features[1:].abs().max() < 1e-5
    assert not gray(torch.zeros(1, 1, 28, 28)).any()


def test_a_wave_answers_most_in_its_own_orientation() -> None:
    y = torch.arange(32.0)
    wave = torch.cos(0.75 * math.pi * y).repeat(32, 1)  # varies along the second axis: orientation π/2
    first_order = Scattering((1, 32, 32))(wave.T[None, None])[0, 1:9].mean((1, 2))
    turned = Scattering((1, 32, 32))(wave[None, None])[0, 1:9].mean((1, 2))
    assert int(first_order.argmax()) == 3
    assert int(turned.argmax()) == 7


def test_the_transform_contracts_distances(gray: Scattering) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(2, 8, 1, 28, 28, generator=generator)
    padded = F.pad(a - b, (4, 4, 4, 4), mode="reflect").flatten(1).norm(dim=1)
    assert ((gray(a) - gray(b)).flatten(1).norm(dim=1) < padded).all()


@pytest.mark.slow
def test_a_record_is_transformed_the_same_in_any_company(gray: Scattering) -> None:
    images = torch.rand(90, 1, 28, 28, generator=torch.Generator().manual_seed(0))  # more than one chunk
    together = gray(images)
    spoilt = images.clone()
    spoilt[5] = float("nan")
    others = torch.arange(90) != 5
    assert torch.allclose(gray(spoilt)[others], together[others], atol=1e-6)
    assert torch.allclose(torch.cat([gray(images[:1]), gray(images[1:60]), gray(images[60:])]), together, atol=1e-6)
    alone = torch.func.vmap(lambda image: gray(image[None])[0])(images)
    assert torch.allclose(alone, together, atol=1e-6)


def test_planes_of_a_record_are_transformed_one_by_one() -> None:
    images = torch.rand(2, 3, 32, 32)
    plane = Scattering((1, 32, 32))
    expected = torch.cat([plane(images[:, c : c + 1]) for c in range(3)], 1)
    assert torch.allclose(Scattering((3, 32, 32))(images), expected, atol=1e-6)


@pytest.mark.slow
def test_nothing_of_it_is_state_or_trained(gray: Scattering) -> None:
    model = nn.Sequential(Scattering((1, 28, 28)), nn.Flatten(), nn.Linear(81 * 49, 10))
    assert set(model.state_dict()) == {"2.weight", "2.bias"}
    assert not list(gray.parameters())
    example = torch.randn(3, 1, 28, 28, requires_grad=True)
    assert not gray(example).requires_grad
    assert choose_engine(model, F.cross_entropy, (torch.randn(3, 1, 28, 28), torch.zeros(3).long())).name == "ghost"


def test_double_precision_runs_and_agrees() -> None:
    images = torch.rand(2, 1, 28, 28)
    found = Scattering((1, 28, 28)).double()(images.double())
    assert found.dtype == torch.float64
    assert torch.allclose(found.float(), Scattering((1, 28, 28))(images), atol=1e-5)


def test_no_records_have_no_features(gray: Scattering) -> None:
    assert gray(torch.zeros(0, 1, 28, 28)).shape == (0, CHANNELS, 7, 7)


@pytest.mark.parametrize("shape", [(28, 28), (1, 28, 30), (1, 4, 28), (1, 100, 100), (0, 28, 28), (1, 28, 28, 1)])
def test_shapes_that_do_not_fit_are_refused_in_one_line(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        Scattering(shape)
    assert str(shape) in str(caught.value)
    assert "multiples of 4 from 8 to 96" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "inputs",
    [torch.zeros(2, 3, 28, 28), torch.zeros(2, 1, 32, 32), torch.zeros(28, 28), torch.ones(1, 1, 28, 28).int()],
)
def test_inputs_of_another_shape_or_type_are_refused(gray: Scattering, inputs: Tensor) -> None:
    with pytest.raises(InputError, match=r"allowed: \[records, 1, 28, 28\] of floats"):
        gray(inputs)


def test_orders_are_normalised_each_by_itself_in_each_record() -> None:
    """Against the definition in float64: one mean and variance for each of S0, S1, S2, over all planes."""
    images = torch.rand(3, 3, 16, 16, dtype=torch.float64)
    found = Scattering((3, 16, 16)).double()(images)
    normal = OrderNorm(3)(found).reshape(3, 3, 81, 4, 4)
    bounds = (0, 1, 17, 81)
    for record, before in zip(normal, found.reshape(3, 3, 81, 4, 4), strict=True):
        for start, stop in itertools.pairwise(bounds):
            part = before[:, start:stop].numpy()
            expected = (part - part.mean()) / (part.var() + 1e-5) ** 0.5
            torch.testing.assert_close(record[:, start:stop], torch.from_numpy(expected))


def test_orders_of_an_empty_batch_and_of_constant_images_are_finite() -> None:
    norm = OrderNorm(1)
    assert norm(torch.zeros(0, 81, 7, 7)).shape == (0, 81, 7, 7)
    assert torch.isfinite(norm(torch.zeros(2, 81, 7, 7))).all()


def test_orders_need_scattering_features() -> None:
    front, shape = make_front("scattering", "orders", (3, 32, 32))
    assert front is not None
    assert isinstance(front.normaliser, OrderNorm)
    assert shape == (243, 8, 8)
    with pytest.raises(InputError, match=r"'orders' does not fit records of shape \(81, 7, 7\)"):
        make_front("none", "orders", (81, 7, 7))
