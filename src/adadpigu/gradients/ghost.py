"""The ghost engine: layer rules, but gradients that are outer products are never built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from adadpigu import kernels
from adadpigu.gradients.outer import Outer, OuterLayer, TiledOuterLayer
from adadpigu.gradients.rule_engine import Call, RuleEngine, Wanted
from adadpigu.gradients.sequences import SequenceLayer
from adadpigu.layout import Slot

_TILED_AT_MOST = 2**18
"""entries of a weight up to which tiles are taken instead of two products of matrices: a choice, not measured"""

Factors = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""from x and dℓ/dy [b, ..., n] to a and b, whose products Σ_p a_p b_pᵀ are the gradient of a layer's `weight`"""
FACTORS: dict[type[nn.Module], Factors] = {nn.Linear: lambda x, dy: (dy, x)}


def factors(kind: type[nn.Module]) -> Callable[[Factors], Factors]:
    """Registers the factors of exactly this module type."""

    def register(function: Factors) -> Factors:
        FACTORS[kind] = function
        return function

    return register


class GhostEngine(RuleEngine):
    """Linear layers are bounded without their gradients in memory; all others as in the materialised engine.

    Finding the largest entries of a record needs its whole gradient, so such a query is answered with all layers built.
    """

    name: ClassVar[str] = "ghost"

    def outer_layers(self, pairs: Sequence[tuple[Call, Tensor]], copies: int, wanted: Wanted) -> list[Outer]:
        tiled = bool(pairs) and kernels.usable(pairs[0][1])
        if wanted.query.top_k < 1:
            return []
        uses = Counter(id(p) for call, _ in pairs for p in call.module.parameters(recurse=False))
        owned = {id(self.model.get_parameter(slot.name)): slot for slot in wanted.slots}
        weight, center = wanted.whole.weight, wanted.whole.center
        found: list[Outer] = []
        for call, dy in pairs:
            module = call.module
            if type(module) in FACTORS and uses[id(module.weight)] == 1:
                slot = owned.get(id(module.weight))
                if slot is None:
                    continue
                left, right = FACTORS[type(module)](call.x, dy)
                vectors = _part(weight, slot), _part(center, slot)
                if dy.dim() > 2:
                    if SequenceLayer.suits(slot, dy.dtype):
                        left, right = (_by_record(t, copies) for t in (left, right))
                        found.append(SequenceLayer(slot, left, right, *vectors))
                elif tiled and slot.stop - slot.start <= _TILED_AT_MOST and dy.dtype == call.x.dtype == torch.float32:
                    found.append(TiledOuterLayer(slot, left, right, *vectors, copies))
                elif copies == 1:
                    found.append(OuterLayer(slot, left, right, *vectors))
        return found


def _by_record(values: Tensor, copies: int) -> Tensor:
    """[b, p, n]: all positions of all copies of a record."""
    return values.reshape(len(values) // copies, -1, values.shape[-1])


def _part(values: Tensor | None, slot: Slot) -> Tensor | None:
    return None if values is None else values[slot.start : slot.stop].view(slot.shape)
