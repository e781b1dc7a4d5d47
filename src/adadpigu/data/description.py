"""What a person declares public about records of their own: a TOML file beside the data. Public throughout.

None of it may be read off the records: N sets the sampling rate, ranges set the scale, categories and classes the
width of the model, and each would differ between neighbours if it were counted, measured or collected. So it is
declared, and what the records hold beyond it is clamped or refused, record by record.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adadpigu.errors import InputError, unknown

DESCRIPTION = "description.toml"
"""the name of a description inside a folder of images"""
MOST_CLASSES = 1 << 20
"""that a description, or a run folder, may speak of"""


@dataclass(frozen=True, kw_only=True)
class NumericColumn:
    """A number within a public range, scaled linearly to [−1, 1]; beyond the range it is clamped."""

    name: str
    low: float
    high: float
    missing: float | None = None
    """the value that stands for an empty cell; None refuses it"""

    width = 1


@dataclass(frozen=True, kw_only=True)
class CategoricalColumn:
    """One of a public list of categories, as a one-hot vector."""

    name: str
    categories: tuple[str, ...]
    other: bool = False
    """whether any other category is encoded as one more, instead of refused"""
    missing: str | None = None
    """the category that stands for an empty cell; None refuses it"""

    @property
    def width(self) -> int:
        """How many inputs it makes."""
        return len(self.categories) + self.other


Column = NumericColumn | CategoricalColumn


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """A table with a label column: the features in their order."""

    label: str
    columns: tuple[Column, ...]
    ignore: tuple[str, ...] = ()
    separator: str = ","
    """between the cells of a text file"""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an encoded record."""
        return (sum(column.width for column in self.columns),)

    def public(self) -> tuple[str, ...]:
        """What is declared, in words."""
        numeric = [f"{c.name} [{c.low:g}, {c.high:g}]" for c in self.columns if isinstance(c, NumericColumn)]
        categorical = [
            f"{c.name} ({len(c.categories)}{' and other' if c.other else ''})"
            for c in self.columns
            if isinstance(c, CategoricalColumn)
        ]
        filled = [f"{c.name} {c.missing!r}" for c in self.columns if c.missing is not None]
        told = (
            ("ranges of {} numeric columns, scaled to [-1, 1]: {}", numeric),
            ("categories of {} categorical columns, one-hot: {}", categorical),
            ("stand-ins for missing values of {} columns: {}", filled),
            ("{} ignored columns: {}", list(self.ignore)),
        )
        return tuple(words.format(len(names), listed(names)) for words, names in told if names)


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """Images of one size in one sub-folder a class; pixels scaled to [0, 1], then by a public mean and deviation."""

    height: int
    width: int
    channels: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    ignore: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record: channels first."""
        return (self.channels, self.height, self.width)

    def public(self) -> tuple[str, ...]:
        """What is declared, in words."""
        kind = "gray" if self.channels == 1 else "rgb"
        told = [f"{kind} images of {self.height} × {self.width}, pixels scaled to [0, 1]"]
        if self.mean is not None and self.std is not None:
            told.append(f"mean {listed(self.mean)} and deviation {listed(self.std)} of the channels")
        return tuple(told)


@dataclass(frozen=True, kw_only=True)
class ArrayFacts:
    """Arrays of numbers, as given or from a public range to [−1, 1]."""

    low: float | None = None
    high: float | None = None

    def public(self) -> tuple[str, ...]:
        """What is declared, in words."""
        if self.low is None or self.high is None:
            return ("the values' scale, as given",)
        return (f"the values' range [{self.low:g}, {self.high:g}], scaled to [-1, 1]",)


@dataclass(frozen=True, kw_only=True)
class Description:
    """All that is public about a person's own records."""

    path: Path
    records: int
    """N, the declared record count"""
    classes: tuple[str, ...]
    """their names; the position is the label"""
    facts: TableFacts | ImageFacts | ArrayFacts
    test: Path | None = None
    """a file or folder of the same form, outside the guarantee"""

    @property
    def public(self) -> tuple[str, ...]:
        """What is declared, for the statement."""
        names = listed([repr(name) for name in self.classes])
        return (
            f"{self.records:,} records (declared)",
            f"{len(self.classes)} classes (declared): {names}",
            *(f"{fact} (declared)" for fact in self.facts.public()),
        )


def description_path(path: Path) -> Path:
    """Where the description of a file or folder is looked for: beside the file, inside the folder."""
    return path / DESCRIPTION if path.is_dir() else path.with_suffix(".toml")


