"""Habits of people who come from Opacus: any net and any loader in their script, and one look at the first line."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from adadpigu.integrations.opacus import PrivacyEngine

N = 24


class Scaled(nn.Module):
    """A layer of the user's own, for which there is no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.ones(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(x * self.scale)
        return scores


def script(model: Any) -> int:
    """As a tutorial has it, but for two lines; the steps that it took."""
    data = TensorDataset(torch.randn(N, 6), torch.arange(N) % 3)
    model, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=8, shuffle=True, drop_last=True, pin_memory=False),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
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
    assert re.match(f"per-record gradients: {path}", capsys.readouterr().err.splitlines()[0])
