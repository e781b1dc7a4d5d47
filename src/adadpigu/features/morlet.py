"""Morlet wavelets and the Gaussian window of the 2-D scattering transform, in the Fourier domain. Public constants.

ψ_jθ(u) = (e^{i⟨ξ, u⟩} − κ) exp(−½ uᵀΣ⁻¹u) / (2π |Σ|^½), with κ such that ψ has mean zero, |ξ| = ¾π 2^{−j},
scale σ = 0.8 · 2^j along ξ and σL/4 across. Orientations are θ = (L/2 − 1 − t)π/L for t = 0 … L − 1 and the window
is a Gaussian of scale 0.8 · 2^{J−1}: the usual choices (Bruna and Mallat; Andreux et al., Kymatio).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SCALES = 2
"""J: the transform averages over 2^J pixels"""
ORIENTATIONS = 8
"""L"""
_WRAPS = 2
_PI = 3.1415
"""the π in Kymatio's norms (its angles have all digits); ours would be 3e-5 smaller"""


def morlet_bank(height: int, width: int, scale: int) -> Array:
    """ψ̂ of every orientation at scale 2^`scale`, [L, height, width]; real, because ψ(−u) is the conjugate of ψ(u)."""
    angles = [(ORIENTATIONS // 2 - 1 - turn) * math.pi / ORIENTATIONS for turn in range(ORIENTATIONS)]
    return np.stack([_morlet(height, width, scale, angle) for angle in angles])


def window(length: int, scale: int = SCALES - 1) -> Array:
    """φ̂ along one axis [length]; in two dimensions φ̂ is the product of both axes.

    >>> bool(abs(window(36)[0] - 1) < 1e-4)
    True
    """
    sigma = 0.8 * 2**scale
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
