"""A net that starts from the prior: its last stage and a linear head are trained, the stages before are constants.

Weights come from images of random processes and are public, as any initialisation; a seed fixes the head's alone.
"""

import torch
from torch import Tensor, nn

from adadpigu.models.cards import Activation, ModelCard
from adadpigu.priors.encoder import EncoderMaps, EncoderShape, Weights, packaged_weights

_SIDE = 4  # of the pooled maps that the head sees


class _EarlierStages(EncoderMaps):
    """The maps of the last of the earlier stages, as the encoder computes them."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.stages(x)[-1]


class _Block(nn.Module):
    """act(shortcut(x) + conv(act(conv(x)))), from the prior's weights."""

    def __init__(self, weights: Weights, name: str, stride: int, activation: Activation) -> None:
        super().__init__()
        self.first = _convolution(weights, f"{name}.first", stride)
        self.middle = activation()
        self.second = _convolution(weights, f"{name}.second", 1)
        there = f"{name}.shortcut.weight" in weights.tensors
        self.shortcut = _convolution(weights, f"{name}.shortcut", stride) if there else None
        self.end = activation()

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        made: Tensor = self.end(kept + self.second(self.middle(self.first(x))))
        return made


def _convolution(weights: Weights, name: str, stride: int) -> nn.Conv2d:
    weight, bias = (weights.tensors[f"{name}.{part}"].float() for part in ("weight", "bias"))
    outputs, inputs, kernel, _ = weight.shape
    made = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
    with torch.no_grad():
        made.weight.copy_(weight)
        assert made.bias is not None
        made.bias.copy_(bias)
    return made


def _last_stage(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
    weights = packaged_weights()
    plan, last = weights.plan, len(weights.plan.widths) - 1
    earlier = EncoderShape(widths=plan.widths[:last], blocks=plan.blocks[:last])
    side = shape[1] // 2**last
    width = plan.widths[last]
    return nn.Sequential(
        _EarlierStages(earlier, weights.tensors),
        *(
            _Block(weights, f"stage{last}.block{block}", 1 if block else 2, activation)
            for block in range(plan.blocks[last])
        ),
        nn.AvgPool2d(side // _SIDE),
        nn.LayerNorm((width, _SIDE, _SIDE), elementwise_affine=False),
        nn.Flatten(),
        nn.Linear(width * _SIDE**2, classes),
    )


CARDS = (
    ModelCard(
        "prior-last-stage",
        _last_stage,
        (3, 32, 32),
        "the prior's last stage and a head, trained; its earlier stages are constants",
        activation="relu",
    ),
)
