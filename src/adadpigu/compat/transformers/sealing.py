"""The methods of a private trainer that stand on the privacy line: a subclass may not put others in their place.

That a run's every step was charged is checked at its end in any case; this says it before anything is drawn.
"""

from __future__ import annotations

from adadpigu.errors import InputError

SEALED = (
    "train",
    "training_step",
    "compute_loss",
    "get_train_dataloader",
    "get_batch_samples",
    "log",
    "_inner_training_loop",
    "_prepare_for_training",
    "_run_epoch",
    "_init_training_state",
    "_finalize_training",
    "_clip_grad_norm",
    "_get_grad_norm",
    "_get_num_items_in_batch",
)


def refuse_overridden(what: object, sound: type) -> None:
    """Raises `InputError` where a subclass of `sound`, or an instance, has one of these methods of its own."""
    kind = what if isinstance(what, type) else type(what)
    for name in SEALED:
        own = not isinstance(what, type) and name in vars(what)
        if own or getattr(kind, name) is not getattr(sound, name):
            raise InputError(
                f"{kind.__name__}.{name} is overridden: what it does would not be charged; allowed: loss= for another "
                "loss, callbacks for what comes after a step"
            )
