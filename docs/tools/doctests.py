"""Doctests in docstrings as code on the API page: each paragraph that begins with >>> is put into a fence."""

from __future__ import annotations

import re
from typing import Any

import griffe

_PARAGRAPH = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Changes docstrings as they are read, before they become Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _PARAGRAPH.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
