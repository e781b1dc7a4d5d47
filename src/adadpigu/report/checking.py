"""What JSON of a stranger may be before a page shows it: the type and the range of each value, told in one line.

A refusal names the file and the key; the value itself may be anything, so that it is not repeated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adadpigu.errors import InputError, first_line


@dataclass(frozen=True)
class Fields:
    """The keys of one JSON object, and where it stands."""

    values: Mapping[str, Any]
    where: str

    def number(self, key: str, low: float = -math.inf, high: float = math.inf) -> float | None:
        """A finite number within bounds, or None for null or nothing."""
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not _finite(value) or not low <= value <= high:
            raise self._odd(key, f"null, or a finite number from {low:g} to {high:g}")
        return float(value)

    def count(self, key: str) -> int:
        """A whole number of at least 0."""
        value = self.values.get(key)
        if type(value) is not int or not 0 <= value < 2**53:  # what a page's numbers can hold
            raise self._odd(key, "a whole number of at least 0")
        return value

    def text(self, key: str) -> str:
        """Words."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self._odd(key, "a text")
        return value

    def flag(self, key: str) -> bool:
        """True or false; nothing is false."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self._odd(key, "true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of words; nothing is none."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._odd(key, "a list of texts")
        return tuple(value)

    def shares(self, key: str, most: int, low: float = -math.inf, high: float = math.inf) -> dict[str, float]:
        """A number for each name (such as a layer's); nothing is none."""
        value = self.values.get(key, {})
        if not isinstance(value, dict) or len(value) > most:
            raise self._odd(key, f"at most {most} names with a number each")
        inner = Fields(value, f"{self.where}: {key}")
        return {name: found for name in value if (found := inner.number(name, low, high)) is not None}

    def _odd(self, key: str, allowed: str) -> InputError:
        shown = key if key.isidentifier() and len(key) < 40 else "a value"
        return InputError(f"{self.where}: {shown} is odd; allowed: {allowed}")


def fields_of(text: str, where: str) -> Fields:
    """A JSON object from text; NaN, nesting without end and numbers of thousands of digits are refused."""
    try:
        found = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise InputError(f"{where} cannot be read: it nests too deep") from None
    except ValueError as error:
        raise InputError(f"{where} cannot be read: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise InputError(f"{where} cannot be read: it is not an object")
    return Fields(found, where)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
