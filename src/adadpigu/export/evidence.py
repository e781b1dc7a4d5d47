"""Whether a model still has the weights that its training left, asked before a statement is handed out beside it."""

from __future__ import annotations

from adadpigu.errors import InputError, ModelError
from adadpigu.training.run import Run, weights_digest


def check_run(run: Run) -> None:
    """Refuses a run whose model has other weights than those that its training left."""
    if run.weights is None:
        raise ModelError("a tensor of the model has no bytes to hash (sparse?); allowed for export: dense tensors")
    if weights_digest(run.model) != run.weights:
        raise InputError(
            "run: the weights of its model were changed after training, so its statement is not about them; allowed: "
            "the model as training left it (export first, then change a copy.deepcopy of run.model)"
        )
