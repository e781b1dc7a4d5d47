"""Words of unknown origin inside YAML and Markdown: names of data sets, models and layers are whatever users call them.

Quoted so that they stay words: no key, list, link, image, table cell, heading or HTML can come out of one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~!&@$:/=^]|(?<=[wW]{3})\.)")
"""what could mean something in the middle of a line; a backslash makes a plain character of it"""

Plain = str | int | float | bool | None
Tree = Plain | Sequence["Tree"] | Mapping[str, "Tree"]


def yaml_scalar(value: Plain) -> str:
    """A value as YAML reads it back: words in double quotes, an infinite number as null.

    >>> yaml_scalar('a: "b"\\n- c'), yaml_scalar(True), yaml_scalar(math.inf), yaml_scalar(1e-05)
    ('"a: \\\\"b\\\\"\\\\x0a- c"', 'true', 'null', '1.0e-05')
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return re.sub(r"^(-?\d+)e", r"\1.0e", text)  # YAML takes 1e-05 for a word
    if isinstance(value, int):
        return str(value)
    return '"' + "".join(map(_yaml_character, value)) + '"'


def _yaml_character(character: str) -> str:
    code = ord(character)
    if character in '"\\':
        return "\\" + character
    if 0xD800 <= code <= 0xDFFF:  # half a character: no file can hold it
        return "\\ufffd"
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def yaml_lines(tree: Mapping[str, Tree], indent: str = "") -> list[str]:
    """A mapping as lines of YAML. Keys are ours and stand as they are; values are quoted.

    >>> print("\\n".join(yaml_lines({"tags": ["a"], "privacy": {"delta": 0.5}})))
    tags:
    - "a"
    privacy:
      delta: 0.5
    """
    lines = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:", *yaml_lines(value, indent + "  ")]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            lines.append(f"{indent}{key}:")
            for entry in value:
                lines += _entry(entry, indent)
        else:
            lines.append(f"{indent}{key}: {yaml_scalar(value)}")
    return lines


def _entry(entry: Tree, indent: str) -> list[str]:
    """One entry of a list: a value, or a mapping whose first key stands behind the dash."""
    if not isinstance(entry, Mapping):
        assert entry is None or isinstance(entry, str | int | float | bool)
        return [f"{indent}- {yaml_scalar(entry)}"]
    inner = yaml_lines(entry, indent + "  ")
    return [f"{indent}- {inner[0].lstrip()}", *inner[1:]]


def markdown_text(value: object) -> str:
    """Words that mean nothing but themselves in the middle of a line of Markdown.

    >>> markdown_text("<b>[x](http://y)|") == "\\\\<b\\\\>\\\\[x\\\\](http\\\\:\\\\/\\\\/y)\\\\|"
    True
    """
    words = "".join(c if c.isprintable() else " " for c in str(value))
    return _MARKS.sub(r"\\\1", " ".join(words.split()))


def code_block(text: str) -> str:
    """Lines as they are, in an indented block, which nothing inside it can end."""
    lines = re.split(r"\r\n|\r|\n", text)
    return "\n".join("    " + "".join(c if c.isprintable() else "\ufffd" for c in line) for line in lines)
