"""Held-out rows of the ablation's first phase, made up."""

from __future__ import annotations

from adadpigu_paper.reproduce.ablation_tuning import tuning_jobs
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.jobs import Row


def tuning_rows(best: dict[str, float]) -> list[Row]:
    """Held-out rows in which `best` tells the grid's best rate of a variant; the others' are equal."""
    rows = []
    for job in tuning_jobs(Scale(quick=False)):
        name = job.name.split("/")[1]
        rows.append({**job.key(), "accuracy": 0.6 if job.config["lr"] == best.get(name) else 0.5})
    return rows
