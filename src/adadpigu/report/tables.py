"""Tables of rows that are no runs: those that `adadpigu` and its experiments write, and any that somebody names.

Un-noised values of Diagnostics are refused by the names that they have, wherever in a row they stand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adadpigu.errors import InputError
from adadpigu.report.checking import Fields
from adadpigu.report.embedding import name

MOST_COLUMNS = 24
"""of a table"""
MOST_ROWS = 5000
"""of a table"""
UNNOISED = {"batch_size", "loss_mean", "norm_median", "norm_max", "non_finite"}
"""keys of which any is enough to know a row of Diagnostics by, under whatever name its file was put away"""
OWN: tuple[frozenset[str], ...] = (
    frozenset({"net", "batch", "method", "ms", "peak_mib"}),
    frozenset({"against", "points", "worst", "linear"}),
    frozenset({"net", "batch", "ms_step", "ms_record"}),
    frozenset({"sigma_printed", "sigma_pld", "sigma_rdp"}),
    frozenset({"claim", "problem", "measured", "printed"}),
    frozenset({"round", "features", "epsilon", "score", "accuracy"}),
    frozenset({"score", "normalisation", "noise_multiplier", "percent"}),
)
"""columns by which a table of benchmarks, of the paper's figures or of a search for settings is known"""


@dataclass(frozen=True, kw_only=True)
class OtherTable:
    """Rows that are no runs."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def to_json(self) -> dict[str, object]:
        """For the page."""
        return {"name": name(self.name), "columns": [name(c) for c in self.columns], "rows": [*map(list, self.rows)]}


def is_own(row: Fields) -> bool:
    """Whether a row has the columns of a table that adadpigu or its experiments write."""
    return any(columns <= row.values.keys() for columns in OWN)


def refuse_unnoised(row: Fields, setting: str = "") -> None:
    """Refuses a row with a value of Diagnostics at any depth; in a table of ours `batch_size` is a setting."""
    allowed = {setting, "batch_size"} if is_own(row) else {setting}
    found = UNNOISED.intersection(_keys(row.values)) - allowed
    if found:
        raise InputError(
            f"{row.where} has {min(found)}, which Diagnostics record: un-noised values, which no page shows; "
            "allowed: rows without it (call a planned size expected_batch_size)"
        )


def _keys(value: object) -> Iterator[str]:
    """The keys of all objects within a value; a nest without end raises RecursionError."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key).strip().lower()
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def table_of(stem: str, rows: Sequence[Fields]) -> OtherTable:
    """Rows of any kind as a table, in the order of their keys, as far as there is room."""
    columns = tuple(dict.fromkeys(key for row in rows for key in row.values))[:MOST_COLUMNS]
    shown = rows[:MOST_ROWS]
    cells = tuple(tuple(_cell(row.values.get(column)) for column in columns) for row in shown)
    cut = f" (the first {len(shown):,} of {len(rows):,} rows)" if len(rows) > len(shown) else ""
    return OtherTable(name=f"{stem}{cut}", columns=columns, rows=cells)


def _cell(value: object) -> object:
    """Finite numbers as they are, anything else as words."""
    if value is None or type(value) is bool:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int and abs(value) < 2**53:
        return value
    return name(value if isinstance(value, str) else json.dumps(value))
