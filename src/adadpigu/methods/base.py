"""What a method is: how gradients are transformed before the clip, how a release becomes an update, what it learns.

A method's file holds a frozen dataclass of options (`Method`) and the state it builds (`MethodState`). It sees releases
and public facts, never a record: it *asks* (`Batches.release`) and is answered with releases. The loop, the
engines, the accountant and the ledger know no method by name; a file in this folder that registers its class is all
it takes.
"""

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum, Query
from adadpigu.core.layout import Layout
from adadpigu.core.mechanism import Release
from adadpigu.core.state import State
from adadpigu.errors import InputError, check_known, check_range


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


class PublicRows(Protocol):
    """Gradients of public records: uncharged, since no private record had a part in them."""

    @property
    def count(self) -> int:
        """m, how many records there are."""

    def rows(self, weights: Tensor, number: int) -> Iterator[Tensor]:
        """[b, d] of all records in order, at these weights; `number`: which images of random processes are taken."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Public facts of a run, for a method that is about to start."""

    layout: Layout
    batch_size: int
    """B, the *expected* batch size"""
    records: int
    """N, the declared record count"""
    noise_multiplier: float
    """σ of the run"""
    per_owner: int = 1
    """the noise on a sum is σ·C times this: records of one unit of privacy in a draw, at most"""
    weights: Tensor
    """θ at the start: random, or brought along, in either case public"""
    seed: int
    """for a method's own public choices, such as a random mask; never for noise"""
    device: torch.device
    second_moment: Callable[[], Tensor] | None = None
    """v of the run's optimiser, [d], bias corrected: a function of releases; None where it keeps none"""
    public_scores: Callable[..., Tensor] | None = None
    """mean |∇ℓ| over public images at the weights of now, [d]; `count=2` tries two. None where there are no images"""
    public: PublicRows | None = None
    """of a method that `needs_public`"""

    def public_rng(self, number: int) -> np.random.Generator:
        """For a method's own public choices: a generator fixed by the run's seed, another one for every number."""
        return np.random.default_rng([self.seed % 2**64, number])


class Batches(Protocol):
    """The only way to private records: each call draws a fresh Poisson batch and is charged as one event."""

    def release(self, *queries: Query, draw: str = "gradient") -> dict[str, Release]:
        """Several named releases from one batch share one event; their `share`s add up to at most 1.

        One that is `given` another (`MappedSum`) stands behind it, and may go by what that one released.
        """

    def denoise(self, released: Release, sizes: Sequence[int] | None = None) -> Release:
        """A released sum with less noise, where the run asks for that (`--denoise`); else the release itself.

        For ĝ alone: what learns, learns from the release. `sizes` of the blocks to denoise; None: the layers, in order.
        """


def mean_gradient(batches: Batches, query: GradientSum, batch_size: int) -> Release:
    """ĝ of a method that makes one query a step: the released sum over the expected batch size, restored."""
    return batches.denoise(batches.release(query)[query.name]).map(lambda value: query.restore(value, batch_size))


Positive = Annotated[float, "a finite number above 0"]
Share = Annotated[float, "in (0, 1]"]  # types of options whose range `check_options` knows


class MethodState(ABC):
    """A method at work: the state of one run."""

    def begin_step(self, stage: Stage, index: int, weights: Tensor) -> None:
        """Called before each step, e.g. to move a mask on. `index` counts within the stage; `weights` are public."""
        return

    def effective(self, parameters: Tensor) -> Tensor:
        """The parameters at which the model acts, from those that are learned; the same object where they are equal."""
        return parameters

    @abstractmethod
    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        """Asks for releases and returns ĝ, what the optimiser shall descend along, on its active coordinates."""

    def accept(self, batches: Batches, stage: Stage, before: Tensor, after: Tensor) -> bool:
        """Whether to keep the update from `before` to `after`; a rejected one is undone, momentum included."""
        return True

    def state(self) -> State:
        """What it has learned, for a checkpoint.

        A method that holds tensors must override this (empty where they follow from public facts), or it gets none.
        """
        return {}

    def unstated(self) -> str | None:
        """The attribute that holds learned tensors of which `state` says nothing; None where there is none."""
        if type(self).state is not MethodState.state:
            return None
        return next((name for name, value in vars(self).items() if _learns(value)), None)

    def outputs(self) -> State:
        """What it has found out besides the weights, by name: functions of releases, kept with the run."""
        return {}

    def load(self, state: State) -> None:
        """Takes the `state` of a run that goes on; called once, before the first step."""
        return

    @property
    def active(self) -> Tensor | None:
        """The mask of coordinates that may change now, [d] of bool; None for all."""
        return None

    @property
    def standardising(self) -> tuple[Tensor | None, Tensor | None]:
        """α and β by which gradients are standardised now, [d] each, functions of releases; None for one unused."""
        return None, None

    @property
    def active_share(self) -> float:
        """The share of coordinates that `active` keeps."""
        return 1.0 if self.active is None else int(self.active.sum()) / len(self.active)

    def capture_key(self, stage: Stage) -> Hashable | None:
        """What `step` depends on besides tensors that stay in their place; None: everything, so it runs every time.

        A GPU records such a step once and replays it, without its Python code, as long as this stays equal. So `step`
        must make one draw with one sum of gradients, and read and change nothing but tensors, in place. What has to
        happen in Python belongs into `begin_step`, which always runs.
        """
        return None


class GradientState(MethodState):
    """A method that asks for one sum of gradients a step, and descends along its mean."""

    def __init__(self, query: GradientSum, batch_size: int) -> None:
        self._query, self._batch_size = query, batch_size

    @property
    def active(self) -> Tensor | None:
        return self._query.active

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        return mean_gradient(batches, self._query, self._batch_size)


