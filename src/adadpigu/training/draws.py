"""Answers a method's queries: charge, draw a Poisson batch, bound it record by record, let the mechanism release.

This is where the sensitive side of a step happens from end to end; what leaves `release` is public.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from adadpigu.bounding import BoundedSum, Bounder, GradientSum, Query, RecordSum
from adadpigu.diagnostics import Diagnostics
from adadpigu.errors import AdaDPIGUError, ModelError, PrivacyLineError
from adadpigu.gradients import GradientEngine
from adadpigu.isolation import isolated
from adadpigu.mechanism import GaussianMechanism, Release
from adadpigu.randomness import Randomness
from adadpigu.records import PerRecordLosses, Records, losses_of
from adadpigu.sampling import PoissonSampler, Population, gather
from adadpigu.sensitive import unseal
from adadpigu.training.view import View

_RECORDS_AT_ONCE = 4096


class Draws:
    """The batches of one run (the `Batches` a method is given)."""

    def __init__(
        self,
        *,
        population: Population,
        model: nn.Module,
        engine: GradientEngine,
        mechanism: GaussianMechanism,
        randomness: Randomness,
        view: View,
        physical_batch_size: int | None = None,
        stability: float | None = None,
        diagnostics: Diagnostics | None = None,
    ) -> None:
        self._population = population
        self._model = model
        self._engine = engine
        self._mechanism = mechanism
        self._randomness = randomness
        self._view = view
        self._physical = physical_batch_size
        self._stability = stability
        self._diagnostics = diagnostics
        self._failed = False
        self._planned: dict[str, tuple[PoissonSampler, float]] = {}
        self._stage, self._step = "", -1

    def begin_step(self, stage: str, step: int, planned: Mapping[str, tuple[PoissonSampler, float]]) -> None:
        """Allows the draws that the plan holds for this step, each once."""
        self._stage, self._step, self._planned = stage, step, dict(planned)

    def release(self, *queries: Query, draw: str = "gradient") -> dict[str, Release]:
        """One fresh Poisson batch, one event, a release a query."""
        if draw not in self._planned:
            raise PrivacyLineError(
                f"step {self._step} of stage {self._stage!r} has no draw {draw!r} left (left: {sorted(self._planned)})"
            )
        if not queries:
            raise PrivacyLineError("a draw needs at least one query")
        if self._failed:
            raise PrivacyLineError("an earlier draw of this run failed amid private records: nothing more is released")
        queries = tuple(self._as_clipped(query) for query in queries)
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
        self._failed = True
        sums = self._discreetly(lambda: self._sums(sampler, queries))
        self._failed = False
        if self._diagnostics is not None:
            self._diagnostics.end_draw(step=self._step, draw=draw)
        return self._mechanism.release(sums, receipt)

    def _as_clipped(self, query: Query) -> Query:
        """The query under the run's way of clipping, whatever the method."""
        if self._stability is None or not isinstance(query, GradientSum):
            return query
        return replace(query, stability=self._stability)

    def _sums(self, sampler: PoissonSampler, queries: tuple[Query, ...]) -> list[BoundedSum]:
        """Draws the batch and bounds it, micro-batch by micro-batch, in a random stream of its own."""
        bounders = [Bounder(query, self._engine.layout.size) for query in queries]
        drawn = sampler.draw(self._population, self._randomness)
        with isolated(self._randomness, self._view.device):
            records = gather(self._population, drawn)
            size = self._physical
            if size is None and not any("gradient" in query.needs for query in queries):
                size = _RECORDS_AT_ONCE  # such a draw may take every record there is
            for micro in records.chunks(size):
                self._bound(self._view(micro), queries, bounders)
        return [bounder.result() for bounder in bounders]

    def _discreetly(self, work: Callable[[], list[BoundedSum]]) -> list[BoundedSum]:
        """Errors and warnings that arise amid private records keep their text to themselves: it may quote a record."""
        if self._diagnostics is not None:
            return work()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return work()
        except AdaDPIGUError:
            raise
        except Exception:
            withheld = ModelError(
                "an error amid private records; its message is withheld, since it may quote them; reproduce it on "
                "synthetic records, or with diagnostics on"
            )
        raise withheld  # outside the except block, so that no traceback keeps the records

    def _bound(self, records: Records, queries: tuple[Query, ...], bounders: list[Bounder]) -> None:
        if len(queries) == 1 and isinstance(queries[0], GradientSum) and self._diagnostics is None:
            bounders[0].add_clipped(self._engine.clipped_sum(records, queries[0]))
            return
        needed = frozenset[str]().union(*(query.needs for query in queries))
        gradients = self._engine.per_sample_gradients(records) if "gradient" in needed else None
        if self._diagnostics is not None and gradients is not None:
            self._diagnostics.observe(gradients)
        losses = None
        if "loss" in needed:
            losses = self._engine.per_record_losses(records) if gradients is None else losses_of(gradients)
        for query, bounder in zip(queries, bounders, strict=True):
            if isinstance(query, GradientSum):
                assert gradients is not None
                bounder.add(gradients)
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
