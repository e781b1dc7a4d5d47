"""The files of a run folder, read by one reader. The folder may be a stranger's: sizes are bounded, links out of it are
refused, nothing is unpickled or imported, and each value is checked once, by type and range.

A refusal names the file and the key; the value itself may be anything, so it is not repeated.
"""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.journal import head_path
from adadpigu.accounting.ledger_reading import LEDGER_FILE, LedgerRecord, inspect_ledger
from adadpigu.data.description import MOST_CLASSES
from adadpigu.durable import read_text
from adadpigu.errors import AdaDPIGUError, InputError, first_line, require
from adadpigu.runs.run import SUMMARY

CONFIG, PRIVACY, FACTS = "config.toml", "privacy.json", "data.json"
MOST_TEXT, MOST_LEDGER = 1 << 22, 1 << 27  # bytes of a file of TOML or JSON, and of a ledger
MOST_VALUES, MOST_DIMENSIONS = 1 << 26, 8  # numbers in one record, and its dimensions
MALFORMED = (RecursionError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError)
"""what values of wrong types can raise"""
_LARGEST = 1e308


@dataclass(frozen=True)
class Fields:
    """The keys of one JSON object, each by its type, and where the object stands."""

    values: Mapping[str, Any]
    where: str

    def number(self, key: str, low: float = -_LARGEST, high: float = _LARGEST) -> float | None:
        """A finite number within bounds, or None for null or nothing."""
        value = self.values.get(key)
        fits = value is None or (type(value) in (int, float) and low <= value <= high)
        self.check(fits, key, f"null, or a finite number from {low:g} to {high:g}")
        return None if value is None else float(value)

    def count(self, key: str) -> int:
        """A whole number of at least 0 that a page can hold."""
        value: int = self.values.get(key)  # type: ignore[assignment]
        self.check(type(value) is int and 0 <= value < 2**53, key, "a whole number of at least 0")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value: str = self.values.get(key, default)
        self.check(isinstance(value, str), key, "a text")
        return value

    def flag(self, key: str) -> bool:
        """True or false; nothing is false."""
        value: bool = self.values.get(key, False)
        self.check(isinstance(value, bool), key, "true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of words; nothing is none."""
        value = self.values.get(key, [])
        self.check(isinstance(value, list) and all(isinstance(item, str) for item in value), key, "a list of texts")
        return tuple(value)

    def numbers(self, key: str, most: int, low: float, high: float) -> dict[str, float]:
        """A number for each name (such as a layer's); nothing is none."""
        value = self.values.get(key, {})
        self.check(isinstance(value, dict) and len(value) <= most, key, f"at most {most} names with a number each")
        inner = Fields(value, f"{self.where}: {key}")
        return {name: found for name in value if (found := inner.number(name, low, high)) is not None}

    def check(self, fits: bool, key: str, allowed: str) -> None:
        """Refuses the object unless the value of a key fits."""
        if not fits:
            shown = key if key.isidentifier() and len(key) < 40 else "a value"
            raise InputError(f"{self.where}: {shown} is invalid; allowed: {allowed}")


def fields_of(text: str, where: str) -> Fields:
    """A JSON object from text; NaN, nesting without end and numbers of thousands of digits are refused."""
    try:
        found = json.loads(text, parse_constant=int)  # NaN and Infinity are no int: a ValueError
        reason = "" if isinstance(found, dict) else "it is not an object"
    except (ValueError, RecursionError) as error:
        reason = "it nests too deep" if isinstance(error, RecursionError) else first_line(error)
    if reason:
        raise InputError(f"{where} cannot be read: {reason}")
    return Fields(found, where)


def file_of(folder: Path, name: str, most: int | None = None) -> Path:
    """A file of the folder, of at most so many bytes; one that a link leads out of it is refused."""
    path = folder / name
    try:
        outside = not path.resolve().is_relative_to(folder.resolve())
        there = path.is_file()
    except (OSError, RuntimeError):  # links in a circle
        outside, there = False, False
    require(not outside, f"run={str(folder)!r}: {name} is a link out of the folder; allowed: files within it")
    told = f"{folder / 'private'}" if (folder / "private" / name).is_file() else "a folder that `adadpigu train` wrote"
    require(there, f"run={str(folder)!r} has no {name}; allowed: {told}")
    size = path.stat().st_size
    require(most is None or size <= most, f"run={str(folder)!r}: {path.name} has {size} bytes; allowed: up to {most}")
    return path


def text_of(folder: Path, name: str, most: int = MOST_TEXT) -> str:
    return read_text(file_of(folder, name, most), f"run={str(folder)!r}: {name}")


def json_of(folder: Path, name: str) -> Fields:
    return fields_of(text_of(folder, name), f"run={str(folder)!r}: {name}")


def config_of(folder: Path, most: int = MOST_TEXT) -> tuple[str, dict[str, Any]]:
    """The run's config.toml: its text, and the keys it sets, not yet checked by type."""
    text = text_of(folder, CONFIG, most)
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"run={str(folder)!r}: {CONFIG} cannot be read: {first_line(error)}") from None


