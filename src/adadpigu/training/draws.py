"""Answers a method's queries: draw a Poisson batch, bound it record by record, let the mechanism charge and release.

This is where the sensitive side of a step happens from end to end; what leaves `release` is public.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from adadpigu.bounding import Bounder, Query, RecordSum
from adadpigu.diagnostics import Diagnostics
from adadpigu.errors import AdaDPIGUError, ModelError, PrivacyLineError
from adadpigu.gradients import GradientEngine, PerRecordLosses
from adadpigu.mechanism import GaussianMechanism, Release
from adadpigu.randomness import Randomness
from adadpigu.records import Records
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
        sampler, noise_multiplier = self._planned.pop(draw)
        bounders = [Bounder(query, self._engine.layout.size) for query in queries]
        with self._discreet():
            records = gather(self._population, sampler.draw(self._population, self._randomness))
            for micro in records.chunks(self._physical):
                self._bound(self._on_device(micro), queries, bounders)
        if self._diagnostics is not None:
            self._diagnostics.end_draw(step=self._step, draw=draw)
        return self._mechanism.release(
            [bounder.result() for bounder in bounders],
            [query.share for query in queries],
            source=sampler,
            noise_multiplier=noise_multiplier,
            stage=self._stage,
            step=self._step,
            draw=draw,
        )

    @contextlib.contextmanager
    def _discreet(self) -> Iterator[None]:
        """Errors that happen amid private records keep their message to themselves: it may quote a record."""
        try:
            yield
        except AdaDPIGUError:
            raise
        except Exception as error:
            if self._diagnostics is not None:
                raise
            raise ModelError(
                f"step {self._step}: {type(error).__name__} amid private records; its message is withheld, since it "
                "may quote them; reproduce it on synthetic records, or with diagnostics on"
            ) from None

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
