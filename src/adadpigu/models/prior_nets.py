"""Nets that start from the prior: its last stage and a linear head are trained, or all of its encoder and a head.

Weights come from images of random processes and are public, as any initialisation; a seed fixes the head's alone.
"""

import math

import torch
from torch import Tensor, nn

from adadpigu.features.prior import Prior
from adadpigu.models.cards import Activation, ModelCard
from adadpigu.priors.encoder import EncoderMaps, EncoderShape, Weights, centred, staged
from adadpigu.priors.named import named_weights

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
    weights = named_weights("prior")
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


class _Trained(nn.Module):
    """The features φ of a prior, by an encoder whose convolutions are trained; statistics and projection are constants.

    Before the first step these are the features that `--features prior` makes.
    """

    def __init__(self, weights: Weights, shape: tuple[int, ...], activation: Activation) -> None:
        super().__init__()
        self.prior, self.activation = Prior(weights, shape), activation()
        units = weights.plan.units()
        self.units = nn.ModuleDict({_key(name): _convolution(weights, name, stride) for name, *_, stride in units})

    def forward(self, x: Tensor) -> Tensor:
        x, parts = self.prior.whole(x), self.prior.parts
        plan, convolve = parts.encoder.plan, lambda name, maps: self.units[_key(name)](maps)
        made = staged(plan, convolve, centred(x), self.activation)
        stages = [parts.encoder.standard(stage, maps) for stage, maps in enumerate(made)]
        return self.prior.projected(parts.beside(stages, x))


def _key(name: str) -> str:
    return name.replace(".", "_")  # names of modules have no dots


def _whole(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
    features = _Trained(named_weights("prior"), shape, activation)
    made = features.prior.features
    norm = nn.LayerNorm(made, elementwise_affine=False)
    return nn.Sequential(features, norm, nn.Flatten(), nn.Linear(math.prod(made), classes))


CARDS = (
    ModelCard(
        "prior-whole",
        _whole,
        (3, 32, 32),
        "the prior's encoder, trained, and a linear head on the features that it makes beside ScatterNet's",
        activation="relu",
    ),
    ModelCard(
        "prior-last-stage",
        _last_stage,
        (3, 32, 32),
        "the prior's last stage and a head, trained; its earlier stages are constants",
        activation="relu",
    ),
)
