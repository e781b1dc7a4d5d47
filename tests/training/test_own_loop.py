"""A loop of the user's own trains as the package's loop does, and what would not be private is refused by name."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_accounting import ComposedDpEvent
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.training.own_loop import PrivateLoop

N, B, STEPS = 64, 16, 6
Body = Callable[[Any, torch.optim.Optimizer, ad.PrivateBatch], None]
METHODS: dict[str, ad.Method] = {
    "dpsgd": ad.DPSGD(clip_norm=0.5),
    "adadpigu": ad.AdaDPIGU(retention=0.5, schedule="linear", clip_norm=0.5, mean_decay=0.9, offset=0.1),
    "prune": ad.AdaDPIGU(retention=0.5, mode="prune", clip_norm=0.5),
    "dpsur": ad.DPSUR(clip_norm=0.5, test_batch_size=8),
    "random-freeze": ad.RandomFreeze(clip_norm=0.5),
}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, 5, generator=generator), torch.randint(3, (N,), generator=generator)


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.last = nn.Linear(4, 3)
        self.centre = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.centre:  # no record would be alone in it
            hidden = hidden - hidden.mean(0)
        output: Tensor = self.last(torch.tanh(hidden))
        return output


def model() -> Net:
    torch.manual_seed(0)
    return Net()


def loop_for(net: nn.Module, optimizer: torch.optim.Optimizer, **changes: object) -> PrivateLoop:
    settings: dict[str, object] = {
        "records": N,
        "batch_size": B,
        "steps": STEPS,
        "method": METHODS["dpsgd"],
        "noise_multiplier": 1.0,
        "randomness": ReproducibleRandomness(5),
        "seed": 3,
    }
    return PrivateLoop(net, optimizer, data(), **{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", METHODS)
def test_an_own_loop_ends_at_the_weights_of_the_packages_loop(name: str) -> None:
    ours, theirs = model(), model()
    run = ad.train(
        ours,
        data(),
        records=N,
        batch_size=B,
        steps=STEPS,
        method=METHODS[name],
        noise_multiplier=1.0,
        lr=0.3,
        momentum=0.9,
        seed=3,
        ema=0.9,
        randomness=ReproducibleRandomness(5),
    )
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.3, momentum=0.9)
    loop = loop_for(theirs, optimizer, method=METHODS[name], ema=0.9)
    for batch in loop:
        batch.backward()
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)
    assert loop.run.privacy.epsilon_pld == run.privacy.epsilon_pld == loop.epsilon
    assert loop.run.steps_done == STEPS == len(loop)


def test_gradients_are_the_release_that_the_ledger_was_charged_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases: list[Release] = []
    genuine = GaussianMechanism.release

    def kept(self: GaussianMechanism, totals: Any, receipt: Any) -> dict[str, Release]:
        found = genuine(self, totals, receipt)
        releases.extend(found.values())
        return found

    monkeypatch.setattr(GaussianMechanism, "release", kept)
    net = model()
    optimizer = torch.optim.AdamW(
        [{"params": net.first.parameters(), "lr": 0.1}, {"params": net.last.parameters(), "lr": 0.01}]
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    rates = []
    with loop_for(net, optimizer, out=tmp_path / "run") as loop:
        for count, batch in enumerate(loop, start=1):
            assert all(p.grad is None for p in net.parameters()) or count > 1
            batch.backward()
            assert (len(releases), releases[-1].noise_stddev) == (count, 0.5)
            found = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
            torch.testing.assert_close(found, releases[-1].value.to(found) / B)
            optimizer.step()
            scheduler.step()
            rates.append(optimizer.param_groups[1]["lr"])
            net.eval()
            with torch.no_grad():
                net(torch.zeros(2, 5))
            net.train()
    assert rates == pytest.approx([0.01, 0.001, 0.001, 1e-4, 1e-4, 1e-5])
    assert (tmp_path / "run" / "privacy.json").exists()
    assert loop.run.privacy.epsilon_spent == pytest.approx(loop.epsilon)


def test_frozen_layers_keep_their_weights_and_return() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    seen = []
    for count, batch in enumerate(loop_for(net, optimizer)):
        net.first.requires_grad_(count not in (2, 3))
        before = net.first.weight.detach().clone()
        batch.backward()
        assert (net.first.weight.grad is None) == (count in (2, 3))
        optimizer.step()
        seen.append(bool(torch.equal(before, net.first.weight)))
    assert seen == [False, False, True, True, False, False]


def test_a_layer_that_was_frozen_when_the_loop_began_cannot_join() -> None:
    net = model()
    net.first.requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    loop = loop_for(net, optimizer)
    batches = iter(loop)
    batch = next(batches)
    net.first.requires_grad_(True)
    with pytest.raises(ad.ModelError, match=r"parameter 'first.weight' was frozen when the loop began"):
        batch.backward()


def _two_steps(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    batch.backward()
    optimizer.step()
    optimizer.step()


def _step_first(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    optimizer.step()


def _backward_twice(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    batch.backward()
    batch.backward()


def _own_backward(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    batch.backward()
    F.cross_entropy(net(data()[0]), data()[1]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _second_optimizer(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    other = torch.optim.SGD(net.parameters(), lr=0.1)
    F.cross_entropy(net(data()[0]), data()[1]).backward()  # type: ignore[no-untyped-call]
    other.step()


def _another_parameter(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    batch.backward()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    optimizer.step()


def _records_mixed(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    net.centre = True
    batch.backward()


def _layer_replaced(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    net.last = nn.Linear(4, 3)
    batch.backward()


def _swallowed(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    net.centre = True
    with contextlib.suppress(ad.AdaDPIGUError):
        batch.backward()
    optimizer.step()


def _closure(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    batch.backward()
    optimizer.step(lambda: 0.0)


def _forgotten_backward(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    return


def _forgotten_step(net: Net, optimizer: torch.optim.Optimizer, batch: ad.PrivateBatch) -> None:
    batch.backward()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (_two_steps, r"optimizer.step\(\) twice on one release"),
        (_step_first, r"optimizer.step\(\) before batch.backward\(\)"),
        (_backward_twice, r"backward\(\) on a batch in state 'released'"),
        (_own_backward, "a backward pass of your own reached a parameter's grad"),
        (_second_optimizer, "a backward pass of your own reached a parameter's grad"),
        (_another_parameter, r"parameter 0 of group 1, of shape \(2,\), is not the model's"),
        (_records_mixed, "record"),
        (_layer_replaced, "parameter 'last.weight' is another|the model has changed at 'last'"),
        (_swallowed, r"step 1: batch.backward\(\) has failed, and the run with it"),
        (_closure, r"optimizer.step\(closure\)"),
        (_forgotten_backward, r"step 1: batch.backward\(\) was not called"),
        (_forgotten_step, r"step 1: optimizer.step\(\) was not called"),
    ],
)
def test_misuse_is_refused_by_name_and_the_run_reports_what_it_spent(body: Body, told: str, tmp_path: Path) -> None:
    net, start = model(), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)

    def trained() -> None:
        with loop_for(net, optimizer, out=tmp_path / "run") as loop:
            for batch in loop:
                body(net, optimizer, batch)

    with pytest.raises(ad.AdaDPIGUError, match=told):
        trained()
    assert (tmp_path / "run" / "privacy.json").exists()
    assert not (tmp_path / "run" / "model.safetensors").exists()
    if body is not _layer_replaced:
        assert all(torch.equal(a, b) for a, b in zip(net.parameters(), start.parameters(), strict=True))
    assert all(p.grad is None for p in net.parameters())
    optimizer.step()  # the optimiser is the user's again


def _clip(net: Net) -> None:
    nn.utils.clip_grad_norm_(net.parameters(), 1e-3)


def _scale(net: Net) -> None:
    for parameter in net.parameters():
        assert parameter.grad is not None
        parameter.grad = parameter.grad * 0.25


def _zero(net: Net) -> None:
    assert net.first.weight.grad is not None
    net.first.weight.grad.zero_()


@pytest.mark.parametrize(("change", "most"), [(_clip, 1e-3), (_scale, None), (_zero, None)])
def test_a_release_is_the_users_to_change(change: Callable[[Net], None], most: float | None) -> None:
    """Clipping, scaling and zeroing come after the noise; the step follows what is left in p.grad."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for batch in loop_for(net, optimizer):
        batch.backward()
        before = [p.detach().clone() for p in net.parameters()]
        change(net)
        left = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        optimizer.step()
        for old, moved, grad in zip(before, net.parameters(), left, strict=True):
            assert torch.equal(moved, old - 0.5 * grad)
        assert most is None or float(torch.cat([grad.flatten() for grad in left]).norm()) <= most * 1.001


