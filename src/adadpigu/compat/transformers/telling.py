"""What Trainer says on its own, less what tells of private batches: losses, their gradients, and how long they took.

A step over more records takes longer, so its duration tells how many were drawn. Public values pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import ProgressCallback

UNSAID = frozenset(
    {
        *("loss", "train_loss", "grad_norm", "total_flos"),
        *("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_tokens_per_second"),
    }
)
"""what Trainer logs of training batches"""


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
