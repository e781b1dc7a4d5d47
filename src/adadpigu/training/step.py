"""One training step, top to bottom. What leaves `Draws.release` is public; everything before it is sensitive.

    charge      the ledger pays for one draw, before a record is looked at
    sample      every record is taken with probability q                          `core.sampling`
    gradients   one g_i for each record that was taken                            `core.gradients`
    bound       z̄_i = clip(g_i), then the sum, which knows its sensitivity        `core.bounding`
    release     S = Σ z̄_i + N(0, σ²C² I)                                          `core.mechanism`
    update      the method turns S into ĝ, the optimiser follows it, the method may reject it

`Steps` makes the update, `Draws` answers the method's queries. `micro_batches` computes gradients and bounds them,
`cuda_graphs` replays the same step on a GPU.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from adadpigu.core.bounding import BoundedSum, MappedSum, Query, RecordSum
from adadpigu.core.diagnostics import Diagnostics
from adadpigu.core.exact import check_grid, grid_of
from adadpigu.core.mechanism import GaussianMechanism, Receipt, Release
from adadpigu.core.processes import ALONE, Processes
from adadpigu.core.randomness import Randomness, SystemRandomness, isolated
from adadpigu.core.sampling import Coins, Sampler, gather
from adadpigu.core.sensitive import Records, withheld
from adadpigu.core.side_stream import join
from adadpigu.errors import PrivacyLineError, require
from adadpigu.methods.base import Batches, MethodState
from adadpigu.methods.denoising import denoised
from adadpigu.training.learned import Learned
from adadpigu.training.micro_batches import MicroBatches, ShownDraw
from adadpigu.training.preparation import Preparation

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step that may be taken now: the number of its stage, its own within it, and the steps before it in all."""

    stage: int
    index: int
    count: int


class Steps:
    """Moves what a run has learned, a step at a time. All of it is made of releases; records are behind `Draws`."""

    def __init__(self, prepared: Preparation, batches: Batches, learned: Learned) -> None:
        self._p, self._batches = prepared, batches
        self._optimiser, self._method, self._average = learned.optimiser, learned.method_state, learned.average
        self._layout, self._parameters = prepared.engine.layout, learned.optimiser.weights
        self.may_reject = type(self._method).accept is not MethodState.accept

    def take(self, step: Step) -> None:
        """One step by the run's own optimiser."""
        direction = self._direction(step)
        with self._rejectable(step) if self.may_reject else nullcontext():
            self._optimiser.step(direction)
        self._follow(direction)

    @contextlib.contextmanager
    def shown(self, step: Step) -> Iterator[Release]:
        """One step in a loop of the user's own: ĝ is in `p.grad` while this lasts, for their optimiser's step."""
        if self._average is not None:
            self._average.begin_step()
        direction = self._direction(step)
        with self._rejectable(step) if self.may_reject else nullcontext():
            self._optimiser.expose(direction)
            yield direction
            self._optimiser.settle()
        self._follow(direction)

    def _direction(self, step: Step) -> Release:
        """ĝ, asked for at the weights at which the model acts: of a pruned model, masked ones are zero."""
        model, effective = self._p.model, self._method.effective(self._parameters)
        pruned = effective is not self._parameters
        if pruned:
            self._layout.write(model, effective)
        direction = self._method.step(self._batches, self._p.stages[step.stage], step.index)
        if pruned:
            self._layout.write(model, self._parameters)
        return direction

    def _follow(self, direction: Release) -> None:
        if self._average is not None:
            self._average.update(direction.map(lambda _: self._parameters))
        if self._p.device.type == "cuda":
            join(self._p.device)

    @contextlib.contextmanager
    def _rejectable(self, step: Step) -> Iterator[None]:
        """Within, an update is made. The method may then reject it, and it is undone."""
        before, state = self._parameters.clone(), self._optimiser.snapshot()
        yield
        if not self._method.accept(self._batches, self._p.stages[step.stage], before, self._parameters.clone()):
            self._layout.write(self._p.model, before)
            self._optimiser.load(state)


