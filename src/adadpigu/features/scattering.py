"""The 2-D scattering transform: fixed wavelet features of an image. Learns nothing, treats each record alone: free.

J = 2 scales, L = 8 orientations, order 2: S x = [x ⋆ φ, |x ⋆ ψ₁| ⋆ φ, ||x ⋆ ψ₁| ⋆ ψ₂| ⋆ φ] at every fourth pixel, 81
channels a plane. ψ_jθ(u) = (e^{i⟨ξ, u⟩} − κ) exp(−½ uᵀΣ⁻¹u) / (2π |Σ|^½), with κ such that ψ has mean zero,
|ξ| = ¾π 2^{−j}, scale σ = 0.8 · 2^j along ξ and σL/4 across; θ = (L/2 − 1 − t)π/L for t = 0 … L − 1; φ is a Gaussian of
scale 0.8 · 2^{J−1}: the usual choices (Bruna and Mallat; Andreux et al., Kymatio).

Each filtering is three matrix products: a Fourier transform down the columns, then for each row frequency one matrix
that transforms, filters, subsamples and transforms back along the rows, then back down.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.errors import require

Array = NDArray[np.float64]

SCALES = 2  # J: the transform averages over 2^J pixels
ORIENTATIONS = 8  # L
_WRAPS = 2
_PI = 3.1415  # the π in Kymatio's norms (its angles have all digits); ours would be 3e-5 smaller


def morlet_bank(height: int, width: int, scale: int) -> Array:
    """ψ̂ of every orientation at scale 2^`scale`, [L, height, width]; real, because ψ(−u) is the conjugate of ψ(u)."""
    angles = [(ORIENTATIONS // 2 - 1 - turn) * math.pi / ORIENTATIONS for turn in range(ORIENTATIONS)]
    return np.stack([_morlet(height, width, scale, angle) for angle in angles])


def window(length: int) -> Array:
    """φ̂ along one axis [length]; in two dimensions φ̂ is the product of both axes."""
    sigma = 0.8 * 2 ** (SCALES - 1)
    u = _grid(length)
    values = np.exp(-(u**2) / (2 * sigma**2)) / math.sqrt(2 * _PI * sigma**2)
    return np.asarray(np.fft.fft(_wrapped(values, length, axis=0)).real, dtype=np.float64)


def _morlet(height: int, width: int, scale: int, angle: float) -> Array:
    sigma, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4 / ORIENTATIONS
    y, x = np.meshgrid(_grid(height), _grid(width), indexing="ij")
    along = y * math.cos(angle) + x * math.sin(angle)
    across = x * math.cos(angle) - y * math.sin(angle)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * _PI * sigma**2)
    wave = envelope * np.exp(1j * frequency * along)
    zero_mean = wave - envelope * (wave.sum() / envelope.sum())
    periodic = _wrapped(_wrapped(zero_mean, height, axis=0), width, axis=1)
    return np.asarray(np.fft.fft2(periodic).real, dtype=np.float64)


def _grid(length: int) -> Array:
    return np.arange(-_WRAPS * length, (_WRAPS + 1) * length, dtype=np.float64)


def _wrapped(values: NDArray[np.inexact], length: int, axis: int) -> NDArray[np.inexact]:
    """Adds up what falls on the same point of a torus of this length."""
    values = np.moveaxis(values, axis, 0)
    return np.moveaxis(values.reshape(-1, length, *values.shape[1:]).sum(0), 0, axis)


CHANNELS = 1 + SCALES * ORIENTATIONS + ORIENTATIONS**2 * SCALES * (SCALES - 1) // 2  # features a plane and position
_ORDERS = [1, SCALES * ORIENTATIONS, CHANNELS - 1 - SCALES * ORIENTATIONS]  # channels of a plane: S0, S1, S2
STEP = 2**SCALES  # pixels an output position
_MARGIN = STEP  # pixels that reflection adds on each side
_SMALLEST, _LARGEST = 8, 96


def check_images(kind: str, shape: Sequence[int], planes: int | str, step: int) -> None:
    """Refuses records that are not images of so many planes (any number, for a word) and of sides that fit."""
    fits = len(shape) == 3 and (shape[0] >= 1 if isinstance(planes, str) else shape[0] == planes)
    fits = fits and all(_SMALLEST <= side <= _LARGEST and side % step == 0 for side in shape[1:])
    sides = f"height and width multiples of {step} from {_SMALLEST} to {_LARGEST}"
    require(fits, f"{kind}: records of shape {tuple(shape)}; allowed: ({planes}, height, width) with {sides}")


def check_inputs(kind: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Refuses a batch of other records than those of a shape."""
    fits = x.dim() == 4 and tuple(x.shape[1:]) == shape and x.is_floating_point()
    wanted = ", ".join(map(str, shape))
    require(fits, f"{kind}: inputs {list(x.shape)} of {x.dtype}; allowed: [records, {wanted}] of floats")


