"""The ghost engine: layer rules, but gradients that are outer products are never built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from adadpigu.gradients.outer import OuterLayer
from adadpigu.gradients.rule_engine import Call, RuleEngine, Wanted
from adadpigu.layout import Slot


class GhostEngine(RuleEngine):
    """Linear layers on one position are bounded by weighted ghost norms; all others as in the materialised engine.

    Finding the largest entries of a record needs its whole gradient, so such a query is answered with all layers built.
    """

    name: ClassVar[str] = "ghost"

    def outer_layers(self, pairs: Sequence[tuple[Call, Tensor]], copies: int, wanted: Wanted) -> list[OuterLayer]:
        if copies > 1 or wanted.query.top_k < 1:
            return []
        uses = Counter(id(p) for call, _ in pairs for p in call.module.parameters(recurse=False))
        owned = {id(self.model.get_parameter(slot.name)): slot for slot in wanted.slots}
        weight, center = wanted.whole.weight, wanted.whole.center
        found = []
        for call, dy in pairs:
            module = call.module
            if type(module) is nn.Linear and dy.dim() == 2 and uses[id(module.weight)] == 1:
                slot = owned.get(id(module.weight))
                if slot is not None:
                    found.append(OuterLayer(slot, dy, call.x, _part(weight, slot), _part(center, slot)))
        return found


def _part(values: Tensor | None, slot: Slot) -> Tensor | None:
    return None if values is None else values[slot.start : slot.stop].view(slot.shape)
