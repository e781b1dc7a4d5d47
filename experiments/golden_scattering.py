"""Writes tests/features/golden/scattering.npz: kymatio's values for a few fixed images.

kymatio is no dependency of this project; run this where it is installed (kymatio==0.3.0 wants scipy<1.17):
    python experiments/golden_scattering.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from kymatio.torch import Scattering2D

FILE = Path(__file__).parents[1] / "tests" / "features" / "golden" / "scattering.npz"


def images(count: int, channels: int, size: int, seed: int) -> np.ndarray:
    """Waves of several directions plus noise, in [0, 1], stored exactly in bytes."""
    y, x = np.mgrid[:size, :size] / size
    waves = [np.sin(2 * np.pi * ((i + 1) * x + (2 * i - 3) * y * y)) for i in range(count * channels)]
    noise = np.random.default_rng(seed).uniform(-1, 1, (count * channels, size, size))
    values = 0.5 + 0.25 * np.stack(waves) + 0.25 * noise
    return np.round(255 * values).astype(np.uint8).reshape(count, channels, size, size)


def main() -> None:
    inputs = {"gray": images(2, 1, 28, 0), "rgb": images(1, 3, 32, 1), "wide": images(1, 1, 24, 2)[..., :16, :]}
    stored: dict[str, np.ndarray] = dict(inputs)
    for name, pixels in inputs.items():
        transform = Scattering2D(J=2, L=8, shape=pixels.shape[2:])
        values = transform(torch.from_numpy(pixels).float() / 255)
        stored[f"{name}_features"] = values.flatten(1, 2).numpy()
    FILE.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(FILE, **stored)


if __name__ == "__main__":
    main()
