"""scikit-learn estimators of the systems that make one release. Imported on demand: the methods do not need them."""

from __future__ import annotations

from typing import Any

__all__ = ["ObjectivePerturbationClassifier", "OutputPerturbationClassifier"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from adadpigu_systems.sklearn import linear

        return getattr(linear, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
