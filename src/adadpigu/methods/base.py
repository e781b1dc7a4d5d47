"""What a method is: how gradients are transformed before the clip, how a release becomes an update, what it learns.

A method's file holds a frozen dataclass of options (`Method`) and the state it builds (`Running`). It sees releases
and public facts, never a record: it *asks* (`Batches.release`) and is answered with releases. The loop, the
engines, the accountant and the ledger know no method by name; a file in this folder that registers its class is all
it takes.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeVar, cast

import torch
from torch import Tensor

from adadpigu.bounding import Query
from adadpigu.errors import InputError, unknown
from adadpigu.layout import Layout
from adadpigu.mechanism import Release


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A batch that every step of a stage draws. Unset values are the run's batch size and calibrated σ."""

    name: str = "gradient"
    batch_size: int | None = None
    noise_multiplier: float | None = None


@dataclass(frozen=True, kw_only=True)
class Stage:
    """So many steps that draw the same batches. All stages together are calibrated before training."""

    name: str
    steps: int
    draws: tuple[Draw, ...] = (Draw(),)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Public facts of a run, for a method that is about to start."""

    layout: Layout
    stages: tuple[Stage, ...]
    batch_size: int
    """B, the *expected* batch size"""
    noise_multiplier: float
    """σ of the run"""
    device: torch.device


class Batches(Protocol):
    """The only way to private records: each call draws a fresh Poisson batch and is charged as one event."""

    def release(self, *queries: Query, draw: str = "gradient") -> dict[str, Release]:
        """Several named releases from one batch share one event; their `share`s add up to at most 1."""
        ...


class Running(ABC):
    """A method at work: the state of one run."""

    def begin_step(self, stage: Stage, index: int) -> None:
        """Called before each step, e.g. to move a mask on. `index` counts within the stage."""
        return

    def effective(self, parameters: Tensor) -> Tensor:
        """The parameters at which the model acts, from the parameters that are learned (they differ under pruning)."""
        return parameters

    @abstractmethod
    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        """Asks for releases and returns ĝ, what the optimiser shall descend along, on its active coordinates."""

    def accept(self, batches: Batches, stage: Stage, before: Tensor, after: Tensor) -> bool:
        """Whether to keep the update from `before` to `after`; a rejected one is undone, momentum included."""
        return True

    @property
    def active(self) -> Tensor | None:
        """Positions that may change now; None for all."""
        return None


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Options of a method. Subclasses are frozen dataclasses whose fields are its options, all with defaults."""

    name: ClassVar[str]
    source: ClassVar[str]
    adds: ClassVar[str]
    costs: ClassVar[str]
    private: ClassVar[bool] = True

    def stages(self, steps: int) -> tuple[Stage, ...]:
        """How the steps of a run are spent."""
        return (Stage(name="training", steps=steps),)

    @abstractmethod
    def begin(self, setting: Setting) -> Running:
        """Starts a run."""

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> Self:
        """The method with these options, values checked against the fields' types."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        chosen: dict[str, object] = {}
        for key, value in options.items():
            if key not in fields:
                raise unknown(f"option of method {cls.name}", key, fields)
            chosen[key] = _coerce(cls.name, key, value, str(fields[key].type))
        return cls(**chosen)

    def options(self) -> dict[str, object]:
        """The options as plain values (those that are not None), for a config file."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


def _coerce(method: str, key: str, value: object, annotation: str) -> object:
    """A config value in the type of the field; a string (from the command line) is read as that type."""
    accepts = annotation.replace(" ", "").split("|")
    text = value.strip() if isinstance(value, str) else None
    try:
        if "bool" in accepts and (isinstance(value, bool) or text in ("true", "false")):
            return value if isinstance(value, bool) else text == "true"
        if "bool" not in accepts and not isinstance(value, bool):
            if text == "none" and "None" in accepts:
                return None
            if "int" in accepts:
                return int(text) if text is not None else _whole(value)
            if "float" in accepts:
                return float(cast(float, value if text is None else text))
            if text is not None:
                return text
    except (TypeError, ValueError):
        pass
    raise InputError(f"option {key}={value!r} of method {method} is not of type {annotation}")


def _whole(value: object) -> int:
    if isinstance(value, int):
        return value
    raise ValueError


M = TypeVar("M", bound=type[Method])
_registry: dict[str, type[Method]] = {}


def register(method: M) -> M:
    """Class decorator: makes a method known by its name."""
    _registry[method.name] = method
    return method


def registered() -> dict[str, type[Method]]:
    """The methods that have been registered so far, by name."""
    return dict(sorted(_registry.items()))
