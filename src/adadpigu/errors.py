"""Every error the package raises on purpose, as one small hierarchy.

The command line turns an `InputError` into one line on standard error and exit code 2; a `PrivacyLineError` is a
defect in calling code, so it keeps its traceback. No message may carry a sensitive value.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AdaDPIGUError(Exception):
    """Base class of all errors raised on purpose."""


class InputError(AdaDPIGUError, ValueError):
    """A value the user gave cannot be used; the message names the value and what is allowed."""


class ModelError(InputError):
    """A module that cannot be trained privately, named by its dotted path."""


class BudgetError(InputError):
    """A step that would exceed the budget; raised before anything is drawn or charged."""


class LedgerError(InputError):
    """A ledger that cannot be read, trusted or written: nothing is drawn that it does not hold."""


class LedgerInUseError(LedgerError):
    """A ledger that another process writes to."""


class PrivacyLineError(AdaDPIGUError, TypeError):
    """A sensitive value reached code that may only see releases, or a release was made outside the mechanism."""


_MANY = 20
"""names that are listed in full; of more, the nearest"""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name nobody registered, with the nearest one suggested.

    >>> str(unknown("method", "adadpig", ["adadpigu", "dpsgd"]))
    "unknown method 'adadpig'; did you mean 'adadpigu'? (known: adadpigu, dpsgd)"
    """
    names = sorted(known)
    by_case = {known.lower(): known for known in names}
    near = [by_case[found] for found in difflib.get_close_matches(name.lower(), by_case, n=3, cutoff=0.5)]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if len(names) > _MANY and near:
        nearest = " or ".join(map(repr, near))
        return InputError(f"unknown {kind} {name!r}; did you mean {nearest}? ({len(names)} are known)")
    return InputError(f"unknown {kind} {name!r}{hint} (known: {', '.join(names) or 'none'})")


def first_line(error: BaseException) -> str:
    """The first line of an error's text, short enough for a one-line message.

    >>> first_line(ValueError("too long\\nand more"))
    'too long'
    """
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return text if len(text) <= 200 else text[:197] + "..."
