"""Scripts that would tie records of a batch together, as people write them: each is refused by name, or harmless."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from adadpigu.compat.opacus import PrivacyEngine, public
from adadpigu.errors import AdaDPIGUError, InputError, ModelError, PrivacyLineError

N, C, SIGMA = 8, 1.0, 1e-3
LossOf = Callable[[Any, Any, Any], Any]


def records(extra: bool, scale: float = 0.3) -> TensorDataset:
    """Seven records, and an eighth that is far from them."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = scale * torch.randn(N - 1, 6, generator=generator), torch.arange(N - 1) % 2
    if extra:
        inputs, targets = torch.cat([inputs, torch.full((1, 6), 50.0)]), torch.cat([targets, torch.tensor([1])])
    return TensorDataset(inputs, targets)


def released(
    loss_of: LossOf, data: TensorDataset, steps: int = 1, make: Callable[[], nn.Module] | None = None
) -> Tensor:
    """Σ clip(g_i) of the last step, all but without noise: every record is drawn in every one."""
    torch.manual_seed(0)
    module = nn.Linear(6, 2) if make is None else make()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    model, optimizer, loader = PrivacyEngine(records=N).make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=N),
        noise_multiplier=SIGMA,
        max_grad_norm=C,
        total_steps=steps,
    )
    total = torch.zeros(())
    for _ in range(steps):
        for given, target in loader:
            optimizer.zero_grad()
            loss_of(model, given, target).backward()
            total = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]) * N
            optimizer.step()
    return total


def moved(loss_of: LossOf, **how: Any) -> float:
    """How far one record moves the sum: at most C, but for the noise."""
    return float((released(loss_of, records(False), **how) - released(loss_of, records(True), **how)).norm())


def by_item(m: Any, d: Any, t: Any) -> Any:
    loss = F.cross_entropy(m(d), t)
    return loss / loss.item()


def by_float(m: Any, d: Any, t: Any) -> Any:
    loss = F.cross_entropy(m(d), t)
    return loss / float(loss)


def through_a_view(m: Any, d: Any, t: Any) -> Any:
    view = d.view(-1, 6)
    view -= view.mean(0)
    return F.cross_entropy(m(d), t)


def mixed_in_place(m: Any, d: Any, t: Any) -> Any:
    flipped = d.flip(0).mul_(0.5)
    d.mul_(0.5).add_(flipped)
    return F.cross_entropy(m(d), t)


def cut_in_place(m: Any, d: Any, t: Any) -> Any:
    d[:, :3] = d.flip(0)[:, :3]
    return F.cross_entropy(m(d), t)


def by_data(m: Any, d: Any, t: Any) -> Any:
    d.data -= d.data.mean(0)
    return F.cross_entropy(m(d), t)


def row_by_row(m: Any, d: Any, t: Any) -> Any:
    for row in d:
        row -= d.mean(0)
    return F.cross_entropy(m(d), t)


