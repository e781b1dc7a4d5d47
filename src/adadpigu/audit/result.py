"""What an audit found: ε claimed, ε shown, what had to be assumed, and a figure of it. Holds no record.

An audit can refute a claim, never prove one: `passed` says that it was not refuted.
"""

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adadpigu.accounting.journal import strict_json
from adadpigu.errors import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Progress = Callable[[int, int], None]  # told how much of the work is done, and how much there is

REFUTING = 1e-6  # the chance of a false alarm at which a claim is refuted
_NAMES = {"epsilon_certain": "epsilon_lower_certain", "reach": "epsilon_reach", "exposed": "diagnostics_exposed"}
"""what has another name in JSON"""


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """One audit of one subject.

    Formal guarantee: where `epsilon_certain` comes from a test, a valid claim is refuted with a probability of at most
    1e-6, under `assumed`. `findings` are refutations of another kind: each a sentence, each enough to fail.
    """

    audit: str
    subject: str
    epsilon_claimed: float
    delta: float
    epsilon_lower: float  # what was shown at `confidence`; infinite where nothing bounds what was seen
    epsilon_certain: float  # what was shown at confidence 1 − 1e-6: above the claim, it is refuted
    confidence: float
    observations: int  # in each world, where there are two
    assumed: tuple[str, ...]
    reach: float | None = None
    """what could have been shown at confidence 1 − 1e-6 by an attacker who never errs; None: no limit is known"""
    findings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    exposed: bool = False  # whether the user's own records were looked at
    draw: "Callable[[Figure], None] | None" = field(default=None, repr=False, compare=False)  # fills an empty figure

    @property
    def passed(self) -> bool:
        """Whether the claim was not refuted."""
        claims = not self.findings and math.isfinite(self.epsilon_claimed)
        return claims and self.epsilon_certain <= self.epsilon_claimed

    @property
    def powerless(self) -> bool:
        """Whether so many observations could not have refuted the claim, whatever they were."""
        return self.reach is not None and self.reach <= self.epsilon_claimed

    @property
    def verdict(self) -> str:
        """Whether the claim has fallen, in words."""
        if not self.passed:
            return "REFUTED"
        return "not refuted (too few to refute)" if self.powerless else "not refuted"

    def to_json(self) -> dict[str, object]:
        """The result as one JSON object; infinity is null there."""
        facts = {_NAMES.get(key, key): value for key, value in vars(self).items() if key not in ("details", "draw")}
        facts |= {"confidence_certain": 1 - REFUTING, "passed": self.passed, **self.details}
        return {key: strict_json(value) for key, value in facts.items()}


def picture(result: AuditResult) -> bytes:
    """An audit's figure as PNG, under a title that says what is claimed and what was shown."""
    from matplotlib.figure import Figure

    assert result.draw is not None
    shown = "∞" if math.isinf(result.epsilon_lower) else f"{result.epsilon_lower:.3g}"
    verdict = "not refuted" if result.passed else "REFUTED"
    claim = f"ε claimed {result.epsilon_claimed:.3g}, shown {shown} (confidence {result.confidence:g}): {verdict}"
    figure = Figure(figsize=(7, 4), layout="constrained")
    result.draw(figure)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{result.audit} audit of {result.subject}\n{claim}", x=0.01, ha="left", fontsize=11)
    made = io.BytesIO()
    figure.savefig(made, dpi=150, format="png")
    return made.getvalue()


def check_confidence(confidence: float) -> None:
    """Raises unless 0.5 ≤ confidence < 1."""
    require(0.5 <= confidence < 1, f"confidence={confidence} is not in [0.5, 1)")
