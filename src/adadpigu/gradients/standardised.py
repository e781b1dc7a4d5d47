"""The layer rule for convolutions with standardised weights. Works on sensitive tensors and keeps nothing.

With ŵ = c/r, c the centred filter and r its norm, a gradient G_o = Σ_p dy_op patch_p of gain·ŵ becomes

    ∂ℓ/∂w_o = (gain_o/r_o) (Σ_p dy_op (patch_p − mean patch_p) − t_o ŵ_o),   t_o = ⟨G_o, ŵ_o⟩ = Σ_p dy_op (ŵ_o ⋆ x)_p,

so it stays one product a record, plus t times filters that all records share. ∂ℓ/∂gain_o is t_o.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adadpigu.gradients.rules import Destination, patches, rule
from adadpigu.models.standardised import StandardisedConv2d


@rule(StandardisedConv2d)
def standardised_conv2d(module: StandardisedConv2d, x: Tensor, dy: Tensor, into: Destination) -> None:
    """y = gain (ŵ ⋆ x) + b."""
    if into.wants("bias"):
        into.add("bias", dy.sum((2, 3)))
    if not into.wants("weight") and not into.wants("gain"):
        return
    with torch.no_grad():
        filters, norm = module.filters()
        along = (dy * module.waves(x, filters)).sum((2, 3))
        if into.wants("gain"):
            into.add("gain", along)
        if into.wants("weight"):
            scale = 1 / norm if module.gain is None else module.gain / norm
            patch = patches(module, x).flatten(1, 3).flatten(2)
            centred = patch - patch.mean(1, keepdim=True)
            into.add_product("weight", (dy * scale[:, None, None]).flatten(2), centred.mT)
            into.add_scaled("weight", -scale * along, filters.flatten(1))
