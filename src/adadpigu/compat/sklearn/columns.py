"""The columns of X as a person declares them, and each record's encoding by them. Declarations are public, cells not.

x ↦ 2·(clamp(x) − low)/(high − low) − 1 for a number, a one-hot vector for a category. Nothing is computed across
records, so neighbours' encodings differ in one row only. A refusal names record, column and cell: it goes to whoever
holds the data, before anything is trained, and is outside the guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from adadpigu.compat.sklearn.arguments import number, shown
from adadpigu.data.description import CategoricalColumn, Column, NumericColumn, listed
from adadpigu.errors import InputError, unknown

Pair = tuple[float, float]
Bounds = Pair | Sequence[Pair] | Mapping[Any, Pair]
Categories = Mapping[Any, Sequence[object]]

_WHY = "taken from the records it would be learned from them without noise"


def declared_columns(
    names: Sequence[str], *, bounds: Bounds | None, categories: Categories | None, other: bool
) -> tuple[Column, ...]:
    """One column for each name, from what the user declares of it.

    >>> declared_columns(["age", "sex"], bounds=(0, 100), categories={"sex": ["F", "M"]}, other=False)[0]
    NumericColumn(name='age', low=0.0, high=100.0, missing=None)
    """
    listings = {} if categories is None else _by_name("categories", categories, names)
    columns: dict[str, Column] = {name: _categorical(name, values, other) for name, values in listings.items()}
    numeric = [name for name in names if name not in columns]
    for name, pair in _pairs(bounds, numeric, names).items():
        columns[name] = numeric_column(name, pair, argument=f"bounds of column {name!r}")
    return tuple(columns[name] for name in names)


def numeric_column(name: str, pair: object, *, argument: str) -> NumericColumn:
    """A number within a public range."""
    try:
        low, high = (float(number(argument, bound, such_as=0.0)) for bound in pair)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        low = high = float("nan")
    if not (np.isfinite(low) and np.isfinite(high) and low < high and high / 2 - low / 2 > 0):
        raise InputError(f"{argument}: {shown(pair)} is not a pair (low, high) of finite numbers, low below high")
    return NumericColumn(name=name, low=low, high=high)


def _pairs(bounds: Bounds | None, numeric: Sequence[str], names: Sequence[str]) -> dict[str, object]:
    """The declared bounds of each numeric column, whichever way they are given."""
    if not numeric:
        return {}
    if bounds is None:
        raise InputError(
            f"bounds=None: give a public (low, high) for every number, e.g. bounds=(0, 100), one pair a column or "
            f"{{{numeric[0]!r}: (0, 100), …}}; {_WHY}"
        )
    if isinstance(bounds, Mapping):
        given = _by_name("bounds", bounds, names)
        for name in names:
            if (name in given) != (name in numeric):
                fault = "has bounds and categories" if name in given else "has neither bounds nor categories"
                raise InputError(f"column {name!r} {fault}; allowed: one of them, public; {_WHY}")
        return given
    try:
        shape = np.shape(bounds)
    except ValueError:
        shape = ()
    if shape == (2,):
        return dict.fromkeys(numeric, bounds)
    if shape != (len(numeric), 2):
        raise InputError(
            f"bounds of shape {shape} for {len(numeric)} numeric columns; allowed: one pair (low, high) for all, a "
            "pair for each of them in order, or a mapping from column to pair"
        )
    return dict(zip(numeric, bounds, strict=True))


def _by_name(argument: str, given: Mapping[Any, Any], names: Sequence[str]) -> dict[str, Any]:
    """The same declarations by name; a column may be meant by its position, too."""
    if not isinstance(given, Mapping):
        raise InputError(f"{argument} is a {type(given).__name__}; allowed: a mapping from column to what it may hold")
    found: dict[str, Any] = {}
    for key, value in given.items():
        position = isinstance(key, int | np.integer) and not isinstance(key, bool)
        if position and not 0 <= key < len(names):
            raise InputError(f"{argument}: column {key} of {len(names)}; allowed: 0 to {len(names) - 1}, or a name")
        name = names[key] if position else str(key)
        if name not in names:
            raise InputError(f"{argument}: {unknown('column', name, names)}")
        if name in found:
            raise InputError(f"{argument}: column {name!r} is there twice, by name and by position; allowed: once")
        found[name] = value
    return found


def _categorical(name: str, values: Any, other: bool) -> CategoricalColumn:
    values = values.tolist() if hasattr(values, "tolist") else values  # an array, or a column of a table
    plain = isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0
    if not plain or any(np.ndim(value) for value in values):
        raise InputError(f"categories of column {name!r}: {shown(values)} is not a list of at least 1 category")
    texts = tuple(_text(value) for value in values)
    twice = [text for text in texts if texts.count(text) > 1]
    if twice:
        raise InputError(f"categories of column {name!r}: {twice[0]!r} is there twice; allowed: each once")
    return CategoricalColumn(name=name, categories=texts, other=other)


def encoded(cells: NDArray[Any], columns: Sequence[Column]) -> NDArray[np.float32]:
    """The records [n, width] that a model is shown, each encoded by itself."""
    parts = [
        _one_hot(cells[:, place], column)
        if isinstance(column, CategoricalColumn)
        else scaled(_numbers(cells[:, place], column), column)[:, None]
        for place, column in enumerate(columns)
    ]
    return np.concatenate(parts, axis=1, dtype=np.float32)


def scaled(values: NDArray[np.float64], column: NumericColumn) -> NDArray[np.float64]:
    """From [low, high] to [−1, 1]; what lies beyond is clamped."""
    centre, half = column.low / 2 + column.high / 2, column.high / 2 - column.low / 2
    return np.clip((np.clip(values, column.low, column.high) - centre) / half, -1.0, 1.0)


def unscaled(values: NDArray[np.float64], column: NumericColumn) -> NDArray[np.float64]:
    """From [−1, 1] back to [low, high]; what lies beyond is clamped."""
    centre, half = column.low / 2 + column.high / 2, column.high / 2 - column.low / 2
    return np.clip(np.clip(values, -1.0, 1.0) * half + centre, column.low, column.high)


def _numbers(cells: NDArray[Any], column: NumericColumn) -> NDArray[np.float64]:
    """A column of cells as finite numbers."""
    allowed = f"allowed: a number, clamped to [{column.low:g}, {column.high:g}]"
    try:
        values = cells.astype(np.float64)
    except (TypeError, ValueError):
        record = next((i for i, cell in enumerate(cells.tolist()) if not _is_number(cell)), 0)
        raise InputError(
            f"X: record {record}, column {column.name!r}: {shown(cells[record])} is no number; {allowed} (or the "
            "column's list under categories)"
        ) from None
    wrong = ~np.isfinite(values)
    if wrong.any():
        record = int(wrong.argmax())
        raise InputError(
            f"X: record {record}, column {column.name!r} holds NaN or infinity; {allowed} (fill in a public constant)"
        )
    return values


def _one_hot(cells: NDArray[Any], column: CategoricalColumn) -> NDArray[np.float32]:
    places = {name: place for place, name in enumerate(column.categories)}
    found = np.array([places.get(_text(cell), -1) for cell in cells.tolist()], dtype=np.int64)
    strange = found < 0
    if strange.any() and not column.other:
        record = int(strange.argmax())
        raise InputError(
            f"X: record {record}, column {column.name!r}: {shown(cells[record])} is not a declared category; allowed: "
            f"{listed(column.categories)} (or unknown='other')"
        )
    found[strange] = len(places)
    return np.eye(column.width, dtype=np.float32)[found]


def refuse_text(X: Any, names: Sequence[object] | None) -> None:
    """Raises an `InputError` for the first cell of a table of numbers that is none."""
    cells = check_array(X, dtype=object, ensure_all_finite=False)
    for place in range(cells.shape[1]):
        for record, cell in enumerate(cells[:, place].tolist()):
            if not _is_number(cell):
                name = f"x{place}" if names is None else str(names[place])
                raise InputError(
                    f"X: record {record}, column {name!r}: {shown(cell)} is no number; allowed: numbers alone (or the "
                    "column's list under categories)"
                )


_MISSING = ("NAType", "NaTType")
"""what pandas puts into an empty cell, besides None and NaN"""


def _text(cell: object) -> str:
    """A category as text. A whole float loses its point: a missing cell elsewhere in the column may have given it."""
    if cell is None or (isinstance(cell, float) and np.isnan(cell)) or type(cell).__name__ in _MISSING:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _is_number(cell: object) -> bool:
    try:
        float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True
