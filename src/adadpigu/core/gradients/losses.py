"""The loss of each record on its own, in one of two forms. Losses are sensitive: callers seal them.

    loss(outputs, targets)      ℓ_i = Σ loss(output_i as a batch of one, target_i as a batch of one)
    losses(model, batch)        [n], one a record; the batch is a tree of tensors

The first takes any loss of a batch (reduction none, sum or mean) and cannot mix records; what is no mean or sum over
records is refused, and class weights multiply. The second is probed for mixing as a model is.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from adadpigu.core.gradients.state import Snapshot, refuse_changes
from adadpigu.core.trees import Tree, call, count_rows, describe_tree, map_tensors, select
from adadpigu.errors import ModelError, first_line

Loss = Callable[[Any, Any], Tensor]  # of a batch, from the model's outputs and the targets
Losses = Callable[[nn.Module, Tree], Tensor]  # of each record, [n], from the model and a batch

_LABELLED = (F.cross_entropy, F.nll_loss)
_IGNORED = -100  # torch's default for `ignore_index`


class Objective(nn.Module):
    """`losses(model, batch)` as a module: what probes and runs models does the same with it, and so finds mixing."""

    shown_as = "<losses>"  # how errors name it

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.model = model
        self.losses = losses
        self.training = model.training

    def forward(self, batch: Tree) -> Tensor:
        return self.losses(self.model, batch)


def is_plain(model: nn.Module, inputs: Tree) -> bool:
    """Whether an example is inputs alone, of which any value is fit; else it may hold labels, ids or masks."""
    return isinstance(inputs, Tensor) and not isinstance(model, Objective)


class RecordLoss:
    """Turns a loss of a batch into the losses [b] of its records.

    >>> mean = RecordLoss.of(torch.nn.MSELoss(), torch.ones(2, 3), torch.zeros(2, 3))
    >>> mean(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.zeros(2, 2))
    tensor([1., 4.])
    """

    def __init__(self, loss: Loss, refusal: str | None) -> None:
        self._loss = loss
        self.refusal = refusal  # Why vmap cannot run this loss, or None when it can.

    @classmethod
    def of(cls, loss: Loss, outputs: Tree, targets: Tree) -> "RecordLoss":
        """The fastest form that agrees, on this public example, with one record at a time."""
        loss = multiplying_weights(loss, targets)
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
        differs = "its values under vmap differ (it draws randomness, or depends on state)"
        return vmapped if close else cls(loss, differs)

    def one(self, output: Tree, target: Tree) -> Tensor:
        """The loss of a batch of one, summed to a scalar."""
        return self.whole(output, target).sum()

    def _afresh(self, output: Tree, target: Tree, before: Snapshot) -> Tensor:
        loss = self._loss(output, target).sum()
        before.restore()
        return loss

    def whole(self, outputs: Tree, targets: Tree) -> Tensor:
        """The loss as it is of a batch; what it would remember of it is undone, or refused."""
        with refuse_changes(self._loss, path="<loss>"):
            return self._loss(outputs, targets)

    def __call__(self, outputs: Tree, targets: Tree) -> Tensor:
        if self.refusal is not None:
            each = [slice(row, row + 1) for row in range(count_rows(targets))]
            with refuse_changes(self._loss, path="<loss>") as before:  # once for all: a loss may hold a net
                return torch.stack([self._afresh(select(outputs, row), select(targets, row), before) for row in each])

        def alone(output: Tree, target: Tree) -> Tensor:
            return self.one(_as_batch(output), _as_batch(target))

        losses: Tensor = vmap(alone, randomness="different")(outputs, targets)
        return losses

    def of_model(self, model: nn.Module, batch: Tree) -> Tensor:
        """The losses of records (inputs, targets), either of which may be a tree: a `Losses`."""
        inputs, targets = batch
        return self(call(model, inputs), targets)


class GivenLosses(RecordLoss):
    """For an `Objective`, whose outputs are the losses already."""

    def __init__(self) -> None:
        super().__init__(lambda losses, _: losses, None)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        check_losses(outputs, len(targets))
        return outputs


def check_losses(losses: object, records: int) -> None:
    """Refuses what is not one loss a record."""
    if isinstance(losses, Tensor) and losses.shape == (records,) and losses.is_floating_point():
        return
    found = f"{tuple(losses.shape)} of {losses.dtype}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
    told = f"<losses>: {found} for {records} record(s); allowed: a float tensor [{records}], one loss a record"
    raise ModelError(f"{told}, as with reduction='none' and then .flatten(1).mean(1) over what belongs to one record")


def _as_batch(row: Tree) -> Tree:
    return row.unsqueeze(0) if isinstance(row, Tensor) else map_tensors(_as_batch, row)


def multiplying_weights(loss: Loss, targets: Tree) -> Loss:
    """Cross entropy (or NLL) with class weights or ignored targets, as the weighted mean over one record's targets.

    It is 0 if all are ignored. torch divides by the sum of weights: for one record the weight would cancel, or give
    0/0. Other losses stay as they are.
    """
    options = label_options(loss)
    if options is None or not isinstance(targets, Tensor) or options.get("reduction", "mean") != "mean":
        return loss
    ignored = ignored_label(loss, targets)
    if options.get("weight") is None and ignored is None:
        return loss
    if isinstance(loss, nn.Module):
        each: Any = copy.copy(loss)
        each.reduction = "none"
    else:
        each = partial(cast(Any, loss), reduction="none")
    skipped = _IGNORED if ignored is None else ignored

    def mean_of_targets(outputs: Tensor, targets: Tensor) -> Tensor:
        values: Tensor = each(outputs, targets)
        if targets.is_floating_point():
            return values.mean()
        return values.sum() / (targets != skipped).sum().clamp(min=1)

    return mean_of_targets


def label_options(loss: object) -> dict[str, Any] | None:
    """The options of torch's cross entropy or NLL, in any of the ways it is given; None for another loss."""
    if type(loss) in (nn.CrossEntropyLoss, nn.NLLLoss):
        return {**vars(loss), **vars(loss)["_buffers"]}
    if isinstance(loss, partial) and loss.func in _LABELLED and not loss.args:
        return dict(loss.keywords)
    return {} if loss in _LABELLED else None


