"""The flat view of a model's parameters."""

from __future__ import annotations

import torch
from torch import nn

from adadpigu.core.layout import Layout


def test_writing_what_was_read_changes_nothing_and_shared_or_frozen_parameters_count_right() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    frozen = nn.Linear(4, 2)
    frozen.weight.requires_grad_(False)
    model = nn.Sequential(first, second, frozen)
    layout = Layout.of(model)
    assert [slot.name for slot in layout.slots] == ["0.weight", "0.bias", "1.bias", "2.bias"]
    assert layout.size == 16 + 4 + 4 + 2
    theta = torch.arange(26.0)
    layout.write(model, theta)
    assert torch.equal(layout.read(model), theta)
    assert torch.equal(second.weight, theta[:16].reshape(4, 4))
    assert list(layout.layers()) == ["0", "1", "2"]
    assert layout.layer_index().tolist() == [0] * 20 + [1] * 4 + [2] * 2