def test_a_step_that_zero_grad_came_before_is_warned_of() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    batches = iter(loop_for(net, optimizer))
    next(batches).backward()
    optimizer.zero_grad()
    with pytest.warns(UserWarning, match="the release is gone, so the step moves nothing"):
        optimizer.step()


def test_a_model_that_was_left_in_evaluation_mode_is_trained_as_it_began() -> None:
    """Dropout acts as it did when the loop began, and the user's mode is left as it is."""
    net = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    seen: list[bool] = []
    net[1].register_forward_hook(lambda module, _, __: seen.append(module.training))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with pytest.warns(UserWarning, match="hook"):
        loop = loop_for(net, optimizer)
    seen.clear()
    for batch in loop:
        net.eval()
        batch.backward()
        assert not net.training
        optimizer.step()
    assert seen
    assert all(seen)


def test_a_loop_that_is_left_early_claims_its_whole_plan(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    loop = loop_for(net, optimizer, out=tmp_path / "run")
    for count, batch in enumerate(loop):
        batch.backward()
        optimizer.step()
        if count == 1:
            break
    run = loop.finish()
    assert run.interrupted
    assert run.steps_done == 2
    assert run.epsilon == loop.epsilon > run.privacy.epsilon_spent
    with pytest.raises(ad.InputError, match="gone through once"):
        next(iter(loop))


def test_a_failure_is_reported_as_one_also_without_a_with(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)

    def trained() -> None:
        for count, batch in enumerate(loop_for(net, optimizer, out=tmp_path / "run")):
            net.centre = count == 1
            batch.backward()
            optimizer.step()

    with pytest.raises(ad.ModelError, match="record"):
        trained()
    told = (tmp_path / "run" / "privacy.json").read_text()
    assert "that the run failed, and when" in told
    assert "the loop was the user's own" in told
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_model_is_in_one_loop_at_a_time_and_the_next_one_warns() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    first = loop_for(net, optimizer)
    with pytest.raises(ad.InputError, match="by another private loop that has not ended"):
        loop_for(net, torch.optim.SGD(net.parameters(), lr=0.5))
    with pytest.raises(ad.InputError, match="by another private loop that has not ended"):
        loop_for(nn.Sequential(net), torch.optim.SGD(net.parameters(), lr=0.5))
    alike = model()
    alike.load_state_dict(net.state_dict(), assign=True)  # other parameters over the same memory
    with pytest.raises(ad.InputError, match="by another private loop that has not ended"):
        loop_for(alike, torch.optim.SGD(alike.parameters(), lr=0.5))
    tied = model()
    tied.last.bias = net.last.bias
    with pytest.raises(ad.InputError, match=r"parameter 'last.bias' is trained by another private loop.*finish"):
        loop_for(tied, torch.optim.SGD(tied.parameters(), lr=0.5))
    for batch in first:
        batch.backward()
        optimizer.step()
    second = loop_for(net, optimizer)
    assert any("trained before in this process" in warning for warning in second.finish().privacy.warnings)


def test_what_the_user_does_to_weights_after_a_step_is_kept() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=5.0)
    for batch in loop_for(net, optimizer, test=(torch.ones(9, 5), data()[1][:9]), evaluate_every=1):
        batch.backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.clamp_(-0.1, 0.1)
    assert all(bool((parameter.abs() <= 0.1).all()) for parameter in net.parameters())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"lr": 0.1}, r"lr=0.1: the loop is yours"),
        ({"momentum": 0.9}, r"momentum=0.9: the loop is yours"),
        ({"lr_schedule": "cosine"}, "the loop is yours"),
    ],
)
def test_options_that_the_users_optimizer_decides_are_refused(changes: dict[str, object], told: str) -> None:
    net = model()
    with pytest.raises(ad.InputError, match=told):
        loop_for(net, torch.optim.SGD(net.parameters(), lr=0.5), **changes)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    net, stranger = model(), nn.Linear(2, 2)
    with pytest.raises(ad.InputError, match=r"parameter 0 of group 0, of shape \(2, 2\), is not the model's"):
        loop_for(net, torch.optim.SGD(stranger.parameters(), lr=0.5))
    with pytest.raises(ad.InputError, match=r"optimizer does not hold parameter 'last.bias', which is trained"):
        loop_for(net, torch.optim.SGD([*net.first.parameters(), net.last.weight], lr=0.5))
    with pytest.raises(ad.InputError, match="LBFGS"):
        loop_for(net, torch.optim.LBFGS(net.parameters()))


