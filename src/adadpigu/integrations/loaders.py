"""A training loader of the user's own: its data set, batch size and collate_fn are taken, its order is not.

A loader decides which records come together, and accounting holds for Poisson draws alone. So whatever decides that
besides the batch size is refused by name; what has no effect where every draw is Poisson is warned of. Each record is
collated by itself, so that none can change another. Sensitive: records before any draw.
"""

from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

import torch
from torch import Tensor
from torch.utils import data
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from adadpigu.core.trees import Tree, check_tree, named_leaves, select
from adadpigu.data.datasets import no_targets, unfit_items
from adadpigu.errors import InputError, require
from adadpigu.integrations.shared import warn_of_no_effect

Collate = Callable[[list[Any]], Any]
PAIRS = (
    "allowed: pairs (inputs, targets) with one row a record, as a collate_fn may make them of any records; in a script "
    "for Opacus losses=f takes batches of any form"
)
_SEVERAL = (
    "the training loader: records of several lengths; allowed: one; pad each record to a public length in the Dataset "
    "or in collate_fn"
)
_CHECKED = 8  # records that are collated together once, to see that each comes out as it does alone


def validate_loader(loader: object, name: str) -> data.DataLoader[Any]:
    """The loader, if its records can be drawn by us; warns of settings that then have no effect."""
    if (refusal := _refusal(loader)) is not None:
        raise InputError(f"{name}: {refusal}")
    assert isinstance(loader, data.DataLoader)
    settings = {
        "shuffle=True": _is_shuffle(loader.sampler),
        "drop_last=True": loader.drop_last,
        f"num_workers={loader.num_workers}": loader.num_workers > 0,
        "pin_memory=True": loader.pin_memory,
    }
    if idle := [setting for setting, given in settings.items() if given]:
        warn_of_no_effect(
            f"{name}: {' and '.join(idle)}",
            "each batch is a Poisson draw, every record by itself with probability batch_size/records, read in this "
            "process; none is the last",
        )
    return loader


def _refusal(loader: object) -> str | None:
    if not isinstance(loader, data.DataLoader) or type(loader).__iter__ is not data.DataLoader.__iter__:
        return f"a {type(loader).__name__} makes its own batches; allowed: a DataLoader"
    dataset: Any = loader.dataset
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, data.IterableDataset) or not sized:
        return f"{type(dataset).__name__} has no length or no positions to draw from; allowed: a map-style Dataset"
    if not len(dataset):
        return "there is no record; allowed: at least 1"
    if loader.batch_size is None or type(loader.batch_sampler) is not data.BatchSampler:
        return "a batch_sampler of your own decides who comes together; allowed: batch_size"
    if not _is_shuffle(loader.sampler) and type(loader.sampler) is not data.SequentialSampler:
        fault = f"sampler={type(loader.sampler).__name__} chooses records, but only Poisson draws are accounted"
        return f"{fault}; allowed: none of your own (weights and classes must not decide who is drawn)"
    return None


def _is_shuffle(sampler: Any) -> bool:
    """Whether it is what `shuffle=True` makes: each record once, in random order."""
    return type(sampler) is data.RandomSampler and not sampler.replacement and sampler._num_samples is None


