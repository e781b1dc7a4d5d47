"""The unfolding of embedding bags: look up, then pool. Sees sensitive ids and keeps nothing.

Sum and mean: y = Σ_p w_p W[x_p] (/ number of ids); max: entry by entry. Ids of the padding are left out of all three.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from adadpigu.errors import ModelError
from adadpigu.gradients.rules import Destination, embedding, refuse_lookup
from adadpigu.gradients.unfolding import NoteOf, unfolding


@dataclass(frozen=True)
class _Lookup:
    """rows = W[x]."""

    parameters: tuple[str, ...] = ("weight",)

    def __call__(self, module: nn.EmbeddingBag, x: Tensor, dy: Tensor, into: Destination) -> None:
        embedding(module, x, dy, into)


@unfolding(nn.EmbeddingBag)
def embedding_bag(
    module: nn.EmbeddingBag,
    note_of: NoteOf,
    input: Tensor,  # noqa: A002  torch's own name, by which callers may pass it
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """One bag [p] of ids a record."""
    refuse_lookup(module)
    if input.dim() != 2 or offsets is not None:
        raise ModelError(
            f"EmbeddingBag: takes ids {tuple(input.shape)} cut up by offsets; give it [batch, ids], one bag a record"
        )
    rows = F.embedding(input, module.weight, module.padding_idx)
    note_of("")(input, rows, _Lookup())
    left_out = None if module.padding_idx is None else (input == module.padding_idx).unsqueeze(2)
    if module.mode == "max":
        return _largest(rows, left_out)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(2)
    total = (rows if left_out is None else rows.masked_fill(left_out, 0.0)).sum(1)
    if module.mode == "sum":
        return total
    if left_out is None:
        return total / max(input.shape[1], 1)
    return total / (~left_out).sum(1).clamp(min=1)


def _largest(rows: Tensor, left_out: Tensor | None) -> Tensor:
    if rows.shape[1] == 0:
        return rows.sum(1)
    if left_out is None:
        return rows.max(1).values
    largest = rows.masked_fill(left_out, -float("inf")).max(1).values
    return largest.masked_fill(left_out.all(1), 0.0)
