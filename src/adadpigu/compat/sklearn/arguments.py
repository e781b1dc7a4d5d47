"""An estimator's arguments, checked when `fit` begins: scikit-learn keeps whatever a constructor is given.

Numbers may be NumPy's, as a search over `np.linspace` gives them; text and truth values are none. Arguments are public.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from adadpigu.errors import InputError, unknown
from adadpigu.training.options import TrainingOptions


def shown(value: object) -> str:
    """A value in one line, long ones cut.

    >>> shown("a" * 50), shown(np.zeros((2, 1)))
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…", 'array([[0.], [0.]])')
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else text[:39] + "…"


def number(name: str, value: object, *, such_as: float) -> float:
    """A number as Python has it.

    >>> number("epsilon", np.float64(4.0), such_as=4.0)
    4.0
    >>> number("epsilon", "4", such_as=4.0)
    Traceback (most recent call last):
        ...
    adadpigu.errors.InputError: epsilon='4' is not a number; allowed: one such as 4.0, without quotes
    """
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        quotes = ", without quotes" if isinstance(plain, str) else ""
        raise InputError(f"{name}={shown(value)} is not a number; allowed: one such as {such_as}{quotes}")
    return plain


def whole_number(name: str, value: object, *, least: int) -> int:
    """A whole number as Python has it.

    >>> whole_number("batch_size", 0, least=1)
    Traceback (most recent call last):
        ...
    adadpigu.errors.InputError: batch_size=0 is not a whole number of at least 1
    """
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, int) or plain < least:
        raise InputError(f"{name}={shown(value)} is not a whole number of at least {least}")
    return plain


def _plain(value: object) -> object:
    """NumPy's scalars as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def further_options(given: object, own: tuple[str, ...]) -> dict[str, Any]:
    """The mapping `options`: fields of `TrainingOptions` that are no arguments of the estimator."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f"options={shown(given)}; allowed: None, or a mapping such as {{'momentum': 0.5}}")
    known = [field.name for field in fields(TrainingOptions) if field.name not in own]
    for name, value in given.items():
        if name in own:
            raise InputError(f"options: {name}={value!r} is an argument of its own; give epochs, not steps")
        if name not in known:
            raise unknown("option of train", str(name), known)
    return dict(given)


def text(name: str, value: object) -> str:
    """A name that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{name}={shown(value)}; allowed: a name, in quotes")
    return value


def file(name: str, value: object) -> Path | None:
    """The path of a file, or none."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{name}={shown(value)}; allowed: None, or the path of a file")
    return Path(value)
