"""A model that changes between the steps of a user's own loop: annealed, caching, counting, hooked."""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness

N, STEPS = 32, 3


class Net(nn.Module):
    """A buffer that is annealed, and the things that models keep of a forward."""

    temperature: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)
        self.register_buffer("temperature", torch.ones(()))
        self.teacher = nn.Linear(4, 3).requires_grad_(False)
        self.scale, self.centre = 1.0, False
        self.prototype = torch.zeros(4)
        self.centres = {"c": torch.zeros(4), "first.bias": torch.zeros(4)}
        self.shadow = SimpleNamespace(values=[torch.zeros(4)])
        self.calls = 0
        self.mask: Tensor | None = None
        self.attention: list[Tensor] = []
        self.memory: Any = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.mask is None or len(self.mask) != len(x):
            self.mask = torch.ones(len(x), 1)
        hidden = torch.tanh(self.first(x)) * self.scale + self.prototype + self.centres["c"]
        self.attention = [hidden.detach()]
        if self.centre:  # no record would be alone in it
            hidden = hidden - hidden.mean(0)
        output: Tensor = self.last(hidden * self.mask) / self.temperature
        added: Tensor = output + 0 * self.teacher(hidden)
        return added


def made() -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    return net, torch.optim.SGD([*net.first.parameters(), *net.last.parameters()], lr=0.5)


def trained(between: Callable[[Net, int], object], **changes: Any) -> tuple[Net, ad.PrivateLoop, list[str]]:
    """The model after a loop in which something is done to it before each step, and what was warned of."""
    net, optimizer = made()
    torch.manual_seed(1)
    data = torch.randn(N, 5), torch.randint(3, (N,))
    settings: dict[str, Any] = {"records": N, "batch_size": 8, "steps": STEPS, "noise_multiplier": 1.0}
    settings |= {"method": ad.DPSGD(clip_norm=0.5), "randomness": ReproducibleRandomness(5), "seed": 3, **changes}
    loop = ad.PrivateLoop(net, optimizer, data, **settings)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with loop:
            for step, batch in enumerate(loop):
                between(net, step)
                batch.backward()
                optimizer.step()
    return net, loop, [str(warning.message) for warning in told]


def _filled(net: Net, step: int) -> None:
    net.temperature.fill_(1.0 / (1 + step))


def _replaced(net: Net, step: int) -> None:
    net.temperature = torch.tensor(1.0 / (1 + step))


def _moved(net: Net, step: int, declared: object = None) -> None:
    """A teacher that follows its student: a function of releases."""
    with torch.no_grad():
        net.teacher.weight.lerp_(net.last.weight, 0.1)


def _written(net: Net, step: int) -> None:
    """A plain tensor is written to in its place."""
    net.prototype.add_(1.0)


def _written_inside(net: Net, step: int) -> None:
    """The same in a container, such as class means that are kept up to date."""
    net.centres["c"].add_(1.0)


def _written_under_a_dotted_name(net: Net, step: int) -> None:
    net.centres["first.bias"].add_(1.0)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (_filled, "temperature"),
        (_replaced, "temperature"),
        (_moved, "teacher.weight"),
        (_written, "prototype"),
        (_written_inside, r"centres\['c'\]"),
        (_written_under_a_dotted_name, r"centres\['first.bias'\]"),
    ],
)
def test_a_fixed_tensor_that_changes_is_refused_at_the_next_step_with_the_remedy(
    change: Callable[[Net, int], object], place: str
) -> None:
    """Before the step is charged, not when the run ends."""
    charged: list[int] = []

    def second(net: Net, step: int) -> None:
        charged.append(step)
        if step == 1:
            change(net, step)

    with pytest.raises(ad.ModelError, match=rf"{place}. has changed .*ad\.public\("):
        trained(second)
    assert charged == [0, 1]


@pytest.mark.parametrize(
    "change",
    [
        lambda net, step: ad.public(net.temperature.fill_(1.0 / (1 + step))),
        lambda net, step: setattr(net, "temperature", ad.public(torch.tensor(1.0 / (1 + step)))),
        lambda net, step: _moved(net, step, ad.public(net.teacher.weight)),
        lambda net, step: _moved(net, step, [ad.public(net.teacher.weight), ad.public(net.centres["c"]).fill_(0.5)]),
    ],
)
def test_a_fixed_tensor_that_is_declared_public_may_change_and_is_kept(change: Callable[[Net, int], object]) -> None:
    net, loop, told = trained(change)
    assert loop.run.steps_done == STEPS
    begun = made()[0]
    assert (float(net.temperature), net.teacher.weight.tolist()) != (1.0, begun.teacher.weight.tolist())
    assert told == []
    assert any("declared public: " in line and "of the model" in line for line in loop.run.privacy.not_covered)


