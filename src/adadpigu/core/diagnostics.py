"""The one window onto the sensitive side: losses, gradient norms, realised batch sizes. Off by default.

A run that opens it says so in its privacy statement: what is seen here is outside the guarantee.
"""

import json
from pathlib import Path

import torch

from adadpigu.core.sensitive import PerSampleGradients, unseal


class Diagnostics:
    """Collects un-noised facts of each draw, in memory and (with a path) in a file of its own."""

    def __init__(self, path: Path | None = None) -> None:
        self.rows: list[dict[str, float | int | str]] = []
        self._path = path
        self._norms: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []

    def observe(self, gradients: PerSampleGradients) -> None:
        """Takes one micro-batch of a draw."""
        batch = unseal(gradients)
        self._norms.append(torch.linalg.vector_norm(batch.gradients, dim=1, dtype=torch.float64).cpu())
        self._losses.append(batch.losses.detach().double().cpu())

    def end_draw(self, *, step: int, draw: str) -> None:
        """Writes one row about the draw whose micro-batches were observed; a draw without gradients leaves none."""
        if not self._norms:
            return
        norms, losses = torch.cat(self._norms), torch.cat(self._losses)
        self._norms, self._losses = [], []
        finite = torch.isfinite(norms)
        row: dict[str, float | int | str] = {"step": step, "draw": draw, "batch_size": len(norms)}
        row["non_finite"] = int((~finite).sum())
        if bool(finite.any()):
            row["loss_mean"] = float(losses[finite].nan_to_num().mean())
            row["norm_median"] = float(norms[finite].median())
            row["norm_max"] = float(norms[finite].max())
        self.rows.append(row)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
