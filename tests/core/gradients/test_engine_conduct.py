"""What engines do besides the numbers: seal what they return, leave nothing behind, and watch the model at run time."""

from __future__ import annotations

import pytest
import torch
from gradient_oracle import assert_matches_oracle, flat
from torch import Tensor, nn

from adadpigu.core.gradients import choose_engine
from adadpigu.core.gradients.engine import FunctionalEngine, GradientEngine, LoopEngine
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.rule_engine import RuleEngine
from adadpigu.core.sensitive import PerRecordLosses, PerSampleGradients, Records, unseal
from adadpigu.errors import ModelError, PrivacyLineError

ENGINES: tuple[type[GradientEngine], ...] = (RuleEngine, FunctionalEngine, LoopEngine)
LOSS = RecordLoss(nn.MSELoss(), None)
every_engine = pytest.mark.parametrize("engine", ENGINES)


class Saboteur(nn.Module):
    """Behaves until told otherwise, as a module might that inspection could not see through."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.mischief = ""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if self.mischief == "raise":
            raise RuntimeError("no")
        if self.mischief == "replace":
            self.seen = x.detach().sum()
        if self.mischief == "write":
            self.seen += 1
        if self.mischief == "weight":
            with torch.no_grad():
                self.last.bias.add_(1)
        if self.mischief == "register":
            self.register_buffer("late", torch.zeros(()))
        return self.last(h)  # type: ignore[no-any-return]


@pytest.fixture
def model() -> Saboteur:
    torch.manual_seed(0)
    return Saboteur()


def records(size: int = 5) -> Records:
    generator = torch.Generator().manual_seed(1)
    return Records((torch.randn(size, 4, generator=generator), torch.randn(size, 3, generator=generator)))


def hooks(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        for module in model.modules()
    )


@every_engine
def test_results_are_sealed_and_show_no_number(engine: type[GradientEngine], model: Saboteur) -> None:
    running = engine(model, LOSS, "")
    gradients, losses = running.per_sample_gradients(records()), running.per_record_losses(records())
    assert type(gradients) is PerSampleGradients
    assert type(losses) is PerRecordLosses
    assert not any(character.isdigit() for character in repr(gradients) + repr(losses))
    with pytest.raises(PrivacyLineError):
        float(losses)  # type: ignore[arg-type]
    content = unseal(gradients)
    assert not content.gradients.requires_grad
    assert not content.losses.requires_grad
    assert not unseal(losses).requires_grad


@every_engine
def test_only_records_are_accepted(engine: type[GradientEngine], model: Saboteur) -> None:
    running = engine(model, LOSS, "")
    with pytest.raises(PrivacyLineError):
        running.per_sample_gradients((torch.zeros(2, 4), torch.zeros(2, 3)))  # type: ignore[arg-type]
    with pytest.raises(PrivacyLineError):
        running.per_record_losses(running.per_sample_gradients(records()))  # type: ignore[arg-type]


@every_engine
def test_nothing_is_left_on_the_model(engine: type[GradientEngine], model: Saboteur) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    before = {path: set(vars(module)) for path, module in model.named_modules()}
    engine(model, LOSS, "").per_sample_gradients(records())
    assert hooks(model) == 0
    assert {path: set(vars(module)) for path, module in model.named_modules()} == before
    assert all(set(vars(parameter)) == set() for parameter in model.parameters())
    assert all(bool((parameter.grad == 7.0).all()) for parameter in model.parameters())  # type: ignore[union-attr]


@every_engine
def test_hooks_are_gone_after_an_exception(engine: type[GradientEngine], model: Saboteur) -> None:
    model.mischief = "raise"
    with pytest.raises(RuntimeError, match="no"):
        engine(model, LOSS, "").per_sample_gradients(records())
    assert hooks(model) == 0
    model.mischief = ""
    inputs, targets = unseal(records())
    assert_matches_oracle(engine(model, LOSS, ""), model, nn.MSELoss(), inputs, targets)


@every_engine
@pytest.mark.parametrize(
    ("mischief", "named"),
    [("replace", "'seen'"), ("write", "'seen'"), ("weight", "'last' .* parameter 'bias'"), ("register", "'late'")],
)
def test_a_model_that_writes_to_itself_during_training_is_stopped(
    engine: type[GradientEngine], model: Saboteur, mischief: str, named: str
) -> None:
    running = engine(model, LOSS, "")
    running.per_sample_gradients(records())
    model.mischief = mischief
    if engine is FunctionalEngine and mischief == "write":  # torch.func lets no such write through in the first place
        with pytest.raises(RuntimeError, match="in-place"):
            running.per_sample_gradients(records())
        return
    with pytest.raises(ModelError, match=named) as refused:
        running.per_sample_gradients(records())
    assert "\n" not in str(refused.value)


@every_engine
def test_a_model_that_writes_to_itself_while_losses_are_read_is_stopped(
    engine: type[GradientEngine], model: Saboteur
) -> None:
    model.mischief = "write"
    with pytest.raises(ModelError, match="buffer 'seen'"):
        engine(model, LOSS, "").per_record_losses(records())


@every_engine
def test_an_empty_batch_does_not_run_the_model(engine: type[GradientEngine], model: Saboteur) -> None:
    model.mischief = "raise"
    running = engine(model.double(), LOSS, "")
    batch = unseal(running.per_sample_gradients(records(0)))
    assert batch.gradients.shape == (0, running.layout.size)
    assert batch.gradients.dtype == torch.float64
    assert unseal(running.per_record_losses(records(0))).shape == (0,)


@every_engine
def test_gradients_follow_the_parameters_and_ignore_no_grad(engine: type[GradientEngine], model: Saboteur) -> None:
    running = engine(model, LOSS, "")
    inputs, targets = unseal(records())
    with torch.no_grad():
        model.first.weight.mul_(3.0)
        assert_no_grad_agrees = flat(running, inputs, targets)
    assert torch.equal(assert_no_grad_agrees, flat(running, inputs, targets))
    assert_matches_oracle(running, model, nn.MSELoss(), inputs, targets)


@every_engine
def test_micro_batches_give_the_same_gradients(engine: type[GradientEngine], model: Saboteur) -> None:
    running = engine(model, LOSS, "")
    inputs, targets = unseal(records(7))
    parts = [flat(running, *part) for part in zip(torch.split(inputs, 3), torch.split(targets, 3), strict=True)]
    assert torch.allclose(torch.cat(parts), flat(running, inputs, targets), rtol=1e-5, atol=1e-7)


@every_engine
def test_dropout_drops_differently_for_each_record(engine: type[GradientEngine]) -> None:
    """Eight equal records, 64 units: two of them dropping alike has probability below 2e-18."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    inputs, targets = torch.randn(1, 4).repeat(8, 1), torch.zeros(8, 3)
    rows = flat(engine(model, LOSS, ""), inputs, targets)
    assert len(torch.unique(rows, dim=0)) == 8
    assert_matches_oracle(engine(model.eval(), LOSS, ""), model, nn.MSELoss(), inputs, targets)


def test_rules_under_dropout_equal_autograd_under_the_same_draw() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    engine = choose_engine(model, nn.MSELoss(), (torch.zeros(3, 4), torch.zeros(3, 3)))
    assert engine.name == "ghost"
    inputs, targets = unseal(records())
    torch.manual_seed(1)
    found = flat(engine, inputs, targets)
    torch.manual_seed(1)
    losses = (model(inputs) - targets).square().mean(1)
    for row, loss in zip(found, losses, strict=True):
        expected = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        assert torch.allclose(row, torch.cat([gradient.flatten() for gradient in expected]), rtol=1e-4, atol=1e-6)


def test_errors_at_run_time_carry_no_batch_size(model: Saboteur) -> None:
    """The realised batch size is sensitive."""

    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.reshape(-1, 2)).reshape(len(x), -1)  # type: ignore[no-any-return]

    with pytest.raises(ModelError, match=r"'layer' .*batch as first dimension") as refused:
        RuleEngine(Folded(), RecordLoss(lambda output, _: output.sum(), None), "").per_sample_gradients(records(5))
    assert not any(character.isdigit() for character in str(refused.value))
