"""What a person declares public about their own records: a TOML file beside the data. Public throughout.

N sets the sampling rate, ranges the scale, categories and classes the width of the model. Counted or measured on the
records, each would differ between neighbours; so each is declared, and a record beyond it is clamped or refused.
The tables of keys below say what a description may hold. Every refusal names file, key, value and what is allowed.
"""

import csv
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadpigu.core.sampling import Owners
from adadpigu.errors import InputError, first_line, require, unknown

DESCRIPTION = "description.toml"  # the name of a description inside a folder of images
MOST_CLASSES = 1 << 20  # that a description, or a run folder, may speak of


@dataclass(frozen=True, kw_only=True)
class NumericColumn:
    """A number within a public range, scaled linearly to [−1, 1]; beyond the range it is clamped."""

    name: str
    low: float
    high: float
    missing: float | None = None  # the value that stands for an empty cell; None refuses it

    width = 1


@dataclass(frozen=True, kw_only=True)
class CategoricalColumn:
    """One of a public list of categories, as a one-hot vector."""

    name: str
    categories: tuple[str, ...]
    other: bool = False  # whether any other category is encoded as one more, instead of refused
    missing: str | None = None  # the category that stands for an empty cell; None refuses it

    @property
    def width(self) -> int:
        return len(self.categories) + self.other


Column = NumericColumn | CategoricalColumn


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """A table with a label column: the features in their order."""

    label: str
    columns: tuple[Column, ...]
    ignore: tuple[str, ...] = ()
    owner: str | None = None  # the column that says whose a record is
    owner_cap: int | None = None
    separator: str = ","  # between the cells of a text file

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(column.width for column in self.columns),)

    def public(self) -> tuple[str, ...]:
        numeric = [f"{c.name} [{c.low:g}, {c.high:g}]" for c in self.columns if isinstance(c, NumericColumn)]
        named = [c for c in self.columns if isinstance(c, CategoricalColumn)]
        categorical = [f"{c.name} ({len(c.categories)}{' and other' if c.other else ''})" for c in named]
        filled = [f"{c.name} {c.missing!r}" for c in self.columns if c.missing is not None]
        told = (
            ("ranges of {} numeric columns, scaled to [-1, 1]: {}", numeric),
            ("categories of {} categorical columns, one-hot: {}", categorical),
            ("stand-ins for missing values of {} columns: {}", filled),
            ("{} ignored columns: {}", list(self.ignore)),
        )
        capped = [] if self.owner_cap is None else [Owners.declared(self.owner_cap)]
        return (*(words.format(len(names), listed(names)) for words, names in told if names), *capped)


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """Images of one size in one sub-folder a class; pixels scaled to [0, 1], then by a public mean and deviation."""

    height: int
    width: int
    channels: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    ignore: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.channels, self.height, self.width)

    def public(self) -> tuple[str, ...]:
        kind = "gray" if self.channels == 1 else "rgb"
        told = f"{kind} images of {self.height} × {self.width}, pixels scaled to [0, 1]"
        normal = f"mean {listed(self.mean)} and deviation {listed(self.std)} of the channels"
        return (told, normal) if self.mean else (told,)


@dataclass(frozen=True, kw_only=True)
class ArrayFacts:
    """Arrays of numbers, as given or from a public range to [−1, 1]."""

    range: tuple[float, float] | None = None

    def public(self) -> tuple[str, ...]:
        told = "scale, as given" if self.range is None else "range [{:g}, {:g}], scaled to [-1, 1]".format(*self.range)
        return (f"the values' {told}",)


