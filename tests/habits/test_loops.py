"""Habits of people with a loop of their own: schedulers, clipping, annealing, accumulation, an early stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness

N, STEPS = 32, 4


class Net(nn.Module):
    """With a temperature that is annealed during training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.temperature = nn.Linear(5, 3), 1.0

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x) / self.temperature
        return scores


def loop_for(net: nn.Module, optimizer: torch.optim.Optimizer, **changes: Any) -> ad.PrivateLoop:
    generator = torch.Generator().manual_seed(1)
    records = torch.randn(N, 5, generator=generator), torch.arange(N) % 3
    how: dict[str, Any] = {"records": N, "batch_size": 8, "steps": STEPS, "noise_multiplier": 1.0}
    return ad.PrivateLoop(
        net, optimizer, records, method=ad.DPSGD(), randomness=ReproducibleRandomness(5), **{**how, **changes}
    )


def test_what_people_leave_in_a_loop_runs() -> None:
    """A scheduler, clip_grad_norm_, a factor on p.grad, a temperature by the step, a look at p.grad before."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    with loop_for(net, optimizer) as loop:
        for step, batch in enumerate(loop):
            optimizer.zero_grad()
            assert all(p.grad is None for p in net.parameters())
            net.temperature = ad.public(1 / (1 + step))
            batch.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.grad *= 0.5
            before, rate = net.layer.weight.detach().clone(), scheduler.get_last_lr()[0]
            optimizer.step()
            scheduler.step()
            assert 0 < float((net.layer.weight.detach() - before).norm()) <= 0.5e-3 * rate * 1.001
    assert loop.run.steps_done == STEPS
    with pytest.raises(ad.InputError, match="a number"):
        ad.public("warm")  # type: ignore[type-var]


@pytest.mark.parametrize("own", [False, True], ids=["loss", "losses"])
@pytest.mark.parametrize("way", ["train", "loop"])
def test_the_first_line_of_output_says_once_which_path_runs_and_why(
    way: str, own: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that losses of one's own do not take the slow way silently. Standard output stays the user's."""
    net, losses = Net(), (lambda model, batch: model(batch[0]).square().sum(1)) if own else None
    if way == "loop":
        loop_for(net, torch.optim.SGD(net.parameters(), lr=1.0), losses=losses).finish()
    else:
        data = torch.randn(N, 5), torch.arange(N) % 3
        ad.train(net, data, records=N, losses=losses, batch_size=8, steps=1, noise_multiplier=1.0, method="dpsgd")
    out, err = capsys.readouterr()
    path = "one record at a time under vmap, because losses" if own else "layer rules, as every trained parameter"
    assert err.startswith(f"per-record gradients: {path}")
    assert err.count("per-record gradients") == 1
    assert out == ""


@pytest.mark.parametrize("kind", ["plateau", "stop"])
def test_a_metric_of_public_records_may_decide_and_the_whole_plan_is_claimed(kind: str) -> None:
    net, public = Net(), torch.randn(16, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, mode="max")
    with loop_for(net, optimizer) as loop:
        for batch in loop:
            loss = batch.backward()
            optimizer.step()
            assert f"loss {loss:.3f}" == f"loss {loss}" == "loss <the loss is private>"
            with pytest.raises(ad.PrivacyLineError, match=r"allowed for ReduceLROnPlateau.*: a public metric"):
                plateau.step(loss)
            accuracy = float((net(public).argmax(1) == 0).float().mean())
            if kind == "plateau":
                plateau.step(accuracy)
            else:
                break
    assert loop.run.interrupted is (kind == "stop")
    assert loop.run.privacy.steps_charged == (1 if kind == "stop" else STEPS)
    assert loop.run.privacy.epsilon_pld == loop.epsilon


def test_a_logical_batch_in_parts_moves_weights_as_the_whole() -> None:
    nets = Net(), Net()
    for net, parts in zip(nets, (None, 2), strict=True):
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        for batch in loop_for(net, optimizer, physical_batch_size=parts):
            batch.backward()
            optimizer.step()
    torch.testing.assert_close(nets[0].layer.weight, nets[1].layer.weight)


def test_an_error_amid_records_keeps_its_type_and_line_and_shows_no_value() -> None:
    def losses(model: nn.Module, batch: Any) -> Tensor:
        if model.training and len(batch[0]) and calls:
            raise KeyError(f"no such record {batch[0]}")
        return model(batch[0]).square().mean(1)  # type: ignore[no-any-return]

    calls: list[int] = []
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    loop = loop_for(net, optimizer, losses=losses)
    calls.append(1)
    with pytest.raises(KeyError) as caught, loop:
        next(iter(loop)).backward()
    assert "tensor" not in str(caught.value)
    assert Path(__file__).name in str(caught.value) or any(
        entry.path == Path(__file__) and entry.name == "losses" for entry in caught.traceback
    )


@pytest.mark.parametrize("option", [{"epsilon": 4}, {"sampler": "shuffled"}, {"owner": "person"}, {"drop_lats": True}])
def test_an_option_that_nobody_knows_is_refused_by_name(option: dict[str, Any]) -> None:
    net = Net()
    with pytest.raises(ad.InputError, match=f"{next(iter(option))}"):
        loop_for(net, torch.optim.SGD(net.parameters(), lr=1.0), **option)


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"privacy": 4}, r"privacy=4 is of type int; allowed: Budget\(epsilon=4"),
        ({"method": ad.DPSGD}, r"method=.*allowed: such as ad.DPSGD\(\)"),
        ({"loss": "mse"}, r"loss='mse' is of type str; allowed: .*nn.MSELoss\(\)"),
    ],
)
def test_an_argument_of_another_kind_is_named_with_what_to_write(wrong: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ad.InputError, match=remedy):
        ad.train(nn.Linear(4, 3), (torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)), records=8, **wrong)
