"""Refuses models that cannot be trained privately, each with its dotted path and a remedy, before training starts.

What is refused would carry data around the privacy line: batch statistics, buffers written in a forward, records that
influence each other. Only a public, synthetic example is run.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from adadpigu.core.gradients.losses import Objective, check_losses, is_plain
from adadpigu.core.gradients.mixing import refuse_counting, refuse_mixing
from adadpigu.core.gradients.norms import objection_to_norm, train_mode
from adadpigu.core.gradients.probing import exact_products, fitting, forward, nudge, seed, varied
from adadpigu.core.gradients.state import describe, refuse_changes, untouched
from adadpigu.core.trees import Tree, count_rows, map_tensors, select
from adadpigu.errors import ModelError


class _Flat(nn.Module):
    """What a front makes of a batch, as one row a record."""

    shown_as = "<front>"

    def __init__(self, front: nn.Module, apply: Callable[[nn.Module, Tree], Tree]) -> None:
        super().__init__()
        self.front, self.apply_to = front, apply

    def forward(self, batch: Tree) -> Tensor:
        made = [leaf for leaf in tree_leaves(self.apply_to(self.front, batch)) if isinstance(leaf, Tensor)]
        odd = [tuple(leaf.shape) for leaf in made if leaf.dim() == 0 or len(leaf) != count_rows(batch)]
        if odd or not made:
            raise ModelError(f"it makes {odd or 'no tensor'} of {count_rows(batch)} records; allowed: a row a record")
        return torch.cat([leaf.reshape(len(leaf), leaf[:1].numel()).to(torch.float32) for leaf in made], dim=1)


def inspect_front(front: nn.Module, apply: Callable[[nn.Module, Tree], Tree], batch: Tree) -> None:
    """Raises `ModelError` for a front that mixes or keeps records; `apply(front, batch)` is how it will be used."""
    net = _Flat(front, apply)
    for path, module in front.named_modules():
        if remedy := _objection(module):
            raise ModelError(f"front: {describe(path, module)}: {remedy}")
    with untouched(net), exact_products(), torch.no_grad():
        batch = prepared(net, batch)
        _refuse_writing(net, batch)
        refuse_mixing(net, batch)
        refuse_counting(net, batch)


def prepared(model: nn.Module, inputs: Tree) -> Tree:
    """Readies a model held in `untouched` for probing (training, nothing zero); returns the example to probe with."""
    seed()
    train_mode(model)
    nudge(model)
    with untouched(model):  # what is written in these forwards would hide later ones
        return varied(model, inputs) if is_plain(model, inputs) else fitting(model, inputs)


def refuse_by_type(model: nn.Module) -> None:
    """Everything that can be said without running the model."""
    for text in objections(model):
        raise ModelError(text)


def objections(model: nn.Module) -> Iterator[str]:
    """What stands in the way by type, each with its dotted path and a remedy."""
    for path, module in model.named_modules():
        if remedy := _objection(module):
            yield f"{describe(path, module)}: {remedy}"
    if not any(parameter.requires_grad for parameter in model.parameters()):
        yield f"{describe('', model)}: has no trainable parameter; set requires_grad=True on what to train"


def refuse_by_behaviour(model: nn.Module, inputs: Tree) -> None:
    """Everything that a forward in training mode shows; the model is held in `untouched` by the caller."""
    _refuse_writing(model, inputs)  # first: a second forward on the same example may write what is already there
    _refuse_output(model, inputs)
    refuse_mixing(model, inputs)
    _refuse_output(model, select(inputs, slice(1)))
    refuse_counting(model, inputs)


def _objection(module: nn.Module) -> str | None:
    if (found := objection_to_norm(module)) is not None:
        return found
    if any(map(is_lazy, (*module.parameters(recurse=False), *module.buffers(recurse=False)))):
        return "has uninitialised parameters; run one forward on a synthetic example first"
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        return "stores extra state of its own beside its parameters, which could hold data; remove get_extra_state"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
        return "gives sparse gradients, which reveal the rows in use; build it with sparse=False"
    return None


def _refuse_output(model: nn.Module, inputs: Tree) -> None:
    output, rows = forward(model, inputs), count_rows(inputs)
    if isinstance(model, Objective):
        return check_losses(output, rows)
    if isinstance(output, Tensor) and output.dim() > 0 and len(output) == rows:
        return None
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    told = f"{describe('', model)}: output {shape} for {rows} record(s) lacks the batch as first dimension"
    raise ModelError(f"{told}; return one tensor [{rows}, ...]")


def _refuse_writing(model: nn.Module, inputs: Tree) -> None:
    with refuse_changes(model, copied=lambda *_: True):  # writes through .data leave no trace in the version counter
        forward(model, inputs)
        with suppress(ModelError):  # a model that takes no such numbers; what is larger than before is written then
            forward(model, map_tensors(lambda leaf: 1e4 * leaf if leaf.is_floating_point() else leaf, inputs))
