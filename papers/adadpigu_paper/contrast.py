"""The contrastive loss: two views of one image are alike, views of others are not (Chen et al., 2020).

ℓ = −log( exp(⟨z_i, z_i'⟩/τ) / Σ_j exp(⟨z_i, z_j⟩/τ) ), z of length 1, j over all other views. It mixes images of
random processes, which are public; no record ever comes here.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from adadpigu.errors import InputError


def contrastive_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """The mean of ℓ over both views [n, d] of n images.

    >>> apart = torch.eye(4)
    >>> bool(contrastive_loss(apart, apart, 0.1) < contrastive_loss(apart, apart.flip(0), 0.1))
    True
    """
    if first.shape != second.shape or first.ndim != 2 or len(first) < 2:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise InputError(f"contrastive loss: views {shapes}; allowed: two of one shape [images, d], 2 images at least")
    if not temperature > 0:
        raise InputError(f"temperature={temperature} is not above 0")
    views = F.normalize(torch.cat([first, second]).float(), dim=1)
    alike = views @ views.T / temperature
    alike.fill_diagonal_(-torch.inf)
    partner = torch.arange(len(views), device=views.device).roll(len(first))
    return F.cross_entropy(alike, partner)
