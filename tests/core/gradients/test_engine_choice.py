"""Which engine a model gets, that the choice is explained, and that the gradients are right whichever it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from gradient_oracle import Loss, assert_matches_oracle
from torch import Tensor, nn

from adadpigu.core.gradients import choose_engine
from adadpigu.core.gradients.rules import RULES, Destination, rule
from adadpigu.core.sensitive import Records, unseal


class Reused(nn.Module):
    """One layer called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(torch.tanh(self.layer(x)))))  # type: ignore[no-any-return]


class SharedParameter(nn.Module):
    """Two layers, one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


class FunctionalUse(nn.Module):
    """The weight is also used outside its module, where no hook sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.layer(x)), self.layer.weight.T)


class TiedDecoder(nn.Module):
    """Embedding and decoder share their weight, the decoder functionally."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix = nn.Embedding(7, 4), nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.mix(self.embedding(tokens)).mean(1), self.embedding.weight)


class PartlyTrained(nn.Module):
    """One layer never called, one frozen, one with only its bias trained."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.frozen, self.biased, self.head = (nn.Linear(4, 4) for _ in range(4))
        self.frozen.requires_grad_(False)
        self.biased.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.biased(self.frozen(x))))  # type: ignore[no-any-return]


class InPlace(nn.Module):
    """In-place activation and in-place residual add."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding="same")
        self.norm = nn.GroupNorm(1, 2)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(2 * 5 * 5, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.conv(x)))
        y = y + x
        y += 1.0
        return self.head(y.flatten(1))  # type: ignore[no-any-return]


class OverwrittenInput(nn.Module):
    """Changes a layer's input after the layer has seen it; plain autograd copes, since the weight needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.biased, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.biased.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y = self.biased(h)
        h.mul_(0.5)
        return self.head(torch.tanh(y + h))  # type: ignore[no-any-return]


class SequenceFirst(nn.Module):
    """Hands its layer [sequence, batch, features]: a rule would be right in the sum, and wrong record by record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x.transpose(0, 1))).transpose(0, 1).mean(1)


class Scaled(nn.Module):
    """A custom layer with parameters of its own, one of them a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.randn(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sin(self.scale * x + self.shift))  # type: ignore[no-any-return]


