"""The privacy line: bounded sums go in, the ledger is charged, noise is drawn, releases come out.

    S = Σ z̄_i + N(0, σ² sensitivity² I), on active coordinates only

Everything before this module is sensitive, everything after it is free. Only `GaussianMechanism` makes a `Release`,
it charges before it draws, and nothing else in the package draws privacy noise. A `Tape` can be laid into it, to
record what reached the noise and to play the same releases back on a neighbouring data set.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol, final

from torch import Tensor

from adadpigu.bounding import BoundedSum
from adadpigu.errors import PrivacyLineError
from adadpigu.randomness import Randomness
from adadpigu.sensitive import Sensitive, unseal

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from adadpigu.accounting.ledger import Ledger

_MINT = object()
_minted: weakref.WeakSet[Release] = weakref.WeakSet()


@final
class Release:
    """A noisy sum, or a function of noisy sums: public, and the only thing that learned state may take.

    `value` is a copy, so nobody can write into a release. `noise_stddev` is the standard deviation of the noise on
    active coordinates, in the units of the released sum (None after `map`, which changes the units).
    """

    __slots__ = ("__value", "__weakref__", "active", "name", "noise_stddev")

    def __init__(
        self, value: Tensor, *, name: str, noise_stddev: float | None, active: Tensor | None, mint: object = None
    ) -> None:
        if mint is not _MINT:
            raise PrivacyLineError("a Release is made by the mechanism alone; hand it a BoundedSum")
        self.__value = value.detach().clone()
        self.name = name
        self.noise_stddev = noise_stddev
        self.active = active
        _minted.add(self)

    def __setattr__(self, name: str, value: object) -> None:
        if self in _minted:
            raise PrivacyLineError(f"a Release is not changed after it was made: {name}")
        object.__setattr__(self, name, value)

    def __init_subclass__(cls) -> NoReturn:
        raise PrivacyLineError("Release cannot be subclassed")

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise PrivacyLineError("a Release is not pickled; store its value")

    def __repr__(self) -> str:
        return f"<Release {self.name!r}, {self.__value.numel()} values>"

    @property
    def value(self) -> Tensor:
        """The released numbers (a copy)."""
        return self.__value.clone()

    def map(self, function: Callable[[Tensor], Tensor]) -> Release:
        """Post-processing: a function of a release and of public values is a release at no further cost.

        `function` must not close over anything sensitive; a sensitive box in its closure or its result is refused.
        """
        _refuse_sensitive_closure(function)
        result = function(self.value)
        if not isinstance(result, Tensor):
            raise PrivacyLineError(f"post-processing must return a tensor, got {type(result).__name__}")
        return Release(result, name=self.name, noise_stddev=None, active=self.active, mint=_MINT)


def require_release(value: object) -> Release:
    """The gate before every piece of learned state: passes a genuine `Release`, refuses everything else."""
    if type(value) is not Release or value not in _minted:
        raise PrivacyLineError(f"learned state takes a Release from the mechanism, got {type(value).__name__}")
    return value


def _refuse_sensitive_closure(function: Callable[[Tensor], Tensor]) -> None:
    held: list[object] = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    held += list(getattr(function, "__defaults__", None) or ())
    held.append(getattr(function, "__self__", None))
    for item in held:
        if isinstance(item, Sensitive):
            raise PrivacyLineError(f"post-processing may not look at a {type(item).__name__}")


class Tape(Protocol):
    """Sits between the bounded sums and the noise (facts of record and replay: `adadpigu.audit.replay`)."""

    def releases(self, sums: Sequence[BoundedSum]) -> dict[str, Release] | None:
        """Recorded releases to return instead of drawing noise, or None to go on and draw."""
        ...

    def record(self, sums: Sequence[BoundedSum], releases: dict[str, Release]) -> None:
        """Called with what was released."""
        ...


class EventSource(Protocol):
    """Whoever drew the batch says what releasing from it costs."""

    def event(self, noise_multipliers: list[float]) -> DpEvent: ...


class GaussianMechanism:
    """Turns the bounded sums of one draw into releases.

    Formal guarantee: the sums together cost one event at `noise_multiplier` σ, because query k with share s_k gets
    σ_k = σ/√s_k and Σ s_k ≤ 1, so (Σ σ_k⁻²)^−½ ≥ σ. The charge is on the ledger before a single number is drawn; an
    exception in between leaves the ledger ahead of what was released, never behind.
    """

    def __init__(self, ledger: Ledger, randomness: Randomness, tape: Tape | None = None) -> None:
        self._ledger = ledger
        self._randomness = randomness
        self._tape = tape

    def release(
        self,
        sums: Sequence[BoundedSum],
        shares: Sequence[float],
        *,
        source: EventSource,
        noise_multiplier: float,
        stage: str,
        step: int,
        draw: str,
    ) -> dict[str, Release]:
        """Charges one event, then adds noise to every sum of the draw."""
        _check(sums, shares, noise_multiplier)
        multipliers = [noise_multiplier / math.sqrt(share) for share in shares]
        self._ledger.charge(
            source.event(multipliers),
            stage=stage,
            step=step,
            draw=draw,
            releases=[
                {"name": s.name, "size": s.size, "sensitivity": s.sensitivity, "noise_multiplier": m}
                for s, m in zip(sums, multipliers, strict=True)
            ],
        )
        played = self._tape.releases(sums) if self._tape else None
        if played is not None:
            return played
        releases = {s.name: self._noisy(s, m) for s, m in zip(sums, multipliers, strict=True)}
        if self._tape:
            self._tape.record(sums, releases)
        return releases

    def _noisy(self, total: BoundedSum, noise_multiplier: float) -> Release:
        content = unseal(total)
        stddev = 0.0 if noise_multiplier == 0 else noise_multiplier * total.sensitivity
        if stddev > 0:
            noise = self._randomness.normal(content.numel()).to(content.device)
            content = content + noise.reshape(content.shape) * stddev
        if total.active is not None:
            content = content.new_zeros(total.size).index_copy_(0, total.active, content)
        return Release(content.to(total.dtype), name=total.name, noise_stddev=stddev, active=total.active, mint=_MINT)


def _check(sums: Sequence[BoundedSum], shares: Sequence[float], noise_multiplier: float) -> None:
    for total in sums:
        if not isinstance(total, BoundedSum):
            raise PrivacyLineError(f"the mechanism takes a BoundedSum, got {type(total).__name__}")
        if noise_multiplier > 0 and not math.isfinite(total.sensitivity):
            raise PrivacyLineError(f"{total.name!r} has no finite sensitivity, so no noise can cover it")
    if len({total.name for total in sums}) != len(sums):
        raise PrivacyLineError("the releases of one draw need distinct names")
    if not sums or math.fsum(shares) > 1 + 1e-12:
        raise PrivacyLineError(f"shares of one draw must be given and add up to at most 1, got {list(shares)}")
    if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
        raise PrivacyLineError(f"noise_multiplier={noise_multiplier} is not a finite number of at least 0")