def ignored_label(loss: object, targets: Tensor) -> int | None:
    """The label that counts for nothing: one that was asked for, or torch's default where a record has many targets."""
    ignored = (label_options(loss) or {}).get("ignore_index", _IGNORED)
    several = targets.dim() > 1 and not targets.is_floating_point()
    return int(ignored) if several or ignored != _IGNORED else None


def _on_example(loss: RecordLoss, outputs: Tree, targets: Tree) -> Tensor:
    try:
        return loss(outputs, targets)
    except ModelError:
        raise
    except Exception as error:
        shapes = f"outputs {describe_tree(outputs)} and targets {describe_tree(targets)} of a record"
        told = f"<model>: the loss refuses {shapes}: {first_line(error)}"
        how = ", or in the loss: lambda o, t: bce(o.squeeze(1), t)" if getattr(outputs, "shape", ())[1:] == (1,) else ""
        raise ModelError(f"{told}; match the model to the labels{how}") from error


def _refuse_weighted_mean(looped: RecordLoss, outputs: Tree, targets: Tree) -> None:
    """Labels of several classes: the loss of the batch must be the mean, or the sum, of those of its records."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return
    whole = targets.dtype in (torch.int64, torch.int32) and targets.dim() == 1
    if not (whole and outputs.dim() >= 2 and outputs.is_floating_point() and outputs.shape[1] > 1):
        return
    labels = (torch.arange(len(targets), device=targets.device) % outputs.shape[1]).to(targets)
    with torch.random.fork_rng(devices=[]):
        try:
            torch.default_generator.manual_seed(0)
            batch = looped.whole(outputs, labels).detach()
            torch.default_generator.manual_seed(0)
            each = looped(outputs, labels).detach()
        except Exception:  # not every whole number is a class: the loss takes these targets for something else
            return
    if batch.dim() > 0 or not bool(torch.isfinite(batch) & torch.isfinite(each).all()):
        return
    if not any(torch.allclose(batch, total, rtol=1e-3, atol=1e-6) for total in (each.mean(), each.sum())):
        told = "<loss>: the loss of a batch is neither the mean nor the sum of its records' losses, as where class"
        why = "weights divide it, which would cancel for a record by itself; allowed: reduction='none' or 'sum'"
        raise ModelError(f"{told} {why}, nn.CrossEntropyLoss(weight=...), or losses=f with f(model, batch) -> [n]")


def _refuse_state(looped: RecordLoss, outputs: Tree, targets: Tree) -> None:
    """A loss that remembers earlier records would carry one record's value into another's gradient."""

    def seeded(outputs: Tree, targets: Tree, number: int) -> Tensor:
        torch.default_generator.manual_seed(number)
        return _on_example(looped, outputs, targets).detach()

    def close(found: Tensor, expected: Tensor) -> bool:
        return torch.allclose(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True)

    def flipped(tree: Tree) -> Tree:
        return map_tensors(lambda rows: rows.flip(0), tree)

    first = seeded(outputs, targets, 0)
    backwards = seeded(flipped(outputs), flipped(targets), 0).flip(0)
    again, other = seeded(outputs, targets, 0), seeded(outputs, targets, 1)
    draws_randomness = not close(other, again)
    if not close(again, first) or not (draws_randomness or close(backwards, first)):
        allowed = "use a loss without state of its own, such as torch.nn.functional.cross_entropy"
        raise ModelError(f"<loss>: a record's loss depends on the records before it; {allowed}")
