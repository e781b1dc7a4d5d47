"""The loss of each record on its own: ℓ_i = Σ loss(output_i as a batch of one, target_i as a batch of one).

This definition lets a user bring any loss of a batch (reduction none, sum or mean) and still cannot mix records. What
is no mean or sum over records, such as a mean by class weights, would be another loss this way, and is refused. Losses
are sensitive: callers seal them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap

from adadpigu.errors import ModelError, first_line
from adadpigu.gradients.state import Kept

Loss = Callable[[Tensor, Tensor], Tensor]


class RecordLoss:
    """Turns a loss of a batch into the losses [b] of its records.

    >>> mean = RecordLoss.of(torch.nn.MSELoss(), torch.ones(2, 3), torch.zeros(2, 3))
    >>> mean(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.zeros(2, 2))
    tensor([1., 4.])
    """

    def __init__(self, loss: Loss, refusal: str | None) -> None:
        self._loss = loss
        self.refusal = refusal
        """Why vmap cannot run this loss, or None when it can."""

    @classmethod
    def of(cls, loss: Loss, outputs: Tensor, targets: Tensor) -> RecordLoss:
        """The fastest form that agrees, on this public example, with one record at a time."""
        looped = cls(loss, "not tried")
        with torch.random.fork_rng(devices=[]):
            _refuse_state(looped, outputs, targets)
        expected = _on_example(looped, outputs, targets)
        _refuse_weighted_mean(looped, outputs, targets)
        vmapped = cls(loss, None)
        try:
            found = vmapped(outputs, targets)
        except Exception as refusal:
            return cls(loss, first_line(refusal))
        close = torch.allclose(found, expected, rtol=1e-3, atol=1e-6, equal_nan=True)
        return (
            vmapped if close else cls(loss, "its values under vmap differ (it draws randomness, or depends on state)")
        )

    def one(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch of one, summed to a scalar; what the loss would remember of it is undone."""
        kept = Kept(self._loss)
        try:
            return self._loss(output, target).sum()
        finally:
            kept.put_back()

    def whole(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss as it is of a batch; what it would remember of it is undone."""
        kept = Kept(self._loss)
        try:
            return self._loss(outputs, targets).detach()
        finally:
            kept.put_back()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.refusal is not None:
            pairs = zip(outputs.unsqueeze(1), targets.unsqueeze(1), strict=True)
            return torch.stack([self.one(output, target) for output, target in pairs])

        def alone(output: Tensor, target: Tensor) -> Tensor:
            return self.one(output.unsqueeze(0), target.unsqueeze(0))

        losses: Tensor = vmap(alone, randomness="different")(outputs, targets)
        return losses


def _on_example(loss: RecordLoss, outputs: Tensor, targets: Tensor) -> Tensor:
    try:
        return loss(outputs, targets)
    except Exception as error:
        shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} of {targets.dtype}"
        raise ModelError(
            f"<model>: the loss refuses {shapes}: {first_line(error)}; match the model to the labels"
        ) from error


def _refuse_weighted_mean(looped: RecordLoss, outputs: Tensor, targets: Tensor) -> None:
    """Labels of several classes: the loss of the batch must be the mean, or the sum, of those of its records."""
    whole = targets.dtype in (torch.int64, torch.int32) and targets.dim() == 1
    if not (whole and outputs.dim() >= 2 and outputs.is_floating_point() and outputs.shape[1] > 1):
        return
    labels = (torch.arange(len(targets), device=targets.device) % outputs.shape[1]).to(targets)
    with torch.random.fork_rng(devices=[]):
        try:
            torch.default_generator.manual_seed(0)
            batch = looped.whole(outputs, labels)
            torch.default_generator.manual_seed(0)
            each = looped(outputs, labels).detach()
        except Exception:  # not every whole number is a class: the loss takes these targets for something else
            return
    if batch.dim() > 0 or not bool(torch.isfinite(batch) & torch.isfinite(each).all()):
        return
    if not any(torch.allclose(batch, total, rtol=1e-3, atol=1e-6) for total in (each.mean(), each.sum())):
        raise ModelError(
            "<loss>: the loss of a batch is neither the mean nor the sum of its records' losses, as with class weights "
            "and reduction='mean', which would cancel for a record by itself; allowed: reduction='none' or 'sum'"
        )


def _refuse_state(looped: RecordLoss, outputs: Tensor, targets: Tensor) -> None:
    """A loss that remembers earlier records would carry one record's value into another's gradient."""

    def seeded(outputs: Tensor, targets: Tensor, number: int) -> Tensor:
        torch.default_generator.manual_seed(number)
        return _on_example(looped, outputs, targets).detach()

    def close(found: Tensor, expected: Tensor) -> bool:
        return torch.allclose(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True)

    first = seeded(outputs, targets, 0)
    backwards = seeded(outputs.flip(0), targets.flip(0), 0).flip(0)
    again, other = seeded(outputs, targets, 0), seeded(outputs, targets, 1)
    draws_randomness = not close(other, again)
    if not close(again, first) or not (draws_randomness or close(backwards, first)):
        raise ModelError(
            "<loss>: a record's loss depends on the records before it; use a loss without state of its own, such as "
            "torch.nn.functional.cross_entropy"
        )
