"""Methods, one file each. A file in this folder that registers a class is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from adadpigu.errors import unknown
from adadpigu.methods.adaclip import AdaCliP
from adadpigu.methods.adadpigu import AdaDPIGU
from adadpigu.methods.base import Batches, Draw, Method, Running, Setting, Stage, register, registered
from adadpigu.methods.dpsgd import DPSGD
from adadpigu.methods.dpsur import DPSUR
from adadpigu.methods.parameter_freezing import ParameterFreezing
from adadpigu.methods.parts import Layers, Masked
from adadpigu.methods.quantile import QuantileClipping
from adadpigu.methods.random_freeze import RandomFreeze
from adadpigu.methods.sgd import SGD

__all__ = [
    "DPSGD",
    "DPSUR",
    "SGD",
    "AdaCliP",
    "AdaDPIGU",
    "Batches",
    "Draw",
    "Layers",
    "Masked",
    "Method",
    "ParameterFreezing",
    "QuantileClipping",
    "RandomFreeze",
    "Running",
    "Setting",
    "Stage",
    "all_methods",
    "make_method",
    "register",
]


def all_methods() -> dict[str, type[Method]]:
    """Every method by name, those in files nobody imported yet included."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return registered()


def make_method(name: str, options: Mapping[str, object] | None = None) -> Method:
    """A method by name, with its options.

    >>> make_method("dpsgd", {"clip_norm": 0.5})
    DPSGD(clip_norm=0.5)
    """
    methods = all_methods()
    if name not in methods:
        raise unknown("method", name, methods)
    return methods[name].from_options(options or {})
