"""A draw -> bounded sums, in micro-batches of a public size. Before the noise: sensitive in, sensitive out.

Where a GPU runs out of memory over a micro-batch, the same records are processed again in smaller ones. What a draw
costs, which records it took and what noise it gets is decided elsewhere, before and after.
"""

import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.bounding import BoundedSum, Bounder, GradientSum, MappedSum, Query, RecordSum
from adadpigu.core.diagnostics import Diagnostics
from adadpigu.core.gradients.choice import inspect_again
from adadpigu.core.gradients.probing import refuse_mixing
from adadpigu.core.gradients.slicing import BLOCK, computes_rows_alike, rounded
from adadpigu.core.processes import ALONE, Processes
from adadpigu.core.randomness import Randomness, SystemRandomness, cpu_rng_state, isolated, preserve_rng_state
from adadpigu.core.sampling import Drawn, Population, bytes_of, gather
from adadpigu.core.sensitive import PerRecordLosses, PerSampleGradients, Presence, Records, losses_of, padded, unseal
from adadpigu.core.trees import Tree, map_tensors, to_device
from adadpigu.data.augmentation import Augmentation
from adadpigu.errors import require
from adadpigu.features.front import apply_front
from adadpigu.training.memory import MemoryWarning, Rehearsal, in_training, most_drawn

if TYPE_CHECKING:
    from adadpigu.training.preparation import Preparation

_PLACED = 2 * BLOCK  # most rows of a micro-batch in which each record has its own place: with more, most stay empty


@dataclass(frozen=True, kw_only=True)
class View:
    """Turns drawn records into what the trained net takes."""

    augmentation: Augmentation
    front: nn.Module | None
    device: torch.device
    variants: Tensor | None = None
    """features of every variant of every record, [n, v, ...], computed before; drawn inputs are positions in them"""
    test_front: nn.Module | None = None
    """what is left to do for a test record"""
    test_views: bool = False
    """whether test inputs are what was made of each of their views, [n, views, ...]"""

    def __call__(self, records: Records) -> Records:
        inputs, targets = unseal(records)
        shown = self._shown(inputs.to(self.device) if isinstance(inputs, Tensor) else to_device(inputs, self.device))
        return Records((shown, targets.to(self.device)), copies=self.augmentation.copies, present=records.present)

    @cached_property
    def _augments(self) -> bool:
        return bool(self.augmentation)

    @torch.no_grad()
    def _shown(self, inputs: Tree) -> Tree:
        if self.variants is not None:
            which = inputs.repeat_interleave(self.augmentation.copies, dim=0)
            inputs = self.variants[which, self.augmentation.draw(len(inputs), self.device)]
        elif self._augments and isinstance(inputs, Tensor):
            inputs = self.augmentation(inputs)
        elif self._augments:  # of records (image, label)
            inputs = self.augmentation(inputs[0]), inputs[1].repeat_interleave(self.augmentation.copies, dim=0)
        return inputs if self.front is None else apply_front(self.front, inputs)


class ShownDraw:
    """The records of one draw that a script was shown, by their position: they are differentiated as it saw them."""

    def __init__(self, drawn: Drawn, records: Records) -> None:
        self._positions, self._records = unseal(drawn), unseal(records)

    def __len__(self) -> int:
        return len(self._positions)

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        places = torch.searchsorted(self._positions, indices)
        inputs, targets = (map_tensors(lambda rows: rows[places.to(rows.device)], part) for part in self._records)
        return inputs, targets


