"""A Hugging Face model as one that takes packed records and returns scores: what the engines are given.

Parameters, names and files stay the model's own; nothing is added to it. On the sensitive side it only passes on.
Embeddings whose ids have no batch (positions, of batch size one) are looked up once a record: broadcast, their
gradient would be that of all records together, and no rule could take it apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from adadpigu.compat.transformers.encoding import Encoding
from adadpigu.errors import ModelError


class PackedModel(nn.Module):
    """logits = model(columns of the packed records)."""

    def __init__(self, model: nn.Module, encoding: Encoding) -> None:
        super().__init__()
        self.model = model
        self.encoding = encoding

    def forward(self, rows: Tensor) -> Tensor:
        with _positions_by_record(self.model, len(rows)):
            output = self.model(**self.encoding.columns(rows))
        scores = output["logits"] if isinstance(output, dict) else getattr(output, "logits", None)
        if not isinstance(scores, Tensor):
            raise ModelError(f"{type(self.model).__name__}: its output has no logits; allowed: a model with a head")
        return scores


def packed_model(model: nn.Module, encoding: Encoding) -> PackedModel:
    """A model for packed records under its own name, so that errors name the user's class."""
    made: PackedModel = type(type(model).__name__, (PackedModel,), {})(model, encoding)
    return made


@contextmanager
def _positions_by_record(model: nn.Module, records: int) -> Iterator[None]:
    """Within, ids [1, …] that an embedding is given become [records, …]: the same values, a row a record."""

    def widen(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if args and isinstance(args[0], Tensor) and args[0].dim() > 1 and len(args[0]) == 1:
            return args[0].expand(records, *args[0].shape[1:]), *args[1:]
        return None

    handles: list[RemovableHandle] = []
    if records > 1:
        tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        handles = [table.register_forward_pre_hook(widen) for table in tables]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