class Watch(Protocol):
    """Called around each draw with public values; for a replayed step, once, at capture."""

    def before_draw(self, draw: str, queries: Sequence[Query]) -> None:
        """Called before the draw is charged and its coins are tossed."""

    def after_draw(self, draw: str, queries: Sequence[Query], releases: dict[str, Release]) -> None:
        """Called with what was released; within a recording, with tensors that every replay fills anew."""


@dataclass(frozen=True)
class ChargedDraw:
    """A draw that was charged and tossed, and not yet looked at."""

    receipt: Receipt
    coins: Coins


class Draws:
    """The batches of one run (the `Batches` a method is given): one draw, one charge, one noise.

    Formal guarantee: neither coins, charge nor noise depend on how often a draw is processed (see `MicroBatches`).
    """

    def __init__(
        self,
        prepared: Preparation,
        mechanism: GaussianMechanism,
        randomness: Randomness,
        *,
        diagnostics: Diagnostics | None = None,
        processes: Processes = ALONE,
        watch: Watch | None = None,
    ) -> None:
        self._processes = processes
        self._population, self._view, self._engine = prepared.data.train, prepared.view, prepared.engine
        self._mechanism, self._randomness = mechanism, randomness
        self._batch_size, options = prepared.options.batch_size, prepared.options
        how = {"stability": options.stability, "perturbation": options.perturbation}
        self._clipping: dict[str, Any] = {name: value for name, value in how.items() if value}
        self._per_owner = prepared.per_owner
        self._denoise, self._layer_sizes = prepared.options.denoise, prepared.engine.layout.layer_sizes()
        self._diagnostics, self._watch, self._grid = diagnostics, watch, options.grid
        self.micro_batches = MicroBatches(prepared, randomness, diagnostics=diagnostics, processes=processes)
        self._failed = False
        self._planned: dict[str, tuple[Sampler, float]] = {}
        self._stage, self._step = "", -1
        self._ahead = False
        self._pending: ChargedDraw | None = None

    def begin_step(self, stage: str, step: int, planned: Mapping[str, tuple[Sampler, float]]) -> None:
        """Allows the draws that the plan holds for this step, each once."""
        self._stage, self._step, self._planned = stage, step, dict(planned)
        self._pending, self._ahead, self.micro_batches.population = None, False, self._population

    def release(self, *queries: Query, draw: str = "gradient") -> dict[str, Release]:
        """One fresh Poisson batch, one event, a release a query."""
        queries = self._as_clipped(queries)
        if self._watch is not None and not self._ahead:
            self._watch.before_draw(draw, queries)
        self._ahead = False
        releases = self._answer(queries, draw)
        if self._watch is not None:
            self._watch.after_draw(draw, queries, releases)
        return releases

    def release_sum(self, query: Query, total: Callable[[Query], BoundedSum], draw: str) -> Release:
        """One charged release of a sum over other records than those that are drawn from; nobody's are drawn."""
        (query,) = self._as_clipped((query,))
        if self._watch is not None:
            self._watch.before_draw(draw, (query,))
        paid = self._charge_and_sample((query,), draw)
        made = self._mechanism.release([self._withholding(partial(total, query))], paid.receipt)
        if self._watch is not None:
            self._watch.after_draw(draw, (query,), made)
        return made[query.name]

    def denoise(self, released: Release, sizes: Sequence[int] | None = None) -> Release:
        """The release with less noise, where the run asks for that; else the release itself."""
        if self._denoise == "none":
            return released
        return denoised(released, self._denoise, self._layer_sizes if sizes is None else sizes)

    def _answer(self, queries: tuple[Query, ...], draw: str) -> dict[str, Release]:
        """Charge and sample, then gradients and their bounded sums, then noise; then again what goes by a release."""
        first, later = _parted(queries)
        size = self.micro_batches.size(first)  # a public number, found before a record is looked at
        paid = self._charge_and_sample(queries, draw) if self._pending is None else self._pending
        self._pending = None
        releases = self._noisy_sums(paid, first, size, draw)
        for query in later:
            known = query.knowing(releases[str(query.given)].value)
            releases |= self._noisy_sums(paid, (known,), self.micro_batches.size((known,)), draw)
        if self.micro_batches.ran_out:
            self.micro_batches.warn_of_memory()
        return releases

    def _noisy_sums(self, paid: ChargedDraw, queries: tuple[Query, ...], size: int, draw: str) -> dict[str, Release]:
        """One look at a batch that was charged."""
        sums = self._withholding(partial(self._sums, paid.coins, queries, size))
        if self._diagnostics is not None:
            self._diagnostics.end_draw(step=self._step, draw=draw)
        return self._mechanism.release(sums, paid.receipt)

    def _charge_and_sample(self, queries: tuple[Query, ...], draw: str) -> ChargedDraw:
        """Charges for a draw, then tosses its coins."""
        if draw not in self._planned:
            told = f"step {self._step} of stage {self._stage!r} has no draw {draw!r} left"
            raise PrivacyLineError(f"{told} (left: {sorted(self._planned)})")
        if self._failed:
            raise PrivacyLineError("an earlier draw of this run failed amid private records: nothing more is released")
        sampler, noise_multiplier = self._planned.pop(draw)
        receipt = self._mechanism.charge(
            queries,
            source=sampler,
            noise_multiplier=noise_multiplier,
            size=self._engine.layout.size,
            stage=self._stage,
            step=self._step,
            draw=draw,
        )
        return ChargedDraw(receipt, self._toss(sampler))

    def _toss(self, sampler: Sampler) -> Coins:
        """One coin for each record; several processes go by the first one's, each for the records that live there."""
        coins = sampler.toss(self._population, self._randomness)
        return coins if self._processes.size == 1 else coins.shared_by(self._processes)

    def _withholding(self, work: Callable[[], T]) -> T:
        """Does work amid private records. The text of errors and warnings is withheld: it may quote a record."""
        self._failed, shown = True, self._diagnostics is not None  # nothing more is released unless it comes through
        with nullcontext() if shown else warnings.catch_warnings(action="ignore"):
            result = withheld(work, shown=shown)
        self._failed = False
        return result

    def _sums(self, coins: Coins, queries: tuple[Query, ...], size: int) -> list[BoundedSum]:
        return self.micro_batches.sums(coins.drawn(), None, queries, size)

    def ahead(self, *queries: Query, draw: str = "gradient") -> Records:
        """Charges for a draw and makes it, for a script that sees its records; the next `release` answers with it."""
        queries = self._as_clipped(queries)
        if self._watch is not None:
            self._watch.before_draw(draw, queries)
        self._ahead = True
        self._pending = self._charge_and_sample(queries, draw)
        drawn = self._pending.coins.drawn()
        with isolated(SystemRandomness(), self._view.device):
            records = self._withholding(partial(gather, self._population, drawn))
        self.micro_batches.population = ShownDraw(drawn, records)
        return records

    def _on_grid(self, query: Query) -> Query:
        """The query in whole numbers; refused before anything is charged where its grid is too coarse."""
        whole = self._engine.sums_whole_rows
        require(whole, "randomness='exact' with shards: no process sees a whole gradient; allowed: secure")
        grid = grid_of(query.clip_norm, self._grid)
        check_grid(query.clip_norm, grid, self._engine.layout.size)
        return replace(query, grid=grid)

    def _as_clipped(self, queries: tuple[Query, ...]) -> tuple[Query, ...]:
        """The queries under the run's way of clipping and unit of privacy, whatever the method."""
        if not queries:
            raise PrivacyLineError("a draw needs at least one query")
        if self._per_owner > 1:
            queries = tuple(replace(query, per_owner=self._per_owner) for query in queries)
        if hasattr(self._randomness, "rounded"):
            queries = tuple(self._on_grid(query) for query in queries)
        if not self._clipping:
            return queries
        return tuple(q if isinstance(q, RecordSum) else replace(q, **self._clipping) for q in queries)


def _parted(queries: Sequence[Query]) -> tuple[tuple[Query, ...], tuple[MappedSum, ...]]:
    """Queries of a first look at a batch, and those that go by what it released; refuses one that goes by no other."""
    later = tuple(query for query in queries if isinstance(query, MappedSum) and query.given is not None)
    first = tuple(query for query in queries if not (isinstance(query, MappedSum) and query.given is not None))
    known = {query.name for query in first}
    for query in later:
        if query.given not in known:
            raise PrivacyLineError(f"{query.name!r} is given {query.given!r}; released before it: {sorted(known)}")
        known.add(query.name)
    return first, later