class MicroBatches:
    """Bounds the draws of one run, so many records at a time: a public size, halved where a GPU runs out of memory.

    Formal guarantee: all micro-batches of a draw have one shape that does not depend on the draw, or shapes in which
    each row was seen to be computed alike (`rows_alike`, rehearsed). Elsewhere on a CPU a record's place is a checksum
    of its input modulo the size. Rows without a record add zero, whatever they hold. So what a record adds depends on
    no other record, bit for bit; sums are float64, and one record moves them by at most C, up to n·2⁻⁵² of it.
    """

    def __init__(
        self,
        prepared: "Preparation",
        randomness: Randomness,
        *,
        diagnostics: Diagnostics | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self._processes = processes
        self.population: Population = prepared.data.train  # where drawn records are read, or a draw that was read
        self._view = prepared.view
        self._records = len(self.population)
        self._model, self._engine = prepared.model, prepared.engine
        self._randomness = randomness
        self._at_once, self._limit = prepared.options.physical_batch_size, prepared.options.memory_limit
        self._most_drawn = most_drawn(prepared.options.batch_size)
        self._expected = prepared.options.batch_size / self._processes.size
        self._rehearsal = Rehearsal(self.population, self._view)
        self._sizes: dict[object, int] = {}
        self._tried: set[object] = set()
        self._most: int | None = None
        self._told: int | None = None
        self._seen: list[PerSampleGradients] = []
        self._known: dict[int, int] = {}
        self._diagnostics = diagnostics
        self.draws_on_host = False  # whether the forward of a draw of fixed shape has used a generator of the CPU
        self.ran_out = False  # whether a GPU has run out of memory over drawn records
        self.relief: Callable[[], bool] = lambda: False  # frees memory where it can; returns whether it did

    def warn_of_memory(self) -> None:
        """Warns where a GPU has run out of memory over drawn records since this was called last."""
        if self._most != self._told:
            self._told = self._most
            _warn(self._most)

    def clipped_by_engine(self, queries: tuple[Query, ...]) -> bool:
        """Whether the engine alone looks at single records: for one sum of plain gradients, without diagnostics."""
        plain = len(queries) == 1 and isinstance(queries[0], GradientSum) and not queries[0].tosses
        return plain and self._diagnostics is None

    def size(self, queries: tuple[Query, ...]) -> int:
        """How many rows each micro-batch has for such queries: a public number."""
        kind = tuple(map(_kind, queries))
        for query in queries:
            if isinstance(query, MappedSum):
                refuse_mixing(query, self._engine.buffer(0), self._tried)
        if kind not in self._sizes:
            self._sizes[kind] = self._first_size(queries)
        return self._sizes[kind] if self._most is None else min(self._sizes[kind], self._most)

    def probe(self) -> None:
        """Refuses a model in which records have come to mix, or that layer rules no longer fit."""
        inspect_again(self._engine, *unseal(self._rehearsal.records(4)))

    def process_at_once(self, records: int) -> None:
        """From here on so many: it changes nothing but memory."""
        self._at_once = records
        self._sizes.clear()

    def sums(self, drawn: Drawn, present: Presence | None, queries: tuple[Query, ...], size: int) -> list[BoundedSum]:
        """Bounds a draw with RNG state of its own, retrying in smaller parts."""
        fixed_shape = present is not None
        rows = self._placed(drawn, size) if not fixed_shape and self._places_matter(size) else (drawn, present)
        if self._processes.size > 1:
            rows = self._in_step(*rows, size)
        with isolated(self._randomness, self._view.device):
            start = cpu_rng_state() if fixed_shape else None
            while True:
                self._seen = []
                with preserve_rng_state(self._view.device), suppress(torch.cuda.OutOfMemoryError):
                    bounders = self._process(*rows, queries, size)
                    self.draws_on_host = self.draws_on_host or (fixed_shape and cpu_rng_state() != start)
                    break
                self.ran_out = True
                relieved = self.relief()
                torch.cuda.empty_cache()  # every tensor of the attempt went with its error
                if not relieved:
                    size = self._most = _smaller(size)
                    if not fixed_shape and self._places_matter(size):
                        rows = self._placed(drawn, size)
        if self._diagnostics is not None:
            for part in self._seen:
                self._diagnostics.observe(part)
        return [bounder.result() for bounder in bounders]

    def recorded_sums(self, drawn: Drawn, present: Presence, queries: tuple[Query, ...], size: int) -> list[BoundedSum]:
        """As `sums`, once, with the current RNG state, while a graph is captured."""
        return [bounder.result() for bounder in self._process(drawn, present, queries, size)]

    def _in_step(self, drawn: Drawn, present: Presence | None, size: int) -> tuple[Drawn, Presence | None]:
        """Rows that are no records, where processes must run the model equally often."""
        positions = unseal(drawn)
        added = self._processes.padding(len(positions), size)
        if added == 0:
            return drawn, present
        here = torch.ones_like(positions, dtype=torch.bool) if present is None else unseal(present)
        return Drawn(F.pad(positions, (0, added))), Presence(F.pad(here, (0, added)))

    def _placed(self, drawn: Drawn, size: int) -> tuple[Drawn, Presence]:
        """Each record at its own place, the k-th of those drawn for a place in the k-th micro-batch."""
        positions = unseal(drawn)
        place, order = torch.sort(self._checksums(positions) % size, stable=True)
        turn = torch.arange(len(place), device=place.device) - torch.searchsorted(place, place)
        table = positions.new_full((int(turn.max()) + 1 if len(turn) else 0, size), -1)
        table[turn, place] = positions[order]
        return Drawn(table.flatten().clamp(min=0)), Presence(table.flatten() >= 0)

    def _checksums(self, positions: Tensor) -> Tensor:
        """One for each record, of its input alone; it is read for that when it is drawn first."""
        wanted = positions.tolist()
        unknown = [position for position in wanted if position not in self._known]
        with preserve_rng_state(self._view.device):
            inputs = self.population.take(torch.tensor(unknown, dtype=torch.long))[0]
        self._known.update(zip(unknown, map(zlib.crc32, bytes_of(inputs)), strict=True))
        return positions.new_tensor([self._known[position] for position in wanted])

    def _places_matter(self, size: int) -> bool:
        """Whether a CPU may round a row by its place: unless it was rehearsed that it does not."""
        if self._view.device.type != "cpu":
            return False
        rehearsed = size % BLOCK == 0 or size == self._longest()
        return not (rehearsed and self._alike)

    @cached_property
    def _alike(self) -> bool:
        """Whether engine and front compute a row alike wherever it lies; the front is tried here, on synthetic rows."""
        front = self._view.front
        if front is None or not self._engine.rows_alike:
            return self._engine.rows_alike
        variants = self._view.variants
        example = self.population.take(torch.arange(0))[0] if variants is None else variants[:0, 0]
        on_cpu = self._view.device.type == "cpu"
        return on_cpu and front_rows_alike(front, example, self._longest(), self._view.augmentation.copies)

    def _longest(self) -> int:
        return self._engine.slice_length(self._expected, self._view.augmentation.copies)

    def _first_size(self, queries: tuple[Query, ...]) -> int:
        size = self._at_once
        most = self._longest()
        if self._places_matter(most):
            most = min(most, _PLACED)
        if size is None:
            return most
        asked = tuple(replace(query, active=None) if isinstance(query, GradientSum) else query for query in queries)

        def work(records: Records) -> None:
            bounders = [Bounder(query, self._engine.layout.size) for query in asked]
            blank = torch.zeros(len(unseal(records)[1]), 2, dtype=torch.float64, device=self._view.device)
            self._bound(records, asked, bounders, [blank for _ in asked])

        if isinstance(size, str):  # auto
            return rounded(self._rehearsal.largest(work, self._limit, min(most, self._most_drawn)))
        size = rounded(min(size, most))
        passing = self._rehearsal.passing(work, size) if self._view.device.type == "cuda" else size
        if passing < size:
            _warn(passing)
        return passing

    def _process(self, drawn: Drawn, present: Presence | None, queries: tuple[Query, ...], size: int) -> list[Bounder]:
        """Gathers and bounds a draw in micro-batches of `size` rows; an empty one is one empty micro-batch."""
        bounders = [Bounder(query, self._engine.layout.size) for query in queries]
        coins = [self._toss(query) for query in queries]
        parts = torch.split(unseal(drawn), size)
        here: list[Presence | None] = [None] * len(parts)
        if present is not None:
            here = [Presence(part) for part in torch.split(unseal(present), size)]
        with self._engine.watched() if self.clipped_by_engine(queries) else nullcontext():
            for part, presence in zip(parts, here, strict=True):
                rows = min(size, -(-len(part) // BLOCK) * BLOCK) if self._alike else size
                records = padded(gather(self.population, Drawn(part), presence), rows)
                own = [None if c is None else _of_rows(c, part, rows) for c in coins]
                self._bound(self._view(records), queries, bounders, own)
        return bounders

    def _toss(self, query: Query) -> Tensor | None:
        """Coins of every record there is, in their order: what one gets depends on no other record, and on no batch.

        In a draw the global generator is the run's privacy generator (`isolated`); a replay freezes it row by row.
        """
        shape = (self._records, query.tosses)
        return torch.rand(shape, dtype=torch.float64, device=self._view.device) if query.tosses else None

    def _bound(
        self, records: Records, queries: tuple[Query, ...], bounders: list[Bounder], coins: Sequence[Tensor | None]
    ) -> None:
        """Adds one micro-batch to the sums, and notes what diagnostics will be shown of it once the draw is through."""
        if self.clipped_by_engine(queries):
            assert isinstance(queries[0], GradientSum)
            bounders[0].add_clipped(self._engine.clipped_sum(records, queries[0]))
            return
        rows = (q for q in queries if isinstance(q, MappedSum) or (isinstance(q, GradientSum) and (q.tosses or q.grid)))
        mapped = list(rows)
        if len(mapped) == len(queries) and self._diagnostics is None:
            for bounder, total in zip(bounders, self._engine.mapped_sums(records, mapped, coins), strict=True):
                bounder.add_clipped(total)
            return
        needed = frozenset[str]().union(*(query.needs for query in queries))
        gradients = self._engine.per_sample_gradients(records) if "gradient" in needed else None
        if self._diagnostics is not None and gradients is not None:
            self._seen.append(_norms_and_losses(gradients))
        losses = None
        if "loss" in needed:
            losses = self._engine.per_record_losses(records) if gradients is None else losses_of(gradients)
        for query, bounder, coin in zip(queries, bounders, coins, strict=True):
            if isinstance(query, GradientSum | MappedSum):
                assert gradients is not None
                bounder.add(gradients, coin)
            else:
                at = self._losses_at(records, query)
                bounder.add_records(records, gradients=gradients, losses=losses, losses_at=at)

    def _losses_at(self, records: Records, query: RecordSum) -> PerRecordLosses | None:
        """[b, k] losses at the k parameter vectors that the query names."""
        if not query.losses_at:
            return None
        layout = self._engine.layout
        present = layout.read(self._model)
        columns: list[Tensor] = []
        try:
            for parameters in query.losses_at:
                layout.write(self._model, parameters)
                columns.append(unseal(self._engine.per_record_losses(records)))
        finally:
            layout.write(self._model, present)
        return PerRecordLosses(torch.stack(columns, dim=1))


def records_at_once(prepared: "Preparation") -> int | None:
    """What `auto` comes to for plain sums of gradients; None where the size was not left to the machine."""
    if prepared.options.physical_batch_size != "auto":
        return None
    with in_training(prepared.model):  # as it will be: dropout takes memory too
        query = GradientSum(clip_norm=1.0, perturbation=prepared.options.perturbation)
        return MicroBatches(prepared, SystemRandomness()).size((query,))


@torch.no_grad()
def front_rows_alike(front: nn.Module, example: Tree, length: int, copies: int = 1) -> bool:
    """Whether a front computes a row alike wherever it lies among so many: tried on synthetic rows."""
    if not (isinstance(example, Tensor) and example.is_floating_point()):
        return False
    shown = partial(apply_front, front)
    return computes_rows_alike(lambda x, y: shown(x).reshape(len(y), -1), example, torch.zeros(1), length, copies)


def _kind(query: Query) -> object:
    """What decides about the memory that a query takes; its mask aside, for which as much is kept as without one."""
    if isinstance(query, GradientSum):
        return query.name, query.top_k < 1, query.center is None, query.scale is None
    return query.name, query.needs, len(query.losses_at)


def _of_rows(coins: Tensor, positions: Tensor, rows: int) -> Tensor:
    """The coins of the records at these positions, and zero for the rows that follow, which are no records."""
    own = coins[positions.to(coins.device)]
    return F.pad(own, (0, 0, 0, rows - len(own))) if len(own) else own


def _smaller(size: int) -> int:
    allowed = "allowed: a smaller model, fewer copies, another engine or device"
    require(size > 1, f"physical_batch_size=1: the GPU ran out of memory over one record; {allowed}")
    return rounded(size // 2)


def _warn(size: int | None) -> None:
    warnings.warn(f"the GPU ran out of memory; physical_batch_size is {size} from here on", MemoryWarning, stacklevel=3)


def _norms_and_losses(gradients: PerSampleGradients) -> PerSampleGradients:
    """All that diagnostics look at, in few bytes: rows of one entry, the norm, kept until the draw is through."""
    batch = unseal(gradients).records_only()
    norms = torch.linalg.vector_norm(batch.gradients, dim=1, keepdim=True, dtype=torch.float64)
    return PerSampleGradients(replace(batch, gradients=norms.cpu(), losses=batch.losses.detach().cpu()))
