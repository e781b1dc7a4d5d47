"""A script for Opacus, with our engine: the same updates as our own training, passes and plans charged in full."""

from __future__ import annotations

import copy
import warnings
from typing import Any, cast

import pytest
import torch
from scripts import (
    SIGMA,
    B,
    C,
    Loss,
    N,
    Words,
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

import adadpigu as ad
from adadpigu.accounting import epsilon, plan_for
from adadpigu.errors import InputError
from adadpigu.integrations.opacus import DPGRU, DPLSTM, DPRNN, BatchMemoryManager, ModuleValidator, PrivacyEngine
from adadpigu.integrations.opacus.accountants.utils import get_noise_multiplier as noise_for

LOSSES: dict[str, Loss] = {
    "a module": nn.CrossEntropyLoss(),
    "class weights": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "two functions": lambda o, t: F.nll_loss(F.log_softmax(o, dim=1), t),
    "none": nn.CrossEntropyLoss(reduction="none"),
    "a factor": lambda o, t: 2 * F.cross_entropy(o, t),
    "no target": lambda o, t: o.square().mean(),
    "other targets": lambda o, t: F.binary_cross_entropy_with_logits(o, F.one_hot(t, 4).float()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_script_ends_where_our_own_training_ends(name: str) -> None:
    model = script(made(engine_for(), net(), criterion=LOSSES[name]))
    assert torch.allclose(flat(model), ours(net(), loss=LOSSES[name]), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_passes_without_a_plan_add_up() -> None:
    engine = engine_for()
    parts = made(engine, net(), total_steps=None)
    assert len(parts[3]) == N // B
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
    model, optimizer, criterion, loader = made(engine, net(), total_steps=None)
    for data, target in loader:
        criterion(model(data), target).backward()
        optimizer.step()
        break
    assert len(engine.accountant) == 5
    assert engine.report().epsilon_pld == pytest.approx(epsilon(plan_for(B / N, 5)(SIGMA).event(), 1e-5), rel=1e-9)


@pytest.mark.slow
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
        criterion=nn.CrossEntropyLoss(),
    )
    assert engine.get_epsilon(1e-4) == 0
    script(parts)
    between, charged = engine.get_epsilon(1e-4), len(engine.accountant)
    script(parts)
    assert 0 < between == engine.get_epsilon(1e-4)  # the plan: to stop between would claim it all the same
    assert len(engine.accountant) == 2 * charged
    assert engine.report().epsilon_pld < engine.get_epsilon(1e-4) <= 3.0  # Rényi accounting is looser
    assert engine.get_epsilon(1e-4) > 2.95
    with pytest.raises(InputError, match="planned steps are done"):
        script(parts)


def test_what_is_charged_comes_before_what_is_shown() -> None:
    engine = engine_for()
    *_, loader = made(engine, net())
    seen = iter(loader)
    assert len(engine.accountant) == 0
    next(seen)
    assert len(engine.accountant) == 1


def test_values_that_a_script_sees_are_those_of_its_batch() -> None:
    model, optimizer, criterion, loader = made(engine_for(), net())
    for data, target in loader:
        output = model(data)
        plain = model._module(data).detach()
        assert torch.equal(output, plain)
        loss = criterion(output, target)
        assert loss.item() == pytest.approx(float(F.cross_entropy(plain, target)))
        assert f"{loss.item():.3f}" == f"{loss.detach().numpy():.3f}"
        assert (output.argmax(1) == target).float().mean() <= 1
        loss.backward()
        optimizer.step()


def test_an_empty_batch_is_a_step_like_any_other() -> None:
    """Of 40 draws of one record on average, one is empty but with probability (1 − 1/e)^40, about 1e-8."""
    engine = engine_for()
    loader = DataLoader(TensorDataset(*records()), batch_size=1)
    sizes = []
    model, optimizer, criterion, loader = made(engine, net(), loader, total_steps=40)
    for data, target in loader:
        sizes.append(len(data))
        criterion(model(data), target).backward()
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
    model, optimizer, criterion, loader = made(engine, net())
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as parts:
        script((model, optimizer, criterion, parts))
    assert torch.allclose(flat(model), ours(net(), physical_batch_size=3), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_noise_for_an_epsilon_is_the_least_that_keeps_it() -> None:
    sigma = noise_for(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.05, epochs=3)
    spent = epsilon(plan_for(0.05, 60)(sigma).event(), 1e-5)
    assert spent <= 2.0 < epsilon(plan_for(0.05, 60)(0.99 * sigma).event(), 1e-5)


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_an_epsilon_that_was_asked_for_is_kept_by_the_accountant_that_was_asked_for(accountant: str) -> None:
    engine, model = PrivacyEngine(accountant=accountant), net()
    *_, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(*records()), batch_size=B),
        target_epsilon=3.0,
        target_delta=1e-4,
        epochs=2,
        max_grad_norm=C,
        criterion=nn.CrossEntropyLoss(),
    )
    next(iter(loader))
    assert 2.95 < engine.get_epsilon(1e-4) <= 3.0
    sigma = noise_for(
        target_epsilon=3.0, target_delta=1e-4, sample_rate=B / N, steps=2 * len(loader), accountant=accountant
    )
    assert sigma == engine.accountant.history[0][0]


def test_an_epsilon_that_renyi_accounting_cannot_show_is_refused() -> None:
    with pytest.raises(ad.BudgetError, match=r"epsilon=0\.001.*accountant='prv'"):
        noise_for(target_epsilon=1e-3, target_delta=1e-8, sample_rate=0.05, steps=3, accountant="rdp")


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
    assert engine._loader is not None
    assert engine._loader.prepared.engine.name == "ghost"
    torch.manual_seed(0)
    assert torch.allclose(flat(model), ours(OpacusNet(), data=(images, records()[1])), rtol=1e-5, atol=1e-7)


def test_an_iterator_that_was_left_does_not_end_the_pass_of_now() -> None:
    engine = engine_for()
    model, optimizer, criterion, loader = made(engine, net(), total_steps=None)
    left = iter(loader)
    next(left)
    for number, (data, target) in enumerate(loader):
        if number == 1:
            del left
        criterion(model(data), target).backward()
        optimizer.step()
    assert number == 4
    assert len(engine.accountant) == 10  # both passes are claimed in full


def test_a_look_at_a_batch_of_a_planned_run_costs_a_step_and_no_more() -> None:
    engine = engine_for()
    model, optimizer, criterion, loader = made(engine, net())
    next(iter(loader))
    with pytest.warns(UserWarning, match="charged all the same"):
        script((model, optimizer, criterion, loader))
    assert len(engine.accountant) == 5
    assert engine.report().stages[0].done == 5


def test_a_run_that_failed_says_so_and_still_has_its_statement() -> None:
    engine = engine_for()
    refused(made(engine, net()), lambda m, o, c, d, t: c(m(d), t).backward(), "optimizer.step")
    report = engine.report()
    assert report.epsilon_pld == pytest.approx(engine.get_epsilon(1e-5))
    assert any("failed" in fact for fact in report.not_covered)
    assert engine._loader is not None
    with pytest.raises(InputError, match="ended by an error"):
        iter(engine._loader)


def test_a_planned_run_that_is_left_can_be_finished() -> None:
    engine = engine_for()
    model, optimizer, criterion, loader = made(engine, net())
    for data, target in loader:
        criterion(model(data), target).backward()
        optimizer.step()
        break
    whole = epsilon(plan_for(B / N, 5)(SIGMA).event(), 1e-5)
    assert engine.get_epsilon(1e-5) == pytest.approx(whole)
    assert engine.accountant.history == [(SIGMA, B / N, 1)]
    engine.finish()
    assert engine.get_epsilon(1e-5) == pytest.approx(whole)
    assert engine.report().epsilon_pld == pytest.approx(whole)


def test_names_are_where_the_page_says() -> None:
    from adadpigu.integrations.opacus.layers import DPLSTM as THEIRS
    from adadpigu.integrations.opacus.validators import ModuleValidator as Validator

    assert (Validator, THEIRS) == (ModuleValidator, DPLSTM)


def test_a_loader_that_was_made_private_can_be_given_again_and_steps_are_rounded_up() -> None:
    first = made(engine_for(), net(), DataLoader(TensorDataset(*records()), batch_size=7), total_steps=None)
    second = made(engine_for(), net(), first[3], total_steps=None)
    assert len(first[3]) == len(second[3]) == 9  # 60/7
    assert second[1].noise_multiplier == SIGMA


class States(nn.Module):
    """As the tutorial's name classifier: a state goes in, and comes out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.recurrent, self.out = nn.LSTM(3, 5, num_layers=2, batch_first=True), nn.Linear(5, 4)

    def forward(self, x: Tensor, hidden: Any = None) -> tuple[Tensor, Any]:
        states, hidden = self.recurrent(x, hidden)
        return self.out(states[:, -1]), hidden

    def zeros(self, count: int) -> Any:
        return torch.zeros(2, count, 5), torch.zeros(2, count, 5)


class Scores(States):
    """The same without its state."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


def test_a_state_may_start_at_zero_and_is_not_carried_along() -> None:
    data = records()[0].view(N, 2, 3), records()[1]
    loader = DataLoader(TensorDataset(*data), batch_size=B)
    parts = made(engine := engine_for(), States(), loader, criterion=nn.CrossEntropyLoss())
    model, optimizer, criterion, private = parts
    for x, y in private:
        logits, _ = model(x, model.zeros(len(x)))
        criterion(logits, y).backward()
        optimizer.step()
    assert engine._loader is not None
    assert engine._loader.prepared.engine.name == "ghost"
    assert torch.allclose(flat(model), ours(Scores(), data=data), rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        assert model(data[0])[1][0].shape == (2, N, 5)

    def carried(m: Any, o: Any, c: Any, d: Any, t: Any) -> None:
        m(d, (torch.ones(2, len(d), 5), torch.ones(2, len(d), 5)))

    refused(
        made(engine_for(), States(), loader, criterion=nn.CrossEntropyLoss()), carried, "a state of an earlier batch"
    )


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.left, self.right = nn.Linear(2, 4), nn.Linear(4, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        scores: Tensor = self.left(left) + self.right(right)
        return scores


def by_name(items: list[Any]) -> Any:
    inputs, targets = torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])
    return {"left": inputs[:, :2], "right": inputs[:, 2:]}, targets


def test_inputs_may_have_names() -> None:
    """A collate_fn makes pairs (inputs, targets) of any records; the inputs are those of the model's forward."""
    loader = DataLoader(TensorDataset(*records()), batch_size=B, collate_fn=by_name)
    model, optimizer, criterion, private = made(engine_for(), TwoInputs(), loader)
    for batch, target in private:
        optimizer.zero_grad()
        criterion(model(**batch), target).backward()
        optimizer.step()
    inputs, targets = records()
    data = {"left": inputs[:, :2], "right": inputs[:, 2:]}, targets
    assert torch.allclose(flat(model), ours(TwoInputs(), data=data), rtol=1e-5, atol=1e-7)


def test_bytes_may_be_divided_by_the_script() -> None:
    images = torch.randint(256, (N, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    loader = DataLoader(TensorDataset(images, records()[1]), batch_size=B)
    with pytest.warns(UserWarning, match="divided by 255"):
        model, optimizer, criterion, private = made(engine_for(), net(), loader)
    for data, target in private:
        criterion(model(data.float() / 255), target).backward()
        optimizer.step()
    assert torch.allclose(flat(model), ours(net(), data=(images / 255, records()[1])), rtol=1e-5, atol=1e-7)


def test_frozen_batch_norms_keep_their_statistics() -> None:
    def normed() -> nn.Sequential:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
        model[1].requires_grad_(False)
        return model

    fixed = ModuleValidator.fix(normed())
    assert isinstance(fixed[1], nn.BatchNorm1d)  # type: ignore[index]
    model, *rest = made(engine_for(), normed())
    before = model._module[1].running_mean.clone()
    model.train()
    model._module.train()
    script((model, *rest))
    assert torch.equal(model._module[1].running_mean, before)
    in_eval = normed().requires_grad_(True)
    in_eval[1].eval()
    script(made(engine_for(), in_eval))
    assert torch.equal(cast(Tensor, in_eval[1].running_mean), before)


def test_a_script_may_look_at_its_model_on_other_records_amid_a_batch() -> None:
    inputs, targets = records()
    model, optimizer, criterion, loader = made(engine_for(), net())
    for data, target in loader:
        with torch.no_grad():
            assert type(criterion(model(inputs), targets)) is Tensor
        model.eval()
        assert model(inputs).shape == copy.deepcopy(model)(inputs).shape == (N, 4)
        criterion(model(data), target).backward()  # in evaluation mode, as torch allows it
        optimizer.step()
    assert torch.allclose(flat(model), ours(net()), rtol=1e-5, atol=1e-7)


class Keeping(nn.Module):
    """Keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(6, 4), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach())
        output: Tensor = self.layer(x)
        return output


def test_no_record_stays_in_the_model() -> None:
    model = script(made(engine_for(), Keeping()))
    assert model.seen == []


def test_a_model_that_was_trained_privately_may_go_on_with_public_records() -> None:
    model, optimizer, criterion, loader = made(engine_for(), net())
    script((model, optimizer, criterion, loader))
    before = flat(model).clone()
    optimizer.zero_grad()
    criterion(model(torch.ones(3, 6)), torch.tensor([0, 1, 2])).backward()
    optimizer.step()
    assert not torch.equal(before, flat(model))


def test_what_a_script_sets_on_the_model_is_set_on_its_own_module() -> None:
    module = net()
    module.temperature = 1.0  # type: ignore[assignment]
    model, *_ = made(engine_for(), module)
    model.temperature = 0.5
    model.eval()
    found: tuple[Any, ...] = (module.temperature, model.temperature, model.training, module.training)
    assert found == (0.5, 0.5, False, False)


class RunningMean(nn.Module):
    """Keeps a mean over the batches before, as scripts with several tasks do."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = 1.0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs, targets)
        self.mean = 0.9 * self.mean + 0.1 * float(loss.detach())
        return loss


def test_a_criterion_keeps_nothing_of_a_batch() -> None:
    """What it kept would bring all records of a draw into the loss of each."""
    criterion = RunningMean()
    model, _, wrapped, loader = made(engine_for(), net(), criterion=criterion)
    batches = iter(loader)
    data, target = next(batches)
    wrapped(model(data), target)
    assert criterion.mean == 1.0


class Augmented(TensorDataset):
    """Adds noise of torch's global generator to every item."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)  # type: ignore[no-untyped-call]
        return x + torch.rand(()), y


def test_items_are_augmented_by_secret_numbers_whatever_the_script_has_seeded() -> None:
    loader = DataLoader(Augmented(*records()), batch_size=B)
    *_, private = made(engine_for(), net(), loader)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    shown, _ = next(iter(private))
    assert torch.equal(torch.get_rng_state(), before)
    added = {round(float(row[0] - x), 6) for row in shown for x in records()[0][:, 0]}
    assert round(float(torch.rand(())), 6) not in added
