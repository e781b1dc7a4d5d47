"""Options of `train` that an integration passes on: checked when it is made, before anything is trained. Public."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from adadpigu.errors import unknown
from adadpigu.training.options import TrainingOptions


def check_options(owner: str, options: Mapping[str, Any], elsewhere: Collection[str]) -> None:
    """Refuses a name that is no option, and a value that `train` would refuse; `elsewhere` are those settled otherwise.

    >>> check_options("PrivateTrainer", {"noise_multiplyer": 1.0}, elsewhere=("lr",))
    Traceback (most recent call last):
    adadpigu.errors.InputError: unknown option of PrivateTrainer 'noise_multiplyer'; did you mean 'noise_multiplier'?...
    """
    known = {field.name for field in fields(TrainingOptions)}.difference(elsewhere)
    for name in options:
        if name not in known:
            raise unknown(f"option of {owner}", name, known)
    TrainingOptions(**{"steps": 1, **options})
