"""Where layer rules leave what they compute: the rows of a flat buffer, one slot a parameter. All of it sensitive."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adadpigu.beside import join
from adadpigu.gradients.slicing import aligned_product
from adadpigu.layout import Slot


class FlatGradients:
    """The [b, n] buffer of some parameters' gradients: a first contribution is written, later ones are added."""

    def __init__(self, flat: Tensor, slots: Sequence[Slot], model: nn.Module) -> None:
        self._flat = flat
        self._places: dict[int, slice] = {}
        start = 0
        for slot in slots:
            stop = start + slot.stop - slot.start
            self._places[id(model.get_parameter(slot.name))] = slice(start, stop)
            start = stop
        self._unwritten = dict(self._places)

    def holds(self, parameter: nn.Parameter | None) -> bool:
        return id(parameter) in self._places

    def claim(self, parameter: nn.Parameter) -> tuple[Tensor, bool]:
        """The parameter's [b, n] view, and whether it is still unwritten; it counts as written from here on."""
        fresh = self._unwritten.pop(id(parameter), None) is not None
        if not fresh:
            join(self._flat.device)  # what is added to may have been written beside the main line
        return self._flat[:, self._places[id(parameter)]], fresh

    def peek(self, parameter: nn.Parameter) -> tuple[Tensor, bool]:
        """The same, and it counts as what it was."""
        return self._flat[:, self._places[id(parameter)]], id(parameter) in self._unwritten

    def finish(self) -> Tensor:
        """The whole buffer; parameters that no call touched have gradient zero."""
        for place in self._unwritten.values():
            self._flat[:, place] = 0
        join(self._flat.device)  # a rule may have written beside the main line
        return self._flat


class ModuleGradients:
    """One module's parameters within the flat buffer: the `Destination` its rule writes to.

    A rule works row by row; the rows of one record's copies are added up here, where they meet the record's gradient.
    """

    def __init__(self, flat: FlatGradients, module: nn.Module, copies: int = 1, *, align: bool = False) -> None:
        self._flat = flat
        self._product = aligned_product if align else torch.bmm
        self._copies = copies
        self._parameters = dict(module.named_parameters(recurse=False))

    def wants(self, name: str) -> bool:
        return self._flat.holds(self._parameters.get(name))

    def add(self, name: str, value: Tensor) -> None:
        if self._copies > 1:
            value = value.reshape(-1, self._copies, *value.shape[1:]).sum(dim=1)
        view, fresh = self._flat.claim(self._parameters[name])
        view = view.view(value.shape)
        if fresh:
            view.copy_(value)
        else:
            view.add_(value)

    def add_product(self, name: str, left: Tensor, right: Tensor, order: tuple[int, ...] | None = None) -> None:
        if self._copies > 1:  # copies are further positions of the same record
            left = left.reshape(-1, self._copies, *left.shape[1:]).transpose(1, 2).flatten(2)
            right = right.reshape(-1, self._copies * right.shape[1], right.shape[2])
        view, fresh = self._flat.claim(self._parameters[name])
        if order is not None:
            view = _reordered(view, self._parameters[name].shape, order)
            product = self._product(left, right).reshape(view.shape)
            view.copy_(product) if fresh else view.add_(product)
            return
        view = view.view(len(left), left.shape[1], right.shape[2])
        if left.shape[2] != 1:
            # Not baddbmm_ into the view: its kernel for strided results is far slower than a product and a copy.
            product = self._product(left, right)
            if fresh:
                view.copy_(product)
            else:
                view.add_(product)
        elif fresh:
            torch.mul(left, right, out=view)
        else:
            view.addcmul_(left, right)

    def add_scaled(self, name: str, factors: Tensor, rows: Tensor) -> None:
        if self._copies > 1:
            factors = factors.reshape(-1, self._copies, factors.shape[1]).sum(dim=1)
        view, fresh = self._flat.claim(self._parameters[name])
        view = view.view(len(factors), *rows.shape)
        if fresh:
            torch.mul(factors.unsqueeze(2), rows, out=view)
        else:
            view.addcmul_(factors.unsqueeze(2), rows)

    def add_sum(self, name: str, value: Tensor, dimension: int) -> None:
        view, fresh = self._flat.peek(self._parameters[name])
        if fresh and self._copies == 1 and value.shape[dimension] > 1:
            self._flat.claim(self._parameters[name])
            torch.sum(value, dimension, out=view)
        else:
            self.add(name, value.sum(dimension) if value.shape[dimension] > 1 else value.squeeze(dimension))

    def place(self, name: str) -> tuple[Tensor, int] | None:
        if not self._flat.peek(self._parameters[name])[1]:
            return None
        return self._flat.claim(self._parameters[name])[0], self._copies

    def add_at(self, name: str, index: Tensor, rows: Tensor) -> None:
        if self._copies > 1:  # copies are further positions of the same record
            records = len(index) // self._copies
            index = index.reshape(records, self._copies * index.shape[1])
            rows = rows.reshape(records, self._copies * rows.shape[1], rows.shape[2])
        view, fresh = self._flat.claim(self._parameters[name])
        view = view.view(len(index), *self._parameters[name].shape)
        if fresh:
            view.zero_()
        if rows.is_cuda:
            rows = _gathered_at_first(index, rows)
        view.scatter_add_(1, index.long().unsqueeze(2).expand(rows.shape), rows.to(view.dtype))


def _gathered_at_first(index: Tensor, rows: Tensor) -> Tensor:
    """[b, p, e] with the sum of all rows of one index where it stands first, and zero where it stands again.

    A GPU scatters in no fixed order, so that sums of three or more would round otherwise from one time to the next.
    """
    same = index.unsqueeze(2) == index.unsqueeze(1)
    again = same.tril(-1).any(2)
    return torch.bmm(same.to(rows.dtype), rows).masked_fill(again.unsqueeze(2), 0.0)


def _reordered(view: Tensor, shape: torch.Size, order: tuple[int, ...]) -> Tensor:
    """A view of rows [b, n] whose dimensions, permuted by `order`, are those of a parameter."""
    back = [order.index(dim) for dim in range(len(order))]
    return view.view(len(view), *shape).permute(back)
