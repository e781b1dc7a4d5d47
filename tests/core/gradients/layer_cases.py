"""Small models around one kind of layer each, with all its options, and some nets as people build them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

WORDS = 7
Use = Callable[[Any, Tensor], Tensor]


class Applied(nn.Module):
    """A layer, and what is done with it."""

    def __init__(self, layer: nn.Module, use: Use) -> None:
        super().__init__()
        self.layer = layer
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.use(self.layer, x))


class TextClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 4, padding_idx=0)
        self.sequence = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.sequence(self.words(x))[0].mean(1))  # type: ignore[no-any-return]


class SmallTransformer(nn.Module):
    """Encoder with causal mask and padding, decoder with learned queries, and weights shared by both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 4)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(4, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        padding = (x == 0) & (torch.arange(x.shape[1]) > 0)
        memory = self.encoder(self.words(x), mask=causal, src_key_padding_mask=padding, is_causal=True)
        return self.head(self.decoder(memory[:, :2], memory)).mean(1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    ids: bool = False
    vmap: bool = True
    """whether torch.func can run it in double precision"""
    bags: bool = False
    """whether id 1 is padding: one record has nothing else, the others start with it"""

    def model(self) -> nn.Module:
        torch.manual_seed(2)
        model = self.build()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=1.0)
        return model

    def inputs(self, records: int = 4) -> Tensor:
        torch.manual_seed(1)
        if self.ids:
            ids = torch.randint(WORDS, (records, *self.shape))
            if self.bags:
                ids[0], ids[1:, 0] = 1, 1
            return ids
        return torch.randn(records, *self.shape)


def _plain(layer: Any, x: Tensor) -> Tensor:
    return layer(x)  # type: ignore[no-any-return]


def layer(build: Callable[[], nn.Module], *shape: int, use: Use = _plain, **options: bool) -> Case:
    return Case(lambda: Applied(build(), use), shape, **options)


def dilated_later() -> nn.Module:
    """As segmentation nets make their backbones: padding and dilation are set after construction."""
    convolution = nn.Conv2d(2, 3, 3, padding=1)
    convolution.padding, convolution.dilation = (2, 2), (2, 2)
    return convolution


def weighted_bag(bag: Any, x: Tensor) -> Tensor:
    weights = torch.linspace(-1, 2, x.shape[1], dtype=bag.weight.dtype).expand(x.shape)
    return bag(x, per_sample_weights=weights)  # type: ignore[no-any-return]


SIMPLE = {
    "conv1d": layer(lambda: nn.Conv1d(2, 3, 3), 2, 7),
    "conv1d, strided": layer(
        lambda: nn.Conv1d(4, 6, 2, stride=3, padding=2, dilation=2, groups=2, padding_mode="reflect"), 4, 8
    ),
    "conv1d, same": layer(lambda: nn.Conv1d(2, 2, 4, padding="same", padding_mode="circular", bias=False), 2, 6),
    "conv2d, dilated later": layer(dilated_later, 2, 6, 6),
    "conv3d": layer(lambda: nn.Conv3d(2, 3, (1, 2, 3)), 2, 3, 4, 3),
    "conv3d, strided": layer(
        lambda: nn.Conv3d(2, 4, 2, stride=(1, 2, 3), padding=(0, 1, 2), dilation=(2, 1, 1), groups=2), 2, 3, 4, 3
    ),
    "conv3d, same": layer(lambda: nn.Conv3d(1, 2, 2, padding="same", padding_mode="replicate"), 1, 3, 2, 3),
    "rms norm": layer(lambda: nn.RMSNorm(4), 3, 4),
    "rms norm over two dimensions": layer(lambda: nn.RMSNorm((3, 4), eps=0.1), 2, 3, 4),
    "instance norm 1d": layer(lambda: nn.InstanceNorm1d(3, affine=True), 3, 5),
    "instance norm 2d": layer(lambda: nn.InstanceNorm2d(2, affine=True, eps=0.1), 2, 3, 4),
    "instance norm 3d": layer(lambda: nn.InstanceNorm3d(2, affine=True), 2, 2, 3, 2),
    "embedding": layer(lambda: nn.Embedding(WORDS, 3), 5, ids=True),
    "embedding of one id": layer(lambda: nn.Embedding(WORDS, 3, padding_idx=2), ids=True),
    "embedding with padding": layer(lambda: nn.Embedding(WORDS, 3, padding_idx=-1), 2, 4, ids=True),
    **{
        f"bag, {mode}, padding {padding}": layer(
            lambda mode=mode, padding=padding: nn.EmbeddingBag(WORDS, 3, mode=mode, padding_idx=padding),  # type: ignore[misc]
            3,
            ids=True,
            bags=True,
        )
        for mode in ("sum", "mean", "max")
        for padding in (None, 1)
    },
    "bag with weights": layer(
        lambda: nn.EmbeddingBag(WORDS, 3, mode="sum", padding_idx=1), 4, use=weighted_bag, ids=True, bags=True
    ),
}


def attention(use: Use, **options: Any) -> Case:
    return layer(lambda: nn.MultiheadAttention(4, 2, **{"batch_first": True, **options}), 5, 4, use=use)


def itself(**options: Any) -> Use:
    return lambda layer, x: layer(x, x, x, **options)[0]


def across(**options: Any) -> Use:
    """Keys and values are different, and fewer than queries."""
    return lambda layer, x: layer(query=x, key=x[:, :3].cos(), value=x[:, 1:4].sin(), **options)[0]


def kept(layer: Any, x: Tensor) -> Tensor:
    memory = x[:, :3, :3]
    return layer(x, memory, memory[..., :2], need_weights=False)[0]  # type: ignore[no-any-return]


def same_memory(layer: Any, x: Tensor) -> Tensor:
    memory = x[:, :3].exp()
    return layer(x, memory, memory, need_weights=False)[0]  # type: ignore[no-any-return]


def padded(layer: Any, x: Tensor) -> Tensor:
    padding = (x[..., 0] > 0) & (torch.arange(5) > 0)
    return layer(x, x, x, key_padding_mask=padding, need_weights=False)[0]  # type: ignore[no-any-return]


def both_masks(layer: Any, x: Tensor) -> Tensor:
    """Masks that are numbers, one for each record and head."""
    each = x.detach()[:, None].expand(-1, 2, -1, -1).flatten(0, 1)
    return layer(x, x, x, key_padding_mask=x.detach()[..., 1], attn_mask=each @ each.mT)[0]  # type: ignore[no-any-return]


def with_weights(layer: Any, x: Tensor) -> Tensor:
    output, weights = layer(x, x, x, average_attn_weights=False)
    return torch.cat((output.flatten(1), weights.flatten(1)), dim=1)


def second(layer: Any, x: Tensor) -> Tensor:
    """The batch in the second dimension, as the layer wants it."""
    x = x.transpose(0, 1)
    return layer(x, x, x)[0].transpose(0, 1)  # type: ignore[no-any-return]


def second_across(layer: Any, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return layer(x, x[:2], x[:2], need_weights=False)[0].transpose(0, 1)  # type: ignore[no-any-return]


CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
ATTENTION = {
    "attention": attention(itself()),
    "attention without weights": attention(itself(need_weights=False)),
    "attention without bias": attention(itself(), bias=False),
    "attention, causal": attention(itself(attn_mask=CAUSAL, need_weights=False)),
    "attention, causal by hint": attention(itself(attn_mask=CAUSAL, is_causal=True, need_weights=False)),
    "attention, padded": attention(padded),
    "attention, masks of numbers": attention(both_masks),
    "attention, weights used": attention(with_weights),
    "attention across": attention(across()),
    "attention across, fused": attention(across(need_weights=False), add_bias_kv=True),
    "attention across, one memory": attention(same_memory, add_zero_attn=True),
    "attention of three widths": attention(kept, kdim=3, vdim=2),
    "attention of three widths without bias": attention(kept, kdim=3, vdim=2, bias=False),
    "attention, extra positions": attention(padded, add_bias_kv=True, add_zero_attn=True),
    "attention, extra positions, weights": attention(itself(attn_mask=CAUSAL), add_bias_kv=True, add_zero_attn=True),
    "attention, batch second": attention(second, batch_first=False),
    "attention across, batch second": attention(second_across, batch_first=False),
}


def everything(layer: Any, x: Tensor) -> Tensor:
    """Outputs and final states."""
    output, state = layer(x)
    states = state if isinstance(state, tuple) else (state,)
    return torch.cat((output.flatten(1), *(each.transpose(0, 1).flatten(1) for each in states)), dim=1)


def from_state(layer: Any, x: Tensor) -> Tensor:
    passes = layer.num_layers * (2 if layer.bidirectional else 1)
    h = x[None, :, 0, :3].cos().expand(passes, -1, -1).contiguous()
    return layer(x, (h, h.sin()) if isinstance(layer, nn.LSTM) else h)[0]  # type: ignore[no-any-return]


def time_first(layer: Any, x: Tensor) -> Tensor:
    return layer(input=x.transpose(0, 1))[0].transpose(0, 1)  # type: ignore[no-any-return]


def stepped(layer: Any, x: Tensor) -> Tensor:
    state = layer(x[:, 0])
    for t in range(1, x.shape[1]):
        state = layer(x[:, t], state)
    return torch.stack(state).sum(0) if isinstance(state, tuple) else state


RECURRENT = {
    f"{kind.__name__}, {name}": layer(
        lambda kind=kind, options=options: kind(4, 3, **{"batch_first": True, **options}),  # type: ignore[misc]
        5,
        4,
        use=use,
        vmap=name == "without bias",
    )
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for name, use, options in (
        ("plain", everything, {}),
        ("deep, both ways", everything, {"num_layers": 2, "bidirectional": True}),
        ("without bias", from_state, {"bias": False, "bidirectional": True}),
        ("time first", time_first, {"batch_first": False, "num_layers": 2}),
    )
}
RECURRENT["RNN, relu"] = layer(
    lambda: nn.RNN(4, 3, nonlinearity="relu", batch_first=True), 5, 4, use=everything, vmap=False
)
RECURRENT["LSTM, projected"] = layer(
    lambda: nn.LSTM(4, 5, 2, proj_size=3, bidirectional=True, batch_first=True), 4, 4, use=everything, vmap=False
)
RECURRENT |= {
    f"{kind.__name__}, bias {bias}": layer(
        lambda kind=kind, bias=bias: kind(4, 3, bias=bias),  # type: ignore[misc]
        3,
        4,
        use=stepped,
        vmap=False,
    )
    for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)
    for bias in (True, False)
}


def encoder(norm_first: bool, dropout: float = 0.0) -> Case:
    return Case(
        lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=dropout, batch_first=True, norm_first=norm_first), (5, 4)
    )


NETS = {
    "text classifier": Case(TextClassifier, (5,), ids=True, vmap=False),
    "encoder layer": encoder(norm_first=False),
    "encoder layer, norm first": encoder(norm_first=True),
    "small transformer": Case(SmallTransformer, (5,), ids=True),
}
RANDOM = {
    "attention": attention(itself(), dropout=0.5),
    "attention without weights": attention(itself(need_weights=False), dropout=0.5),
    "attention across, batch second": attention(second_across, dropout=0.5, batch_first=False),
    "encoder layer": encoder(norm_first=False, dropout=0.3),
    "encoder layer, norm first": encoder(norm_first=True, dropout=0.3),
    **{
        f"{kind.__name__}, time {'second' if batch_first else 'first'}": layer(
            lambda kind=kind, b=batch_first: kind(4, 3, 3, dropout=0.4, bidirectional=True, batch_first=b),  # type: ignore[misc]
            5,
            4,
            use=everything if batch_first else time_first,
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for batch_first in (True, False)
    },
}
"""models that draw dropout, as their layers' own forwards do"""
CASES = {**SIMPLE, **ATTENTION, **RECURRENT, **NETS}
