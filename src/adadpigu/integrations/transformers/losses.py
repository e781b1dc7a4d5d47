"""The loss of each record, `losses(model, batch) -> [n]`, from a Hugging Face model. Sensitive: engines seal it.

    LogitsLoss    a known task, or loss=f: one forward of the batch, f(logits_i, labels_i) of each record; layer rules
    OwnLoss       an overridden compute_loss, or a model of another task: one record at a time

A model's own loss is a mean over a batch, and over all its tokens. Here ℓ_i is the mean over what record i itself has.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.gradients import Loss
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.probing import removing
from adadpigu.core.gradients.state import untouched
from adadpigu.core.trees import count_rows
from adadpigu.errors import ModelError, require
from adadpigu.integrations.shared import OneRecord, compares_records, each_alone
from adadpigu.integrations.transformers.columns import CLASSIFICATION, EACH_TOKEN, IGNORED, LABELS, NEXT_TOKEN

Batch = Mapping[str, Tensor]


def usual_loss(model: nn.Module, config: Any, smoothing: float) -> Loss | None:
    """The loss of a known task as a function of logits and labels, by the model's class and config; else None."""
    kind = type(model).__name__
    if kind.endswith(NEXT_TOKEN + EACH_TOKEN):
        return partial(token_loss, ahead=int(kind.endswith(NEXT_TOKEN)), smoothing=smoothing)
    if not kind.endswith(CLASSIFICATION):
        return None
    problem = getattr(config, "problem_type", None)
    if problem is None:
        problem = "regression" if config.num_labels == 1 else "single_label_classification"
    if problem == "single_label_classification":
        return nn.CrossEntropyLoss(label_smoothing=smoothing) if smoothing else F.cross_entropy
    require(not smoothing, f"label_smoothing_factor={smoothing} with problem_type={problem!r}; allowed: 0")
    return squared_error if problem == "regression" else F.binary_cross_entropy_with_logits


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of outputs [b, k] and targets [b, k], or [b] for k = 1."""
    return F.mse_loss(outputs.reshape(targets.shape), targets.to(outputs.dtype))


def token_loss(outputs: Tensor, targets: Tensor, ahead: int = 0, smoothing: float = 0.0) -> Tensor:
    """Mean cross entropy over the tokens that have a target, from the output so many places before each."""
    scores, wanted = outputs[:, : outputs.shape[1] - ahead].flatten(0, 1), targets[:, ahead:].flatten()
    total = F.cross_entropy(scores, wanted, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    return total / (wanted != IGNORED).sum().clamp(min=1)


class LogitsLoss(RecordLoss):
    """`loss(logits, labels)` of each record, from one forward of the whole batch."""

    @classmethod
    def on(cls, model: nn.Module, loss: Loss, example: Batch) -> Callable[[nn.Module, Batch], Tensor]:
        """The `losses(model, batch)` of a model, tried on synthetic records."""
        require(LABELS in example, "train_dataset: its records have no label; allowed: a column 'label' or 'labels'")
        with untouched(model), torch.no_grad():
            model.eval()
            made: Any = cls.of(loss, _logits(model, example), example[LABELS])
        return made.of_model  # type: ignore[no-any-return]

    def of_model(self, model: nn.Module, batch: Batch) -> Tensor:
        return self(_logits(model, batch), batch[LABELS])


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    with _positions_by_record(model, count_rows(batch)):
        logits: Tensor = model(**{column: values for column, values in batch.items() if column != LABELS}).logits
    return logits


@contextlib.contextmanager
def _positions_by_record(model: nn.Module, records: int) -> Iterator[None]:
    """Within, ids [1, …] that an embedding is given become [records, …]: the same values, a row a record.

    Broadcast, the gradient of positions would be that of all records together, and no rule could take it apart.
    """

    def widen(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if args and isinstance(args[0], Tensor) and args[0].dim() > 1 and len(args[0]) == 1:
            return args[0].expand(records, *args[0].shape[1:]), *args[1:]
        return None

    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)] if records > 1 else []
    with removing([table.register_forward_pre_hook(widen) for table in tables]):
        yield


class OwnLoss:
    """A trainer's `compute_loss`, called with one record at a time: a batch of one, without `num_items_in_batch`."""

    why_alone = "compute_loss gives one loss a batch"

    def __init__(self, compute_loss: Callable[[nn.Module, dict[str, Tensor]], Tensor]) -> None:
        self._compute_loss = compute_loss

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        return each_alone(partial(self._of_batch, model), dict(batch))

    def _of_batch(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with OneRecord():
            return self._compute_loss(model, batch)

    def refuse_cancelling(self, model: nn.Module, example: Batch, classes: int) -> None:
        """Refuses a loss that weighs records against each other. Errors of the user's code come out as they are."""
        labels = example.get(LABELS)
        if labels is not None and labels.dim() == 1 and not labels.is_floating_point() and classes > 1:
            varied = torch.arange(len(labels), device=labels.device) % classes
            example = {**example, LABELS: varied.to(labels.dtype)}
        with untouched(model), torch.no_grad():
            model.eval()
            compares = compares_records(lambda rows: self._of_batch(model, dict(rows)), example)
        with contextlib.suppress(Exception), untouched(model), torch.no_grad():  # a ValueError of an encoder-decoder
            if labels is not None and isinstance(_logits(model.eval(), example), Tensor):
                self.why_alone += "; for layer rules give loss=f, a function of logits and labels"
        if compares:
            fault = "compute_loss: the loss of a batch is neither the mean nor the sum of its records' losses"
            remedy = "a loss of each record by itself, such as reduction='none' and then .mean()"
            raise ModelError(f"{fault}; allowed: {remedy}")
