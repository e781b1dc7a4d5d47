"""A description to be filled in, from public structure only: a CSV's header, a Parquet schema, names of sub-folders.

No record's values are looked at, not even to guess a type, and neither are a Parquet file's statistics: whatever they
suggested would depend on the records. Until it is filled in, `read_description` refuses it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from adadpigu.data.description import description_path
from adadpigu.data.own import class_folders
from adadpigu.data.tabular import csv_header, csv_separator, parquet_columns
from adadpigu.errors import require

_PREAMBLE = """\
# What is public about {name}; save this as {place}
# All of it may be told to anyone. Fill it in from what is known without looking at the records (a form, a
# code book, a rule): what is counted or measured on them is not public, and no budget is charged for it.

records = 0                     # N, a public count, e.g. of a report; it sets the sampling rate
"""

_NAMES = """\
# {taken}. If a [columns.…] below is no column's name but a cell
# of a record, the file has no header: give it one, and do not publish this.
"""

_TABLE = """\
label = ""                      # the column to predict; delete its [columns.…] below
classes = []                    # its values, in the order you want
ignore = []                     # columns not to be used; delete their [columns.…] below
# owner = ""                    # the column that says whose a record is, if the guarantee is for persons, with
# owner_cap = 0                 # how many records of one are used; delete the owner's [columns.…] below
# test = {test}      # a file of the same form, outside the guarantee
{separator}
# For each feature, in the order you want, one of
#   range = [LOW, HIGH]         a number and what it can be: scaled to [-1, 1], clamped beyond
#   categories = ["A", "B"]     a name and all that it can be: one-hot; any other is refused,
#                               or with other = true made one more
# and where a cell may be empty
#   missing = VALUE             what it stands for; without this it is refused
"""

_IMAGES = """\
classes = [{classes}]  # the sub-folders, in the order you want
size = [0, 0]                   # height and width of every image in pixels; none is resized
channels = ""                   # "gray" or "rgb"
ignore = []                     # files and sub-folders that are no classes
# test = "../test"              # a folder of the same form, outside the guarantee
# mean = [0.5]                  # public constants, one a channel, for pixels in [0, 1]
# std = [0.25]
"""


def template(path: Path) -> str:
    """The skeleton of a description of a CSV file, a Parquet file or a folder of images by class."""
    preamble = _PREAMBLE.format(name=_comment(path.resolve().name), place=_comment(str(description_path(path))))
    kind = path.suffix.lower()
    if path.is_dir():
        return preamble + _IMAGES.format(classes=", ".join(map(_quoted, class_folders(path))))
    if kind == ".csv":
        separator = csv_separator(path)
        names = csv_header(path, separator)
        place = next((place for place, name in enumerate(names, start=1) if _looks_like_value(name)), 0)
        fault = f"{path}: column {place} is named {names[place - 1]!r}, a number or date, as in a record"
        require(not place, f"{fault}; allowed: a first line that is the header, with the columns' names")
        warning = _NAMES.format(taken="The first line of the file was taken as its header")
        return warning + preamble + _table(path, dict.fromkeys(names, ""), separator)
    more = " (.npz needs --records and --classes only)" if kind == ".npz" else ""
    allowed = f"allowed: .csv, .parquet, a folder of images{more}"
    require(kind == ".parquet", f"file={str(path)!r} cannot be described; {allowed}")
    warning = _NAMES.format(taken="The columns' names are those of the file's schema")
    return warning + preamble + _table(path, parquet_columns(path), ",")


def _looks_like_value(name: str) -> bool:
    """Whether a cell is a number, or has digits and no letter as dates, times and sums of money have.

    >>> [_looks_like_value(name) for name in ("34", "-1e5", "nan", "3,5", "2024-01-31", "x1", "#")]
    [True, True, True, True, True, False, False]
    """
    try:
        float(name)
    except ValueError:
        return any(c.isdigit() for c in name) and not any(c.isalpha() for c in name)
    return True


def _table(path: Path, columns: Mapping[str, str], separator: str) -> str:
    test = _quoted(f"{path.stem}-test{path.suffix}")
    lines = [_TABLE.format(test=test, separator="" if separator == "," else f"separator = {_quoted(separator)}\n")]
    for name, kind in columns.items():
        key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
        lines += [f"[columns.{key}]" + (f"  # {_comment(kind)}" if kind else ""), *_choices(kind), ""]
    return "\n".join(lines)


def _choices(kind: str) -> Sequence[str]:
    """What can be declared of a column; both ways where its type does not tell. Unfilled, it is refused."""
    number, name = "# range = [LOW, HIGH]", '# categories = ["A", "B"]'
    if "string" in kind or kind.startswith("bool"):
        return (name,)
    return (number,) if re.match(r"float|double|halffloat|decimal", kind) else (number, name)


def _quoted(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
