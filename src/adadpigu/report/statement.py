"""A privacy statement for a page: the paragraphs and lists of the one for a terminal, without its line ends."""

from __future__ import annotations

from adadpigu.accounting import PrivacyReport
from adadpigu.report.embedding import block, listed


def paragraphs(report: PrivacyReport) -> list[list[str]]:
    """Each paragraph's words, followed by the entries of its list, if it has one."""
    parts = (_joined(part.split("\n")) for part in block(report.statement()).split("\n\n"))
    return [[words, *listed(entries)] for words, *entries in parts]


def _joined(lines: list[str]) -> list[str]:
    """Lines joined to one text, and those behind two spaces to the entries of a list.

    >>> _joined(["Not covered:", "  - the choice of", "    parameters", "  1. began"])
    ['Not covered:', 'the choice of parameters', '1. began']
    """
    found = [""]
    for line in lines:
        words = line.strip()
        if line.startswith("  ") and not line.startswith("    "):
            found.append(words.removeprefix("- "))
        else:
            found[-1] = f"{found[-1]} {words}".strip()
    return found
