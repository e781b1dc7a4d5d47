"""Unfolded layers: the same outputs and the same dropout as their own forward, which is back whatever happens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gradient_oracle import assert_matches_oracle, flat
from layer_cases import ATTENTION, CASES, NETS, RANDOM, RECURRENT, SIMPLE, Applied, Case
from torch import Tensor, nn

from adadpigu.core.gradients import choose_engine
from adadpigu.core.gradients.engine import flat_gradient
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.rule_engine import Call, RuleEngine, captured
from adadpigu.core.gradients.rules import RULES
from adadpigu.core.gradients.unfolding import UNFOLDINGS
from adadpigu.core.sensitive import Records
from adadpigu.errors import ModelError

LOSS = nn.MSELoss()
BAGS = {name: case for name, case in SIMPLE.items() if name.startswith("bag")}
UNFOLDED = {**BAGS, **ATTENTION, **RECURRENT, **NETS}
LSTM = RECURRENT["LSTM, plain"]


def everything(model: nn.Module) -> set[int]:
    return {id(parameter) for parameter in model.parameters()}


def run(model: nn.Module, inputs: Tensor, wanted: set[int]) -> tuple[Tensor, list[Call]]:
    engine = RuleEngine(model, RecordLoss(LOSS, None), "")
    chosen = engine.selection([s for s in engine.layout.slots if id(model.get_parameter(s.name)) in wanted])
    with captured(model, chosen) as calls:
        return model(inputs), calls


def assert_folded(model: nn.Module) -> None:
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", UNFOLDED)
def test_outputs_are_those_of_the_layers_own_forward(name: str, training: bool) -> None:
    model, inputs = UNFOLDED[name].model().double().train(training), UNFOLDED[name].inputs()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    found, calls = run(model, inputs, everything(model))
    assert calls
    expected = model(inputs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    assert found.stride() == expected.stride()
    assert_folded(model)


@pytest.mark.parametrize("name", RANDOM)
def test_the_same_seed_draws_the_same_dropout(name: str) -> None:
    """Else a rule that is right would differ from autograd on the example, and not be chosen."""
    model, inputs = RANDOM[name].model(), RANDOM[name].inputs()
    targets = torch.randn_like(model(inputs))
    assert choose_engine(model, LOSS, (inputs, targets)).name == "ghost"
    torch.manual_seed(5)
    found = flat(RuleEngine(model, RecordLoss(LOSS, None), ""), inputs, targets)
    torch.manual_seed(5)
    output, parameters = model(inputs), list(model.parameters())
    losses = [LOSS(*pair) for pair in zip(output, targets, strict=True)]
    expected = torch.stack([flat_gradient(loss, parameters, retain_graph=True) for loss in losses])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["encoder layer", "small transformer"])
def test_nets_in_evaluation_mode_are_right(name: str) -> None:
    """There torch has a fused path for encoder layers that calls none of their modules."""
    model, inputs = NETS[name].model().eval(), NETS[name].inputs()
    targets = torch.randn_like(model(inputs))
    engine = RuleEngine(model, RecordLoss(LOSS, None), "")
    assert_matches_oracle(engine, model, LOSS, inputs, targets, tolerance=1e-4)
    *frozen, last = model.parameters()
    for parameter in frozen:
        parameter.requires_grad_(False)
    assert last.requires_grad
    assert_matches_oracle(RuleEngine(model, RecordLoss(LOSS, None), ""), model, LOSS, inputs, targets, tolerance=1e-4)


class Failing(nn.Module):
    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        self.first(x)
        raise ArithmeticError("later")


def test_the_own_forward_is_back_after_a_failure() -> None:
    model, inputs = Failing(LSTM.model()), LSTM.inputs()
    with pytest.raises(ArithmeticError):
        run(model, inputs, everything(model))
    assert_folded(model)
    engine = RuleEngine(model, RecordLoss(LOSS, None), "")
    with pytest.raises(ArithmeticError):
        engine.per_sample_gradients(Records((inputs, torch.zeros(4, 1))))
    assert_folded(model)


def test_a_forward_that_was_put_on_the_module_is_put_back() -> None:
    model = LSTM.model()
    layer = model.get_submodule("layer")
    own = layer.forward
    layer.forward = own
    run(model, LSTM.inputs(), everything(model))
    assert vars(layer)["forward"] is own


def test_only_what_is_wanted_is_unfolded_and_noted() -> None:
    model, inputs = RECURRENT["GRU, deep, both ways"].model(), LSTM.inputs()
    assert run(model, inputs, set())[1] == []
    only = model.get_submodule("layer").get_parameter("weight_hh_l1_reverse")
    (call,) = run(model, inputs, {id(only)})[1]
    assert call.x.shape == (4, 5, 3)


def test_nothing_of_the_records_stays_in_the_module() -> None:
    model, inputs = NETS["text classifier"].model(), NETS["text classifier"].inputs()
    before = {path: set(vars(module)) for path, module in model.named_modules()}
    flat(RuleEngine(model, RecordLoss(LOSS, None), ""), inputs, torch.zeros(4, 3))
    assert {path: set(vars(module)) for path, module in model.named_modules()} == before
    assert all(parameter.grad is None for parameter in model.parameters())


def packed(layer: Any, x: Tensor) -> Tensor:
    lengths = torch.full((len(x),), x.shape[1])
    output, _ = layer(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))
    return nn.utils.rnn.pad_packed_sequence(output, batch_first=True)[0]


def one_by_one(layer: Any, x: Tensor) -> Tensor:
    return torch.stack([layer(row)[0] for row in x])


def attended(layer: Any, x: Tensor) -> Tensor:
    return torch.stack([layer(row, row, row)[0] for row in x])


def cut_up(layer: Any, x: Tensor) -> Tensor:
    return layer(x.flatten(), torch.arange(0, x.numel(), x.shape[1]))  # type: ignore[no-any-return]


REFUSED: dict[str, tuple[Callable[[], nn.Module], Case, str]] = {
    "packed": (lambda: Applied(nn.LSTM(4, 3, batch_first=True), packed), LSTM, "PackedSequence; give it a padded"),
    "no batch": (lambda: Applied(nn.GRU(4, 3), one_by_one), LSTM, r"GRU: takes an input of shape \(5, 4\); give it"),
    "attention, no batch": (lambda: Applied(nn.MultiheadAttention(4, 2), attended), LSTM, "without a batch"),
    "offsets": (lambda: Applied(nn.EmbeddingBag(7, 3), cut_up), BAGS["bag with weights"], "one bag a record"),
    "frequencies": (
        lambda: nn.Embedding(7, 3, scale_grad_by_freq=True),
        SIMPLE["embedding"],
        "scale_grad_by_freq=True counts ids over the batch; build it with False",
    ),
    "frequencies in bags": (
        lambda: nn.EmbeddingBag(7, 3, scale_grad_by_freq=True),
        SIMPLE["embedding"],
        "scale_grad_by_freq=True counts ids over the batch; build it with False",
    ),
    "largest norm": (lambda: nn.Embedding(7, 3, max_norm=1e3), SIMPLE["embedding"], "build it with max_norm=None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused_with_a_remedy(name: str) -> None:
    build, case, message = REFUSED[name]
    torch.manual_seed(0)
    model, inputs = build(), case.inputs()
    with pytest.raises(ModelError, match=message):
        flat(RuleEngine(model, RecordLoss(LOSS, None), ""), inputs, torch.zeros_like(model(inputs)))
    assert_folded(model)


def test_a_packed_sequence_is_trained_by_a_slower_engine_that_says_why() -> None:
    build, case, _ = REFUSED["packed"]
    torch.manual_seed(0)
    model, inputs = build(), case.inputs()
    targets = torch.randn(4, 5, 3)
    engine = choose_engine(model, LOSS, (inputs, targets))
    assert engine.name == "loop"
    assert_matches_oracle(engine, model, LOSS, inputs, targets)


def test_a_deep_copy_made_after_a_capture_is_an_ordinary_module() -> None:
    model, inputs = LSTM.model(), LSTM.inputs()
    run(model, inputs, everything(model))
    torch.testing.assert_close(copy.deepcopy(model)(inputs), model(inputs))


def test_every_layer_with_a_rule_is_in_the_docs() -> None:
    docs = Path(__file__).parents[3] / "docs"
    page = "".join((docs / name).read_text(encoding="utf-8") for name in ("models.md", "hugging-face.md"))
    own = [kind for kind in (*RULES, *UNFOLDINGS) if kind.__name__ != "NonDynamicallyQuantizableLinear"]
    assert [kind.__name__ for kind in own if f"`{kind.__name__}`" not in page] == []


def test_every_new_layer_has_a_case() -> None:
    kinds = {type(module) for case in CASES.values() for module in case.model().modules()}
    assert set(UNFOLDINGS) <= kinds
