"""Docstrings as the API pages show them: doctests in a fence, and options of training with their help text."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

_PARAGRAPH = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Options(griffe.Extension):
    """Reads `name: type = option(default, group, about)` as a field with a default and a docstring."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        made = attr.value
        if isinstance(made, griffe.ExprCall) and str(made.function) == "option":
            default, _, about = made.arguments[:3]
            attr.value = default
            attr.docstring = griffe.Docstring(ast.literal_eval(str(about)), parent=attr)


class Doctests(griffe.Extension):
    """Changes docstrings as they are read, before they become Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _PARAGRAPH.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
