"""What Trainer says on its own, less what tells of private batches: losses, their gradients, and how long they took.

A step over more records takes longer, so its duration tells how many were drawn. Public values pass. While a batch is
looked at, nothing is said at all: it would come from a hook of the user's, un-noised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import ProgressCallback, Trainer, TrainerState
from transformers.trainer_callback import CallbackHandler

from adadpigu.compat.silence import Writes, named, refusing

UNSAID = frozenset(
    {
        *("loss", "train_loss", "grad_norm", "total_flos"),
        *("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_tokens_per_second"),
    }
)
"""what Trainer logs of training batches"""

_FAMILIES: dict[type, Writes] = {
    Trainer: named("log", "log_metrics", "save_metrics", "save_state", "save_model", "evaluate", "predict"),
    CallbackHandler: named("call_event"),
}
"""what says or writes something, and by which of its methods"""


@contextlib.contextmanager
def silenced(state: TrainerState) -> Iterator[None]:
    """Within, Trainer and its callbacks say nothing; afterwards its state, which is written to files, is as it was."""
    before, history = dict(vars(state)), list(state.log_history)
    remedy = (
        "allowed: to log in a callback's on_step_end what follows from weights and p.grad, which are releases, or "
        "diagnostics=True, which keeps losses in a file of its own, outside the guarantee"
    )
    try:
        with refusing(_FAMILIES, remedy):
            yield
    finally:
        vars(state).update(before)
        state.log_history[:] = history


def sayable(logs: Mapping[str, float]) -> dict[str, float]:
    """What is public of these values.

    >>> sayable({"loss": 0.7, "learning_rate": 0.1, "train_runtime": 12.0})
    {'learning_rate': 0.1}
    """
    return {key: value for key, value in logs.items() if key not in UNSAID}


class StepBar(ProgressCallback):  # type: ignore[misc, unused-ignore]  # Any where transformers is not looked at
    """Trainer's bar, of steps and not of time."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **further: Any) -> None:
        super().on_train_begin(args, state, control, **further)
        self.training_bar.bar_format = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}"
