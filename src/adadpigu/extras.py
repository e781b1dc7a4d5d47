"""Packages that only some users need: asked for when they are used, and named with the command that installs them."""

import importlib
from typing import Any

from adadpigu.errors import InputError


def import_extra(module: str, *, group: str, purpose: str) -> Any:
    """An optional package's module; where it is missing, one line says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:  # an ImportError of another kind is a broken package, and says so itself
        missing = error.name or module.partition(".")[0]
        fault = f"{purpose} needs the package {missing!r}, which is not there"
        raise InputError(f"{fault}; install it with pip install 'adadpigu[{group}]'") from None
