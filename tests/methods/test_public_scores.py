"""Importance from public images: random labels are of the kind that the loss takes; what cannot be is refused early."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.errors import InputError
from adadpigu.priors.random_images import process_scores

IMAGES = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(64) % 2
STEPS: dict[str, Any] = {"records": 64, "steps": 4, "batch_size": 16, "noise_multiplier": 1.5}


def per_pixel() -> nn.Module:
    return nn.Conv2d(1, 3, 3, padding=1)


def flat(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))


@pytest.mark.parametrize(
    ("net", "targets", "loss", "labels"),
    [
        (flat(2), LABELS, F.cross_entropy, {0.0, 1.0}),
        (flat(1), LABELS[:, None].float(), F.binary_cross_entropy_with_logits, {0.0, 1.0}),
        (flat(3), torch.zeros(64, 3), F.binary_cross_entropy_with_logits, {0.0, 1.0}),
        (flat(1), torch.zeros(64, 1), F.mse_loss, {0.0, 1.0}),
        (per_pixel(), torch.zeros(64, 8, 8, dtype=torch.int64), F.cross_entropy, {0.0, 1.0, 2.0}),
    ],
    ids=["classes", "one logit", "several labels", "regression", "segmentation"],
)
def test_labels_at_random_are_what_the_loss_takes(net: nn.Module, targets: Tensor, loss: Any, labels: set[int]) -> None:
    seen: list[Tensor] = []

    def watched(outputs: Tensor, target: Tensor) -> Tensor:
        seen.append(target)
        return torch.as_tensor(loss(outputs, target))

    scores = process_scores(net, None, IMAGES[:1], targets[:1], watched, 0, count=40)
    assert {target.shape for target in seen} == {targets[:1].shape}
    assert {target.dtype for target in seen} == {targets.dtype}
    assert {float(label) for target in seen for label in target.flatten()} == labels
    assert (scores > 0).all()
    run = ad.train(net, (IMAGES, targets), loss=loss, method=ad.AdaDPIGU(score="public"), **STEPS)
    assert run.importance is not None
    assert (run.importance > 0).all()


def test_a_loss_that_takes_no_such_labels_is_refused_in_one_line_before_anything_is_charged() -> None:
    def picky(outputs: Tensor, target: Tensor) -> Tensor:
        if outputs.shape[0] == 1 and bool((target != 0).any()):
            raise ValueError("labels are 0\nor nothing")
        return F.cross_entropy(outputs, target)

    method = ad.AdaDPIGU(score="public", variance_start="stage-1", importance_steps=2)
    told = "^score='public': labels at random do not fit: labels are 0; allowed: images of 1 or 3 channels with loss"
    with pytest.raises(InputError, match=told):
        ad.train(flat(2), (IMAGES, LABELS), loss=picky, method=method, seed=1, **STEPS)


def test_a_losses_function_is_named_as_what_has_no_public_scores() -> None:
    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    with pytest.raises(InputError, match=r"no such images, or with losses=; allowed: images of 1 or 3 channels with"):
        ad.train(flat(2), (IMAGES, LABELS), losses=losses, method=ad.AdaDPIGU(score="public"), **STEPS)
