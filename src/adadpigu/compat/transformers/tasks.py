"""What a Hugging Face model is trained for: the shape of its targets, and the loss of one record. Pure functions.

A model's own loss is a mean over the batch (and, for tokens, over all tokens of it), which ties records together. Here
it is taken outside the model, record by record: ℓ_i is the mean over what record i itself has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.compat.transformers.encoding import as_tensor
from adadpigu.errors import InputError
from adadpigu.gradients import Loss

IGNORED = -100
"""a token's target that counts for nothing"""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Targets of one kind, and their loss."""

    name: str
    loss: Loss
    shape: tuple[int, ...]
    """of a target"""
    dtype: torch.dtype
    below: int | None = None
    """targets are from 0 to this; None: any finite number"""
    tokens: bool = False
    """whether there is a target for every token"""
    from_ids: bool = False
    """whether a record without labels has its own tokens as targets"""

    def target(self, value: object, where: str) -> Tensor:
        """A record's label as a target."""
        found = as_tensor(value, "label", where)
        if self.below is not None and found.is_floating_point():
            raise InputError(f"{where}: its label is {found.dtype}; allowed: whole numbers for {self.name}")
        found = found.to(self.dtype)
        if self.tokens and found.dim() == 1 and len(found) <= self.shape[0]:
            found = F.pad(found, (0, self.shape[0] - len(found)), value=IGNORED)
        if self.shape == () and found.numel() == 1:
            found = found.reshape(())
        if found.shape != self.shape:
            raise InputError(
                f"{where}: its label has shape {tuple(found.shape)}; allowed for {self.name}: {self.shape}"
            )
        counted = found[found != IGNORED] if self.tokens else found
        if self.below is not None and bool(((counted < 0) | (counted >= self.below)).any()):
            raise InputError(f"{where} has a label outside 0 to {self.below - 1}, which are the model's outputs")
        if not bool(torch.isfinite(found).all()):
            raise InputError(f"{where} has a NaN or infinite label")
        return found

    def example(self, count: int) -> Tensor:
        """Targets for synthetic records."""
        return torch.zeros((count, *self.shape), dtype=self.dtype)


def task_of(model: Any, config: Any, max_length: int, *, vocabulary: int, smoothing: float, loss: Loss | None) -> Task:
    """The task of a model, by its class and config; `loss` instead of the usual one."""
    kind = type(model).__name__
    for ending, make in _BY_TOKEN.items():
        if kind.endswith(ending):
            classes = int(config.num_labels) if ending == "ForTokenClassification" else vocabulary
            if smoothing:
                raise InputError(f"label_smoothing_factor={smoothing} for {ending}; allowed: 0, or a loss of your own")
            return Task(
                name=ending,
                loss=loss or make,
                shape=(max_length,),
                dtype=torch.long,
                below=None if loss else classes,
                tokens=True,
                from_ids=isinstance(make, partial),
            )
    if not kind.endswith("ForSequenceClassification") and loss is None:
        raise InputError(
            f"model={kind}: how its loss falls into records is not known; allowed: …ForSequenceClassification, "
            f"{', '.join('…' + ending for ending in _BY_TOKEN)}, or loss=, a function of logits and labels"
        )
    return _classification(config, smoothing, loss)


def _classification(config: Any, smoothing: float, loss: Loss | None) -> Task:
    labels = int(config.num_labels)
    problem = getattr(config, "problem_type", None) or ("regression" if labels == 1 else "single_label_classification")
    if problem == "single_label_classification":
        usual: Loss = nn.CrossEntropyLoss(label_smoothing=smoothing) if smoothing else F.cross_entropy
        return Task(name=problem, loss=loss or usual, shape=(), dtype=torch.long, below=None if loss else labels)
    if smoothing:
        raise InputError(f"label_smoothing_factor={smoothing} with problem_type={problem!r}; allowed: 0")
    if problem == "regression":
        shape = () if labels == 1 else (labels,)
        return Task(name=problem, loss=loss or squared_error, shape=shape, dtype=torch.float32)
    if problem == "multi_label_classification":
        return Task(name=problem, loss=loss or F.binary_cross_entropy_with_logits, shape=(labels,), dtype=torch.float32)
    raise InputError(
        f"problem_type={problem!r}; allowed: regression, single_label_classification, multi_label_classification"
    )


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of outputs [b, k] and targets [b, k], or [b] for k = 1."""
    return F.mse_loss(outputs.reshape(targets.shape), targets)


def token_loss(outputs: Tensor, targets: Tensor, ahead: int = 0) -> Tensor:
    """Mean cross entropy over the tokens that have a target, from the output so many places before each."""
    scores, wanted = outputs[:, : outputs.shape[1] - ahead], targets[:, ahead:]
    total = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (wanted != IGNORED).sum().clamp(min=1)


_BY_TOKEN: dict[str, Loss] = {
    "ForTokenClassification": token_loss,
    "ForMaskedLM": token_loss,
    "LMHeadModel": partial(token_loss, ahead=1),
    "ForCausalLM": partial(token_loss, ahead=1),
}
"""classes whose outputs are scores for every token"""
