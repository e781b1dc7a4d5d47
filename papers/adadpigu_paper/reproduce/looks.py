"""Looks at private records while a run trains, for figures that show them: un-noised, so only under Diagnostics.

A look is an observer that holds the run's records and model as well. It changes nothing of the run; what it has seen
is outside the guarantee, and the run's statement says so because Diagnostics has to be open.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from adadpigu.core.standardising import where_or_zero
from adadpigu.errors import InputError, unknown
from adadpigu.features.front import apply_front
from adadpigu.runs.run import Facts, Metrics, Run
from adadpigu.training.evaluation import accuracy
from adadpigu.training.preparation import Preparation
from adadpigu_paper.reproduce.jobs import Row

KEPT_RECORDS = 2000
"""training records whose gradients are looked at for the share that is kept"""


class Look(ABC):
    """Looks whenever the test set is looked at."""

    def __init__(self, prepared: Preparation) -> None:
        if not prepared.options.diagnostics:
            raise InputError(f"{type(self).__name__} looks at private records; allowed: with diagnostics=True")
        self.prepared = prepared
        self.seen: list[Row] = []

    def begin(self, facts: Facts) -> None:
        return None

    def update(self, metrics: Metrics) -> None:
        if metrics.mask:  # told at a look alone
            self.seen.append({"step": metrics.step, **self.look(metrics)})

    def end(self, run: Run) -> None:
        return None

    @abstractmethod
    def look(self, metrics: Metrics) -> Row:
        """What is seen after a step, at the weights of that step."""


class TrainingAccuracy(Look):
    """The share of *training* records that the weights after a step, not averaged, get right."""

    def look(self, metrics: Metrics) -> Row:
        p = self.prepared
        if p.view.variants is not None:
            raise InputError("training-accuracy: features of all copies were computed before; allowed: without copies")
        return {"training_accuracy": accuracy(p.shown_model(), p.data.train, device=p.device)}


class KeptShare(Look):
    """What share of records DPIS would keep: mean of min(1, ‖g_i‖/C) over the first ones, without augmentation."""

    def look(self, metrics: Metrics) -> Row:
        p = self.prepared
        inputs, targets = p.data.train.take(torch.arange(min(KEPT_RECORDS, len(p.data.train))))
        inputs, targets = inputs.to(p.device), targets.to(p.device)
        shown = inputs if p.view.front is None else apply_front(p.view.front, inputs)
        with p.engine.watched(), torch.enable_grad():
            norms = [rows.detach().double().norm(dim=1) for _, rows in p.engine.row_slices(shown, targets, 1)]
        share = (torch.cat(norms) / float(str(p.method.options()["clip_norm"]))).clamp(max=1.0)
        return {"kept": float(where_or_zero(torch.isfinite(share), share).mean())}


LOOKS: dict[str, type[Look]] = {"training-accuracy": TrainingAccuracy, "kept-share": KeptShare}


def looking(name: str | None, prepared: Preparation) -> tuple[Preparation, Look | None]:
    """A run that is ready to be looked at, and the look; as it was, and None, where nothing is looked at."""
    from adadpigu_paper.reproduce.gradient_looks import LOOKS_HERE

    known = LOOKS | LOOKS_HERE
    if name is None:
        return prepared, None
    if name not in known:
        raise unknown("look", name, known)
    look = known[name](prepared)
    return look.prepared, look