class CollatedRecords:
    """Records of a data set as a loader's `collate_fn` makes them, each one by itself; texts are left out.

    A `collate_fn` that pads to the longest of a batch would tell each record how long the others are, and is refused.
    With `pad`, each is collated beside a blank record of the greatest length of all, which is then `declared` public.
    """

    def __init__(self, dataset: Any, collate: Collate, *, pairs: bool, pad: bool = False) -> None:
        """With `pairs` (inputs, targets), else whole records."""
        self.origin, self._collate, self.whole = dataset, collate, not pairs
        self._blank: Any = None
        try:
            check_tree(self._batch([dataset[0]]), "collate_fn: a batch")
            if collate is not data.default_collate and not self._have_one_shape():
                require(pad, _SEVERAL)
                self._blank = _blank_of_greatest_length(dataset)
                require(self._have_one_shape(), _SEVERAL)
            self._empty = select(self._one(0), slice(0))
            if pairs or self._blank is not None:
                self._check_alone()
        except TypeError as error:  # in a draw it is raised as it is, and its text withheld
            raise unfit_items("the training loader", error) from None

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def declared(self) -> tuple[str, ...]:
        """What has become public by padding every record to the same length."""
        if self._blank is None:
            return ()
        length = next(len(leaf) for leaf in tree_leaves(self._blank) if _length(leaf))
        return (f"the longest record has length {length}: all are padded to it",)

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        batch = self._rows(indices.tolist()) if len(indices) else self._empty
        return (batch, no_targets(batch)) if self.whole else batch

    def _rows(self, places: list[int]) -> Tree:
        rows = [*map(self._one, places)]
        require({*map(_shapes, rows)} == {_shapes(self._empty)}, _SEVERAL)
        return tree_map(lambda *parts: torch.cat(parts), *rows)

    def _have_one_shape(self) -> bool:
        """Whether every record comes out in one shape, whatever its length."""
        return len({_shapes(self._one(index)) for index in range(len(self))}) == 1

    def _one(self, index: int) -> Tree:
        """A record as a batch of one."""
        items = [self.origin[index], *([] if self._blank is None else [self._blank])]
        batch = self._batch(items)
        pair = self.whole or (isinstance(batch, tuple) and len(batch) == 2)
        rows = [isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == len(items) for leaf in tree_leaves(batch)]
        require(pair and rows and all(rows), f"collate_fn: a batch is not a pair, or has not a row a record; {PAIRS}")
        return select(batch, slice(1))

    def _batch(self, items: list[Any]) -> Tree:
        return _without_texts(self._collate(items))

    def _check_alone(self) -> None:
        """A record must look the same whatever stands beside it, but for padding at its end."""
        places = list(range(min(len(self), _CHECKED)))
        alone, together = self._rows(places), self._batch([self.origin[place] for place in places])
        for one, other in zip(tree_leaves(alone), tree_leaves(together), strict=True):
            shared = tuple(slice(0, min(sizes)) for sizes in zip(one.shape, other.shape, strict=False))
            alike = one.ndim == other.ndim and torch.equal(one[shared], other[shared])
            fault = "collate_fn makes another record of a record when others stand beside it"
            require(alike, f"{fault}; allowed: stacking, or padding at the end of the first dimension")


def _without_texts(batch: Any) -> Any:
    """The batch without columns of strings, which no tensor holds."""
    if isinstance(batch, Mapping):  # also what a tokenizer makes
        texts = {key for key, part in batch.items() if isinstance(part, list | tuple) and isinstance(part[0], str)}
        return {key: _without_texts(part) for key, part in batch.items() if key not in texts}
    make = getattr(batch, "_make", tuple)  # a namedtuple keeps its names
    return make(map(_without_texts, batch)) if isinstance(batch, list | tuple) else batch


def _shapes(batch: Tree) -> tuple[Any, ...]:
    """The shape of a record, by the place of each part."""
    return tuple((place, leaf.shape[1:]) for place, leaf in named_leaves(batch, ""))


def _blank_of_greatest_length(dataset: Any) -> Any:
    """A record of zeros, each tensor as long as the longest of the data set; lists of several lengths have none."""
    longest = dataset[0]
    for index in range(1, len(dataset)):
        item = dataset[index]
        require(tree_structure(item) == tree_structure(longest), _SEVERAL)
        longest = tree_map(lambda *leaves: max(leaves, key=_length), longest, item)
    require(any(map(_length, tree_leaves(longest))), _SEVERAL)
    return tree_map(_blank, longest)


def _length(leaf: Any) -> int:
    """Of a leaf that has rows, how many numbers it holds; else 0."""
    return leaf.numel() if isinstance(leaf, Tensor) and leaf.ndim else 0


def _blank(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return torch.zeros_like(leaf)
    return type(leaf)() if isinstance(leaf, str | Number) else leaf