def test_what_an_object_of_the_model_keeps_of_its_weights_acts_and_is_named_once() -> None:
    """A moving average of the weights in the hands of a helper: a function of releases, which is not refused."""

    def averaged(net: Net, step: int) -> None:
        net.shadow.values[0].lerp_(net.first.bias.detach(), 0.5)

    net, loop, told = trained(averaged)
    assert net.shadow.values[0].any()
    assert len(told) == 1
    assert sum("shadow.values[0]" in line for line in loop.run.privacy.not_covered) == 1


def test_an_optimizer_that_the_model_holds_may_move() -> None:
    net, _ = made()
    net.memory = optimizer = torch.optim.Adam([*net.first.parameters(), *net.last.parameters()], lr=0.1)
    data = torch.randn(N, 5), torch.randint(3, (N,))
    loop = ad.PrivateLoop(net, optimizer, data, records=N, batch_size=8, steps=3, noise_multiplier=1.0)
    for batch in loop:
        batch.backward()
        optimizer.step()
    assert loop.run.steps_done == 3
    assert not any("memory" in line for line in loop.run.privacy.not_covered)


class Weighted(nn.Module):
    """A loss with class weights and a temperature."""

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(3))
        self.plain, self.scale = torch.ones(()), 1.0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        each = nn.functional.cross_entropy(output, target, reduction="none")
        return each * self.weight[target] * self.plain * self.scale


def test_a_loss_that_changes_during_the_loop_is_watched_as_the_model_is() -> None:
    loss = Weighted()
    with pytest.raises(ad.ModelError, match=r"'<loss>.weight' has changed .*ad\.public\("):
        trained(lambda net, step: loss.weight.fill_(2.0), loss=loss)
    loss = Weighted()
    _, loop, told = trained(lambda net, step: ad.public(loss.weight).fill_(2.0), loss=loss)
    assert told == []
    assert any("declared public: '<loss>.weight'" in line for line in loop.run.privacy.not_covered)
    loss = Weighted()
    _, loop, told = trained(lambda net, step: setattr(loss, "scale", 1.0 / (1 + step)), loss=loss)
    assert sum("'<loss>.scale'" in line for line in loop.run.privacy.not_covered) == len(told) == 1
    loss = Weighted()
    aside, _, told = trained(lambda net, step: setattr(loss, "plain", torch.tensor(9.0)), loss=loss)
    plain, _, _ = trained(lambda net, step: None, loss=Weighted())
    assert torch.equal(aside.first.weight, plain.first.weight)
    assert "'<loss>.plain'" in told[0]


