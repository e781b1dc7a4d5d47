"""A table of records, CSV or Parquet, as tensors. The cells are private; the description of the columns is public.

Each row is encoded by itself: x ↦ 2·(clamp(x) − low)/(high − low) − 1 for a number, a one-hot vector for a category.
Nothing is computed across rows (no vocabulary, no minimum, no mean), so neighbours' encodings differ in one row
only. A refusal names row, column and cell: it goes to whoever holds the data, before anything is trained, and is
outside the guarantee.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadpigu.data.datasets import TensorRecords
from adadpigu.data.description import CategoricalColumn, Column, NumericColumn, TableFacts, listed
from adadpigu.errors import InputError

CHUNK = 8192
"""rows held as Python objects at once"""

_EMPTY = frozenset(("", "nan", "NaN"))
"""cells that hold nothing, unless one is declared a category"""


@dataclass(frozen=True)
class Rows:
    """Some consecutive rows of a table: their cells by column."""

    path: Path
    start: int
    cells: Mapping[str, Sequence[object]]
    size: int
    lines: Sequence[int] | None = None
    """the line that each row ends on, in a text file"""

    def refusal(self, row: int, column: str, fault: str, allowed: str) -> InputError:
        line = "" if self.lines is None else f" (line {self.lines[row]})"
        return InputError(f"{self.path}: row {self.start + row + 1}{line}, column {column!r}: {fault}; {allowed}")


def read_table(path: Path, facts: TableFacts, classes: Sequence[str]) -> TensorRecords:
    """The records of a file: encoded features [n, width], and the positions of their labels among the classes."""
    used = [facts.label, *(column.name for column in facts.columns)]
    inputs, targets = [np.empty((0, *facts.shape), np.float32)], [np.empty(0, np.int64)]
    for rows in _read(path, facts, used):
        inputs.append(_features(rows, facts.columns))
        targets.append(_labels(rows, facts.label, classes))
    if len(inputs) == 1:
        raise InputError(f"{path}: there is no record; allowed: at least 1")
    return TensorRecords(
        torch.from_numpy(np.concatenate(inputs)), torch.from_numpy(np.concatenate(targets)), name=path.name
    )


def read_features(path: Path, facts: TableFacts) -> Tensor:
    """The encoded features [n, width] of a file whose label column is absent or not looked at."""
    used = [column.name for column in facts.columns]
    chunks = [_features(rows, facts.columns) for rows in _read(path, facts, used)]
    return torch.from_numpy(np.concatenate([np.empty((0, *facts.shape), np.float32), *chunks]))


def csv_header(path: Path, separator: str = ",") -> list[str]:
    """The column names of a CSV file; no row is looked at."""
    with _refusing(path), path.open(encoding="utf-8-sig", newline="") as file:
        names = [name.strip() for name in next(csv.reader(file, delimiter=separator, strict=True), [])]
    _check_header(path, names)
    return names


def csv_separator(path: Path) -> str:
    """The separator that makes the most columns of a CSV file's header; a comma where there is one column."""
    with _refusing(path), path.open(encoding="utf-8-sig", newline="") as file:
        counts = {}
        for separator in ",;\t|":
            file.seek(0)
            counts[separator] = len(next(csv.reader(file, delimiter=separator), []))
    return max(counts, key=lambda separator: counts[separator])


def parquet_columns(path: Path) -> dict[str, str]:
    """The columns of a Parquet file and their types; its statistics and rows are not looked at."""
    with _refusing(path), _parquet(path) as file:
        schema = file.schema_arrow
    _check_header(path, schema.names)
    return {field.name: str(field.type) for field in schema}