class Hoarder(nn.Module):
    """Reaches its weight through a list, which torch.func cannot replace."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.hoard = [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.hoard[0].T)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM]) -> None:
        super().__init__()
        self.rnn = kind(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])  # type: ignore[no-any-return]


class OwnGRU(nn.GRU):
    """A subclass may compute something else, so it has no rule; and vmap refuses it."""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0].mean(1)  # type: ignore[no-any-return]


def nested() -> nn.Module:
    block = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.ReLU(inplace=True))
    head = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(36, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)))
    return nn.Sequential(block, head)


Case = tuple[Callable[[], nn.Module], tuple[int, ...], str]
VECTOR, SEQUENCE, IMAGE = (4,), (6, 4), (2, 5, 5)
CASES: dict[str, Case] = {
    "nested sequential": (nested, IMAGE, "ghost"),
    "module called three times": (Reused, VECTOR, "ghost"),
    "module called three times on sequences": (Reused, SEQUENCE, "ghost"),
    "parameter shared by two modules": (SharedParameter, VECTOR, "ghost"),
    "unused and frozen": (PartlyTrained, VECTOR, "ghost"),
    "in-place activation, residual": (InPlace, IMAGE, "ghost"),
    "input overwritten later": (OverwrittenInput, VECTOR, "functional"),
    "functional use of a weight": (FunctionalUse, VECTOR, "functional"),
    "batch in the second dimension": (SequenceFirst, (3, 4), "functional"),
    "batch in the second dimension, another length": (SequenceFirst, (5, 4), "functional"),
    "custom module": (Scaled, VECTOR, "functional"),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), VECTOR, "functional"),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 3)), VECTOR, "any"),
    "conv1d, instance norm": (
        lambda: nn.Sequential(nn.Conv1d(6, 4, 2), nn.InstanceNorm1d(4, affine=True)),
        SEQUENCE,
        "ghost",
    ),
    "weight reached through a list": (Hoarder, VECTOR, "loop"),
    "GRU": (lambda: Recurrent(nn.GRU), SEQUENCE, "ghost"),
    "GRU of one's own": (lambda: Recurrent(OwnGRU), SEQUENCE, "loop"),
    "LSTM": (lambda: Recurrent(nn.LSTM), SEQUENCE, "ghost"),
    "attention": (Attention, SEQUENCE, "ghost"),
    "transformer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), SEQUENCE, "ghost"),
}


def case(name: str, records: int = 4) -> tuple[nn.Module, Loss, Tensor, Tensor, str]:
    torch.manual_seed(0)
    build, shape, engine = CASES[name]
    model = build()
    inputs = torch.randn(records, *shape)
    with torch.no_grad():
        targets = torch.randn_like(model(inputs))
    return model, nn.MSELoss(), inputs, targets, engine


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_right_whichever_engine_is_chosen(name: str) -> None:
    model, loss, inputs, targets, expected = case(name)
    engine = choose_engine(model, loss, (torch.zeros(3, *inputs.shape[1:]), torch.zeros(3, *targets.shape[1:])))
    assert expected in ("any", engine.name)
    assert engine.layout.size == sum(p.numel() for p in model.parameters() if p.requires_grad)
    for size in (1, 3, 4):
        assert_matches_oracle(engine, model, loss, inputs[:size], targets[:size], tolerance=2e-5)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", CASES)
def test_an_empty_batch_gives_empty_gradients(name: str) -> None:
    model, loss, inputs, targets, _ = case(name)
    engine = choose_engine(model, loss, (inputs, targets))
    empty = Records((inputs[:0], targets[:0]))
    batch = unseal(engine.per_sample_gradients(empty))
    assert batch.gradients.shape == (0, engine.layout.size)
    assert batch.losses.shape == unseal(engine.per_record_losses(empty)).shape == (0,)


def test_tokens_and_a_tied_decoder_are_right() -> None:
    torch.manual_seed(0)
    model, loss = TiedDecoder(), nn.CrossEntropyLoss()
    example = torch.zeros(3, 5, dtype=torch.long), torch.zeros(3, dtype=torch.long)
    engine = choose_engine(model, loss, example)
    assert engine.name == "functional"
    assert "differ from autograd at 'embedding.weight' (Embedding)" in engine.reason
    assert_matches_oracle(engine, model, loss, torch.randint(0, 7, (4, 5)), torch.randint(0, 7, (4,)), tolerance=2e-5)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("nested sequential", ["layer rules", "Conv2d, GroupNorm, LayerNorm, Linear"]),
        ("functional use of a weight", ["under vmap, because", "differ from autograd at 'layer.weight' (Linear)"]),
        ("input overwritten later", ["under vmap, because", "'biased' (Linear)", "changed in place"]),
        ("custom module", ["under vmap, because", "no layer rule for <model> (Scaled)"]),
        ("GRU of one's own", ["in a loop, because", "vmap refuses 'rnn' (OwnGRU)", "; no layer rule for 'rnn'"]),
        ("weight reached through a list", ["in a loop, because", "differs from autograd at 'weight' (Hoarder)"]),
    ],
)
def test_the_choice_is_explained_in_one_line(name: str, parts: list[str]) -> None:
    model, loss, inputs, targets, _ = case(name)
    reason = choose_engine(model, loss, (inputs, targets)).reason
    assert all(part in reason for part in parts), reason
    assert "\n" not in reason


def test_a_loop_that_layer_rules_could_spare_names_the_option_that_takes_them() -> None:
    class Sampled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            mean = super().forward(input)
            return torch.distributions.Normal(mean, torch.ones_like(mean)).rsample()

    def losses(model: nn.Module, batch: Tensor) -> Tensor:
        return torch.as_tensor(model(batch)).square().mean(1)

    example = torch.zeros(4, 3), torch.zeros(4)
    chosen = choose_engine(Sampled(3, 2), None, example, losses=losses)
    assert chosen.reason.startswith("one record at a time")
    assert "engine='ghost' takes layer rules" in chosen.reason
    assert choose_engine(Sampled(3, 2), None, example, losses=losses, engine="loop").reason.endswith("asked for")


def test_a_wrong_rule_is_found_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RULES[nn.Linear]

    def wrong(module: nn.Linear, x: Tensor, dy: Tensor, into: Destination) -> None:
        right(module, x, dy.roll(1, 0), into)

    monkeypatch.setitem(RULES, nn.Linear, wrong)
    model, loss, inputs, targets, _ = case("nested sequential")
    engine = choose_engine(model, loss, (inputs, targets))
    assert engine.name == "functional"
    assert "'1.1.0.weight' (Linear)" in engine.reason
    assert_matches_oracle(engine, model, loss, inputs, targets, tolerance=2e-5)


def test_a_rule_behind_a_zero_initialised_layer_is_still_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last layer at zero all gradients below it vanish, right or wrong."""

    def wrong(module: nn.LayerNorm, x: Tensor, dy: Tensor, into: Destination) -> None:
        into.add("weight", dy * 2)

    monkeypatch.setitem(RULES, nn.LayerNorm, wrong)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3))
    nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
    engine = choose_engine(model, nn.MSELoss(), (torch.zeros(3, 4), torch.zeros(3, 3)))
    assert engine.name == "functional"
    assert not model[1].weight.any()  # type: ignore[operator]


def test_a_rule_takes_one_decorated_function() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.by

    try:

        @rule(Shift)
        def shift(module: Shift, x: Tensor, dy: Tensor, into: Destination) -> None:
            into.add("by", dy)

        torch.manual_seed(0)
        model, loss = nn.Sequential(Shift(), nn.Tanh(), nn.Linear(4, 2)), nn.MSELoss()
        inputs, targets = torch.randn(4, 4), torch.randn(4, 2)
        engine = choose_engine(model, loss, (inputs, targets))
        assert engine.name == "ghost"
        assert_matches_oracle(engine, model, loss, inputs, targets)
    finally:
        del RULES[Shift]


def test_a_subclass_does_not_inherit_a_rule() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    engine = choose_engine(Doubled(4, 2), nn.MSELoss(), (torch.zeros(3, 4), torch.zeros(3, 2)))
    assert engine.name == "functional"


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_coarse_products_neither_hide_a_sound_model_nor_are_switched_off_for_good(precision: str) -> None:
    """bf16 products (on processors that have them) differ with the batch size by far more than float32's."""
    before = torch.get_float32_matmul_precision()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
    example = torch.randn(5, 512), torch.arange(5)
    try:
        torch.set_float32_matmul_precision(precision)
        assert choose_engine(model, nn.CrossEntropyLoss(), example).name == "ghost"
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