def listed(values: Sequence[object], most: int = 12) -> str:
    """Values with commas, long lists cut.

    >>> listed([1, 2, 3, 4], most=2)
    '1, 2, … (4 in all)'
    """
    shown = ", ".join(str(value) for value in values[:most])
    return shown if len(values) <= most else f"{shown}, … ({len(values)} in all)"


class _Section:
    """A table of the file; every refusal names the file, the key, the value and what is allowed."""

    def __init__(self, path: Path, values: Mapping[str, object], prefix: str = "") -> None:
        self.path, self.values, self.prefix = path, values, prefix

    def error(self, key: str, allowed: str) -> InputError:
        name = f"{self.prefix}{key}"
        if key not in self.values:
            return InputError(f"{self.path}: {name} is missing; allowed: {allowed}")
        value = repr(self.values[key])
        return InputError(f"{self.path}: {name}={value if len(value) <= 80 else value[:79] + '…'}; allowed: {allowed}")

    def only(self, *keys: str) -> None:
        for key in self.values:
            if key not in keys:
                raise InputError(f"{self.path}: {unknown('key', self.prefix + key, [self.prefix + k for k in keys])}")

    def whole(self, key: str, allowed: str, least: int = 1) -> int:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, allowed)
        return value

    def numbers(self, key: str, count: int, allowed: str) -> tuple[float, ...]:
        value = self.values.get(key)
        if not isinstance(value, list) or len(value) != count or not all(_is_number(v) for v in value):
            raise self.error(key, allowed)
        return tuple(float(v) for v in value)

    def range(self, key: str) -> tuple[float, float]:
        allowed = "two numbers [low, high], low below high, known without looking at the records"
        low, high = self.numbers(key, 2, allowed)
        if not low < high or high / 2 - low / 2 == 0:
            raise self.error(key, allowed)
        return low, high

    def names(self, key: str, allowed: str, least: int = 0) -> tuple[str, ...]:
        """Distinct names without blanks around them; whole numbers are names too."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(v, str | int) and not isinstance(v, bool) for v in value):
            raise self.error(key, allowed)
        found = tuple(str(v) for v in value)
        odd = [name for name in found if name != name.strip() or not name or found.count(name) > 1]
        if odd:
            raise InputError(f"{self.path}: {self.prefix}{key} holds {odd[0]!r} twice, empty or with blanks around it")
        if len(found) < least:
            raise self.error(key, allowed)
        return found

    def text(self, key: str, allowed: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, allowed)
        return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def read_description(path: Path) -> Description:
    """The public facts in a TOML file; a key `size` or `channels` tells of images, `label` or `columns` of a table."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"description={str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"description={str(path)!r} cannot be read: it is not UTF-8 text") from None
    except ValueError as error:  # no TOML, or a number of thousands of digits
        raise InputError(f"description={str(path)!r} is not TOML: {error}") from None
    except RecursionError:
        raise InputError(f"description={str(path)!r} cannot be read: it nests too deep") from None
    file = _Section(path, values)
    facts: TableFacts | ImageFacts | ArrayFacts
    if values.keys() & {"size", "channels"}:
        facts = _images(file)
    elif values.keys() & {"label", "columns"}:
        facts = _table(file)
    else:
        facts = _arrays(file)
    records = file.whole("records", "N, the public record count, a whole number of at least 1")
    test = path.parent / file.text("test", "a path, relative to this file") if "test" in values else None
    return Description(path=path, records=records, classes=_classes(file), facts=facts, test=test)


def _classes(file: _Section) -> tuple[str, ...]:
    count = file.values.get("classes")
    allowed = "a list of at least 2 names, in the order of the labels (a label to be predicted as a number is not)"
    if isinstance(count, int) and not isinstance(count, bool) and count > MOST_CLASSES:
        raise file.error("classes", f"up to {MOST_CLASSES}")
    if isinstance(count, int) and not isinstance(count, bool) and count >= 2:
        return tuple(str(number) for number in range(count))
    return file.names("classes", allowed, least=2)


def _ignored(file: _Section) -> tuple[str, ...]:
    return file.names("ignore", "a list of names") if "ignore" in file.values else ()


