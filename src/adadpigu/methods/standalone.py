"""Published systems with a run of their own: one release of a linear head, or reports of users. No batches, no steps.

They are typed like any method, and `adadpigu train` runs them. Whatever else takes a method asks it to begin, and is
refused in one line. What such a run gives out is public, and its own statement tells by which theorem.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn, Protocol

from torch import nn

from adadpigu.errors import InputError
from adadpigu.methods.base import Method, RunContext

if TYPE_CHECKING:
    from adadpigu.config import RunConfig
    from adadpigu.data import DataSet


class Statement(Protocol):
    """What a run claims."""

    @property
    def private(self) -> bool: ...

    def statement(self) -> str:
        """The guarantee in plain words."""

    def to_json(self) -> Mapping[str, object]:
        """The same as plain values."""


@dataclass(frozen=True, kw_only=True)
class StandaloneRun:
    """What such a run leaves."""

    model: nn.Module
    """as it takes the user's records"""
    accuracy: float | None
    """of the test records"""
    privacy: Statement
    epsilon: float | None
    """of the central guarantee; None where it is another"""


@dataclass(frozen=True, kw_only=True)
class Standalone(Method):
    """A system that runs by itself."""

    guarantee: ClassVar[str]
    settings: ClassVar[frozenset[str]]
    """of a run, those that it goes by besides its own options"""

    def begin(self, context: RunContext) -> NoReturn:
        raise InputError(
            f"method={self.name!r} has no steps of training; allowed: `adadpigu train --method {self.name}`"
        )

    @abstractmethod
    def run(self, config: "RunConfig", *, data: "DataSet | None" = None, ledger: Path | None = None) -> StandaloneRun:
        """Charges, then makes what it gives out; `data` takes the place of the data set that the config names."""