@dataclass(frozen=True)
class DataFacts:
    """Public facts of the data set that a run was trained on."""

    shape: tuple[int, ...] | None
    classes: int | None
    built: Mapping[str, Any] = field(default_factory=dict)  # of a run made in Python: how its model is built


def read_data_facts(folder: Path) -> DataFacts:
    fields = json_of(folder, FACTS)
    there = fields.values.keys() >= {"shape", "classes"}
    require(there, f"{fields.where} has no shape or no classes; allowed: as `train` wrote it")
    shape, classes, built = fields.values["shape"], fields.values["classes"], fields.values.get("built")
    allowed = f"null, or 1 to {MOST_DIMENSIONS} whole numbers of at least 1 whose product is at most {MOST_VALUES}"
    sides = isinstance(shape, list) and 1 <= len(shape) <= MOST_DIMENSIONS
    sides = sides and all(type(side) is int and side >= 1 for side in shape) and math.prod(shape) <= MOST_VALUES
    fields.check(shape is None or sides, "shape", allowed)
    known = classes is None or (type(classes) is int and 1 <= classes <= MOST_CLASSES)
    fields.check(known, "classes", f"null, or a whole number from 1 to {MOST_CLASSES}")
    return DataFacts(None if shape is None else tuple(shape), classes, built if isinstance(built, dict) else {})


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run has said of itself at its end."""

    method: str
    dataset: str
    accuracy: float | None
    steps: int
    done: int
    seconds: float | None
    interrupted: bool
    execution: str


def summary_of(folder: Path) -> Summary:
    fields = json_of(folder, SUMMARY)
    return Summary(
        method=fields.text("method"),
        dataset=fields.text("dataset"),
        accuracy=fields.number("test_accuracy", 0, 1),
        steps=fields.count("steps"),
        done=fields.count("steps_done"),
        seconds=fields.number("seconds", 0, 1e12),
        interrupted=fields.flag("interrupted"),
        execution=fields.text("execution", ""),
    )


def privacy_of(folder: Path) -> PrivacyReport:
    """The privacy report in a folder, as it stands there; `verifying` says whether it may be trusted."""
    fields = json_of(folder, PRIVACY)
    try:
        report = PrivacyReport.from_json(fields.values)
        report.statement()
    except (AdaDPIGUError, *MALFORMED) as error:
        raise InputError(f"{fields.where} cannot be read: {first_line(error)}") from None
    return report


def ledger_of(folder: Path) -> LedgerRecord:
    """The run's ledger, damaged or not; a `LedgerError` where not even its header can be read."""
    path = file_of(folder, LEDGER_FILE, MOST_LEDGER)
    if head_path(path).exists():
        file_of(folder, head_path(path).name)
    return inspect_ledger(path)


def ledger_facts(record: LedgerRecord) -> dict[str, Any]:
    """What a ledger tells in numbers, for `--json` and for a page."""
    return {
        "steps": record.steps,
        "planned_steps": record.plan.steps,
        "spare_steps": record.plan.spare,
        "records": len(record.lines) + 1,
        "digest": record.digest,
        "torn": record.torn > 0,
        "damage": record.damage,
    }
