"""A script for Opacus, with our engine: the same updates as our own training, passes and plans charged in full."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from scripts import (
    SIGMA,
    B,
    C,
    Loss,
    N,
    Words,
    backward,
    engine_for,
    flat,
    made,
    net,
    ours,
    padding,
    records,
    refused,
    script,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from adadpigu.accounting import epsilon, plan_for
from adadpigu.compat.opacus import DPGRU, DPLSTM, DPRNN, BatchMemoryManager, ModuleValidator, PrivacyEngine
from adadpigu.compat.opacus import get_noise_multiplier as noise_for
from adadpigu.errors import InputError

LOSSES: dict[str, tuple[Loss, Loss]] = {
    "a module": (nn.CrossEntropyLoss(), F.cross_entropy),
    "two functions": (lambda o, t: F.nll_loss(F.log_softmax(o, dim=1), t), F.cross_entropy),
    "none, then mean": (lambda o, t: F.cross_entropy(o, t, reduction="none").mean(), F.cross_entropy),
    "in place": (lambda o, t: F.cross_entropy(o, t).mul_(2.0), lambda o, t: 2 * F.cross_entropy(o, t)),
    "parts": (lambda o, t: -o.log_softmax(1).gather(1, t[:, None]).squeeze(1).mean(), F.cross_entropy),
    "no target": (lambda o, t: o.square().mean(), lambda o, t: o.square().mean()),
    "one of several results": (lambda o, t: o.max(dim=1).values.mean(), lambda o, t: o.max(dim=1).values.mean()),
    "of a list": (
        lambda o, t: torch.cat([o, 2 * o], dim=1).logsumexp(1).mean(),
        lambda o, t: torch.cat([o, 2 * o], 1).logsumexp(1).mean(),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_script_ends_where_our_own_training_ends(name: str) -> None:
    theirs, expected = LOSSES[name]
    model = script(made(engine_for(), net()), theirs)
    assert torch.allclose(flat(model), ours(net(), loss=expected), rtol=1e-5, atol=1e-7)


def test_passes_without_a_plan_add_up() -> None:
    engine = engine_for()
    parts = made(engine, net(), total_steps=None)
    assert len(parts[2]) == N // B
    for done in (1, 2, 3):
        script(parts)
        plan = plan_for(B / N, done * (N // B))(SIGMA)
        assert engine.get_epsilon(delta=1e-4) == pytest.approx(epsilon(plan.event(), 1e-4), rel=1e-9)
        assert engine.accountant.history == [(SIGMA, B / N, done * (N // B))]
        assert len(engine.accountant) == done * (N // B)
    report = engine.report(1e-4)
    assert report.epsilon_pld == pytest.approx(engine.get_epsilon(1e-4), rel=1e-9)
    assert (report.stages[0].planned, report.steps_charged, report.delta) == (15, 15, 1e-4)
    assert "how many passes were made" in " ".join(report.not_covered)
    assert "NOT PRIVATE" in engine.statement()  # its noise can be repeated


def test_a_pass_that_is_left_is_claimed_in_full() -> None:
    engine = engine_for()
    model, optimizer, loader = made(engine, net(), total_steps=None)
    for data, target in loader:
        backward(F.cross_entropy(model(data), target))
        optimizer.step()
        break
    assert len(engine.accountant) == 5
    assert engine.report().epsilon_pld == pytest.approx(epsilon(plan_for(B / N, 5)(SIGMA).event(), 1e-5), rel=1e-9)


def test_epochs_with_an_epsilon_are_one_planned_run() -> None:
    engine = PrivacyEngine(accountant="rdp")
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(*records()), batch_size=B)
    parts = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=3.0,
        target_delta=1e-4,
        epochs=2,
        max_grad_norm=C,
    )
    assert engine.get_epsilon(1e-4) == 0
    script(parts)
    between, charged = engine.get_epsilon(1e-4), len(engine.accountant)
    script(parts)
    assert 0 < between == engine.get_epsilon(1e-4)  # the plan: to stop between would claim it all the same
    assert len(engine.accountant) == 2 * charged
    assert engine.report().epsilon_pld <= 3.0 < engine.get_epsilon(1e-4)  # Rényi accounting is looser
    with pytest.raises(InputError, match="planned steps are done"):
        script(parts)


def test_what_is_charged_comes_before_what_is_shown() -> None:
    engine = engine_for()
    _, _, loader = made(engine, net())
    seen = iter(loader)
    assert len(engine.accountant) == 0
    next(seen)
    assert len(engine.accountant) == 1


def test_records_are_prepared_one_by_one_as_the_script_does() -> None:
    inputs, targets = records()
    engine = engine_for()
    model, optimizer, loader = made(engine, net())
    for data, target in loader:
        backward(F.cross_entropy(model(2 * data.float() - 1), target))
        optimizer.step()
    assert torch.allclose(flat(model), ours(net(), data=(2 * inputs - 1, targets)), rtol=1e-5, atol=1e-7)


def test_values_that_a_script_sees_are_those_of_its_batch() -> None:
    model, optimizer, loader = made(engine_for(), net())
    for data, target in loader:
        output = model(data)
        plain = model._module(data.as_subclass(Tensor))
        assert torch.equal(output.as_subclass(Tensor), plain)
        loss = F.cross_entropy(output, target)
        assert loss.item() == pytest.approx(float(F.cross_entropy(plain, target.as_subclass(Tensor))))
        assert (output.argmax(1) == target).float().mean() <= 1
        backward(loss)
        optimizer.step()


def test_an_empty_batch_is_a_step_like_any_other() -> None:
    """Of 40 draws of one record on average, one is empty but with probability (1 − 1/e)^40, about 1e-8."""
    engine = engine_for()
    loader = DataLoader(TensorDataset(*records()), batch_size=1)
    sizes = []
    model, optimizer, loader = made(engine, net(), loader, total_steps=40)
    for data, target in loader:
        sizes.append(len(data))
        backward(F.cross_entropy(model(data), target))
        optimizer.step()
    assert len(engine.accountant) == 40
    assert min(sizes) == 0


class Reader(nn.Module):
    """Letters to classes."""

    def __init__(self, kind: Any = nn.LSTM) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embedding, self.recurrent = nn.Embedding(9, 4), kind(4, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.out(self.recurrent(self.embedding(x))[0][:, -1])
        return output


@pytest.mark.parametrize("kind", [DPLSTM, DPGRU, DPRNN])
def test_padding_goes_to_one_public_length(kind: Any) -> None:
    engine = engine_for()
    model = script(made(engine, Reader(kind), DataLoader(Words(), batch_size=B, collate_fn=padding)))
    longest = max(len(x) for x, _ in Words().items)
    whole, labels = padding(Words().items)
    assert whole.shape[1] == longest
    assert torch.allclose(flat(model), ours(Reader(kind), data=(whole, labels)), rtol=1e-4, atol=1e-6)
    assert f"the longest record has length {longest}" in " ".join(engine.report().not_covered)


def test_parts_of_a_batch_give_the_same_update() -> None:
    engine = engine_for()
    model, optimizer, loader = made(engine, net())
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as parts:
        script((model, optimizer, parts))
    assert torch.allclose(flat(model), ours(net(), physical_batch_size=3), rtol=1e-5, atol=1e-7)


def test_noise_for_an_epsilon_is_the_least_that_keeps_it() -> None:
    sigma = noise_for(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.05, epochs=3)
    spent = epsilon(plan_for(0.05, 60)(sigma).event(), 1e-5)
    assert spent <= 2.0 < epsilon(plan_for(0.05, 60)(0.99 * sigma).event(), 1e-5)


def test_a_module_is_the_user_s_own_inside() -> None:
    model = net()
    wrapped, *_ = made(engine_for(), model)
    assert wrapped._module is model
    assert {name.removeprefix("_module.") for name in wrapped.state_dict()} == set(model.state_dict())
    assert torch.equal(wrapped(records()[0]), model(records()[0]))


def test_no_word_of_warning_comes_from_a_script_that_does_all_right() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        script(made(PrivacyEngine(), net(), total_steps=None), passes=2)


class OpacusNet(nn.Module):
    """A net that lays its maps out by view, as tutorials do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 3, 2), nn.Linear(3 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(torch.tanh(self.conv(x)).view(-1, 3 * 4))
        return scores


def test_a_net_that_lays_out_its_maps_by_view_trains_by_layer_rules() -> None:
    images = torch.randn(N, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    engine = engine_for()
    torch.manual_seed(0)
    model = script(made(engine, OpacusNet(), DataLoader(TensorDataset(images, records()[1]), batch_size=B)))
    assert engine._training is not None
    assert engine._training.prepared.engine.name == "ghost"
    torch.manual_seed(0)
    assert torch.allclose(flat(model), ours(OpacusNet(), data=(images, records()[1])), rtol=1e-5, atol=1e-7)


def test_an_iterator_that_was_left_does_not_end_the_pass_of_now() -> None:
    engine = engine_for()
    model, optimizer, loader = made(engine, net(), total_steps=None)
    left = iter(loader)
    next(left)
    for number, (data, target) in enumerate(loader):
        if number == 1:
            del left
        backward(F.cross_entropy(model(data), target))
        optimizer.step()
    assert number == 4
    assert len(engine.accountant) == 10  # both passes are claimed in full


def test_a_look_at_a_batch_of_a_planned_run_costs_a_step_and_no_more() -> None:
    engine = engine_for()
    model, optimizer, loader = made(engine, net())
    next(iter(loader))
    with pytest.warns(UserWarning, match="charged all the same"):
        script((model, optimizer, loader))
    assert len(engine.accountant) == 5
    assert engine.report().stages[0].done == 5


def test_a_run_that_failed_says_so_and_still_has_its_statement() -> None:
    engine = engine_for()
    refused(made(engine, net()), lambda m, o, d, t: backward(F.cross_entropy(m(d), t)), "optimizer.step")
    report = engine.report()
    assert report.epsilon_pld == pytest.approx(engine.get_epsilon(1e-5))
    assert any("failed" in fact for fact in report.not_covered)
    assert engine._training is not None
    with pytest.raises(InputError, match="ended by an error"):
        engine._training.one_pass()


def test_a_planned_run_that_is_left_can_be_finished() -> None:
    engine = engine_for()
    model, optimizer, loader = made(engine, net())
    for data, target in loader:
        backward(F.cross_entropy(model(data), target))
        optimizer.step()
        break
    whole = epsilon(plan_for(B / N, 5)(SIGMA).event(), 1e-5)
    assert engine.get_epsilon(1e-5) == pytest.approx(whole)
    assert engine.accountant.history == [(SIGMA, B / N, 1)]
    engine.finish()
    assert engine.get_epsilon(1e-5) == pytest.approx(whole)
    assert engine.report().epsilon_pld == pytest.approx(whole)


def test_names_are_where_scripts_import_them_from() -> None:
    from adadpigu.compat.opacus.accountants.utils import get_noise_multiplier
    from adadpigu.compat.opacus.layers import DPLSTM as THEIRS
    from adadpigu.compat.opacus.utils.batch_memory_manager import BatchMemoryManager as Manager
    from adadpigu.compat.opacus.validators import ModuleValidator as Validator

    assert (get_noise_multiplier, Manager, Validator, THEIRS) == (
        noise_for,
        BatchMemoryManager,
        ModuleValidator,
        DPLSTM,
    )


def test_a_loader_that_was_made_private_can_be_given_again_and_steps_are_rounded_up() -> None:
    first = made(engine_for(), net(), DataLoader(TensorDataset(*records()), batch_size=7), total_steps=None)
    second = made(engine_for(), net(), first[2], total_steps=None)
    assert len(first[2]) == len(second[2]) == 9  # 60/7
    assert second[1].noise_multiplier == SIGMA