class Reversed(torch.autograd.Function):
    """Identity that turns gradients around."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return -grads[0]


reverse: Any = Reversed.apply
REFUSED: dict[str, tuple[LossOf, str]] = {
    "loss.item()": (by_item, "number taken out of the batch"),
    "float(loss)": (by_float, "may come from there"),
    "times the size": (lambda m, d, t: F.cross_entropy(m(d), t) * len(d) / 7, "may come from there"),
    "times its size": (lambda m, d, t: F.cross_entropy(m(d), t) * d.size(0) / 7, "not the mean"),
    "largest value": (lambda m, d, t: F.cross_entropy(m(d / d.abs().max().item()), t), "number taken out"),
    "spread": (
        lambda m, d, t: F.cross_entropy(m(d) / m._module(torch.ones(1, 6)).detach().std() / d.std().item(), t),
        "number",
    ),
    "view": (through_a_view, "shares memory"),
    "mixed": (mixed_in_place, "depend on the other records"),
    "cut": (cut_in_place, "depend on the other records"),
    ".data": (by_data, "shares memory"),
    "rows": (row_by_row, "shares memory"),
    "centred": (lambda m, d, t: F.cross_entropy(m(d - d.mean(0)), t), "depend on the other records"),
    "custom function": (lambda m, d, t: F.cross_entropy(reverse(m(d)), t), "autograd.Function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_ties_records_together_is_refused(name: str) -> None:
    loss_of, text = REFUSED[name]
    with pytest.raises(InputError, match=text):
        released(loss_of, records(True))


def through_numpy(m: Any, d: Any, t: Any) -> Any:
    array = d.numpy()
    array /= np.abs(array).max()
    return F.cross_entropy(m(d), t)


HARMLESS: dict[str, LossOf] = {
    "flattened by its size": lambda m, d, t: F.cross_entropy(m(d.view(d.size(0), -1)), t),
    "flattened by its shape": lambda m, d, t: F.cross_entropy(m(d.reshape(d.shape[0], 2 * 3)), t),
    "sum over the size": lambda m, d, t: F.cross_entropy(m(d), t, reduction="sum") / d.size(0),
    "scaled in place": lambda m, d, t: F.cross_entropy(m(d.div_(100)), t),
    "moved": lambda m, d, t: F.cross_entropy(m(d.to("cpu").float()), t.to("cpu")),
    "a copy by numpy": through_numpy,
    "clamped by itself": lambda m, d, t: F.cross_entropy(m(d.clamp(-1, 1)), t),
    "public weight": lambda m, d, t: F.cross_entropy(m(d), t) * public(0.5),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_each_record_does_by_itself_works_and_is_bounded(name: str) -> None:
    assert moved(HARMLESS[name]) <= C + 0.05


def test_scaling_in_place_is_done_once() -> None:
    once = released(lambda m, d, t: F.cross_entropy(m(d / 100), t), records(True))
    in_place = released(lambda m, d, t: F.cross_entropy(m(d.div_(100)), t), records(True))
    assert torch.allclose(once, in_place, atol=0.02)


def test_what_is_written_after_the_model_was_called_changes_nothing() -> None:
    def erased(m: Any, d: Any, t: Any) -> Any:
        loss = F.cross_entropy(m(d), t)
        d.zero_()
        return loss

    plain = released(lambda m, d, t: F.cross_entropy(m(d), t), records(True))
    assert torch.allclose(plain, released(erased, records(True)), atol=0.02)


def test_constants_and_functions_are_the_same_in_every_step() -> None:
    kept: list[Any] = []

    def centre(m: Any, d: Any, t: Any) -> Any:
        output = m(d)
        kept.append(torch.tensor(np.asarray(output.mean(0).detach())) + len(kept))
        return (output - kept[-1]).square().mean()

    count = iter(range(10))

    def sometimes(m: Any, d: Any, t: Any) -> Any:
        loss = F.cross_entropy(m(d), t)
        return loss * 0.01 if next(count) else loss

    with pytest.raises(InputError, match="may come from there"):
        released(centre, records(True), steps=2)
    factors = iter((1.0, 0.5))
    with pytest.raises(InputError, match="another than in the first step"):
        released(lambda m, d, t: F.cross_entropy(m(d), t) * next(factors), records(True), steps=2)
    with pytest.raises(InputError, match="in another way than in its first step"):
        released(sometimes, records(True), steps=2)
    steps = iter((1.0, 0.5))
    released(lambda m, d, t: F.cross_entropy(m(d), t) * public(next(steps)), records(True), steps=2)


def first_weights(m: Any, d: Any, t: Any) -> Any:
    weight = torch.from_numpy(1.0 + np.bincount(t.numpy(), minlength=2)).float()
    return F.cross_entropy(m(d), t, weight=weight, reduction="none").mean()


REMEMBERED: dict[str, LossOf] = {
    "class weights": first_weights,
    "a tensor of a number": lambda m, d, t: F.cross_entropy(m(d) / torch.full((1,), d.abs().max().item()), t),
    "through a logarithm": lambda m, d, t: F.cross_entropy(m(d), t) * -math.log(1 / float(2 + d.abs().max())),
    "smoothed": lambda m, d, t: F.cross_entropy(m(d), t, label_smoothing=1 / float(2 + d.abs().max())),
    "scaled inputs": lambda m, d, t: F.cross_entropy(m(d / float(d.abs().max())), t),
}


@pytest.mark.parametrize("name", REMEMBERED)
def test_a_constant_of_the_first_step_was_there_before_its_batch(name: str) -> None:
    with pytest.raises(InputError, match="may come from there"):
        released(REMEMBERED[name], records(True))


def test_numbers_that_are_only_looked_at_decide_nothing() -> None:
    def talkative(m: Any, d: Any, t: Any) -> Any:
        assert len(d)
        assert float(d.abs().max()) > 0
        assert not bool(d.isnan().any())
        loss = F.cross_entropy(m(d), t)
        loss.item(), (m._module(torch.zeros(1, 6)) > 0).numpy()
        return loss

    assert moved(talkative) <= C + 0.05

    def halved(m: Any, d: Any, t: Any) -> Any:
        loss = 0.5 * F.cross_entropy(m(d), t)
        assert float(0 * loss + 0.5) == 0.5  # an accuracy that is the constant by chance
        return loss

    assert moved(halved, steps=3) <= C + 0.05
    with pytest.raises(InputError, match="not public"):
        released(lambda m, d, t: F.cross_entropy(m(d), t) * public(d.max().item()), records(True))


def test_a_loss_that_turns_round_with_its_batch_is_refused() -> None:
    """The same functions of the same things, in another order."""
    one = torch.ones(2)
    for pair in (lambda out, t: (out, t.float()[:, None]), lambda out, t: (out, one)):
        steps = iter(range(9))

        def turning(m: Any, d: Any, t: Any, pair: Any = pair, steps: Any = steps) -> Any:
            first, second = pair(m(d), t)
            return (torch.sub(second, first) if next(steps) else torch.sub(first, second)).mean()

        with pytest.raises(InputError, match="in another way"):
            released(turning, records(True), steps=2)


def test_a_layer_outside_of_the_model_keeps_nothing() -> None:
    norm = nn.BatchNorm1d(6, affine=False)
    with pytest.raises(InputError, match="a tensor that keeps it"):
        released(lambda m, d, t: F.cross_entropy(m(norm(d)), t), records(True))


class Keeping(nn.Module):
    """Keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(6, 2), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach())
        output: Tensor = self.layer(x)
        return output