def _table(file: _Section) -> TableFacts:
    file.only("records", "label", "classes", "test", "columns", "ignore", "separator")
    label = file.text("label", "the name of the label's column")
    tables = file.values.get("columns")
    if not isinstance(tables, dict) or not tables:
        raise file.error("columns", "a table [columns.NAME] for each feature, with range or categories")
    ignore = _ignored(file)
    # a section that says nothing is what is left of a template: for the label and ignored columns it is no second role
    tables = {name: table for name, table in tables.items() if table != {} or name not in (label, *ignore)}
    empty = [name for name, table in tables.items() if table == {}]
    if empty:
        raise InputError(
            f"{file.path}: columns.{empty[0]} has neither range nor categories"
            + (f", nor have {listed(empty[1:])}" if empty[1:] else "")
            + f"; allowed: one of them, or put {empty[0]!r} under ignore where it is no feature"
        )
    columns = tuple(_column(file, name, table) for name, table in tables.items())
    for name in (label, *ignore):
        if name in tables or (name == label and name in ignore):
            raise InputError(f"{file.path}: column {name!r} has two roles; allowed: one of label, columns and ignore")
    separator = file.text("separator", "one character, e.g. ';'") if "separator" in file.values else ","
    if len(separator) != 1 or separator in '"\r\n':
        raise file.error("separator", "one character, e.g. ';'")
    return TableFacts(label=label, columns=columns, ignore=ignore, separator=separator)


def _column(file: _Section, name: str, table: object) -> Column:
    if not isinstance(table, dict):
        raise InputError(f"{file.path}: columns.{name}={table!r}; allowed: a table with range or categories")
    column = _Section(file.path, table, f"columns.{name}.")
    column.only("range", "categories", "other", "missing")
    if ("range" in table) == ("categories" in table):
        has = "both range and" if "range" in table else "neither range nor"
        raise InputError(f"{file.path}: columns.{name} has {has} categories; allowed: one of them")
    if "range" in table:
        return _numeric(column, name)
    categories = column.names("categories", "a list of names, known without looking at the records", least=1)
    other = table.get("other", False)
    if not isinstance(other, bool):
        raise column.error("other", "true or false")
    missing = table.get("missing")
    stand_ins = [*categories, *(["other"] if other else [])]
    if missing is not None and str(missing) not in stand_ins:
        raise column.error("missing", f"one of {listed(stand_ins)}")
    return CategoricalColumn(
        name=name, categories=categories, other=other, missing=None if missing is None else str(missing)
    )


def _numeric(column: _Section, name: str) -> NumericColumn:
    column.only("range", "missing")
    low, high = column.range("range")
    missing = column.values.get("missing")
    if missing is None:
        return NumericColumn(name=name, low=low, high=high)
    if not isinstance(missing, int | float) or not _is_number(missing) or not low <= missing <= high:
        raise column.error("missing", f"a number from {low:g} to {high:g}")
    return NumericColumn(name=name, low=low, high=high, missing=float(missing))


def _images(file: _Section) -> ImageFacts:
    file.only("records", "classes", "test", "size", "channels", "mean", "std", "ignore")
    allowed = "[height, width] in pixels, two whole numbers of at least 1"
    height, width = (int(side) for side in file.numbers("size", 2, allowed))
    if [height, width] != file.values["size"] or min(height, width) < 1:
        raise file.error("size", allowed)
    named: dict[object, int] = {1: 1, 3: 3, "gray": 1, "rgb": 3}
    given = file.values.get("channels")
    if isinstance(given, bool) or not isinstance(given, int | str) or given not in named:
        raise file.error("channels", "1 or 'gray', 3 or 'rgb'")
    channels = named[given]
    if ("mean" in file.values) != ("std" in file.values):
        raise InputError(f"{file.path}: one of mean and std is missing; allowed: both or none")
    facts = ImageFacts(height=height, width=width, channels=channels, ignore=_ignored(file))
    if "mean" not in file.values:
        return facts
    mean = file.numbers("mean", channels, f"{channels} numbers, one a channel, for pixels in [0, 1]")
    std = file.numbers("std", channels, f"{channels} numbers above 0, one a channel")
    if min(std) <= 0:
        raise file.error("std", f"{channels} numbers above 0, one a channel")
    return ImageFacts(height=height, width=width, channels=channels, mean=mean, std=std, ignore=facts.ignore)


def _arrays(file: _Section) -> ArrayFacts:
    file.only("records", "classes", "range", "label", "columns", "size", "channels")
    if "range" not in file.values:
        return ArrayFacts()
    low, high = file.range("range")
    return ArrayFacts(low=low, high=high)