@dataclass(frozen=True, kw_only=True)
class Description:
    """All that is public about a person's own records."""

    path: Path
    records: int  # N, the declared record count
    classes: tuple[str, ...]  # their names; the position is the label
    facts: TableFacts | ImageFacts | ArrayFacts
    test: Path | None = None  # a file or folder of the same form, outside the guarantee

    @property
    def public(self) -> tuple[str, ...]:
        return (
            f"{self.records:,} records (declared)",
            f"{len(self.classes)} classes (declared): {listed([*map(repr, self.classes)])}",
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


def shorten(value: object, most: int = 80) -> str:
    """A value in one line, long ones cut.

    >>> shorten("a" * 50, most=10)
    "'aaaaaaaa…"
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"


@contextmanager
def reading(path: Path, what: str = "file", kind: str = "") -> Iterator[None]:
    """Turns whatever goes wrong with a file of the user's into an `InputError` of one line that names it."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # decoders raise OSError, ValueError, EOFError, struct.error, zlib.error, …
        place = f": {first_line(error)}" if isinstance(error, tomllib.TOMLDecodeError | csv.Error) else ""
        reason = getattr(error, "strerror", None) or f"it is damaged, or not {kind}{place}"
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else reason
        raise InputError(f"{what}={str(path)!r} cannot be read: {reason}") from None


_REQUIRED = object()


@dataclass(frozen=True)
class _Key:
    allowed: str
    read: Callable[[Any], Any]  # from a value of the file to the one that is used; None where it is not allowed
    default: object = _REQUIRED


def _is(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _count(value: Any) -> int | None:
    return value if _is(value, int) and value >= 1 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _names(value: Any) -> tuple[str, ...] | None:
    """Distinct names without blanks around them; whole numbers are names too."""
    if not isinstance(value, list) or not all(_is(v, str, int) for v in value):
        return None
    names = tuple(map(str, value))
    return names if all(name and name == name.strip() for name in names) and len({*names}) == len(names) else None


def _classes(value: Any) -> tuple[str, ...] | None:
    if _is(value, int):
        return tuple(map(str, range(value))) if 2 <= value <= MOST_CLASSES else None
    names = _names(value) or ()
    return names if len(names) >= 2 else None


def _numbers(value: Any) -> tuple[float, ...] | None:
    finite = isinstance(value, list) and all(_is(v, int, float) and abs(v) <= sys.float_info.max for v in value)
    return tuple(map(float, value)) if finite else None


def _range(value: Any) -> tuple[float, ...] | None:
    numbers = _numbers(value) or ()
    return numbers if len(numbers) == 2 and numbers[1] / 2 - numbers[0] / 2 > 0 else None


def _size(value: Any) -> tuple[Any, ...] | None:
    sides = tuple(map(_count, value)) if isinstance(value, list) else ()
    return sides if len(sides) == 2 and None not in sides else None


_NAMED_CHANNELS = {"1": 1, "3": 3, "'gray'": 1, "'rgb'": 3}
_ONCE = "each once, without blanks around them"
_KNOWN = "known without looking at the records"

_COMMON = {
    "records": _Key("N, the public record count, a whole number of at least 1", _count),
    "classes": _Key(
        f"a list of at least 2 names in the order of the labels, {_ONCE}, or how many there are, up to {MOST_CLASSES} "
        "(a label to be predicted as a number is not)",
        _classes,
    ),
    "test": _Key("a path, relative to this file", _text, None),
}
_IGNORE = _Key(f"a list of names, {_ONCE}", _names, ())
_RANGE = _Key(f"two numbers [low, high], low below high, {_KNOWN}", _range)
_TABLE = _COMMON | {
    "label": _Key("the name of the label's column", _text),
    "columns": _Key(
        "a table [columns.NAME] for each feature, with range or categories",
        lambda value: value if isinstance(value, dict) and value else None,
    ),
    "ignore": _IGNORE,
    "owner": _Key("the name of the column that says whose a record is", _text, None),
    "owner_cap": _Key("how many records of one owner are trained on, a whole number of at least 1", _count, None),
    "separator": _Key(
        "one character, e.g. ';'",
        lambda value: value if _text(value) and len(value) == 1 and value not in '"\r\n' else None,
        ",",
    ),
}
_IMAGES = _COMMON | {
    "size": _Key("[height, width] in pixels, two whole numbers of at least 1", _size),
    "channels": _Key("1 or 'gray', 3 or 'rgb'", lambda value: _NAMED_CHANNELS.get(repr(value))),
    "mean": _Key("numbers, one a channel, for pixels in [0, 1]", _numbers, ()),
    "std": _Key("numbers, one a channel", _numbers, ()),
    "ignore": _IGNORE,
}
_ARRAYS = {key: _COMMON[key] for key in ("records", "classes")} | {"range": _Key(_RANGE.allowed, _range, None)}
_NUMERIC = {"range": _RANGE, "missing": _Key("a number within the range", lambda value: _numbers([value]), (None,))}
_CATEGORICAL = {
    "categories": _Key(
        f"a list of names, {_ONCE}, {_KNOWN}; or range = [low, high] in its place; or its name under ignore",
        lambda value: _names(value) or None,
    ),
    "other": _Key("true or false", lambda value: value if isinstance(value, bool) else None, False),
    "missing": _Key("one of the categories", lambda value: (_names([value]) or (None,))[0], None),
}


def _parsed(path: Path, values: Mapping[str, Any], keys: Mapping[str, _Key], prefix: str = "") -> dict[str, Any]:
    """The values of all keys, each as it is used."""
    odd = next((name for name in values if name not in keys), "")
    require(not odd, f"{path}: {unknown('key', prefix + odd, [prefix + key for key in keys])}")
    found = {}
    for name, key in keys.items():
        absent = name not in values
        found[name] = key.default if absent else key.read(values[name])
        given = f"{prefix}{name} is missing" if absent else f"{prefix}{name}={shorten(values[name])}"
        fits = found[name] is not _REQUIRED and (absent or found[name] is not None)
        require(fits, f"{path}: {given}; allowed: {key.allowed}")
    return found


def read_description(path: Path) -> Description:
    """The public facts in a TOML file; a key `size` or `channels` tells of images, `label` or `columns` of a table."""
    with reading(path, "description", "TOML"):
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    facts: TableFacts | ImageFacts | ArrayFacts
    if values.keys() & {"size", "channels"}:
        found = _parsed(path, values, _IMAGES)
        facts = _image_facts(path, found)
    elif values.keys() & {"label", "columns"}:
        found = _parsed(path, values, _TABLE)
        facts = _table_facts(path, found)
    else:
        found = _parsed(path, values, _ARRAYS)
        facts = ArrayFacts(range=found["range"])
    test = path.parent / found["test"] if found.get("test") else None
    return Description(path=path, records=found["records"], classes=found["classes"], facts=facts, test=test)


def _table_facts(path: Path, found: Mapping[str, Any]) -> TableFacts:
    label, owner, cap = found["label"], found["owner"], found["owner_cap"]
    require((owner is None) == (cap is None), f"{path}: owner={owner!r} and owner_cap={cap}; allowed: both, or neither")
    ignore = (*found["ignore"], *([] if owner is None else [owner]))
    # a section that says nothing is what is left of a template: for the label and ignored columns it is no second role
    tables = {n: t for n, t in found["columns"].items() if t != {} or n not in (label, *ignore)}
    empty = ", ".join(f"columns.{name}" for name, table in tables.items() if table == {})
    remedy = "one of them, or the name under ignore where it is no feature"
    require(not empty, f"{path}: neither range nor categories for {empty}; allowed: {remedy}")
    roles = (label, *ignore)
    twice = [name for name in roles if name in tables or roles.count(name) > 1]
    require(not twice, f"{path}: two roles for column {twice[:1]}; allowed: one of label, columns, owner and ignore")
    columns = tuple(_column(path, name, table) for name, table in tables.items())
    own = {"owner": owner, "owner_cap": cap}
    return TableFacts(label=label, columns=columns, ignore=found["ignore"], separator=found["separator"], **own)


def _column(path: Path, name: str, table: Any) -> Column:
    where = f"columns.{name}"
    require(isinstance(table, dict), f"{path}: {where}={shorten(table)}; allowed: a table with range or categories")
    found = _parsed(path, table, _NUMERIC if "range" in table else _CATEGORICAL, f"{where}.")
    if "range" in table:
        (low, high), (value,) = found["range"], found["missing"]
        fits = value is None or low <= value <= high
        require(fits, f"{path}: {where}.missing={value}; allowed: a number from {low:g} to {high:g}")
        return NumericColumn(name=name, low=low, high=high, missing=value)
    stand_ins = [*found["categories"], *(["other"] if found["other"] else [])]
    missing = found["missing"]
    fits = missing is None or missing in stand_ins
    require(fits, f"{path}: {where}.missing={missing!r}; allowed: one of {listed(stand_ins)}")
    return CategoricalColumn(name=name, **found)


def _image_facts(path: Path, found: Mapping[str, Any]) -> ImageFacts:
    channels, mean, std = found["channels"], found["mean"], found["std"]
    fits = len(mean) == len(std) and len(std) in (0, channels) and all(value > 0 for value in std)
    allowed = f"allowed: neither, or {channels} numbers each, one a channel, std above 0"
    require(fits, f"{path}: mean={mean or None}, std={std or None}; {allowed}")
    height, width = found["size"]
    return ImageFacts(height=height, width=width, channels=channels, mean=mean, std=std, ignore=found["ignore"])
