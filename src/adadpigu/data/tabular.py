"""A table of records (CSV, Parquet, in memory) as numbers, by the public description of its columns.

x ↦ 2·(clamp(x) − low)/(high − low) − 1 for a number, a one-hot vector for a category. Nothing is computed across rows,
so neighbours' encodings differ in one row only. A refusal names row, column and cell, to the person who holds the
data and before anything is trained; it is outside the guarantee.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadpigu.core.sampling import NO_NAME, Owners, owner_name
from adadpigu.data.datasets import TensorRecords
from adadpigu.data.description import CategoricalColumn, Column, NumericColumn, TableFacts, listed, reading, shorten
from adadpigu.errors import InputError, require
from adadpigu.extras import import_extra

CHUNK = 8192  # rows held as Python objects at once
_EMPTY = frozenset(("", "nan", "NaN"))  # cells that hold nothing, unless one is declared a category
_MISSING = ("NAType", "NaTType")  # what pandas puts into an empty cell, besides None and NaN


@dataclass(frozen=True)
class Rows:
    cells: Mapping[str, Sequence[Any] | NDArray[Any]]  # by column
    where: Callable[[int], str]  # what to call a row in a refusal
    if_missing: str = "`missing` in the description"
    if_other: str = "`other = true` in the description"  # how to declare that a missing, or another, value is allowed


def encode(rows: Rows, columns: Sequence[Column]) -> NDArray[np.float32]:
    """The rows [n, width] that a model is shown."""
    parts = [_one_hot(rows, c) if isinstance(c, CategoricalColumn) else _numeric(rows, c) for c in columns]
    return np.concatenate(parts, axis=1)


def scale(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """From [low, high] to [−1, 1]; what lies beyond is clamped."""
    centre, half = low / 2 + high / 2, high / 2 - low / 2
    return np.clip((np.clip(values, low, high) - centre) / half, -1.0, 1.0)


def unscale(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """From [−1, 1] back to [low, high]; what lies beyond is clamped."""
    centre, half = low / 2 + high / 2, high / 2 - low / 2
    return np.clip(np.clip(values, -1.0, 1.0) * half + centre, low, high)


def positions(
    rows: Rows, name: str, known: Sequence[str], *, missing: str | None = None, other: bool = False, what: str = "value"
) -> NDArray[np.int64]:
    """The place of each cell among known names; `missing` stands for an empty one, and `other` for any other."""
    places = {known_name: place for place, known_name in enumerate(known)}
    absent = -1 if missing is None else places.get(missing, len(places))
    texts = [text_of(cell) for cell in rows.cells[name]]
    strange = len(places) if other else -1
    found = np.array([places.get(text, absent if text in _EMPTY else strange) for text in texts], np.int64)
    if (found < 0).any():
        row = int((found < 0).argmax())
        empty = texts[row] in _EMPTY
        fault = f"the {what} is missing" if empty else f"the {what} {_shown(rows, name, row)} is not declared"
        allowed = listed(known) + f", or {rows.if_missing if empty else rows.if_other}" * (what == "value")
        raise InputError(f"{rows.where(row)}, column {name!r}: {fault}; allowed: {allowed}")
    return found


def text_of(cell: object) -> str:
    """A cell as a name. A whole float loses its point: an empty cell elsewhere in the column may have given it."""
    if cell is None or type(cell).__name__ in _MISSING or cell != cell:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def _one_hot(rows: Rows, column: CategoricalColumn) -> NDArray[np.float32]:
    found = positions(rows, column.name, column.categories, missing=column.missing, other=column.other)
    return np.eye(column.width, dtype=np.float32)[found]


def _numeric(rows: Rows, column: NumericColumn) -> NDArray[np.float32]:
    cells = rows.cells[column.name]
    numbers = isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub"
    values = np.array(cells if numbers else [_number(cell) for cell in cells], np.float64)
    if column.missing is not None:
        values[np.isnan(values)] = column.missing
    if not np.isfinite(values).all():
        row = int((~np.isfinite(values)).argmax())
        missing = bool(np.isnan(values[row]))
        fault = "the value is missing or NaN" if missing else f"{_shown(rows, column.name, row)} is no number"
        allowed = f"a finite number, clamped to [{column.low:g}, {column.high:g}]" + f", or {rows.if_missing}" * missing
        raise InputError(f"{rows.where(row)}, column {column.name!r}: {fault}; allowed: {allowed}")
    return scale(values, column.low, column.high).astype(np.float32)[:, None]


def _number(cell: Any) -> float:
    """A cell as a number: NaN where it is empty, infinite where it is none, as `1_000`, which Python's float takes."""
    if isinstance(cell, str | NoneType) or type(cell).__name__ in _MISSING:
        cell = text_of(cell) or "nan"
    try:
        return math.inf if isinstance(cell, str) and "_" in cell else float(cell)
    except (TypeError, ValueError):
        return math.inf


