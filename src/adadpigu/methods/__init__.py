"""Methods, one file each. A file in this folder that registers a class is found by itself.

Packages of others add theirs as entry points of the group `adadpigu.methods`, each naming a module or a class. Presets
for them stand beside that module, in a folder `presets`.
"""

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from adadpigu.errors import check_known, first_line
from adadpigu.methods.adaclip import AdaCliP as AdaCliP
from adadpigu.methods.adadpigu import AdaDPIGU as AdaDPIGU
from adadpigu.methods.adadpigu import Layers as Layers
from adadpigu.methods.adadpigu import Masked as Masked
from adadpigu.methods.base import Method as Method
from adadpigu.methods.base import register, registered
from adadpigu.methods.dpsgd import DPSGD as DPSGD
from adadpigu.methods.dpsur import DPSUR as DPSUR
from adadpigu.methods.parameter_freezing import ParameterFreezing as ParameterFreezing
from adadpigu.methods.quantile import QuantileClipping as QuantileClipping
from adadpigu.methods.random_freeze import RandomFreeze as RandomFreeze
from adadpigu.methods.sgd import SGD as SGD


def all_methods() -> dict[str, type[Method]]:
    """Every method by name, those in files nobody imported yet and those of other packages included."""
    _import_all()
    return registered()


def own_methods() -> dict[str, type[Method]]:
    return {name: method for name, method in all_methods().items() if method.__module__.startswith("adadpigu.")}


def plugged_packages() -> tuple[str, ...]:
    """The packages of others in which methods were found, by their dotted names."""
    return _import_all()


@cache
def _import_all() -> tuple[str, ...]:
    """Once in a process: looking for entry points takes 30 ms."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    own, packages = registered(), list[str]()
    for plugged in sorted(entry_points(group="adadpigu.methods")):
        try:
            found = plugged.load()
            if isinstance(found, type) and issubclass(found, Method):
                register(found)
            packages.append(sys.modules[plugged.module].__package__ or "")
        except Exception as error:  # whatever a package of others does: the methods that work stay usable
            told = f"method {plugged.name!r} ({plugged.value}) cannot be loaded: {first_line(error)}"
            warnings.warn(told, stacklevel=3)
    for method in own.values():  # a name of ours stays ours
        register(method)
    return tuple(filter(None, dict.fromkeys(packages)))


def make_method(name: str, options: Mapping[str, object] | None = None) -> Method:
    """A method by name, with its options.

    >>> make_method("dpsgd", {"clip_norm": 0.5})
    DPSGD(clip_norm=0.5)
    """
    methods = all_methods()
    check_known("method", name, methods)
    return methods[name].from_options(options or {})
