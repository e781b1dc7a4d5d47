"""Hooks of the user's own on a model: they see records pass, and what they keep is out of reach.

A hook runs amid a forward or backward pass, on un-noised values, and may put them into a list or a file. So hooks are
named: in a warning before the first draw, and in the statement. Those that libraries register for their own layers are
part of the model, and are not named.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as every_module

_KINDS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
"""tables of a module, and what stands in them"""
_LIBRARIES = frozenset({"torch", "transformers", "peft", "accelerate", "lightning", "torchmetrics", "adadpigu"})
"""packages whose own hooks are part of their layers"""

Hook = tuple[str, Any]
"""where it is, in words, and itself"""


def hooks_of(model: nn.Module, loss: object = None) -> tuple[Hook, ...]:
    """The hooks of the user's own that private records would pass: on modules, parameters, and on all modules at once.

    >>> net = nn.Sequential(nn.Linear(2, 1))
    >>> _ = net[0].register_forward_hook(print)
    >>> [where for where, _ in hooks_of(net)]
    ["forward hook print on '0'"]
    """
    found = [*_global_hooks(), *_hooks_on(model, "")]
    if isinstance(loss, nn.Module):
        found += _hooks_on(loss, "loss")
    return tuple((f"{kind} {_name(hook)} on {place}", hook) for kind, hook, place in found if _is_users(hook))


def in_words(hooks: tuple[Hook, ...]) -> str:
    """The line of a statement that names them."""
    named = ", ".join(dict.fromkeys(where for where, _ in hooks))
    return f"what hooks of the user's own keep or write of the records that pass them: {named}"


def _global_hooks() -> Iterator[tuple[str, Any, str]]:
    for table, kind in _KINDS.items():
        for hook in getattr(every_module, f"_global{table}", {}).values():
            yield kind, hook, "all modules"


def _hooks_on(model: nn.Module, prefix: str) -> Iterator[tuple[str, Any, str]]:
    for path, module in model.named_modules(prefix=prefix):
        for table, kind in _KINDS.items():
            for hook in getattr(module, table).values():
                yield kind, hook, repr(path) if path else "the model"
    for name, parameter in model.named_parameters(prefix=prefix):
        for hook in (parameter._backward_hooks or {}).values():
            yield "gradient hook", hook, repr(name)


def _plain(hook: Any) -> Any:
    """The function behind a bound method or a partial, or the class of an object that is called."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    hook = getattr(hook, "__func__", hook)
    return hook if hasattr(hook, "__qualname__") else type(hook)


def _name(hook: Any) -> str:
    return str(_plain(hook).__qualname__).rpartition("<locals>.")[2]


def _is_users(hook: Any) -> bool:
    return str(_plain(hook).__module__).partition(".")[0] not in _LIBRARIES
