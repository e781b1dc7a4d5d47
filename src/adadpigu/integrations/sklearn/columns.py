"""The columns of X as a person declares them, and each record's encoding by them. Declarations are public, cells not.

Nothing is computed across records. A refusal names record, column and cell: it goes to whoever holds the data, before
anything is trained, and is outside the guarantee.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adadpigu.data.description import CategoricalColumn, Column, NumericColumn, shorten
from adadpigu.data.tabular import Rows, encode, text_of
from adadpigu.errors import InputError, require, unknown

Pair = tuple[float, float]
Bounds = Pair | Sequence[Pair] | Mapping[Any, Pair]
Categories = Mapping[Any, Sequence[object]]


def declared_columns(
    names: Sequence[str], *, bounds: Bounds | None, categories: Categories | None, other: bool
) -> tuple[Column, ...]:
    """One column for each name, from what the user declares of it.

    >>> declared_columns(["age", "sex"], bounds=(0, 100), categories={"sex": ["F", "M"]}, other=False)[0]
    NumericColumn(name='age', low=0.0, high=100.0, missing=None)
    """
    listings = _by_name("categories", categories or {}, names)
    columns: dict[str, Column] = {name: _categorical(name, values, other) for name, values in listings.items()}
    numeric = [name for name in names if name not in columns]
    for name, pair in _pairs(bounds, numeric, names).items():
        columns[name] = numeric_column(name, pair, argument=f"bounds of column {name!r}")
    return tuple(columns[name] for name in names)


def numeric_column(name: str, pair: Any, *, argument: str) -> NumericColumn:
    try:
        low, high = map(float, pair)
    except (TypeError, ValueError):
        low = high = math.nan
    fits = math.isfinite(low) and math.isfinite(high) and high / 2 - low / 2 > 0
    require(fits, f"{argument}: {shorten(pair)} is not a pair (low, high) of finite numbers, low below high")
    return NumericColumn(name=name, low=low, high=high)


def _pairs(bounds: Bounds | None, numeric: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """The declared bounds of each numeric column, whichever way they are given."""
    if isinstance(bounds, Mapping):
        pairs = _by_name("bounds", bounds, names)
    else:
        given: Any = bounds
        try:
            shape = np.shape(given)
        except ValueError:  # rows of several lengths
            shape = ()
        single, fits = shape == (2,), shape in ((2,), (len(numeric), 2))
        pairs = dict(zip(numeric, [given] * len(numeric) if single else given, strict=True)) if fits else {}
    odd = sorted(pairs.keys() ^ {*numeric})
    require(
        not odd,
        f"bounds={shorten(bounds)} do not fit columns {odd}; allowed: public bounds or categories for each column, not "
        "both: one pair (low, high) for all numbers, a pair for each in order, or a mapping from column to pair (taken "
        "from the records they would be learned without noise)",
    )
    return pairs


def _by_name(argument: str, given: Mapping[Any, Any], names: Sequence[str]) -> dict[str, Any]:
    """The same declarations by name; a column may be meant by its position, too."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = dict(enumerate(names)).get(key, str(key))
        if name not in names:
            raise InputError(f"{argument}: {unknown('column', name, [*names, f'0 to {len(names) - 1}'])}")
        require(name not in found, f"{argument}: column {name!r} is there twice, by name and position; allowed: once")
        found[name] = value
    return found


def _categorical(name: str, values: Any, other: bool) -> CategoricalColumn:
    values = values.tolist() if hasattr(values, "tolist") else values  # an array, or a column of a table
    plain = isinstance(values, Sequence) and not isinstance(values, str) and not any(np.ndim(value) for value in values)
    texts = tuple(text_of(value) for value in values) if plain else ()
    fits = texts and len({*texts}) == len(texts)
    require(fits, f"categories of column {name!r}: {shorten(values)}; allowed: a list of at least 1, each once as text")
    return CategoricalColumn(name=name, categories=texts, other=other, missing="other" if other else None)


def encoded(cells: NDArray[Any], columns: Sequence[Column]) -> NDArray[np.float32]:
    """The records [n, width] that a model is shown, each encoded by itself."""
    by_name = {column.name: cells[:, place] for place, column in enumerate(columns)}
    rows = Rows(by_name, "X: record {}".format, if_missing="a public constant in its place", if_other="unknown='other'")
    return encode(rows, columns)
