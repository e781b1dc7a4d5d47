"""Records of a data set as columns of one public shape: what a private population needs. Before the privacy line.

    a dict of a tokeniser's columns, any length  ->  collated by itself  ->  padded to max_length  ->  {name: [n, ...]}

Padding to the longest of a batch would show in shapes and in time who was drawn. Refusals go to the data's holder.
"""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Subset

from adadpigu.core.randomness import ReproducibleRandomness, SystemRandomness, isolated, seed_cpu_rng
from adadpigu.core.sensitive import withheld
from adadpigu.core.trees import describe_tree
from adadpigu.errors import InputError, first_line, require

IDS, MASK, LABELS = "input_ids", "attention_mask", "labels"
BY_TOKEN = (IDS, MASK, "token_type_ids", "position_ids", "special_tokens_mask", "decoder_attention_mask")
"""columns with one number for each token"""
IGNORED = -100  # a token's label that counts for nothing
CLASSIFICATION = tuple(f"For{what}Classification" for what in ("Sequence", "Image", "Audio", "Video"))
NEXT_TOKEN, EACH_TOKEN = ("ForCausalLM", "LMHeadModel"), ("ForTokenClassification", "ForMaskedLM")
"""how the classes of models for known tasks are called"""
_Collate = Callable[[list[Any]], Mapping[str, Any]]


class Columns:
    """Collates records one by one and pads each to the same length; called with a list, it is Trainer's collator."""

    def __init__(
        self,
        model: Any,
        collate: _Collate,
        *,
        taken: Collection[str],
        tokeniser: Any,
        max_length: int | None,
        check_labels: bool,
        shown: bool = False,
    ) -> None:
        """What is padded, and with what: by the model's class and config, and by what its forward has `taken`."""
        self._shown = shown  # whether errors keep their texts, which may quote records
        kind, config = type(model).__name__, model.config
        words = getattr(model.get_input_embeddings(), "num_embeddings", None) if IDS in taken else None
        self.max_length = _length_of(model, max_length, tokeniser) if words else None
        """tokens that every record is padded to; None: records have no tokens"""
        self._collate, self._adds_mask, self._adds_labels = collate, MASK in taken, kind.endswith(NEXT_TOKEN)
        translates = getattr(config, "is_encoder_decoder", False) and not kind.endswith(CLASSIFICATION)
        padding = next((o.pad_token_id for o in (config, tokeniser) if getattr(o, "pad_token_id", None) is not None), 0)
        by_token = {LABELS: IGNORED} if translates or kind.endswith(NEXT_TOKEN + EACH_TOKEN) else {}
        self._fills = dict.fromkeys(BY_TOKEN, 0) | {IDS: padding, "decoder_input_ids": padding} | by_token
        classes: Any = getattr(config, "num_labels", 0)
        if translates:
            classes = getattr(model.get_output_embeddings(), "out_features", 0)
        elif kind.endswith((*NEXT_TOKEN, "ForMaskedLM")):
            classes = words
        self._bounds = {IDS: words, "token_type_ids": getattr(config, "type_vocab_size", None)}
        """whole numbers of a column are below it"""
        if check_labels and classes > 1:
            self._bounds[LABELS] = classes

    def __call__(self, features: Sequence[Any]) -> dict[str, Tensor]:
        return self._joined([self._row(record, "a record") for record in features], "evaluation")

    def of(self, dataset: Any, name: str, *, comparable: bool = False) -> dict[str, Tensor]:
        """All records of a data set. Random crops and masks follow secret generators, which no other record shifts.

        With `comparable`, each record has a generator of its own with a known seed: the same record gives the same row.
        """
        fits = isinstance(dataset, Sized) and hasattr(dataset, "__getitem__") and len(dataset) > 0
        require(fits, f"{name}: {type(dataset).__name__}; allowed: a map-style data set with at least 1 record")
        source = ReproducibleRandomness(0) if comparable else SystemRandomness()
        rows = []
        with isolated(source, torch.device("cpu")):
            for number in range(len(dataset)):
                if comparable:
                    seed_cpu_rng(0)
                record = withheld(partial(dataset.__getitem__, number), shown=self._shown)
                rows.append(self._row(record, f"{name}: record {number}"))
        joined = self._joined(rows, name)
        for column, below in self._bounds.items():
            if column in joined and below:
                _check_bounds(joined[column], below, column, name)
        return joined

    def draw_by_their_own(self, dataset: Any) -> bool:
        """Whether reading a few records draws from a generator of their own: two readings with one seed differ."""
        few = Subset(dataset, range(min(8, len(dataset))))
        one, other = (self.of(few, "train_dataset", comparable=True) for _ in range(2))
        return any(not torch.equal(one[column], other[column]) for column in one)

    def _row(self, record: Any, where: str) -> dict[str, Tensor]:
        try:
            made = withheld(partial(self._collate, [record]), shown=self._shown)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            fault = f"{where} cannot be collated: {first_line(error)}"
            raise InputError(f"{fault}; allowed: a dict of numbers (is it tokenised?)") from None
        row = {column: values for column, values in made.items() if isinstance(values, Tensor)}
        if IDS in row and self.max_length is not None:
            self._pad(row, self.max_length, where)
        return dict(sorted(row.items()))

    def _pad(self, row: dict[str, Tensor], length: int, where: str) -> None:
        ids = row[IDS]
        mask = row.get(MASK, torch.ones_like(ids))
        if self._adds_mask:
            row[MASK] = mask
        if self._adds_labels:
            row.setdefault(LABELS, ids.masked_fill(mask == 0, IGNORED))
        for column in sorted(row.keys() & self._fills.keys(), key=lambda column: (column != IDS, column)):
            values = row[column]
            fits = values.dim() > 1 and not values.is_floating_point() and 1 <= values.shape[-1] <= length
            allowed = f"1 to {length} whole numbers (max_length={length}: have the tokeniser truncate)"
            require(fits, f"{where}: its {column} are {describe_tree(values)}; allowed: {allowed}")
            row[column] = F.pad(values, (0, length - values.shape[-1]), value=self._fills[column])

    def _joined(self, rows: list[dict[str, Tensor]], name: str) -> dict[str, Tensor]:
        kinds = [describe_tree(row) for row in rows]
        odd = next((number for number, kind in enumerate(kinds) if kind != kinds[0]), 0)
        fault = f"{name}: record {odd} has the columns {kinds[odd] or 'none'}, record 0 {kinds[0] or 'none'}"
        allowed = "the same columns of numbers in every record, such as input_ids (tokenise it first)"
        require(not odd and rows[0].keys() - {LABELS}, f"{fault}; allowed: {allowed}")
        return {column: torch.cat([row[column] for row in rows]) for column in rows[0]}


