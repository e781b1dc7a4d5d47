"""What an audit found: ε claimed, ε shown, what had to be assumed, and a figure of it. Holds no record.

An audit can refute a claim, never prove one: `passed` says that it was not refuted.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adadpigu.errors import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Progress = Callable[[int, int], None]
"""told how much of the work is done, and how much there is"""

REFUTING = 1e-6
"""the chance of a false alarm at which a claim is refuted"""


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
    epsilon_lower: float
    """what was shown at `confidence`; infinite where nothing bounds what was seen"""
    epsilon_certain: float
    """what was shown at confidence 1 − 1e-6: above the claim, it is refuted"""
    confidence: float
    observations: int
    """in each world, where there are two"""
    assumed: tuple[str, ...]
    reach: float | None = None
    """what could have been shown at confidence 1 − 1e-6 by an attacker who never errs; None: no limit is known"""
    findings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    exposed: bool = False
    """whether the user's own records were looked at"""
    draw: Callable[[Figure], None] | None = field(default=None, repr=False, compare=False)
    """fills an empty figure"""

    @property
    def passed(self) -> bool:
        """Whether the claim was not refuted."""
        return (
            not self.findings and math.isfinite(self.epsilon_claimed) and self.epsilon_certain <= self.epsilon_claimed
        )

    @property
    def powerless(self) -> bool:
        """Whether so many observations could not have refuted the claim, whatever they were."""
        return self.reach is not None and self.reach <= self.epsilon_claimed

    def to_json(self) -> dict[str, object]:
        """The result as one JSON object; infinity is null there."""
        facts = {
            "audit": self.audit,
            "subject": self.subject,
            "epsilon_claimed": self.epsilon_claimed,
            "delta": self.delta,
            "epsilon_lower": self.epsilon_lower,
            "confidence": self.confidence,
            "epsilon_lower_certain": self.epsilon_certain,
            "confidence_certain": 1 - REFUTING,
            "epsilon_reach": self.reach,
            "observations": self.observations,
            "passed": self.passed,
            "findings": list(self.findings),
            "assumed": list(self.assumed),
            "diagnostics_exposed": self.exposed,
            **self.details,
        }
        return {key: _plain(value) for key, value in facts.items()}


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
    """Refuses a confidence that is none."""
    require(0.5 <= confidence < 1, f"confidence={confidence} is not in [0.5, 1)")


def _plain(value: object) -> object:
    """As JSON has it: what is not finite becomes null, wherever it stands."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
