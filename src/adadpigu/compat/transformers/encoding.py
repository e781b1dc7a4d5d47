"""Dict records of a tokeniser as rows of one public shape: what a private population needs. Before the privacy line.

    {input_ids, attention_mask, token_type_ids}, any length  ->  [planes, max_length] of whole numbers

All records are padded to one declared length: padding to the longest of a batch would show in shapes and in time who
was drawn. A plane of zeros is a record of tokens 0 without padding, so that a blank example is a sound one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adadpigu.errors import InputError

IDS, MASK, SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
COLUMNS = (IDS, MASK, SEGMENTS)
"""what a record may consist of, besides its label"""
LABELS = ("labels", "label", "label_ids")
"""what its label may be called"""
_UNBOUNDED = 10**6
"""a tokeniser without a longest length says 1e30"""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How records are laid out: public facts of model and columns."""

    max_length: int
    """tokens that every record is padded to"""
    padding: int
    """the id of the padding"""
    vocabulary: int
    """ids are below it"""
    segments: int | None = None
    """token types are below it; None: records have none"""

    @property
    def planes(self) -> int:
        return 2 if self.segments is None else 3

    def row(self, record: Mapping[str, Any], where: str) -> Tensor:
        """One record, [planes, max_length]; what is not allowed is refused to the person who holds the data."""
        ids = self._whole(record, IDS, where)
        count = len(ids)
        if not 1 <= count <= self.max_length:
            raise InputError(
                f"{where} has {count} tokens; allowed: 1 to max_length={self.max_length} (have the tokeniser truncate)"
            )
        row = torch.zeros(self.planes, self.max_length, dtype=torch.int32)
        row[0] = self.padding
        row[0, :count] = _below(ids, self.vocabulary, IDS, where)
        row[1] = 1
        row[1, :count] = 1 - self._mask(record, count, where)
        if self.segments is not None:
            row[2, :count] = _below(self._whole(record, SEGMENTS, where, count), self.segments, SEGMENTS, where)
        return row

    def columns(self, rows: Tensor) -> dict[str, Tensor]:
        """Rows [b, planes, max_length] as what a model's forward takes."""
        rows = rows.long()
        made = {IDS: rows[:, 0], MASK: 1 - rows[:, 1]}
        return made if self.segments is None else {**made, SEGMENTS: rows[:, 2]}

    def example(self, count: int = 4) -> Tensor:
        """Synthetic records of several lengths, from public facts alone."""
        generator = torch.Generator().manual_seed(0)
        rows = torch.zeros(count, self.planes, self.max_length, dtype=torch.int32)
        for number, row in enumerate(rows):
            length = max(1, self.max_length - number * self.max_length // (count + 1))
            row[0] = self.padding
            row[0, :length] = torch.randint(self.vocabulary, (length,), generator=generator)
            row[1, length:] = 1
            if self.segments is not None:
                row[2, :length] = torch.randint(self.segments, (length,), generator=generator)
        return rows

    def _mask(self, record: Mapping[str, Any], count: int, where: str) -> Tensor:
        if MASK not in record:
            return torch.ones(count, dtype=torch.long)
        mask = _below(self._whole(record, MASK, where, count), 2, MASK, where)
        if not mask.any():
            raise InputError(f"{where}: its {MASK} has no 1; allowed: at least one token that is looked at")
        return mask

    def _whole(self, record: Mapping[str, Any], name: str, where: str, count: int | None = None) -> Tensor:
        """A column of a record as a row of whole numbers."""
        if name not in record:
            raise InputError(f"{where} has no {name}; allowed: the same columns in every record")
        found = as_tensor(record[name], name, where)
        if found.dim() != 1 or (found.is_floating_point() and len(found)) or count not in (None, len(found)):
            wanted = "whole numbers in a row" if count is None else f"{count} whole numbers, one a token"
            raise InputError(f"{where}: its {name} has shape {tuple(found.shape)}, {found.dtype}; allowed: {wanted}")
        return found.long()


def as_tensor(value: object, name: str, where: str) -> Tensor:
    """A value of a record, however it is held."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{where}: its {name} is a {type(value).__name__}; allowed: numbers (is it tokenised?)"
        ) from None


def _below(values: Tensor, bound: int, name: str, where: str) -> Tensor:
    if len(values) and not (int(values.min()) >= 0 and int(values.max()) < bound):
        raise InputError(f"{where}: its {name} are not all from 0 to {bound - 1}, as the model has them")
    return values


def encoding_for(
    config: Any, embeddings: int, columns: Collection[str], max_length: int | None, tokeniser: Any
) -> Encoding:
    """The layout for a model's config, its number of token embeddings, and a data set's columns."""
    if IDS not in columns:
        raise InputError(f"train_dataset has the columns {sorted(columns)}; allowed: with {IDS} (tokenise it first)")
    padding = getattr(config, "pad_token_id", None)
    if padding is None:
        padding = getattr(tokeniser, "pad_token_id", None)
    if padding is None or not 0 <= padding < embeddings:
        raise InputError(
            f"pad_token_id={padding}: records are padded to one length; allowed: model.config.pad_token_id from 0 to "
            f"{embeddings - 1}"
        )
    segments = getattr(config, "type_vocab_size", None) or 1
    return Encoding(
        max_length=_length(config, max_length, tokeniser),
        padding=int(padding),
        vocabulary=embeddings,
        segments=int(segments) if SEGMENTS in columns else None,
    )


def _length(config: Any, asked: int | None, tokeniser: Any) -> int:
    """The declared length, at most what the model has positions for."""
    most = getattr(config, "max_position_embeddings", None) or _UNBOUNDED
    if _counts_from_padding(config):
        most -= int(config.pad_token_id or 0) + 1
    told = getattr(tokeniser, "model_max_length", None) or _UNBOUNDED
    length = min(most, int(min(told, _UNBOUNDED))) if asked is None else asked
    if length >= _UNBOUNDED:
        raise InputError("max_length=None: neither tokeniser nor config has a longest length; allowed: a whole number")
    if not 1 <= length <= most:
        raise InputError(f"max_length={length}; allowed: 1 to {most}, as many as the model has positions")
    return length


def _counts_from_padding(config: Any) -> bool:
    """RoBERTa and its kin number positions from behind the padding's id on."""
    kinds = ("roberta", "camembert", "xlm-roberta", "xlm-roberta-xl", "longformer", "mpnet", "data2vec-text", "esm")
    return getattr(config, "model_type", "") in kinds
