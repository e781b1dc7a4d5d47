"""The privacy line: the ledger is charged, bounded sums come in, noise is drawn, releases go out.

    S = Σ z̄_i + N(0, σ² sensitivity² I), on active coordinates only

Everything before this module is sensitive, everything after it is free. Only `GaussianMechanism` makes a `Release`,
it charges before it draws, and nothing else in the package draws privacy noise. Of a sum over several processes each
draws the noise of its own coordinates, after the reduction.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, cast, final, get_args

import torch
from torch import Tensor

from adadpigu.core.bounding import BoundedSum, GradientSum, Query
from adadpigu.core.exact import DeviceExact, ExactRandomness
from adadpigu.core.processes import ALONE, Processes
from adadpigu.core.randomness import Randomness
from adadpigu.core.sampling import Sampler
from adadpigu.core.sensitive import Sensitive, unseal
from adadpigu.core.standardising import where_or_zero
from adadpigu.errors import PrivacyLineError

if TYPE_CHECKING:
    from adadpigu.accounting.ledger import Ledger

_MINT = object()
_AT_ONCE = 2**22  # numbers to which noise is added at a time


@final
class Release:
    """A noisy sum, or a function of noisy sums: public, and the only thing that learned state may take.

    `value` is a copy, so nobody can write into a release. `noise_stddev` is the standard deviation of the noise on
    active coordinates, in the units of the released sum (None after `map`, which changes the units).
    """

    __slots__ = ("_active", "_value", "name", "noise_stddev")
    _active: Tensor | None
    _value: Tensor
    name: str
    noise_stddev: float | None

    def __init__(
        self, value: Tensor, *, name: str, noise_stddev: float | None, active: Tensor | None, mint: object = None
    ) -> None:
        if mint is not _MINT:
            raise PrivacyLineError("a Release is made by the mechanism alone; hand it a BoundedSum")
        for key, held in zip(self.__slots__, (active, value.detach(), name, noise_stddev), strict=True):
            object.__setattr__(self, key, held)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise PrivacyLineError(f"a Release is not changed after it was made: {name}")

    def __repr__(self) -> str:
        return f"<Release {self.name!r}, {self._value.numel()} values>"

    @property
    def value(self) -> Tensor:
        """The released numbers (a copy)."""
        return self._value.clone()

    @property
    def active(self) -> Tensor | None:
        """Which coordinates were released (a copy), of bool; None for all."""
        return None if self._active is None else self._active.clone()

    def map(self, function: Callable[..., Tensor], *others: "Release") -> "Release":
        """Post-processing: a function of releases and of public values is a release at no further cost.

        `function` takes this value and those of `others`. The result is active where any release it takes or holds is,
        so that added per-layer queries train all their layers. It may hold no sensitive box.
        """
        held = _held_by(function)
        result = function(self._value.clone(), *[require_release(other).value for other in others])
        if not isinstance(result, Tensor):
            raise PrivacyLineError(f"post-processing must return a tensor, got {type(result).__name__}")
        active = self._active
        for other in [*others, *held]:
            if active is not None and other._value.numel() == self._value.numel():
                active = None if other._active is None else active | other._active
        return Release(result.clone(), name=self.name, noise_stddev=None, active=active, mint=_MINT)


def look(release: object) -> tuple[Tensor, Tensor | None]:
    """Value and active coordinates of a genuine release, not copied: for learned state that reads and keeps neither."""
    genuine = require_release(release)
    return genuine._value, genuine._active


def require_release(value: object) -> Release:
    """The gate before every piece of learned state: passes a genuine `Release`, refuses everything else."""
    if type(value) is not Release:
        raise PrivacyLineError(f"learned state takes a Release from the mechanism, got {type(value).__name__}")
    return value


def _held_by(function: Callable[..., Tensor]) -> list[Release]:
    """The releases that a function can look at besides its arguments; anything sensitive is refused."""
    held: list[object] = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    held += list(getattr(function, "__defaults__", None) or ())
    held.append(getattr(function, "__self__", None))
    for item in held:
        if isinstance(item, Sensitive):
            raise PrivacyLineError(f"post-processing may not look at a {type(item).__name__}")
    items = [item for one in held for item in (one.values() if isinstance(one, dict) else (one,))]
    return [item for item in items if type(item) is Release]


class Receipt:
    """Proof that one draw was charged: what may be released from it, with how much noise, each once."""

    def __init__(self, noise_multipliers: dict[str, float]) -> None:
        self._paid = noise_multipliers

    def redeem(self, sums: Sequence[BoundedSum]) -> list[float]:
        """The noise multipliers of sums that were paid for, which the receipt pays for no further time."""
        for total in sums:
            unseal(total, BoundedSum)
        paid, names = self._paid, [total.query.name for total in sums]
        self._paid = {name: multiplier for name, multiplier in paid.items() if name not in names}
        if not names or len(set(names)) < len(names) or not paid.keys() >= set(names):
            self._paid = {}
            raise PrivacyLineError(f"paid for the releases {sorted(paid)}, asked for {names}")
        return [paid[name] for name in names]

    @property
    def owes(self) -> bool:
        """Whether something that was paid for is still to be released."""
        return bool(self._paid)


def capturing() -> bool:
    """Whether a device records what it is told, instead of doing it."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@final
