"""Words of unknown origin as a page may hold them: run names, settings and notes are whatever somebody wrote.

What no screen shows (controls, marks that turn the direction of writing, halves of characters) is spelled out, so that
nothing hides in a name; and data stand in the page as JSON in which no character means anything to HTML.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

LONGEST_NAME = 200  # characters of a name that are shown
LONGEST_SENTENCE = 1000  # characters of a caution or a refusal that are shown
MOST_LISTED = 100  # entries of a list that are shown


def visible(text: str, kept: str = "") -> str:
    """The text with whatever cannot be seen spelled out, but for the characters that are `kept`.

    >>> visible("a\\u202eb\\tc\\u2028"), visible("a\\nb", kept="\\n")
    ('a\\\\u202eb\\\\x09c\\\\u2028', 'a\\nb')
    """
    return "".join(c if c.isprintable() or c in kept else _spelled(ord(c)) for c in text)


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def name(text: str, most: int = LONGEST_NAME) -> str:
    """A name for one line: visible, and shortened where it is very long.

    >>> name("run"), name("x" * 300)[-19:]
    ('run', 'x… (300 characters)')
    """
    return visible(text) if len(text) <= most else f"{visible(text[:most])}… ({len(text)} characters)"


sentence = partial(name, most=LONGEST_SENTENCE)


def listed(lines: Sequence[str], shown: Callable[[str], str] = sentence) -> list[str]:
    """A list as far as anybody reads it, and how much longer it is.

    >>> listed(["a"] * 3), listed(["a"] * 102)[99:]
    (['a', 'a', 'a'], ['a', 'and 2 more'])
    """
    rest = len(lines) - MOST_LISTED
    return [*map(shown, lines[:MOST_LISTED]), *([f"and {rest:,} more"] if rest > 0 else [])]


def block(text: str) -> str:
    """Several lines: visible, their ends and tabs as they are."""
    return visible(text.replace("\r\n", "\n"), kept="\n\t")


def script_json(value: Mapping[str, object]) -> str:
    """JSON for the inside of a `<script>`: plain ASCII without a character that HTML looks for.

    >>> script_json({"name": "</script><!--é"})
    '{"name":"\\\\u003c/script\\\\u003e\\\\u003c!--\\\\u00e9"}'
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
