"""A convolution with standardised weights: every filter has mean 0 and norm 1, whatever the parameters are.

ŵ_o = (w_o − mean w_o) / r_o with r_o = √(Σ(w_o − mean w_o)² + ε), and y = gain_o (ŵ_o ⋆ x) + b_o. Weights are looked
at, records are not, so nothing mixes and nothing is charged. Its layer rule is sensitive and keeps nothing: one product
a record, plus filters that all records share times t_o = Σ_p dy_op (ŵ_o ⋆ x)_p, which is ∂ℓ/∂gain_o:

    ∂ℓ/∂w_o = (gain_o/r_o) (Σ_p dy_op (patch_p − mean patch_p) − t_o ŵ_o)
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.gradients.rules import Destination, patches, rule

EPSILON = 1e-6


class StandardisedConv2d(nn.Conv2d):
    """A 2-D convolution, zero padded, one group, whose filters are standardised over their entries."""

    gain: nn.Parameter | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        gain: bool = True,
        bias: bool = False,
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, padding=padding, bias=bias)
        nn.init.normal_(self.weight, std=self.weight[0].numel() ** -0.5)
        self.gain = nn.Parameter(torch.ones(outputs)) if gain else None

    def filters(self) -> tuple[Tensor, Tensor]:
        """ŵ, shaped as the weight, and the norm each centred filter was divided by, [outputs]."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        norm = (centred.square().sum((1, 2, 3)) + EPSILON).sqrt()
        return centred / norm[:, None, None, None], norm

    def waves(self, x: Tensor, filters: Tensor) -> Tensor:
        return F.conv2d(x, filters, None, self.stride, self.padding)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (the name of the class above)
        y = self.waves(input, self.filters()[0])
        if self.gain is not None:
            y = y * self.gain[:, None, None]
        return y if self.bias is None else y + self.bias[:, None, None]


@rule(StandardisedConv2d)
def standardised_conv2d(module: StandardisedConv2d, x: Tensor, dy: Tensor, into: Destination) -> None:
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
            into.add_product("weight", (dy * scale[:, None, None]).flatten(2), (patch - patch.mean(1, keepdim=True)).mT)
            into.add_scaled("weight", -scale * along, filters.flatten(1))