def _shown(rows: Rows, name: str, row: int) -> str:
    cell = rows.cells[name][row]
    return shorten(cell.item() if isinstance(cell, np.generic) else cell, most=40)


def read_table(path: Path, facts: TableFacts, classes: Sequence[str]) -> TensorRecords:
    """The records of a file: encoded features [n, width], and the positions of their labels among the classes."""
    chunks = [
        (encode(rows, facts.columns), positions(rows, facts.label, classes, what="label"))
        for rows in _read(path, facts, [facts.label, *(column.name for column in facts.columns)])
    ]
    require(chunks, f"{path}: there is no record; allowed: at least 1")
    inputs, targets = map(np.concatenate, zip(*chunks, strict=True))
    return TensorRecords(inputs, targets, name=path.name)


def read_owners(path: Path, facts: TableFacts, test: Path | None = None) -> Owners | None:
    """Whose each record of a file is, where a column says so. Of a `test` file with that column, owners are others."""
    if facts.owner is None or facts.owner_cap is None:
        return None
    names = _owner_names(path, facts, facts.owner)
    if test is not None and facts.owner in _column_names(test, facts):
        apart = {*names}.isdisjoint(_owner_names(test, facts, facts.owner))
        told = f"{test}: test records are of owners who are trained on; allowed: those of others (split by owner)"
        require(apart, told)
    return Owners.of(names, cap=facts.owner_cap)


def _owner_names(path: Path, facts: TableFacts, column: str) -> list[str]:
    names: list[str] = []
    for rows in _read(path, facts, [column]):
        cells = rows.cells[column]
        chunk = [text_of(cell) for cell in cells]
        row = next((row for row, name in enumerate(chunk) if name in NO_NAME), None)
        if row is not None:
            fault = f"{rows.where(row)}, column {column!r}: the owner is missing"
            raise InputError(f"{fault}; allowed: a name or a number in each row")
        names += chunk
        [owner_name(cell) for cell in cells if isinstance(cell, float)]  # refuses what is not exact
    return names


def _column_names(path: Path, facts: TableFacts) -> list[str]:
    return [*parquet_columns(path)] if path.suffix.lower() == ".parquet" else csv_header(path, facts.separator)


def read_features(path: Path, facts: TableFacts) -> Tensor:
    """The encoded features [n, width] of a file whose label column is absent or not looked at."""
    chunks = [encode(rows, facts.columns) for rows in _read(path, facts, [c.name for c in facts.columns])]
    return torch.from_numpy(np.concatenate([np.empty((0, *facts.shape), np.float32), *chunks]))


def csv_header(path: Path, separator: str = ",") -> list[str]:
    """The column names of a CSV file; no row is looked at."""
    with reading(path, kind="CSV"), _csv(path, separator) as reader:
        return _header(path, next(reader, []))


def csv_separator(path: Path) -> str:
    """The separator that makes the most columns of a CSV file's header; a comma where there is one column."""
    counts = {}
    for separator in ",;\t|":
        with reading(path, kind="CSV"), _csv(path, separator, strict=False) as reader:
            counts[separator] = len(next(reader, []))
    return max(counts, key=lambda separator: counts[separator])


def parquet_columns(path: Path) -> dict[str, str]:
    """The columns of a Parquet file and their types; its statistics and rows are not looked at."""
    with reading(path, kind="Parquet"), _parquet(path) as file:
        schema = file.schema_arrow
    _header(path, schema.names)
    return {field.name: str(field.type) for field in schema}


