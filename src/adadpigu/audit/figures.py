"""The figure of an audit: what the audit draws, under a title that says what is claimed and what was shown."""

from __future__ import annotations

import io
import math

from adadpigu.audit.result import AuditResult


def picture(result: AuditResult) -> bytes:
    """An audit's figure as PNG."""
    from matplotlib.figure import Figure

    assert result.draw is not None
    figure = Figure(figsize=(7, 4), layout="constrained")
    result.draw(figure)
    figure.suptitle(f"{result.audit} audit of {result.subject}\n{_claim(result)}", x=0.01, ha="left", fontsize=11)
    made = io.BytesIO()
    figure.savefig(made, dpi=150, format="png")
    return made.getvalue()


def _claim(result: AuditResult) -> str:
    shown = "∞" if math.isinf(result.epsilon_lower) else f"{result.epsilon_lower:.3g}"
    verdict = "not refuted" if result.passed else "REFUTED"
    return f"ε claimed {result.epsilon_claimed:.3g}, shown {shown} (confidence {result.confidence:g}): {verdict}"