def _read(path: Path, facts: TableFacts, used: Sequence[str]) -> Iterator[Rows]:
    with _refusing(path):
        yield from (_parquet_rows if path.suffix.lower() == ".parquet" else _csv_rows)(path, facts, used)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """A file that cannot be read becomes an error of one line that names it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"file={str(path)!r} cannot be read: {error.strerror or 'it is damaged'}") from None
    except UnicodeDecodeError:
        raise InputError(f"file={str(path)!r} cannot be read: it is not UTF-8 text") from None
    except csv.Error as error:
        raise InputError(f"file={str(path)!r} cannot be read: it is not CSV: {error}") from None


def _csv_rows(path: Path, facts: TableFacts, used: Sequence[str]) -> Iterator[Rows]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=facts.separator, strict=True)
        try:
            names = [name.strip() for name in next(reader, [])]
            _check_header(path, names)
            _check_columns(path, names, facts, used)
            places = {name: names.index(name) for name in used}
            start = 0
            lines = _numbered(path, reader, len(names))
            while chunk := list(islice(lines, CHUNK)):
                numbers, rows = zip(*chunk, strict=True)
                columns = list(zip(*rows, strict=True))
                yield Rows(path, start, {n: columns[i] for n, i in places.items()}, len(rows), numbers)
                start += len(rows)
        except csv.Error as error:
            raise InputError(f"{path}: line {reader.line_num} is not CSV: {error}") from None


def _numbered(path: Path, reader: Any, width: int) -> Iterator[tuple[int, list[str]]]:
    """The rows with their lines; blank lines are none."""
    count = 0
    for row in reader:
        if not row:
            continue
        count += 1
        if len(row) != width:
            raise InputError(
                f"{path}: row {count} (line {reader.line_num}) has {len(row)} cells; allowed: {width}, one a name"
            )
        yield reader.line_num, row


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"file={str(path)!r}: Parquet needs the package pyarrow; install it with pip install 'adadpigu[parquet]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except pyarrow.ArrowException:
        raise InputError(f"file={str(path)!r} cannot be read: it is not Parquet, or damaged") from None


def _parquet_rows(path: Path, facts: TableFacts, used: Sequence[str]) -> Iterator[Rows]:
    with _parquet(path) as file:
        schema = file.schema_arrow
        _check_header(path, schema.names)
        _check_columns(path, schema.names, facts, used)
        for name in used:
            _check_type(path, name, schema.field(name).type)
        start = 0
        for batch in file.iter_batches(batch_size=CHUNK, columns=list(used)):
            if batch.num_rows:
                yield Rows(path, start, {n: batch.column(n).to_pylist() for n in used}, batch.num_rows)
            start += batch.num_rows


def _check_type(path: Path, name: str, kind: Any) -> None:
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    plain = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
    if not any(test(value) for test in (*plain, types.is_string, types.is_large_string)):
        raise InputError(f"{path}: column {name!r} has type {kind}; allowed: numbers, booleans and text")


def _check_header(path: Path, names: Sequence[str]) -> None:
    if not names:
        raise InputError(f"{path}: there is no header; allowed: a first line with the columns' names")
    for position, name in enumerate(names, start=1):
        if not name:
            raise InputError(f"{path}: column {position} has no name; allowed: a header with a name for each column")
        if names.index(name) != position - 1:
            raise InputError(f"{path}: column {name!r} is there twice; allowed: each name once")


def _check_columns(path: Path, names: Sequence[str], facts: TableFacts, used: Sequence[str]) -> None:
    lost = [name for name in used if name not in names]
    if lost:
        hint = " (a `separator` in the description says what is between cells, if not a comma)" * (len(names) == 1)
        raise InputError(f"{path} has no column {lost[0]!r}; it has {listed(names)}{hint}")
    known = {facts.label, *facts.ignore, *(column.name for column in facts.columns)}
    odd = [name for name in names if name not in known]
    if odd:
        raise InputError(
            f"{path}: column {odd[0]!r} is not described; allowed: [columns.{odd[0]}] in the description, or its name "
            "under ignore"
        )


def _features(rows: Rows, columns: Sequence[Column]) -> NDArray[np.float32]:
    parts = [_numeric(rows, c) if isinstance(c, NumericColumn) else _one_hot(rows, c) for c in columns]
    return np.concatenate(parts, axis=1)


def _numeric(rows: Rows, column: NumericColumn) -> NDArray[np.float32]:
    allowed = f"allowed: a number, clamped to [{column.low:g}, {column.high:g}]"
    cells = rows.cells[column.name]
    try:
        values = np.array([_number(cell) for cell in cells], dtype=np.float64)
    except ValueError:
        row = next(i for i, cell in enumerate(cells) if not _is_number(cell))
        raise rows.refusal(row, column.name, f"{_shown(cells[row])} is no number", allowed) from None
    missing = np.isnan(values)
    if missing.any():
        if column.missing is None:
            row = int(missing.argmax())
            raise rows.refusal(row, column.name, "the value is missing", f"{allowed}, or `missing` in the description")
        values[missing] = column.missing
    if np.isinf(values).any():
        raise rows.refusal(int(np.isinf(values).argmax()), column.name, "the value is infinite", allowed)
    centre, half = column.low / 2 + column.high / 2, column.high / 2 - column.low / 2
    scaled = (np.clip(values, column.low, column.high) - centre) / half
    return np.clip(scaled, -1, 1).astype(np.float32)[:, None]


def _one_hot(rows: Rows, column: CategoricalColumn) -> NDArray[np.float32]:
    places = {name: place for place, name in enumerate(column.categories)}
    allowed = f"allowed: {listed(column.categories)}"
    found = np.empty(rows.size, dtype=np.int64)
    for row, cell in enumerate(rows.cells[column.name]):
        name = _text(cell)
        place = places.get(name)
        if place is None:
            if name in _EMPTY:
                if column.missing is None:
                    fault, more = "the value is missing", f"{allowed}, or `missing` in the description"
                    raise rows.refusal(row, column.name, fault, more)
                place = places.get(column.missing, len(places))
            elif column.other:
                place = len(places)
            else:
                more = f"{allowed} (or `other = true` in the description)"
                raise rows.refusal(row, column.name, f"the category {_shown(cell)} is not declared", more)
        found[row] = place
    return np.eye(column.width, dtype=np.float32)[found]


def _labels(rows: Rows, label: str, classes: Sequence[str]) -> NDArray[np.int64]:
    places = {name: place for place, name in enumerate(classes)}
    allowed = f"allowed: {listed(classes)}"
    found = np.empty(rows.size, dtype=np.int64)
    for row, cell in enumerate(rows.cells[label]):
        name = _text(cell)
        if name not in places:
            fault = "the label is missing" if name in _EMPTY else f"the label {_shown(cell)} is not a class"
            raise rows.refusal(row, label, fault, allowed)
        found[row] = places[name]
    return found


def _number(cell: Any) -> float:
    """A cell as a number, NaN where it is empty; `1_000` is none, though Python's float takes it."""
    if cell is None or cell == "":
        return float("nan")
    if isinstance(cell, str):
        cell = cell.strip() or "nan"
        if "_" in cell:
            raise ValueError
    return float(cell)


def _is_number(cell: object) -> bool:
    try:
        _number(cell)
    except ValueError:
        return False
    return True


def _text(cell: object) -> str:
    """A cell as a name. A whole float loses its point: an empty cell elsewhere in the column may have given it."""
    if isinstance(cell, str):
        return cell.strip()
    if cell is None:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _shown(cell: object) -> str:
    shown = repr(cell)
    return shown if len(shown) <= 40 else shown[:39] + "…"
