"""Wide ResNets for private training: group norms of 16 groups and standardised weights in place of batch norms.

The design of De et al. (2022): pre-activation blocks, no batch statistics, so records do not mix. ReLU is their
activation and this net's default; the others can be chosen.
"""

from torch import Tensor, nn

from adadpigu.models.cards import Activation, ModelCard, Net
from adadpigu.models.standardised import StandardisedConv2d

_GROUPS = 16


class _Block(nn.Module):
    """x + conv(act(norm(conv(act(norm(x)))))); where width or size change, x passes a 1×1 convolution after act."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Activation) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.GroupNorm(_GROUPS, inputs), activation())
        self.body = nn.Sequential(
            StandardisedConv2d(inputs, outputs, 3, stride=stride, padding=1),
            nn.GroupNorm(_GROUPS, outputs),
            activation(),
            StandardisedConv2d(outputs, outputs, 3, padding=1),
        )
        changes = stride != 1 or inputs != outputs
        self.shortcut = StandardisedConv2d(inputs, outputs, 1, stride=stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        entered: Tensor = self.enter(x)
        kept: Tensor = x if self.shortcut is None else self.shortcut(entered)
        change: Tensor = self.body(entered)
        return kept + change


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def wide_resnet(depth: int, widening: int) -> Net:
    """WRN-`depth`-`widening`: three stages of (depth − 4)/6 blocks with 16, 32 and 64 times `widening` channels."""

    def net(shape: tuple[int, ...], classes: int, activation: Activation) -> nn.Module:
        width = 16
        layers: list[nn.Module] = [StandardisedConv2d(shape[0], width, 3, padding=1)]
        for stage in range(3):
            for block in range((depth - 4) // 6):
                outputs = 16 * 2**stage * widening
                layers.append(_Block(width, outputs, 2 if stage and not block else 1, activation))
                width = outputs
        return nn.Sequential(*layers, nn.GroupNorm(_GROUPS, width), activation(), _Mean(), nn.Linear(width, classes))

    return net


CARDS = (
    ModelCard(
        "wrn-16-4",
        wide_resnet(16, 4),
        (3, 32, 32),
        "wide ResNet with group norms and standardised weights (De et al.); ReLU unless told otherwise",
        activation="relu",
    ),
)