@dataclass(frozen=True)
class CapturedReleases:
    """Releases whose computation a device has recorded; their values are those of its latest replay."""

    sums: tuple[BoundedSum, ...]
    noise_multipliers: tuple[float, ...]
    releases: dict[str, Release]

    def check_receipt(self, receipt: Receipt) -> None:
        """Before every replay: redeems a receipt for exactly this."""
        if tuple(receipt.redeem(self.sums)) != self.noise_multipliers:
            raise PrivacyLineError("a recorded step was paid for with another noise than it adds")


class GaussianMechanism:
    """Charges for a draw, then turns its bounded sums into releases.

    Formal guarantee: the sums together cost one event at `noise_multiplier` σ, because query k with share s_k gets
    σ_k = σ/√s_k and Σ s_k ≤ 1, so (Σ σ_k⁻²)^−½ ≥ σ. The charge is on the ledger before a record is looked at and
    before a number is drawn; an exception in between leaves the ledger ahead of what was released, never behind.
    """

    def __init__(self, ledger: "Ledger", randomness: Randomness, processes: Processes = ALONE) -> None:
        self._ledger = ledger
        self._randomness = randomness
        self._processes = processes

    def charge(
        self,
        queries: Sequence[Query],
        *,
        source: Sampler,
        noise_multiplier: float,
        size: int,
        stage: str,
        step: int,
        draw: str,
    ) -> Receipt:
        """Charges one event for all queries of a draw; `size` is d, the length of a gradient."""
        multipliers = _multipliers(queries, noise_multiplier)
        if any(query.per_owner != source.per_owner for query in queries):
            raise PrivacyLineError(f"a draw of up to {source.per_owner} records an owner: the queries say otherwise")
        releases = [
            {
                "name": query.name,
                "size": size if isinstance(query, GradientSum) else None,
                "sensitivity": query.sensitivity,
                "noise_multiplier": multiplier,
            }
            for query, multiplier in zip(queries, multipliers, strict=True)
        ]
        self._ledger.charge(source.event(multipliers), stage=stage, step=step, draw=draw, releases=releases)
        return Receipt({query.name: multiplier for query, multiplier in zip(queries, multipliers, strict=True)})

    def release(self, sums: Sequence[BoundedSum], receipt: Receipt) -> dict[str, Release]:
        """Adds noise to every sum of a draw that was charged."""
        multipliers = receipt.redeem(sums)
        if self._processes.size > 1:  # of each sum what this process owns
            parts = [(self._processes.reduce_scatter(unseal(total)), total) for total in sums]
            sums = [BoundedSum(own, total.query, size=total.size, dtype=total.dtype) for own, total in parts]
        return {total.query.name: self._noisy(total, m) for total, m in zip(sums, multipliers, strict=True)}

    def record(self, sums: Sequence[BoundedSum], noise_multiplier: float) -> CapturedReleases:
        """What `release` does, for a device that records it without running it; each replay needs its own receipt."""
        if self._processes.size > 1:
            raise PrivacyLineError("sums of several processes are added up at every step: none is recorded")
        if not capturing():
            raise PrivacyLineError("no device is recording: what is released here has to be paid for")
        multipliers = _multipliers([total.query for total in sums], noise_multiplier)
        releases = {total.query.name: self._noisy(total, m) for total, m in zip(sums, multipliers, strict=True)}
        return CapturedReleases(tuple(sums), tuple(multipliers), releases)

    def _noisy(self, total: BoundedSum, noise_multiplier: float) -> Release:
        """The sum plus noise on its active coordinates; of several processes each adds the noise of its own part."""
        query, content = total.query, unseal(total)
        stddev = 0.0 if noise_multiplier == 0 else noise_multiplier * total.sensitivity
        if noise_multiplier > 0 and not stddev >= sys.float_info.min:
            raise PrivacyLineError(f"noise of {noise_multiplier:g} times {total.sensitivity:g} would round to nothing")
        if self._processes.size == 1:
            noisy = self._with_noise(content, query.active, stddev, total.dtype, query.grid)
        else:
            noisy = self._with_noise_of_own(total, stddev)
        active = None if query.active is None else query.active.clone()
        return Release(noisy, name=query.name, noise_stddev=stddev, active=active, mint=_MINT)

    def _with_noise(
        self, content: Tensor, active: Tensor | None, stddev: float, dtype: torch.dtype, grid: float | None = None
    ) -> Tensor:
        noisy = torch.empty_like(content, dtype=dtype)
        for start in range(0, len(content), _AT_ONCE):  # float64 for a part at a time, for memory's sake
            place = slice(start, start + _AT_ONCE)
            value = content[place]
            if stddev > 0 and grid is not None:
                whole = cast(ExactRandomness | DeviceExact, self._randomness).rounded(len(value), stddev / grid)
                value = torch.add(value, whole.to(value.device), alpha=grid)
            elif stddev > 0:
                value = torch.add(value, self._randomness.normal(len(value)).to(value.device), alpha=stddev)
            noisy[place] = value if active is None else where_or_zero(active[place], value)
        return noisy

    def _with_noise_of_own(self, total: BoundedSum, stddev: float) -> Tensor:
        """Adds the noise of the parts that this process owns, which is all that `total` holds, and gathers the rest."""
        content, active = unseal(total), total.query.active
        noisy, at, filled = [], 0, 0
        for part in self._processes.own(total.size):
            self._pass_over(part.start - at, stddev)
            here = content[filled : filled + part.stop - part.start]
            own = None if active is None else active[part]
            noisy.append(self._with_noise(here, own, stddev, total.dtype, total.query.grid))
            filled, at = filled + len(here), part.stop
        self._pass_over(total.size - at, stddev)
        return self._processes.all_gather(torch.cat(noisy), total.size)

    def _pass_over(self, count: int, stddev: float) -> None:
        """Noise that a seed fixes is the same for a coordinate whoever owns it: other owners' numbers are skipped."""
        while count > 0 and stddev > 0 and not self._randomness.private:
            self._randomness.normal(min(count, _AT_ONCE))
            count -= _AT_ONCE


MakeMechanism = Callable[["Ledger", Randomness, Processes], GaussianMechanism]
"""makes the mechanism of a run; an audit that looks at sums has one of its own"""


def _multipliers(queries: Sequence[Query], noise_multiplier: float) -> list[float]:
    """σ_k = σ/√s_k of each query; refuses queries that one event at σ does not cover."""
    for query in queries:
        if type(query) not in get_args(Query):
            raise PrivacyLineError(f"a query is a GradientSum, MappedSum or RecordSum, got {type(query).__name__}")
        if noise_multiplier > 0 and not math.isfinite(query.clip_norm):
            raise PrivacyLineError(f"{query.name!r} has no finite sensitivity, so no noise can cover it")
    if len({query.name for query in queries}) != len(queries):
        raise PrivacyLineError("the releases of one draw need distinct names")
    shares = [query.share for query in queries]
    if not shares or math.fsum(shares) > 1 + 1e-12:
        raise PrivacyLineError(f"shares of one draw must be given and add up to at most 1, got {shares}")
    if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
        raise PrivacyLineError(f"noise_multiplier={noise_multiplier} is not a finite number of at least 0")
    return [noise_multiplier / math.sqrt(query.share) for query in queries]
