"""Whatever somebody wrote stays words: inside a script, in a table, on a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadpigu.report.embedding import LONGEST_NAME, block, name, script_json, visible

anything = st.text(st.characters(codec=None))  # half characters too: a file's name may hold them


@given(anything)
def test_embedded_json_reads_back_and_holds_nothing_that_html_looks_for(text: str) -> None:
    made = script_json({"value": text, text: [text]})
    assert json.loads(made) == {"value": text, text: [text]}
    assert made.isascii()
    assert not set(made) & set("<>&")


@given(anything)
def test_a_name_is_one_line_that_can_be_seen_and_written(text: str) -> None:
    shown = name(text)
    assert shown.isprintable()
    shown.encode("utf-8")
    assert len(shown) <= LONGEST_NAME * 10 + 40


@given(anything)
def test_a_block_keeps_line_ends_and_tabs_alone(text: str) -> None:
    assert all(c.isprintable() or c in "\n\t" for c in block(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 中", "plain é 中"),
        ("a\u202eb", "a\\u202eb"),
        ("\u2028", "\\u2028"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown
