"""The oracle of the habits: `losses(model, batch)` in float64, one record at a time, by autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from adadpigu.core.gradients.norms import train_mode
from adadpigu.core.sensitive import Records, unseal
from adadpigu.data.datasets import declare
from adadpigu.methods import DPSGD
from adadpigu.training import Preparation, TrainingOptions, prepare

N = 24
Losses = Callable[[nn.Module, Any], Tensor]


def prepared(model: nn.Module, source: Any, **how: Any) -> Preparation:
    """A run on N records that is ready to start."""
    options = TrainingOptions(
        batch_size=8, steps=2, noise_multiplier=1.0, device="cpu", engine=how.pop("engine", "auto")
    )
    data = declare(source, records=N)
    return prepare(model, data, method=DPSGD(clip_norm=1.0), budget=None, delta=1e-5, options=options, **how)


def shown(ready: Preparation) -> Records:
    """All records of a run, as its engine sees them."""
    return ready.view(Records(ready.data.train.take(torch.arange(len(ready.data.train)))))


def by_autograd(model: nn.Module, losses: Losses, batch: Any) -> Tensor:
    """[n, d] in float64; `losses` may be a loss of a batch, since each batch holds one record."""
    model = copy.deepcopy(model).double()
    doubled = tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, batch)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = []
    for number in range(N):
        one = losses(model, tree_map(lambda leaf, at=number: leaf[at : at + 1], doubled)).sum()
        found = torch.autograd.grad(one, trained, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([gradient.reshape(-1) for gradient in found]))
    return torch.stack(rows)


def assert_gradients(ready: Preparation, losses: Losses, batch: Any) -> None:
    """The engine's gradients are those of autograd, to 1e-5 of their norm."""
    train_mode(ready.model)
    expected = by_autograd(ready.model, losses, batch)
    found = unseal(ready.engine.per_sample_gradients(shown(ready))).gradients.double()
    assert float(expected.norm()) > 0
    assert float((found - expected).norm()) <= 1e-5 * float(expected.norm())