def test_no_record_stays_in_the_model() -> None:
    made: list[Keeping] = []

    def make() -> Keeping:
        made.append(Keeping())
        return made[0]

    released(lambda m, d, t: F.cross_entropy(m(d), t), records(True), make=make)
    assert made[0].seen == []


def test_the_report_of_an_open_pass_counts_all_of_it() -> None:
    engine = PrivacyEngine()
    module = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    model, optimizer, loader = engine.make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(records(True), batch_size=1),
        noise_multiplier=1.0,
        max_grad_norm=C,
    )

    def step(given: Any, target: Any) -> None:
        loss: Any = F.cross_entropy(model(given), target)
        loss.backward()
        optimizer.step()

    for given, target in loader:
        step(given, target)
    alone = engine.report().epsilon_pld
    opened = iter(loader)
    step(*next(opened))
    assert engine.get_epsilon(1e-5) > alone
    report = engine.report()
    assert report.epsilon_pld == pytest.approx(engine.get_epsilon(1e-5))
    assert not any("trained before" in told for told in report.warnings)  # by a pass that is counted here


def test_after_its_plan_a_model_is_looked_at_and_not_trained() -> None:
    module = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(records(True), batch_size=N),
        noise_multiplier=1.0,
        max_grad_norm=C,
        total_steps=1,
    )
    for given, target in loader:
        loss: Any = F.cross_entropy(model(given), target)
        loss.backward()
        optimizer.step()
    with pytest.raises(PrivacyLineError, match="has ended"):
        model(torch.zeros(1, 6))
    assert model.eval()(torch.zeros(1, 6)).shape == (1, 2)


def test_errors_are_ours() -> None:
    """All of them can be caught as one."""
    assert issubclass(InputError, AdaDPIGUError)
    assert issubclass(ModelError, AdaDPIGUError)
