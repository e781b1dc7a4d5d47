"""The ghost engine: layer rules, but gradients that are outer products g = a bᵀ are never built. Sensitive.

    ‖w ⊙ (g − α)‖² = (a²)ᵀ w² (b²) − 2 aᵀ (w² ⊙ α) b + ‖w ⊙ α‖²      with w = m / scale and centre α, in float64
    Σ_i c_i w ⊙ (g_i − α) = w ⊙ (Σ_i c_i a_i b_iᵀ − (Σ_i c_i) α)

Linear layers at many positions and convolutions, g = Σ_p a_p b_pᵀ, are measured and added up tile by tile on a GPU, by
one kernel (`kernels.convolution`). Elsewhere such linear layers are measured by ‖g‖² = Σ_pq (a_p·a_q)(b_p·b_q) where
nothing is standardised and positions are few, else a few records at a time. Where a sum is computed in another way than
its norm, the norm is raised by what rounding can have hidden from it: what is added is within the bound, whatever a
record holds.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from adadpigu.core import kernels
from adadpigu.core.gradients.probing import exact_products
from adadpigu.core.gradients.rule_engine import Call, RuleEngine, Wanted, slice_size
from adadpigu.core.gradients.rules import geometry_of, positions
from adadpigu.core.layout import Slot

if TYPE_CHECKING:
    from adadpigu.core.kernels.convolution import Geometry, Precision, Products

_TILED_AT_MOST = 2**18  # entries of a weight up to which tiles replace two matrix products: a choice, not measured
_PART_BYTES_ELSEWHERE = 2**27  # what the gradients of a slice may take, of one weight of a large net on a GPU
_WIDE = 2**16  # entries of a weight from which its gradients at many positions are not kept
_NO_ROW = -1  # an id that looks up nothing
_TILED_FROM = 2**14  # entries of a convolution from which they are not kept on a GPU

Factors = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""from x and dℓ/dy [b, ..., n] to a and b, whose products Σ_p a_p b_pᵀ are the gradient of a layer's `weight`"""
FACTORS: dict[type[nn.Module], Factors] = {nn.Linear: lambda x, dy: (dy, x)}


class GhostEngine(RuleEngine):
    """Bounds layers without their gradients; others, and all for top-k or whole numbers, as in `RuleEngine`."""

    name: ClassVar[str] = "ghost"

    def outer_layers(self, pairs: Sequence[tuple[Call, Tensor]], copies: int, wanted: Wanted) -> "list[OuterLayer]":
        if wanted.query.top_k < 1 or wanted.query.grid is not None or not pairs:
            return []
        uses = Counter([slot.name for call, _ in pairs for slot in self.slots_of[call.module].values()])
        weight, center = wanted.whole.weight, wanted.whole.center
        found: list[OuterLayer] = []
        for call, dy in pairs:
            slot = self.slots_of[call.module].get("weight")
            if slot is not None and slot.name in wanted.chosen.names and uses[slot.name] == 1:
                w, alpha = [v if v is None else v[slot.start : slot.stop].view(slot.shape) for v in (weight, center)]
                if (
                    type(call.module) is nn.Linear
                    and dy.dim() == 2
                    and copies == 1
                    and not (dy.is_cuda or kernels.INTERPRETED)
                ):
                    found.append(OuterLayer(slot, dy, call.x, w, alpha))  # most layers of small nets: no more is asked
                    continue
                layer = _outer_layer(call.module, call.x, dy, copies, slot, w, alpha)
                found += [layer] if layer is not None else []
        return found