def _check_bounds(values: Tensor, below: int, column: str, name: str) -> None:
    outside = (values < 0) | (values >= below)
    if column == LABELS:
        outside &= values != IGNORED
    if not values.is_floating_point() and outside.any():
        record = int(outside.view(len(values), -1).any(1).nonzero()[0])
        raise InputError(f"{name}: record {record} has {column} outside 0 to {below - 1}, as the model has")


def _length_of(model: Any, asked: int | None, tokeniser: Any) -> int:
    """The length to pad to: as declared, or as many tokens as tokeniser and model take."""
    most = getattr(model.config, "max_position_embeddings", None)
    tables = [m for m in model.modules() if most and getattr(m, "num_embeddings", None) == most]
    behind = [table.padding_idx + 1 for table in tables if table.padding_idx is not None]
    if most and behind:  # RoBERTa and its kin number positions from behind the padding's id on
        most -= max(behind)
    known = [length for length in (most, getattr(tokeniser, "model_max_length", None)) if length and length < 10**6]
    length = min(known, default=0) if asked is None else asked
    if asked is None and length:
        warnings.warn(
            f"max_length is not given: every record is padded to {length} tokens, all that model and tokeniser take, "
            "and time and memory grow with that; set max_length= to a public length that the records fit in",
            stacklevel=4,
        )
    allowed = f"1 to {most or 'what the model takes'}, the public length of all records"
    require(1 <= length <= (most or length), f"max_length={length}; allowed: {allowed}")
    return length