@pytest.mark.filterwarnings("ignore:what ")
@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(net, "centre", True),
        lambda net: setattr(net, "first", nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, affine=False))),
        lambda net: net.first.register_forward_hook(lambda _, __, output: output - output.mean(0)),
    ],
)
def test_what_changes_between_the_loop_and_its_first_batch_is_refused(change: Callable[[Any], object]) -> None:
    """Whether records stay apart was probed when the loop was made."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = loop_for(net, optimizer)
    change(net)
    batches = iter(loop)
    batch = next(batches)
    with pytest.raises(ad.ModelError, match=r"the loop began|record"):
        batch.backward()
    assert loop.spent == ComposedDpEvent([])


def test_evaluation_mode_between_the_loop_and_its_first_batch_is_no_change() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = loop_for(net, optimizer)
    net.eval()
    for batch in loop:
        batch.backward()
        optimizer.step()
    assert loop.run.steps_done == STEPS


def test_a_batch_of_an_ended_run_is_refused() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = loop_for(net, optimizer)
    batch = next(iter(loop))
    loop.finish()
    with pytest.raises(ad.PrivacyLineError, match="has ended"):
        batch.backward()
    optimizer.step()  # the optimiser is the user's alone again


def test_nobody_sees_a_batch_and_its_epochs_are_one_pass() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = loop_for(net, optimizer)
    for number, batch in enumerate(loop):
        if number == 0:
            for look in (iter, len, lambda b: b[0], lambda b: b.to("cpu")):
                with pytest.raises(ad.PrivacyLineError, match="nobody sees"):
                    look(batch)
        batch.backward()
        optimizer.step()
    with pytest.raises(ad.InputError, match="leave out the loop over epochs"):
        next(iter(loop))


PRESSES: list[int] = []
"""how often Ctrl-C is pressed amid the next loss; not in the loss, whose state is put back"""


def interrupting(outputs: Tensor, targets: Tensor) -> Tensor:
    for _ in range(PRESSES.pop() if PRESSES else 0):
        signal.raise_signal(signal.SIGINT)
    return F.cross_entropy(outputs, targets)


INTERRUPTED = {"amid backward": 3, "amid backward, twice": 2, "before the step": 3, "after the step": 3, "before": 2}
"""when Ctrl-C is pressed in the third step, and how many steps are then made"""


@pytest.mark.parametrize("when", INTERRUPTED)
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.usefixtures("default_interrupt")
def test_an_interrupted_loop_keeps_its_weights_and_can_go_on(when: str, within: bool, tmp_path: Path) -> None:
    """In a notebook, Ctrl-C is the way to stop: it threw weights and progress away."""
    net, made = model(), INTERRUPTED[when]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    loop = loop_for(
        net, optimizer, out=tmp_path / "run", loss=interrupting, engine="loop", spare_steps=2, randomness=None
    )
    after: list[dict[str, Tensor]] = []

    def trained() -> None:
        with loop if within else contextlib.nullcontext():
            for count, batch in enumerate(loop):
                PRESSES[:] = [{"amid backward": 1, "amid backward, twice": 2}.get(when, 0)] if count == 2 else []
                _press(when == "before" and count == 2)
                batch.backward()
                _press(when == "before the step" and count == 2)
                optimizer.step()
                after.append({name: p.detach().clone() for name, p in net.named_parameters()})
                _press(when == "after the step" and count == 2)

    with pytest.raises(KeyboardInterrupt):
        trained()
    assert loop.run.interrupted
    assert loop.run.steps_done == made == len(after)
    assert loop.run.epsilon == loop.epsilon > loop.run.privacy.epsilon_spent
    assert all(torch.equal(p, after[-1][name]) for name, p in net.named_parameters())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert f"Interrupted: {made} of 6 steps" in (tmp_path / "run" / "statement.txt").read_text()
    assert (tmp_path / "run" / "model.safetensors").exists()
    if made == 3 or when == "before":
        again, saved = model(), load_file(tmp_path / "run" / "model.safetensors")
        other = torch.optim.SGD(again.parameters(), lr=0.5, momentum=0.9)
        with pytest.warns(UserWarning, match="goes on with its weights"):
            rest = loop_for(
                again, other, out=tmp_path / "run", resume=True, engine="loop", spare_steps=2, randomness=None
            )
        assert all(torch.equal(p, saved[name]) for name, p in again.named_parameters())
        for batch in rest:
            batch.backward()
            other.step()
        assert rest.run.steps_done == STEPS


def test_a_draw_that_tests_an_update_sees_the_model_as_other_draws_do() -> None:
    """DPSUR's second draw comes in the optimiser's step: in the mode in which the loop began."""
    net, modes = model(), list[bool]()
    net.last.register_forward_hook(lambda module, *_: modes.append(module.training))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for batch in loop_for(net, optimizer, method=METHODS["dpsur"], engine="loop"):
        batch.backward()
        net.eval()
        del modes[:]
        optimizer.step()
        assert modes
        assert all(modes)
        assert not net.last.training


@pytest.fixture
def default_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    yield
    signal.signal(signal.SIGINT, before)


def _press(now: bool) -> None:
    if now:
        signal.raise_signal(signal.SIGINT)
