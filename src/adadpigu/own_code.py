"""Modules from code of the user's own, by name: `package.module:function`. It runs with the user's rights."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from torch import nn

from adadpigu.errors import InputError


def from_code(what: str, name: str) -> Callable[[], nn.Module]:
    """A function of the user's own that returns a module; `what` names the setting in errors."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{what}={name!r} cannot be imported: {error}; allowed: package.module:function") from None

    def build() -> nn.Module:
        try:
            made = found() if callable(found) else found
        except Exception as error:
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise InputError(f"{what}={name!r} raised {told}") from error
        if not isinstance(made, nn.Module):
            fault = f"{what}={name!r} gives a {type(made).__name__}"
            raise InputError(f"{fault}; allowed: a function that returns an nn.Module")
        return made

    return build
