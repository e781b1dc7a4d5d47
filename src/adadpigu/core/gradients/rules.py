"""Layer rules: from a layer's input x and dℓ/dy to the per-sample gradients of its own parameters.

A rule is one decorated function; registering it is all it takes. Rules work on sensitive tensors and keep nothing.
Linear and convolution: ∂ℓ_i/∂W = Σ_p dy_ip x_ipᵀ over positions p; norms: ∂ℓ_i/∂γ = Σ_p dy_ip ⊙ x̂_ip. Layers that
have no such rule as a whole (attention, recurrent nets) are unfolded into parts that do: see `unfolding`.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from adadpigu.core import kernels
from adadpigu.core.gradients.slicing import aligned_product
from adadpigu.core.layout import Slot
from adadpigu.core.side_stream import join, side_stream
from adadpigu.errors import ModelError

if TYPE_CHECKING:
    from adadpigu.core.kernels.convolution import Geometry


class FlatGradients:
    """Where some parameters' gradients go, [b, n] each: a first contribution is written, later ones are added."""

    def __init__(self, places: dict[str, Tensor]) -> None:
        self.places = places
        self.unwritten = set(places)

    def claim(self, slot: Slot) -> tuple[Tensor, bool]:
        """The parameter's [b, n] view, and whether it is unwritten so far; it counts as written from here on."""
        view, fresh = self.places[slot.name], slot.name in self.unwritten
        self.unwritten.discard(slot.name)
        if not fresh and view.is_cuda:
            join(view.device)  # what is added to may have been written beside the main line
        return view, fresh

    def finish(self) -> None:
        """Parameters that no call touched have gradient zero."""
        for name in self.unwritten:
            self.places[name].zero_()
        view = next(iter(self.places.values()), None)
        if view is not None and view.is_cuda:
            join(view.device)  # a rule may have written beside the main line


class Destination:
    """Where a rule leaves the gradients of one module's parameters; contributions of several calls are added.

    A rule works row by row; the rows of one record's copies are added up here, where they meet the record's gradient.
    """

    def __init__(self, flat: FlatGradients, slots: dict[str, Slot], copies: int = 1, *, align: bool = False) -> None:
        """`slots` by the module's own names for its parameters."""
        self._flat = flat
        self._product = aligned_product if align else torch.bmm
        self._copies = copies
        self._slots = slots

    def wants(self, name: str) -> bool:
        """Whether the parameter exists and is trained."""
        return name in self._slots and self._slots[name].name in self._flat.places

    def add(self, name: str, value: Tensor) -> None:
        """Adds a gradient [b, *shape]."""
        if self._copies > 1:
            value = value.reshape(-1, self._copies, *value.shape[1:]).sum(dim=1)
        view, fresh = self._flat.claim(self._slots[name])
        view = view.view(value.shape)
        view.copy_(value) if fresh else view.add_(value)

    def add_product(self, name: str, left: Tensor, right: Tensor, order: tuple[int, ...] | None = None) -> None:
        """Adds left @ right, [b, m, p] @ [b, p, n], shaped as the parameter, or permuted by `order` to be so."""
        if self._copies > 1:  # copies are further positions of the same record
            left = left.reshape(-1, self._copies, *left.shape[1:]).transpose(1, 2).flatten(2)
            right = right.reshape(-1, self._copies * right.shape[1], right.shape[2])
        view, fresh = self._flat.claim(self._slots[name])
        if order is not None:
            back = [order.index(dim) for dim in range(len(order))]
            view = view.view(len(view), *self._slots[name].shape).permute(back)
        else:
            view = view.view(len(left), left.shape[1], right.shape[2])
        if order is None and left.shape[2] == 1:
            torch.mul(left, right, out=view) if fresh else view.addcmul_(left, right)
        else:
            # Not baddbmm_ into the view: its kernel for strided results is far slower than a product and a copy.
            product = self._product(left, right).reshape(view.shape)
            view.copy_(product) if fresh else view.add_(product)

    def add_scaled(self, name: str, factors: Tensor, rows: Tensor) -> None:
        """Adds rows [m, n] that all records share, each times its factor [b, m], shaped as the parameter."""
        if self._copies > 1:
            factors = factors.reshape(-1, self._copies, factors.shape[1]).sum(dim=1)
        view, fresh = self._flat.claim(self._slots[name])
        view, factors = view.view(len(factors), *rows.shape), factors.unsqueeze(2)
        torch.mul(factors, rows, out=view) if fresh else view.addcmul_(factors, rows)

    def add_sum(self, name: str, value: Tensor, dimension: int) -> None:
        """Adds a gradient that is a sum over one dimension, [b, m, p] or [b, p, m] -> [b, m]."""
        if self._slots[name].name in self._flat.unwritten and self._copies == 1 and value.shape[dimension] > 1:
            torch.sum(value, dimension, out=self._flat.claim(self._slots[name])[0])
        else:
            self.add(name, value.sum(dimension) if value.shape[dimension] > 1 else value.squeeze(dimension))

    def place(self, name: str) -> tuple[Tensor, int] | None:
        """[b, n] to write a gradient to, and how many rows of the input are one record; None: it has to be added."""
        if self._slots[name].name not in self._flat.unwritten:
            return None
        return self._flat.claim(self._slots[name])[0], self._copies

    def add_at(self, name: str, index: Tensor, rows: Tensor) -> None:
        """Adds rows [b, p, n] to those rows of a parameter [m, n] that each record's index [b, p] names."""
        if self._copies > 1:  # copies are further positions of the same record
            records = len(index) // self._copies
            index = index.reshape(records, self._copies * index.shape[1])
            rows = rows.reshape(records, self._copies * rows.shape[1], rows.shape[2])
        view, fresh = self._flat.claim(self._slots[name])
        view = view.view(len(index), *self._slots[name].shape)
        if fresh:
            view.zero_()
        if rows.is_cuda:
            rows = _gathered_at_first(index, rows)
        view.scatter_add_(1, index.long().unsqueeze(2).expand(rows.shape), rows.to(view.dtype))