def _read(path: Path, facts: TableFacts, used: Sequence[str]) -> Iterator[Rows]:
    """The rows of a file in chunks, with the cells of the columns that are used."""
    parquet = path.suffix.lower() == ".parquet"
    with reading(path, kind="Parquet" if parquet else "CSV"):
        yield from (_parquet_rows if parquet else _csv_rows)(path, facts, used)


@contextmanager
def _csv(path: Path, separator: str, *, strict: bool = True) -> Iterator[Any]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator, strict=strict)
        try:
            yield reader
        except csv.Error as error:
            raise csv.Error(f"line {reader.line_num}: {error}") from None


def _csv_rows(path: Path, facts: TableFacts, used: Sequence[str]) -> Iterator[Rows]:
    with _csv(path, facts.separator) as reader:
        names = _header(path, next(reader, []))
        _check_columns(path, names, facts, used)
        start, numbered = 0, ((reader.line_num, row) for row in reader if row)  # a blank line is no row
        while chunk := list(islice(numbered, CHUNK)):
            lines, rows = zip(*chunk, strict=True)
            where = partial(_row_name, path, start, lines)
            cut = next((place for place, row in enumerate(rows) if len(row) != len(names)), None)
            if cut is not None:
                raise InputError(f"{where(cut)} has {len(rows[cut])} cells; allowed: {len(names)}, one a name")
            columns = dict(zip(names, zip(*rows, strict=True), strict=True))
            yield Rows({name: columns[name] for name in used}, where)
            start += len(rows)


def _parquet_rows(path: Path, facts: TableFacts, used: Sequence[str]) -> Iterator[Rows]:
    plain = ("integer", "floating", "decimal", "boolean", "null", "string", "large_string")
    with _parquet(path) as file:
        from pyarrow import types

        schema = file.schema_arrow
        _check_columns(path, _header(path, schema.names), facts, used)
        for name in used:
            kind = schema.field(name).type
            value = kind.value_type if types.is_dictionary(kind) else kind
            fits = any(getattr(types, f"is_{each}")(value) for each in plain)
            require(fits, f"{path}: column {name!r} has type {kind}; allowed: numbers, booleans and text")
            coarse = name == facts.owner and (types.is_float16(value) or types.is_float32(value))
            require(not coarse, f"{path}: owners {name!r} are {kind}, too coarse a type; allowed: integers, text")
        start = 0
        for batch in file.iter_batches(batch_size=CHUNK, columns=list(used)):
            if batch.num_rows:
                cells = {name: batch.column(name).to_pylist() for name in used}
                yield Rows(cells, partial(_row_name, path, start, None))
            start += batch.num_rows


def _row_name(path: Path, start: int, lines: Sequence[int] | None, row: int) -> str:
    return f"{path}: row {start + row + 1}" + ("" if lines is None else f" (line {lines[row]})")


def _parquet(path: Path) -> Any:
    return import_extra("pyarrow.parquet", group="parquet", purpose=f"file={str(path)!r}: Parquet").ParquetFile(path)


def _header(path: Path, names: Sequence[str]) -> list[str]:
    names = [name.strip() for name in names]
    require(names, f"{path}: there is no header; allowed: a first line with the columns' names")
    odd = [place for place, name in enumerate(names, start=1) if not name or names.index(name) != place - 1]
    fault = f"column {next(iter(odd), 0)} of the header has no name, or another column's"
    require(not odd, f"{path}: {fault}; allowed: a name for each, once")
    return names


def _check_columns(path: Path, names: Sequence[str], facts: TableFacts, used: Sequence[str]) -> None:
    lost = ", ".join(repr(name) for name in used if name not in names)
    hint = " (a `separator` in the description says what is between cells, if not a comma)" * (len(names) == 1)
    require(not lost, f"{path} has no column {lost}; it has {listed(names)}{hint}")
    known = {facts.label, facts.owner, *facts.ignore, *(column.name for column in facts.columns)}
    odd = listed([repr(name) for name in names if name not in known])
    require(not odd, f"{path}: column {odd} is not described; allowed: [columns.NAME] for it, or its name under ignore")
