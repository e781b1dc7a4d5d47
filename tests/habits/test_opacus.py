"""Habits of people who come from Opacus: any net and loader in their script, the first line, accelerate."""

from __future__ import annotations

import re
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.integrations.opacus import PrivacyEngine

N = 24


class Masked(nn.Module):
    """As a tutorial's BERT: ids, a mask and labels by name; its own loss and its scores come out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(9, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        mean = (self.embed(ids) * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)
        scores = self.out(mean)
        return F.cross_entropy(scores, labels), scores


def texts() -> dict[str, Tensor]:
    ids = torch.randint(9, (N, 5), generator=torch.Generator().manual_seed(2))
    return {"ids": ids, "mask": (torch.arange(5) < 2 + ids[:, :1] % 3).float(), "labels": torch.arange(N) % 3}


def by_name(items: list[Any]) -> UserDict[str, Tensor]:
    """Not quite a dict, as what a tokenizer makes."""
    return UserDict(zip(texts(), map(torch.stack, zip(*items, strict=True)), strict=True))


def masked_losses(model: nn.Module, batch: Any) -> Tensor:
    batch = batch if isinstance(batch, dict) else dict(zip(texts(), batch, strict=True))
    return F.cross_entropy(model(**batch)[1], batch["labels"], reduction="none")


@pytest.mark.parametrize("engine", ["auto", "ghost"])
@pytest.mark.parametrize("form", ["three parts", "dict"])
def test_batches_that_are_no_pairs_train_by_losses_to_the_weights_of_train(form: str, engine: str) -> None:
    """`losses=f` in make_private, and `criterion(model, batch)` in the loop; the collate_fn is kept."""
    model, oracle, private = Masked(), Masked(), PrivacyEngine()
    private._how["randomness"] = ReproducibleRandomness(5)
    collate = by_name if form == "dict" else None
    wrapped, optimizer, criterion, loader = private.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        data_loader=DataLoader(TensorDataset(*texts().values()), batch_size=8, collate_fn=collate),
        losses=masked_losses,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        total_steps=3,
        engine=engine,
    )
    for batch in loader:
        optimizer.zero_grad()
        assert isinstance(batch, dict if form == "dict" else list)
        named = batch if isinstance(batch, dict) else dict(zip(texts(), batch, strict=True))
        own, scores = wrapped(**named)
        assert scores.shape == (len(named["ids"]), 3)
        with pytest.raises(ad.InputError, match="of another loss"):
            own.backward()
        with pytest.raises(ad.InputError, match="another batch than that of the private loader"):
            criterion(wrapped, {**named, "mask": named["mask"] + 1})
        loss = criterion(wrapped, batch)
        torch.testing.assert_close(loss.item(), own.item())
        with pytest.raises(ad.InputError, match="of another loss"):
            (loss * 2).backward()
        loss.backward()
        optimizer.step()
    how: dict[str, Any] = {
        "records": N,
        "batch_size": 8,
        "steps": 3,
        "lr": 0.5,
        "momentum": 0.9,
        "noise_multiplier": 1.0,
    }
    ad.train(
        oracle,
        texts(),
        losses=masked_losses,
        engine=engine,
        method=ad.DPSGD(clip_norm=1.0),
        randomness=ReproducibleRandomness(5),
        **how,
    )
    for one, other in zip(model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(one, other)


class Scaled(nn.Module):
    """A layer of the user's own, for which there is no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.ones(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(x * self.scale)
        return scores


def made(model: Any, **changes: Any) -> Any:
    """Model, optimizer, criterion and loader of a script."""
    data = TensorDataset(torch.randn(N, 6), torch.arange(N) % 3)
    return PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=8, shuffle=True, drop_last=True, pin_memory=False),
        **{"noise_multiplier": 1.0, "max_grad_norm": 1.0, **changes},
    )


def script(model: Any) -> int:
    """As a tutorial has it, but for two lines; the steps that it took."""
    model, optimizer, criterion, loader = made(model)
    scheduler, steps = torch.optim.lr_scheduler.StepLR(optimizer, 1), 0
    for data, target in loader:
        optimizer.zero_grad()
        criterion(model(data), target).backward()
        assert all(p.grad is not None for p in model.parameters())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        steps += 1
    return steps


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), "layer rules, as every trained parameter"),
        (Scaled(), "one record at a time under vmap, because .*Scaled"),
    ],
    ids=["fast", "slow"],
)
@pytest.mark.filterwarnings("ignore:data_loader")
def test_the_first_line_says_which_path_runs_and_why(
    model: nn.Module, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script(model) == N // 8
    told = " ".join(capsys.readouterr().err.split())  # broken at 80 columns
    assert re.match(f"per-record gradients: {path}", told)
    assert told.count("per-record gradients") == 1


@pytest.mark.filterwarnings("ignore:data_loader")
@pytest.mark.parametrize("name", ["noise_multiplier", "max_grad_norm"])
def test_noise_or_bound_assigned_after_make_private_is_refused_before_the_next_draw(name: str) -> None:
    """As schedulers of Opacus do: the plan was charged for other values, so they would have no effect."""
    model, optimizer, criterion, loader = made(nn.Linear(6, 3), total_steps=3)
    batches = iter(loader)
    data, target = next(batches)
    criterion(model(data), target).backward()
    optimizer.step()
    setattr(optimizer, name, 0.5)
    charged = loader.loop.spent
    with pytest.raises(ad.InputError, match=rf"optimizer.{name}=0.5: .*charged for 1.0; allowed: .*make_private"):
        next(batches)
    assert loader.loop.spent == charged


@pytest.mark.parametrize(
    ("model", "shape", "remedy"),
    [
        (nn.Linear(6, 1), (6,), "or in the loss: lambda o, t: bce(o.squeeze(1), t)"),
        (nn.Linear(6, 3), (1, 2, 3), "nn.Sequential(nn.Flatten(), model)"),
    ],
)
def test_what_a_script_does_around_the_model_has_its_place_in_the_error(
    model: nn.Module, shape: tuple[int, ...], remedy: str
) -> None:
    """`model(x).squeeze(1)` and `model(x.view(len(x), -1))`, as tutorials have them."""
    records = TensorDataset(torch.zeros(16, *shape), torch.zeros(16) if shape == (6,) else torch.zeros(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ad.ModelError, match=re.escape(remedy)):
        PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            criterion=nn.BCEWithLogitsLoss(),
            data_loader=DataLoader(records, batch_size=4),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )


@pytest.mark.filterwarnings("ignore:data_loader")
def test_a_script_may_hand_what_make_private_returned_to_accelerate() -> None:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    model, optimizer, criterion, loader = made(nn.Linear(6, 3))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    before, steps = model.weight.detach().clone(), 0
    for data, target in loader:
        optimizer.zero_grad()
        accelerator.backward(criterion(model(data), target))
        optimizer.step()
        steps += 1
    assert steps == N // 8
    assert not torch.equal(model.weight, before)


@pytest.mark.filterwarnings("ignore:data_loader")
def test_accumulation_by_accelerate_is_refused_with_what_to_write() -> None:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, criterion, loader = made(nn.Linear(6, 3))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = iter(loader)
    data, target = next(batches)
    with pytest.raises(ad.InputError, match="to accumulate: BatchMemoryManager"):
        accelerator.backward(criterion(model(data), target))