M = TypeVar("M", bound=nn.Module)
Rule = Callable[[M, Tensor, Tensor, Destination], None]
R = TypeVar("R", bound=Callable[..., None])

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

RULES: dict[type[nn.Module], Rule[Any]] = {}


def rule(*kinds: type[nn.Module]) -> Callable[[R], R]:
    """Registers the rule for exactly these module types; a subclass may compute something else, so it needs its own."""

    def register(function: R) -> R:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


@rule(nn.Linear, NonDynamicallyQuantizableLinear)
def linear(module: nn.Linear, x: Tensor, dy: Tensor, into: Destination) -> None:
    """y = x Wᵀ + b at every position of any middle dimensions."""
    dy = positions(dy, keep=1)
    if into.wants("weight"):
        into.add_product("weight", dy.mT, positions(x, keep=1))
    if into.wants("bias"):
        into.add_sum("bias", dy, 1)


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(module: Convolution, x: Tensor, dy: Tensor, into: Destination) -> None:
    """y = W ⋆ pad(x) + b: the product of dy with the patches of x, group by group."""
    if into.wants("bias"):
        with side_stream(dy.device):
            into.add_sum("bias", dy.flatten(2), 2)
    if into.wants("weight") and not _by_kernel(module, x, dy, into):
        if module.groups == 1 and channels_last(x):
            # Channels lie side by side: whole pixels are copied, and neither factor has to be turned over.
            left, right = dy.permute(0, 2, 3, 1).flatten(1, 2), patches(module, x).permute(0, 4, 5, 2, 3, 1)
            into.add_product("weight", left.mT, right.flatten(1, 2).flatten(2), (0, 1, 4, 2, 3))
        elif module.groups == 1:
            kernel = len(module.kernel_size)
            into.add_product("weight", dy.flatten(2), patches(module, x).flatten(1, 1 + kernel).flatten(2).mT)
        else:
            into.add("weight", _grouped(module, patches(module, x), dy))


@rule(nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, *_BATCH_NORMS, *_INSTANCE_NORMS)
def norm(module: Any, x: Tensor, dy: Tensor, into: Destination) -> None:
    """y = γ ⊙ x̂ + β, over the last dimensions or channel by channel; summed over all positions of a record."""

    def summed(values: Tensor) -> Tensor:
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            return positions(values, len(module.normalized_shape)).sum(1)
        return values.reshape(*values.shape[:2], math.prod(values.shape[2:])).sum(2)

    if into.wants("weight"):
        into.add("weight", summed(dy * _normalised(module, x)))
    if into.wants("bias"):
        into.add("bias", summed(dy))


def _normalised(module: Any, x: Tensor) -> Tensor:
    """x̂, the output of a norm without its scale and shift."""
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(x, module.normalized_shape, None, None, module.eps)
    if isinstance(module, nn.RMSNorm):
        return F.rms_norm(x, module.normalized_shape, None, module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(x, module.num_groups, None, None, module.eps)
    if isinstance(module, _BATCH_NORMS):  # by stored statistics: one in training mode was refused before
        return F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)
    return F.instance_norm(x, eps=module.eps)


@rule(nn.Embedding)
def embedding(module: nn.Embedding | nn.EmbeddingBag, x: Tensor, dy: Tensor, into: Destination) -> None:
    """y_p = W[x_p]: each position's dy is added to the row it looked up, except to the row of the padding."""
    refuse_lookup(module)
    rows = dy.reshape(len(dy), math.prod(x.shape[1:]), module.embedding_dim)
    index = x.reshape(rows.shape[:2])
    if module.padding_idx is not None:
        rows = rows.masked_fill((index == module.padding_idx).unsqueeze(2), 0.0)
    into.add_at("weight", index, rows)


