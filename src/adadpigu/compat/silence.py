"""While private records pass through a model, what would write or keep a value of theirs is refused by name.

Code of the user's may stand in the way of records: a forward hook, a layer of their own. What it would log amid a
backward pass is un-noised. Integrations say which attributes of which classes write; all objects of these refuse them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from adadpigu.errors import PrivacyLineError

Writes = Callable[[type, str], bool]
"""whether an attribute of a class is for writing or keeping values"""


def named(*names: str) -> Writes:
    """These attributes, whatever the class."""
    return lambda _, name: name in names


@contextlib.contextmanager
def refusing(families: Mapping[type, Writes], remedy: str) -> Iterator[None]:
    """Within, objects of these classes refuse to write; the refusal is raised also where the one who asked hides it.

    >>> class Logger:
    ...     def log(self, value): print(value)
    >>> with refusing({Logger: named("log")}, "allowed: later"):
    ...     Logger().log(0.3)
    Traceback (most recent call last):
    adadpigu.errors.PrivacyLineError: Logger.log amid private records...; allowed: later
    """
    refusals: list[PrivacyLineError] = []
    with contextlib.ExitStack() as undone:
        for family, writes in families.items():
            undone.enter_context(_refusing(family, writes, remedy, refusals))
        try:
            yield
        except Exception as error:
            if refusals and error is not refusals[0]:
                raise refusals[0] from error
            raise
    if refusals:
        raise refusals[0]


@contextlib.contextmanager
def _refusing(family: Any, writes: Writes, remedy: str, refusals: list[PrivacyLineError]) -> Iterator[None]:
    usual, own = family.__getattribute__, "__getattribute__" in vars(family)

    def attribute(self: Any, name: str) -> Any:
        if not writes(type(self), name):
            return usual(self, name)
        error = PrivacyLineError(
            f"{type(self).__name__}.{name} amid private records, by a hook or a layer: it would write or keep "
            f"un-noised values of theirs; {remedy}"
        )
        refusals.append(error)
        raise error

    family.__getattribute__ = attribute
    try:
        yield
    finally:
        if own:
            family.__getattribute__ = usual
        else:
            del family.__getattribute__
