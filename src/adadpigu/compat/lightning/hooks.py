"""What hooks of a module, and callbacks, would read of a batch and will not find: told before training begins.

A training_step would leave losses and outputs in attributes, and return them to `on_train_batch_end`. They are
un-noised values of records, so there are none; a hook that counts on them would fail, or reckon with nothing.
"""

from __future__ import annotations

import dis
import inspect
import warnings
from collections.abc import Iterator
from types import CodeType
from typing import Any

import lightning.pytorch as pl

from adadpigu.errors import ModelError

_REMEDY = (
    "allowed: metrics of validation_step, on records that are not private, or diagnostics=True with out=, which keeps "
    "losses in a file of its own, outside the guarantee"
)


def check_kept(module: pl.LightningModule, kept: tuple[str, ...]) -> None:
    """Of names in which training_step would keep something: refuses what a hook reads, and warns of the rest."""
    name = type(module).__name__
    for hook, code in _hooks(module):
        for each in kept:
            if each.split(".")[0] in _names(code):
                raise ModelError(
                    f"{name}.{hook} reads {each!r}, in which training_step keeps values of the batch: they would be "
                    f"un-noised, so it stays as it was; {_REMEDY}"
                )
    if kept:
        warnings.warn(
            f"{', '.join(map(repr, kept))}: what {name}.training_step keeps there is not kept, since it would be "
            f"un-noised values of private records; {_REMEDY}",
            stacklevel=3,
        )


def check_readers(trainer: Any, module: pl.LightningModule) -> None:
    """Refuses callbacks, and a module, that read the loss that training_step returned.

    Of others that read what it returned it warns: they may pass it on, or do without.
    """
    for owner in (*trainer.callbacks, module):
        hook = owner.on_train_batch_end
        function = _plain(hook)
        code = getattr(function, "__code__", None)
        if code is None or _of_lightning(function):
            continue
        given = code.co_varnames[: code.co_argcount]
        place = (0 if owner is module else 2) + hasattr(hook, "__self__")  # after self, and trainer and module
        if place >= len(given) or not _loads(code, given[place]):
            continue
        told = f"{type(owner).__name__}.on_train_batch_end reads {given[place]!r}, which is empty in private training"
        if "loss" in code.co_consts:
            raise ModelError(f"{told}: a loss of the batch would be un-noised; {_REMEDY}")
        warnings.warn(f"{told}: what training_step returns would be un-noised; {_REMEDY}", stacklevel=3)


def _hooks(module: pl.LightningModule) -> Iterator[tuple[str, CodeType]]:
    """Hooks that the user has written."""
    for name in dir(module):
        if name.startswith("on_"):
            function = _plain(getattr(module, name))
            code = getattr(function, "__code__", None)
            if code is not None and not _of_lightning(function):
                yield name, code


def _of_lightning(function: Any) -> bool:
    return str(function.__module__).startswith("lightning.")


def _plain(function: Any) -> Any:
    return inspect.unwrap(getattr(function, "__func__", function))


def _names(code: CodeType) -> set[str]:
    """Attributes and globals that code mentions, also in functions within it."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _loads(code: CodeType, name: str) -> bool:
    """Whether code reads one of its arguments."""
    read = [step for step in dis.get_instructions(code) if step.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))]
    return any(name == step.argval or (isinstance(step.argval, tuple) and name in step.argval) for step in read)
