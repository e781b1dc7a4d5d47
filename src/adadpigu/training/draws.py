"""Answers a method's queries: charge, draw a Poisson batch, bound it record by record, let the mechanism release.

This is where the sensitive side of a step happens from end to end; what leaves `release` is public.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from adadpigu.bounding import BoundedSum, Bounder, Query, RecordSum
from adadpigu.diagnostics import Diagnostics
from adadpigu.errors import AdaDPIGUError, ModelError, PrivacyLineError
from adadpigu.gradients import GradientEngine
from adadpigu.isolation import isolated
from adadpigu.mechanism import GaussianMechanism, Release
from adadpigu.randomness import Randomness
from adadpigu.records import PerRecordLosses, Records
from adadpigu.sampling import PoissonSampler, Population, gather
from adadpigu.sensitive import unseal


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
        device: torch.device,
        physical_batch_size: int | None = None,
        diagnostics: Diagnostics | None = None,
    ) -> None:
        self._population = population
        self._model = model
        self._engine = engine
        self._mechanism = mechanism
        self._randomness = randomness
        self._device = device
        self._physical = physical_batch_size
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

    def _sums(self, sampler: PoissonSampler, queries: tuple[Query, ...]) -> list[BoundedSum]:
        """Draws the batch and bounds it, micro-batch by micro-batch, in a random stream of its own."""
        bounders = [Bounder(query, self._engine.layout.size) for query in queries]
        drawn = sampler.draw(self._population, self._randomness)
        with isolated(self._randomness, self._device):
            records = gather(self._population, drawn)
            for micro in records.chunks(self._physical):
                self._bound(self._on_device(micro), queries, bounders)
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
        gradients = self._engine.per_sample_gradients(records)
        if self._diagnostics is not None:
            self._diagnostics.observe(gradients)
        for query, bounder in zip(queries, bounders, strict=True):
            bounder.add(gradients, self._losses_at(records, query))

    def _losses_at(self, records: Records, query: Query) -> PerRecordLosses | None:
        """[b, k] losses at the k parameter vectors that the query names."""
        if not isinstance(query, RecordSum) or not query.losses_at:
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

    def _on_device(self, records: Records) -> Records:
        inputs, targets = unseal(records)
        return Records((inputs.to(self._device), targets.to(self._device)))
