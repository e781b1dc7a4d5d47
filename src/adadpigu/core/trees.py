"""Trees of tensors (pytrees): what a record, or a batch of records, may be. All leaves share one leading record axis.

A tree is a tensor, or a tuple, list or dict of trees. A plain tensor takes the short way in every function here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from adadpigu.errors import InputError

Tree = Any  # a tensor, or a tuple, list or dict of trees


def map_tensors(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    return function(tree) if isinstance(tree, Tensor) else tree_map(function, tree)


def count_rows(tree: Tree) -> int:
    """How many records a tree holds: the length of its first tensor."""
    return len(tree if isinstance(tree, Tensor) else tree_leaves(tree)[0])


def select(tree: Tree, index: Any) -> Tree:
    return tree[index] if isinstance(tree, Tensor) else tree_map(lambda leaf: leaf[index], tree)


def to_device(tree: Tree, device: torch.device) -> Tree:
    return tree.to(device) if isinstance(tree, Tensor) else tree_map(lambda leaf: leaf.to(device), tree)


def named_leaves(tree: Tree, name: str) -> list[tuple[str, Any]]:
    """Each leaf with its place, in words.

    >>> [place for place, _ in named_leaves({"age": torch.zeros(2), "text": (torch.zeros(2),)}, "record")]
    ["record['age']", "record['text'][0]"]
    """
    return [(f"{name}{keystr(path)}", leaf) for path, leaf in tree_flatten_with_path(tree)[0]]


def describe_tree(tree: Tree) -> str:
    """Shapes and types of one record, for errors.

    >>> describe_tree({"x": torch.zeros(4, 3), "y": torch.zeros(4, dtype=torch.long)})
    "['x'] (3,) float32, ['y'] () int64"
    """
    leaves = named_leaves(tree, "")
    return ", ".join(f"{path} {tuple(t.shape[1:])} {str(t.dtype)[6:]}".strip() for path, t in leaves)


def check_tree(tree: Tree, name: str) -> Tree:
    """Refuses a tree whose leaves are not tensors with one row a record, by the place of the first that is not."""
    leaves = named_leaves(tree, name)
    if not leaves:
        raise InputError(f"{name}: holds no tensor; allowed: tensors, and tuples, lists and dicts of tensors")
    for place, leaf in leaves:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            what = f"a {type(leaf).__name__}" if not isinstance(leaf, Tensor) else "a number"
            raise InputError(f"{place} is {what}; allowed: a tensor with one row a record")
        if len(leaf) != len(leaves[0][1]):
            told = f"{place} has {len(leaf)} rows but {leaves[0][0]} has {len(leaves[0][1])}"
            raise InputError(f"{told}; allowed: one row a record in each")
    return tree


def call(module: nn.Module, inputs: Tree) -> Any:
    """Calls a module as its forward is written: a tuple or list as several arguments, a dict by name."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)