class Scattering(nn.Module):
    """Scattering features [b, 81 c, h/4, w/4] of images [b, c, h, w]; `shape` is the (c, h, w) of a record.

    The order is that of `kymatio`: for each plane S0, then S1 by scale and orientation, then S2 by first and second
    orientation. No gradient flows to the images. Values are exact to 1e-4 unless TF32 products are switched on.

    >>> Scattering((1, 28, 28))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    signature = f"scattering2d J={SCALES} L={ORIENTATIONS} order=2 v1"

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        check_images("scattering", shape, "channels", STEP)
        self.features = (CHANNELS * shape[0], shape[1] // STEP, shape[2] // STEP)
        self.shape = tuple(shape)
        size = self.shape[1:]
        padded = [side + 2 * _MARGIN for side in size]
        half = [side // 2 for side in padded]
        # Each matrix [side + 2 margins, side] mirrors an axis at its ends, which are not repeated.
        edges = tuple(np.pad(np.eye(side), ((_MARGIN, _MARGIN), (0, 0)), mode="reflect") for side in size)
        fine, coarse = (morlet_bank(padded[0], padded[1], scale) for scale in range(SCALES))
        self.fine = _Wavelets(fine, fold=1, edges=edges)
        self.coarse = _Wavelets(coarse, fold=2, edges=edges)
        self.second = _Wavelets(coarse, fold=2)
        self.mean_image = _Window(padded, padded, edges=edges)
        self.mean_fine = _Window(padded, padded)
        self.mean_coarse = _Window(padded, half)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        check_inputs("scattering", x, self.shape)
        planes = x.to(self.fine.bank.dtype).flatten(0, 1)
        if torch.compiler.is_exporting():  # for any number of records, so in one piece
            return self._planes(planes).reshape(x.shape[0], *self.features)
        found = [self._planes(chunk) for chunk in torch.split(planes, _chunk(planes))]
        return (found[0] if len(found) == 1 else torch.cat(found)).reshape(len(x), *self.features)

    def _planes(self, planes: Tensor) -> Tensor:
        """[n, h, w] to [n, 81, h/4, w/4]. Inside, rows come first: [h, n, w], so that products run over all planes."""
        count = len(planes)
        image = planes.transpose(0, 1)
        fine, coarse = self.fine(image), self.coarse(image)
        second = self.second(fine.flatten(1, 2))
        means = (
            self.mean_image(image).unsqueeze(2),
            self.mean_fine(fine),
            self.mean_coarse(coarse),
            self.mean_coarse(second).reshape(self.features[1], count, ORIENTATIONS**2, self.features[2]),
        )
        return torch.cat(means, 2).permute(1, 2, 0, 3)


class OrderNorm(nn.Module):
    """Each record's features of one order to mean 0 and variance 1, over planes, scales, orientations and positions.

    S0, S1 and S2 differ in size by far: in common groups the large hide the small.
    """

    def __init__(self, planes: int) -> None:
        super().__init__()
        self.planes = planes

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(x.reshape(len(x), self.planes, CHANNELS, *x.shape[2:]), _ORDERS, dim=2)
        return torch.cat([F.layer_norm(part, part.shape[1:]) for part in parts], dim=2).reshape(x.shape)


class _Wavelets(nn.Module):
    """|u ⋆ ψ_m| for a bank of wavelets, every `fold`-th pixel: [h, n, w] to [h/fold, n, m, w/fold]."""

    rows: Tensor
    bank: Tensor
    back: Tensor

    def __init__(self, filters: Array, fold: int, edges: Sequence[Array] | None = None) -> None:
        super().__init__()
        wavelets, height, width = filters.shape
        left, right = edges or (np.eye(height), np.eye(width))
        kept, self.fold = height // fold, fold
        # Frequency k = k' + kept·f goes to row k' after folding; f is summed over by the product with the bank.
        rows = (_fourier(height) @ left).reshape(fold, kept, -1).transpose(1, 0, 2)
        into = _fourier(width) @ right  # [l, x]
        out = _fourier(width).conj().T[::fold] / width  # [v, l]
        bank = np.einsum("lx,mkl,vl->kxmv", into, filters, out, optimize=True)
        bank = bank.reshape(fold, kept, -1, wavelets * (width // fold)).transpose(1, 0, 2, 3)
        _keep(self, "rows", np.stack([rows.real, rows.imag], axis=2).reshape(2 * height, -1))
        _keep(self, "bank", _real_product(bank).reshape(kept, -1, 2 * bank.shape[-1]))
        _keep(self, "back", _parts(_fourier(kept).conj() / height))
        self.wavelets, self.kept, self.width = wavelets, kept, width // fold

    def forward(self, u: Tensor) -> Tensor:
        height, count, width = u.shape
        spectrum = (self.rows @ u.reshape(height, count * width)).reshape(self.kept, 2 * self.fold, count, width)
        filtered = torch.bmm(spectrum.transpose(1, 2).reshape(self.kept, count, self.bank.shape[1]), self.bank)
        filtered = torch.view_as_complex(filtered.reshape(self.kept, count * self.wavelets * self.width, 2))
        waves = torch.view_as_complex(self.back) @ filtered
        return _modulus(waves).reshape(self.kept, count, self.wavelets, self.width)


class _Window(nn.Module):
    """u ⋆ φ at every fourth pixel of the image, without the margin: [h', n, ..., w'] to [h/4, n, ..., w/4]."""

    left: Tensor
    right: Tensor

    def __init__(self, padded: Sequence[int], size: Sequence[int], edges: Sequence[Array] | None = None) -> None:
        super().__init__()
        left, right = (_averaging(p, s) for p, s in zip(padded, size, strict=True))
        if edges is not None:
            left, right = left @ edges[0], right @ edges[1]
        _keep(self, "left", left)
        _keep(self, "right", right.T)

    def forward(self, u: Tensor) -> Tensor:
        narrow = u @ self.right
        return (self.left @ narrow.flatten(1)).reshape(len(self.left), *narrow.shape[1:])


def _modulus(z: Tensor) -> Tensor:
    """|z|, by the fastest operations of each device; abs() of complex numbers is slow on both."""
    if z.is_cuda:
        return torch.hypot(z.real, z.imag)
    return torch.addcmul(z.real.square(), z.imag, z.imag).sqrt()


def _averaging(padded: int, size: int) -> Array:
    """The matrix [positions, size] of the window along one axis; `size` is `padded` or, subsampled, half of it."""
    spectrum = window(padded)
    half = size // 2
    kept = np.concatenate([spectrum[:half], spectrum[padded - half :]])
    positions = padded // STEP
    matrix = (_fourier(size).conj().T[:: size // positions] / size) @ (kept[:, None] * _fourier(size))
    margin = _MARGIN // STEP
    return np.asarray(matrix.real[margin : positions - margin], dtype=np.float64)


def _fourier(length: int) -> NDArray[np.complex128]:
    return np.asarray(np.exp(-2j * np.pi * np.outer(np.arange(length), np.arange(length)) / length))


def _real_product(matrix: NDArray[np.complex128]) -> Array:
    """[..., i, o] complex as [..., (re, im) i, o (re, im)]: so a product of real tensors yields interleaved complex."""
    return np.stack([_parts(matrix), _parts(1j * matrix)], axis=-4)


def _parts(matrix: NDArray[np.complex128]) -> Array:
    return np.stack([matrix.real, matrix.imag], axis=-1)


def _keep(module: nn.Module, name: str, values: Array) -> None:
    """A constant that moves with the module, but is no part of its state."""
    module.register_buffer(name, torch.from_numpy(np.ascontiguousarray(values)).float(), persistent=False)


def _chunk(planes: Tensor) -> int:
    """How many planes at once; each needs about a kilobyte of working memory a pixel."""
    budget = 4e9 if planes.is_cuda else 6e7  # larger blocks of memory come fresh from the system each time
    return max(1, int(budget / (1000 * planes.shape[1] * planes.shape[2])))