def refuse_lookup(module: nn.Embedding | nn.EmbeddingBag) -> None:
    """Options that make a row's gradient or value depend on more than the record."""
    kind = type(module).__name__
    if module.scale_grad_by_freq:
        raise ModelError(f"{kind}: scale_grad_by_freq=True counts ids over the batch; build it with False")
    if module.max_norm is not None:
        raise ModelError(f"{kind}: max_norm={module.max_norm} rewrites the rows in use; build it with max_norm=None")


def channels_last(x: Tensor) -> bool:
    """Whether the channels of images [b, c, h, w], more than one, lie side by side in memory."""
    return x.dim() == 4 and x.shape[1] > 1 and x.stride(1) == 1


def positions(x: Tensor, keep: int) -> Tensor:
    """[b, p, ...]: all middle dimensions as one, the last `keep` left alone.

    >>> positions(torch.zeros(2, 3, 4, 5), keep=1).shape, positions(torch.zeros(2, 5), keep=1).shape
    (torch.Size([2, 12, 5]), torch.Size([2, 1, 5]))
    """
    middle, last = x.shape[1 : x.dim() - keep], x.shape[x.dim() - keep :]
    return x.reshape(len(x), math.prod(middle), *last)


def patches(module: Convolution, x: Tensor) -> Tensor:
    """What each kernel entry meets at each output position, a view of padded input: [b, c, kh, kw, h', w'] in 2D."""
    dimensions, sides = len(module.kernel_size), _sides(module)
    if any(sides):
        x = F.pad(x, sides, mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
    for axis in range(dimensions):
        span = module.dilation[axis] * (module.kernel_size[axis] - 1) + 1
        x = x.unfold(2 + axis, span, module.stride[axis])[..., :: module.dilation[axis]]
    outer, inner = range(2, 2 + dimensions), range(2 + dimensions, 2 + 2 * dimensions)
    return x.permute(0, 1, *inner, *outer)


def _sides(module: Convolution) -> list[int]:
    """How much is added before and after each dimension, the last one first, as `F.pad` wants it."""
    sides: list[int] = []
    for axis in reversed(range(len(module.kernel_size))):
        if module.padding == "valid":
            sides += [0, 0]
        elif module.padding == "same":
            total = module.dilation[axis] * (module.kernel_size[axis] - 1)
            sides += [total // 2, total - total // 2]
        else:
            sides += [int(module.padding[axis])] * 2
    return sides


def _by_kernel(module: Convolution, x: Tensor, dy: Tensor, into: Destination) -> bool:
    """Whether a kernel has written the weight's gradients where they belong, without patches in between."""
    geometry = geometry_of(module) if kernels.usable(x) else None
    if geometry is None:
        return False
    from adadpigu.core.kernels.convolution import Products, worthwhile

    small = worthwhile(module.out_channels, math.prod(module.weight.shape[1:]))
    found = into.place("weight") if small and x.dtype == dy.dtype == torch.float32 else None
    if found is None:
        return False
    place, copies = found
    Products(x, dy, geometry, copies).write(place)
    return True


def geometry_of(module: nn.Module) -> "Geometry | None":
    """How a convolution walks over its input; None for one that the kernels do not take."""
    from adadpigu.core.kernels.convolution import Geometry

    if type(module) is not nn.Conv2d or module.groups != 1 or module.padding_mode != "zeros":
        return None
    left, _, top, _ = _sides(module)
    return Geometry(module.kernel_size, module.stride, (top, left), module.dilation)


def _grouped(module: Convolution, patch: Tensor, dy: Tensor) -> Tensor:
    records, groups = len(dy), module.groups
    left = dy.reshape(records * groups, module.out_channels // groups, math.prod(dy.shape[2:]))
    right = patch.reshape(records * groups, math.prod(module.weight.shape[1:]), left.shape[2])
    return torch.bmm(left, right.mT).reshape(records, *module.weight.shape)


def bytes_at_work(module: nn.Module, x: Tensor, dy: Tensor) -> int:
    """About how much a rule builds for each row besides its gradient: the patches of a convolution above all."""
    numbers = math.prod(x.shape[1:]) + math.prod(dy.shape[1:])
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        numbers += math.prod(module.kernel_size) * module.in_channels * math.prod(dy.shape[2:])
    return numbers * dy.element_size()


def _gathered_at_first(index: Tensor, rows: Tensor) -> Tensor:
    """[b, p, e] with the sum of all rows of one index where it stands first, and zero where it stands again.

    A GPU scatters in no fixed order, so that sums of three or more would round otherwise from one time to the next.
    """
    same = index.unsqueeze(2) == index.unsqueeze(1)
    return torch.bmm(same.to(rows.dtype), rows).masked_fill(same.tril(-1).any(2).unsqueeze(2), 0.0)