class FixedGradientState(GradientState):
    """The same query in every step."""

    def capture_key(self, stage: Stage) -> Hashable:
        return stage.name


def _learns(value: object) -> bool:
    """Whether a value is a tensor, or a part that has a state of its own."""
    return isinstance(value, Tensor) or (hasattr(value, "state") and hasattr(value, "load"))


Need = tuple[tuple[str, ...], str, Callable[[Any], bool], str]
"""options that need another: which one, whether the method looks at them, and with what values of that one"""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Options of a method. Subclasses are frozen dataclasses whose fields are its options, all with defaults."""

    name: ClassVar[str]
    source: ClassVar[str]
    adds: ClassVar[str]
    costs: ClassVar[str]
    private: ClassVar[bool] = True
    denoises: ClassVar[bool] = False
    """whether ĝ is made of releases by way of `Batches.denoise`, so that a run may ask for it"""
    needs_public: ClassVar[bool] = False
    """whether it learns from gradients of public records"""
    needs_second_moment: ClassVar[bool] = False
    """whether it goes by the mean square of its directions that the run's optimiser keeps"""
    off: ClassVar[Mapping[str, object]] = {}
    """what the word `off` stands for, by option"""
    needs: ClassVar[tuple[Need, ...]] = ()
    """which options do nothing without another"""
    fixed: ClassVar[Mapping[str, str]] = {}
    """options whose defaults the name stands for, with the method that takes other values"""

    def __post_init__(self) -> None:
        check_options(self)

    def stages(self, steps: int) -> tuple[Stage, ...]:
        """How the steps of a run are spent."""
        return (Stage(name="training", steps=steps),)

    @abstractmethod
    def begin(self, context: RunContext) -> MethodState:
        """Starts a run."""

    def declared(self) -> tuple[str, ...]:
        """Facts that these options declare public, for the statement."""
        return ()

    def contradictions(self, given: Mapping[str, object]) -> Iterator[str]:
        """Says of options that were given that they contradict the method's name, or do nothing with the others.

        One that switches something off does what it says.
        """
        for key, other in self.fixed.items():
            usual = getattr(type(self)(), key)
            if key in given and getattr(self, key) != usual:
                told = f"{key}={given[key]}: method {self.name!r} stands for {key}={usual}"
                yield f"{told}; allowed with --method {other}"
        for keys, needed, used, wanted in self.needs:
            for key in keys:
                value = self.option(key, given[key]) if key in given else None
                if value not in (None, False, self.off.get(key)) and not used(self):
                    found = getattr(self, needed)
                    yield f"{key}={given[key]} does nothing with {needed}={found!r}; allowed with {wanted}"

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> Self:
        """The method with these options, values checked against the fields' types."""
        return cls(**{key: cls.option(key, value) for key, value in options.items()})

    @classmethod
    def option(cls, key: str, value: object) -> object:
        """One option's value in its field's type; a string (from the command line) is read as that type."""
        check_known(f"option of method {cls.name}", key, [field.name for field in dataclasses.fields(cls)])
        if value == "off" and key in cls.off:
            return cls.off[key]
        return _coerce(f"option {key}={value!r} of method {cls.name}", value, get_type_hints(cls)[key])

    def options(self) -> dict[str, object]:
        """The options as plain values (those that are not None), for a config file."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


def check_options(options: object) -> None:
    """Refuses values outside the range that their type is `Annotated` with, or not among those of their `Literal`."""
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        if get_origin(hint) is Annotated:
            check_range(name, getattr(options, name), get_args(hint)[1])
        elif get_origin(hint) is Literal and getattr(options, name) not in get_args(hint):
            raise InputError(f"{name}={getattr(options, name)!r} is not one of {', '.join(get_args(hint))}")


def _coerce(what: str, value: object, hint: Any) -> object:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    text = value.strip() if isinstance(value, str) else None
    for kind in sorted(kinds, key=lambda kind: kind is not type(None)):  # "none" is nothing before it is a text
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return _read(kind, value, text)
    raise InputError(f"{what} is not allowed; allowed: {allowed_values(hint)}")


def allowed_values(hint: Any) -> str:
    """What a field of this type may be set to, in words.

    >>> allowed_values(float | None), allowed_values(bool)
    ('a number or none', 'true or false')
    """
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "none"}
    return " or ".join(", ".join(get_args(kind)) or words.get(kind, str(kind)) for kind in kinds)


def _read(kind: Any, value: object, text: str | None) -> object:
    """The value as a field of this kind has it; `text` is the value where that is a text. Raises where it is none."""
    given: Any = value if text is None else text
    if kind is bool and (isinstance(value, bool) or text in ("true", "false", "off")):
        return given if text is None else text == "true"
    if kind is int and (text is not None or (isinstance(value, int) and not isinstance(value, bool))):
        return int(given)
    if kind is float and not isinstance(value, bool):
        return float(given)
    if kind is type(None) and (value is None or text in ("none", "off")):
        return None
    if text is not None and (kind is str or text in get_args(kind)):
        return text
    raise TypeError


M = TypeVar("M", bound=type[Method])
_registry: dict[str, type[Method]] = {}
system_lists: list[Callable[[], list[dict[str, object]]]] = []
"""of packages that list published systems beside their methods, for `adadpigu methods --json`"""


def register(method: M) -> M:
    """Class decorator: makes a method known by its name."""
    _registry[method.name] = method
    return method


def registered() -> dict[str, type[Method]]:
    return dict(sorted(_registry.items()))