def test_what_forward_keeps_during_an_evaluation_does_not_end_the_run_and_does_not_reach_the_weights() -> None:
    """A mask, a counter and an attention map: weights are those of a run without evaluations."""
    evaluated, loop, told = trained(lambda net, _: net.eval()(torch.full((7, 5), 9.0)))
    plain, _, _ = trained(lambda net, _: None)
    for one, other in zip(evaluated.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert evaluated.mask is not None
    assert len(evaluated.mask) == 7  # as the user's evaluation left it, and not as a batch did
    assert len(told) == 2
    assert any("'calls'" in line for line in loop.run.privacy.not_covered)
    assert not any("'mask'" in line for line in loop.run.privacy.not_covered)


def test_a_model_that_has_cached_before_it_is_trained_and_tested_ends_its_run() -> None:
    torch.manual_seed(1)
    data, test = ((torch.randn(count, 5), torch.randint(3, (count,))) for count in (N, 12))
    net = made()[0]
    net(torch.zeros(2, 5))
    run = ad.train(net, data, records=N, test=test, batch_size=8, steps=2, method="dpsgd", noise_multiplier=1.0)
    assert run.accuracy is not None


def test_a_training_forward_leaves_nothing_on_the_model() -> None:
    net, loop, told = trained(lambda *_: None)
    assert (net.calls, net.mask, net.attention, told) == (0, None, [], [])
    assert not any("'calls'" in line for line in loop.run.privacy.not_covered)


def test_a_plain_value_that_changes_acts_and_is_named_once() -> None:
    _, loop, told = trained(lambda net, step: setattr(net, "scale", 1.0 / (1 + step)))
    plain, _, _ = trained(lambda net, _: None)
    assert len(told) == 1
    assert "'scale'" in told[0]
    assert sum("'scale'" in line for line in loop.run.privacy.not_covered) == 1
    assert not torch.equal(loop.run.model.get_parameter("first.weight"), plain.first.weight)


def test_a_value_with_which_records_mix_is_refused_before_the_step() -> None:
    with pytest.raises(ad.ModelError, match="record"):
        trained(lambda net, _: setattr(net, "centre", True))


def test_a_plain_tensor_acts_only_where_it_is_declared_public() -> None:
    """Undeclared, it may hold anything of an evaluation: steps are made with what was there when the loop began."""

    def factor(value: Tensor) -> Callable[[Net, int], object]:
        return lambda net, _: setattr(net, "scale", value)

    aside, loop, told = trained(factor(torch.tensor(0.1)))
    plain, _, _ = trained(lambda net, _: None)
    assert torch.equal(aside.first.weight, plain.first.weight)
    assert float(aside.scale) == pytest.approx(0.1)
    assert len(told) == 1
    assert "'scale'" in told[0]
    assert "ad.public(" in told[0]
    assert not any("'scale'" in line for line in loop.run.privacy.not_covered)
    acting, _, told = trained(factor(ad.public(torch.tensor(0.1))))
    assert not torch.equal(acting.first.weight, plain.first.weight)
    assert told == []


def test_a_list_that_an_evaluation_appends_to_does_not_reach_the_weights() -> None:
    """In its place the step has the list as it was when the loop began; afterwards the user's is back."""
    seen: list[int] = []

    def cache(net: Net, step: int) -> None:
        net.memory.append(torch.full((1,), float(step)))
        net.first.register_forward_hook(lambda *_: seen.append(len(net.memory)))

    net, _, told = trained(cache)
    assert len(net.memory) == STEPS
    assert any("'memory'" in line and "ad.public(" in line for line in told)
    assert set(seen) == {0}


def test_every_value_of_a_switch_and_every_content_of_a_list_is_probed() -> None:
    """The second of them mixes records, not the first."""

    def second(value: object, other: object) -> Callable[[Net, int], object]:
        return lambda net, step: setattr(net, "centre", value if step < 2 else other)

    for value, other in ((0, 1), ([], [1]), ((), print)):
        with pytest.raises(ad.ModelError, match="record"):
            trained(second(value, other))

    def grows(net: Net, step: int) -> None:
        net.memory.append(step)

    _, loop, told = trained(grows)
    assert sum("'memory'" in line for line in loop.run.privacy.not_covered) == len(told) == 1


@pytest.mark.parametrize("kind", [Counter, deque, type("Tally", (dict,), {})])
def test_what_is_counted_between_steps_is_named_whatever_holds_it(kind: Callable[[], Any]) -> None:
    def count(net: Net, step: int) -> None:
        net.memory.append(step) if isinstance(net.memory, deque) else net.memory.update({step: 1})

    net, optimizer = made()
    net.memory = kind()
    data = torch.randn(N, 5), torch.randint(3, (N,))
    loop = ad.PrivateLoop(net, optimizer, data, records=N, batch_size=8, steps=2, noise_multiplier=1.0)
    for step, batch in enumerate(loop):
        count(net, step)
        batch.backward()
        optimizer.step()
    assert any("'memory'" in line for line in loop.run.privacy.not_covered)


def test_every_hook_is_probed_though_another_was_there_before_it() -> None:
    """A hook that is put on and taken off again at every step may get the address of the one before."""
    handles: list[Any] = []

    def again(net: Net, step: int) -> None:
        for handle in handles:
            handle.remove()
        made: Callable[..., Any] = (lambda *_: None) if step < 2 else (lambda _, __, out: out - out.mean(0))
        handles[:] = [net.first.register_forward_hook(made)]

    with pytest.raises(ad.ModelError, match="record"):
        trained(again)


def test_a_hook_by_which_layer_rules_no_longer_fit_is_refused() -> None:
    def put(net: Net, step: int) -> None:
        if step == 1:
            net.first.register_forward_hook(lambda _, __, out: 3 * out)

    _, loop, _ = trained(put, engine="loop")
    assert loop.run.steps_done == STEPS
    with pytest.raises(ad.ModelError, match=r"layer rules .*another loop"):
        trained(put, engine="ghost")


def test_a_training_forward_may_not_write_to_what_is_declared_public() -> None:
    """Past the version counter, and only once it was probed."""
    later: list[int] = []

    def put(net: Net, step: int) -> None:
        def write(*_: object) -> None:
            if later:
                net.prototype.data.add_(1.0)

        if step == 1:
            ad.public(net.prototype)
            net.last.register_forward_hook(write)
        later.extend([step] * (step == 2))

    with pytest.raises(ad.ModelError, match="a training forward changes"):
        trained(put)


HOOKS: dict[str, Callable[[Net], Any]] = {
    "forward hook": lambda net: net.first.register_forward_hook(lambda *_: None),
    "backward hook": lambda net: net.first.register_full_backward_hook(lambda *_: None),
    "gradient hook": lambda net: net.first.weight.register_hook(lambda _: None),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_that_is_put_on_during_the_loop_runs_and_is_a_line_of_the_statement(kind: str) -> None:
    def put(net: Net, step: int) -> None:
        if step == 1:
            HOOKS[kind](net)

    _, loop, told = trained(put)
    assert loop.run.steps_done == STEPS
    assert len(told) == 1
    assert sum(f"{kind} <lambda> on 'first" in line for line in loop.run.privacy.not_covered) == 1


def test_an_accumulating_loop_makes_one_step_of_a_logical_batch_in_parts() -> None:
    """The habit of `if (i + 1) % k == 0: optimizer.step()`: the same weights, charges and noise as without parts."""
    net, optimizer = made()
    torch.manual_seed(1)
    data = torch.randn(N, 5), torch.randint(3, (N,))
    settings: dict[str, Any] = {"records": N, "batch_size": 8, "steps": STEPS, "noise_multiplier": 1.0}
    settings |= {"method": ad.DPSGD(clip_norm=0.5), "randomness": ReproducibleRandomness(5), "seed": 3}
    loop = ad.PrivateLoop(net, optimizer, data, accumulate=4, **settings)
    assert len(loop) == 4 * STEPS
    for number, batch in enumerate(loop):
        batch.backward()
        assert (net.last.weight.grad is None) == ((number + 1) % 4 != 0)
        if (number + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    plain, whole, _ = trained(lambda *_: None)
    assert torch.allclose(net.last.weight, plain.last.weight, atol=1e-6)
    assert loop.run.steps_done == STEPS
    assert loop.run.epsilon == whole.run.epsilon
    with pytest.raises(ad.InputError, match="accumulate=0"):
        ad.PrivateLoop(net, optimizer, data, accumulate=0, **settings)


def test_a_part_is_differentiated_once_and_stepped_on_only_when_all_are() -> None:
    net, optimizer = made()
    data = torch.randn(N, 5), torch.randint(3, (N,))
    loop = ad.PrivateLoop(
        net, optimizer, data, records=N, batch_size=8, steps=2, noise_multiplier=1.0, method="dpsgd", accumulate=2
    )
    batches = iter(loop)
    batch = next(batches)
    batch.backward()
    with pytest.raises(ad.PrivacyLineError, match="in state 'part': a batch is charged for one release"):
        batch.backward()
    with pytest.raises(ad.PrivacyLineError, match=r"before batch\.backward"):
        optimizer.step()


def test_a_module_that_caches_is_validated_between_the_steps_of_lightning() -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from adadpigu.integrations.lightning import PrivateStrategy

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = made()[0]

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)

    private = PrivateStrategy(records=N, method="dpsgd", noise_multiplier=1.0)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(strategy=private, max_epochs=2, accelerator="cpu", enable_model_summary=False, **quiet)
    torch.manual_seed(1)
    loaders = [
        DataLoader(TensorDataset(torch.randn(count, 5), torch.randint(3, (count,))), batch_size=8) for count in (N, 7)
    ]
    trainer.fit(Module(), *loaders)
    assert private.run.steps_done == 8
    assert any("calls'" in line for line in private.run.privacy.not_covered)


def test_a_model_that_caches_is_evaluated_between_the_steps_of_an_opacus_script() -> None:
    from adadpigu.integrations.opacus import PrivacyEngine

    net, optimizer = made()
    torch.manual_seed(1)
    loader = DataLoader(TensorDataset(torch.randn(N, 5), torch.randint(3, (N,))), batch_size=8)
    model, optimizer, criterion, batches = PrivacyEngine().make_private(
        module=net,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=0.5,
        total_steps=4,
        criterion=nn.functional.cross_entropy,
    )
    for data, target in batches:
        optimizer.zero_grad()
        criterion(model(data), target).backward()
        optimizer.step()
        with torch.no_grad():
            net(torch.zeros(7, 5))
    assert net.calls > 0