def _outer_layer(
    module: nn.Module, x: Tensor, dy: Tensor, copies: int, slot: Slot, w: Tensor | None, alpha: Tensor | None
) -> "OuterLayer | None":
    """How the gradients of a layer's weight are bounded without being built; None: they are built."""
    size, kernel = slot.stop - slot.start, (dy.is_cuda or kernels.INTERPRETED) and kernels.usable(dy)
    if type(module) is nn.Conv2d:
        walk = geometry_of(module) if kernel and size > _TILED_FROM and _taken(x, dy) else None
        return None if walk is None else ProductLayer(slot, dy, x, w, alpha, copies, walk, _precision(is_conv=True))
    if type(module) is nn.Embedding and size >= _WIDE and dy.dtype != torch.float64:
        ids = x if module.padding_idx is None else x.masked_fill(x == module.padding_idx, _NO_ROW)
        ids, rows = (t.reshape(len(t) // copies, -1, *last) for t, last in ((ids, ()), (dy, dy.shape[-1:])))
        return EmbeddingLayer(slot, ids, rows, w, alpha)
    if type(module) not in FACTORS:
        return None
    left, right = (dy, x) if type(module) is nn.Linear else FACTORS[type(module)](x, dy)
    if dy.dim() > 2:
        if size < _WIDE or not _taken(x, dy):
            return None
        if kernel:
            left, right = (positions(t, keep=1).mT.unsqueeze(3) for t in (left, right))
            return ProductLayer(slot, left, right, w, alpha, copies, None, _precision(is_conv=False))
        left, right = (t.float().reshape(len(t) // copies, -1, t.shape[-1]) for t in (left, right))
        return SequenceLayer(slot, left, right, w, alpha)
    if kernel and size <= _TILED_AT_MOST and _taken(x, dy):
        left, right = (t if t.stride(1) == 1 else t.contiguous() for t in (left, right))  # expanded ones
        return TiledOuterLayer(slot, left, right, w, alpha, copies)
    return OuterLayer(slot, left, right, w, alpha) if copies == 1 else None


def _taken(x: Tensor, dy: Tensor) -> bool:
    """Whether the numbers are of types whose products are measured."""
    return {x.dtype, dy.dtype} <= {torch.float32, torch.bfloat16}


def _precision(*, is_conv: bool) -> "Precision":
    """As torch multiplies in such a layer, or closer: it takes short products where its user allows them."""
    place = getattr(torch.backends.cudnn, "conv", None) if is_conv else torch.backends.cuda.matmul
    return "tf32" if getattr(place, "fp32_precision", "ieee") == "tf32" else "tf32x3"


@dataclass(frozen=True)
class OuterLayer:
    """One weight [m, n] with left factors a [b, m] and right factors b [b, n]."""

    slot: Slot
    left: Tensor
    right: Tensor
    weight: Tensor | None  # w, [m, n]; None: 1
    center: Tensor | None  # α, [m, n]; None: 0

    def squares(self) -> Tensor:
        """The squared norm of each record's part in this layer, [b]; where terms cancel, an upper bound of it."""
        left, right = self.left.double().square(), self.right.double().square()
        squared = None if self.weight is None else self.weight.double().square()
        own = left.sum(1) * right.sum(1) if squared is None else (left @ squared * right).sum(1)
        if self.center is None:
            return own
        center = self.center.double()
        pull = center if squared is None else center * squared
        crossed = (self.left.double() @ pull * self.right.double()).sum(1)
        rest = (pull * center).sum()
        rounding = (16 + self.center.numel()) * torch.finfo(torch.float64).eps * (own + rest)
        return (own - 2 * crossed + rest).clamp(min=0) + rounding

    def total(self, factors: Tensor) -> Tensor:
        """Σ_i factor_i z_i, flat; a record whose factor is zero is left out, whatever it holds."""
        dropped = (factors == 0)[:, None]
        left = (self.left.double() * factors[:, None]).masked_fill_(dropped, 0.0)
        total = left.mT @ self.right.double().masked_fill(dropped, 0.0)
        if self.center is not None:
            total.addcmul_(self.center.double(), factors.sum(), value=-1)
        if self.weight is not None:
            total *= self.weight
        return total.flatten()


@dataclass(frozen=True)
class TiledOuterLayer(OuterLayer):
    """The same in tiles: a kernel makes each entry of each record's gradient twice, to measure it and to add it up."""

    copies: int

    def squares(self) -> Tensor:
        from adadpigu.core.kernels.outer import partial_norms

        return partial_norms(self.left, self.right, _flat(self.center), _flat(self.weight), copies=self.copies)

    def total(self, factors: Tensor) -> Tensor:
        from adadpigu.core.kernels.outer import weighted_sum

        center, weight = _flat(self.center), _flat(self.weight)
        return weighted_sum(self.left, self.right, factors, center, weight, copies=self.copies)


@dataclass(frozen=True)
class EmbeddingLayer(OuterLayer):
    """Rows that are looked up in a table [m, n]: left are ids [b, p] (`_NO_ROW`: none), right is dℓ/dy [b, p, n].

    Only rows that a record looks up differ from −w ⊙ α: their squares replace what ‖w ⊙ α‖² counts for them.
    """

    def squares(self) -> Tensor:
        pull = None if self.center is None else self.center.double() * (1.0 if self.weight is None else self.weight)
        rest = 0.0 if pull is None else pull.square().sum()
        found = []
        for part in self._slices():
            ids, rows = self._looked_up(part)
            z = rows if self.weight is None else rows * self.weight[ids]
            counted = None if pull is None else pull[ids].masked_fill((self.left[part] == _NO_ROW).unsqueeze(2), 0.0)
            if counted is None:
                own, spared = z.square().sum((1, 2)), z.new_zeros(len(z))
            else:
                counted = counted.masked_fill(self._again(part).unsqueeze(2), 0.0)
                own, spared = (z - counted).square().sum((1, 2)), counted.square().sum((1, 2))
            terms = 16 + self.left.shape[1] + self.slot.stop - self.slot.start
            rounding = terms * torch.finfo(torch.float64).eps * (z.square().sum((1, 2)) + own + spared + rest)
            found.append((own - spared + rest).clamp(min=0) + rounding)
        return torch.cat(found)

    def total(self, factors: Tensor) -> Tensor:
        total = torch.zeros(self.slot.shape, dtype=torch.float64, device=factors.device)
        for part in self._slices():
            ids, rows = self._looked_up(part)
            rows = (rows * factors[part, None, None]).masked_fill_((factors[part] == 0)[:, None, None], 0.0)
            total.index_put_((ids,), rows, accumulate=True)
        if self.center is not None:
            total.addcmul_(self.center.double(), factors.sum(), value=-1)
        if self.weight is not None:
            total *= self.weight
        return total.flatten()

    def _looked_up(self, part: slice) -> tuple[Tensor, Tensor]:
        """Ids, and the gradient of each id's row where it stands first; zero where it stands again, or for none."""
        ids, none = self.left[part], self.left[part] == _NO_ROW
        same = ids.unsqueeze(2) == ids.unsqueeze(1)
        rows = torch.bmm(same.double(), self.right[part].double())
        return ids.masked_fill(none, 0), rows.masked_fill_((self._again(part) | none).unsqueeze(2), 0.0)

    def _again(self, part: slice) -> Tensor:
        """Which positions [b, p] hold an id that stands before them."""
        ids = self.left[part]
        return (ids.unsqueeze(2) == ids.unsqueeze(1)).tril(-1).any(2)

    def _slices(self) -> list[slice]:
        _, positions, width = self.right.shape
        return _slices(len(self.left), 8 * positions * (positions + 4 * width), self.left.device)


@dataclass(frozen=True)
class ProductLayer(OuterLayer):
    """The same at many positions, in tiles: dℓ/dy [b·copies, m, ...] and x [b·copies, c, ...] of a walk over x."""

    copies: int
    walk: "Geometry | None"  # None: each position by itself
    precision: "Precision"

    @property
    def products(self) -> "Products":
        from adadpigu.core.kernels.convolution import POINTWISE, Products

        return Products(self.right, self.left, self.walk or POINTWISE, self.copies, self.precision)

    def squares(self) -> Tensor:
        return self.products.squares(_flat(self.center), _flat(self.weight))

    def total(self, factors: Tensor) -> Tensor:
        return self.products.total(factors, _flat(self.center), _flat(self.weight))


def _flat(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.reshape(-1)


@dataclass(frozen=True)
class SequenceLayer(OuterLayer):
    """The same at many positions: left factors a [b, p, m] and right factors b [b, p, n]."""

    def squares(self) -> Tensor:
        positions, (rows, columns) = self.left.shape[1], self.slot.shape
        if self.weight is None and self.center is None and positions * (rows + columns) < rows * columns:
            return self._by_products()
        return self._by_parts()

    def total(self, factors: Tensor) -> Tensor:
        total = torch.zeros(self.slot.shape, dtype=torch.float64, device=factors.device)
        for part in self._slices(8 * (self.left[0].numel() + self.right[0].numel())):
            dropped = (factors[part] == 0)[:, None, None]
            left = (self.left[part].double() * factors[part][:, None, None]).masked_fill_(dropped, 0.0)
            right = self.right[part].double().masked_fill_(dropped, 0.0)
            total.addmm_(left.flatten(0, 1).mT, right.flatten(0, 1))
        if self.center is not None:
            total.addcmul_(self.center.double(), factors.sum(), value=-1)
        if self.weight is not None:
            total *= self.weight
        return total.flatten()

    def _by_products(self) -> Tensor:
        found = []
        for part in self._slices(8 * (self.left[0].numel() + self.right[0].numel())):
            left, right = self.left[part].double(), self.right[part].double()
            own = ((left @ left.mT) * (right @ right.mT)).sum((1, 2))
            terms = left.shape[1] ** 2 + left.shape[2] + right.shape[2]
            hidden = (16 + terms) * torch.finfo(torch.float64).eps * _power(left) * _power(right)
            found.append(own.clamp(min=0) + hidden)
        return torch.cat(found)

    def _by_parts(self) -> Tensor:
        center, weight = (None if part is None else part.float().flatten() for part in (self.center, self.weight))
        found = []
        for part in self._slices(4 * (self.slot.stop - self.slot.start)):
            with exact_products():  # what rounding can hide is reckoned for float32, not for TF32
                rows = torch.bmm(self.left[part].mT, self.right[part]).flatten(1)
            found.append(_squares(rows, center, weight))
        norms = torch.cat(found).sqrt()
        rounding = torch.finfo(torch.float32).eps
        largest = 1.0 if self.weight is None else self.weight.abs().max()
        pull = 0.0 if self.center is None else torch.linalg.vector_norm(self.center, dtype=torch.float64)
        hidden = (self.left.shape[1] + 8) * _power(self.left).sqrt() * _power(self.right).sqrt() + 8 * pull
        # Products below the normal range of float32 may have vanished, each by as much as its smallest number.
        vanished = self.left.shape[1] * (self.slot.stop - self.slot.start) ** 0.5 * torch.finfo(torch.float32).tiny
        raised: Tensor = norms * (1 + 8 * rounding) + largest * (rounding * hidden + vanished)
        return raised.square()

    def _slices(self, bytes_a_record: int) -> list[slice]:
        return _slices(len(self.left), bytes_a_record, self.left.device)


def _slices(records: int, bytes_a_record: int, device: torch.device) -> list[slice]:
    size = slice_size(records, bytes_a_record, device, _PART_BYTES_ELSEWHERE)
    return [slice(start, start + size) for start in range(0, records, size)]


def _power(x: Tensor) -> Tensor:
    """‖x_i‖² of each record, in float64."""
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64)
    return norms.square()


def _squares(rows: Tensor, center: Tensor | None, weight: Tensor | None) -> Tensor:
    if kernels.usable(rows):
        from adadpigu.core.kernels.rows import squared_norms

        return squared_norms(rows, center, weight)
    if center is not None:
        rows -= center
    if weight is not None:
        rows *= weight
    return _power(rows)
