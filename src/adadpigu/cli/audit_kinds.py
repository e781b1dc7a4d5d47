"""The audits as the command line knows them: what each counts, what it means, which options it takes and how large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adadpigu.audit.result import AuditResult


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One audit as the command line knows it."""

    name: str
    counts: str
    """what its observations are"""
    means: str
    """what the ε that it shows says"""
    options: tuple[str, ...] = ()
    """that it takes beside those that all take"""
    looks_at_records: bool = False
    """so that own data needs --diagnostics; the others never look at a private record"""
    sample_rate: float = 0.02
    steps: int = 3000
    """of what is audited where neither a run, a preset nor a config says so"""

    def function(self) -> Callable[..., AuditResult]:
        """What runs it."""
        from adadpigu import audit

        found: Callable[..., AuditResult] = getattr(audit, f"audit_{self.name.replace('-', '_')}")
        return found


_LOOKED = "what an attacker has told apart: near the claim is as it should be, above it is a leak"
_IMPLIED = "what the claim's plan costs with what was found: at the claim is as it should be, above it is a leak"
_RECKONED = (
    "what the claim's plan costs at least, by another reckoning: at the claim is as it should be, above it is wrong"
)
KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="white-box",
            counts="released coordinates, each world",
            means=_LOOKED,
            options=("observations", "directions"),
        ),
        Kind(
            name="one-run",
            counts="guesses",
            means=_LOOKED,
            options=("canaries", "guesses"),
            looks_at_records=True,
        ),
        Kind(
            name="many-runs",
            counts="runs, each world",
            means=_LOOKED,
            options=("runs",),
            looks_at_records=True,
            sample_rate=0.1,
            steps=60,
        ),
        Kind(
            name="membership",
            counts="guesses",
            means=_LOOKED,
            options=("models",),
            looks_at_records=True,
            sample_rate=0.25,
            steps=200,
        ),
        Kind(name="sampler", counts="draws", means=_IMPLIED, options=("draws",)),
        Kind(name="noise", counts="numbers of noise", means=_IMPLIED, options=("numbers",)),
        Kind(name="replay", counts="draws compared", means=_IMPLIED),
        Kind(name="accountant", counts="draws counted", means=_RECKONED),
    )
}
MOST = {
    "observations": 10**8,
    "directions": 64,
    "canaries": 10**5,
    "guesses": 10**5,
    "runs": 10**6,
    "models": 10**4,
    "draws": 10**6,
    "numbers": 10**8,
}
