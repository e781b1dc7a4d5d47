"""Every error the package raises on purpose, as one small hierarchy.

The command line turns an `InputError` into one line on standard error and exit code 2; a `PrivacyLineError` is a
defect in calling code, so it keeps its traceback. No message may carry a sensitive value.
"""

import difflib
import math
from collections.abc import Callable, Iterable


class AdaDPIGUError(Exception):
    """Base class of all errors raised on purpose."""


class InputError(AdaDPIGUError, ValueError):
    """A value the user gave cannot be used; the message names the value and what is allowed."""


class ModelError(InputError):
    """A module that cannot be trained privately, named by its dotted path."""


class BudgetError(InputError):
    """A step that would exceed the budget; raised before anything is drawn or charged."""


class LedgerError(InputError):
    """A ledger that cannot be read, trusted or written: nothing is drawn that it does not hold."""


class LedgerInUseError(LedgerError):
    """A ledger that another process writes to."""


class PrivacyLineError(AdaDPIGUError, TypeError):
    """A sensitive value reached code that may only see releases, or a release was made outside the mechanism."""


def check(name: str, value: object, fits: bool, allowed: str) -> None:
    """Refuses a value unless it fits, and says what is allowed.

    >>> check("records", 0, False, "must be at least 1")
    Traceback (most recent call last):
        ...
    adadpigu.errors.InputError: records=0: must be at least 1
    """
    if not fits:
        raise InputError(f"{name}={value}: {allowed}")


_MEANT = """batch_size batch bs, class_weight class_weights, clip_norm clip max_grad_norm, delta target_delta,
device gpu gpus cuda, epochs n_epochs num_epochs max_epochs, epsilon eps target_epsilon, loss criterion loss_fn,
lr learning_rate, lr_schedule scheduler lr_scheduler, noise_multiplier sigma noise noise_scale, out output_dir,
physical_batch_size physical_batch max_physical_batch_size gradient_accumulation_steps, precision amp bf16 fp16,
processing_class tokenizer, seed random_state, shuffle drop_last num_workers workers pin_memory, weight_decay wd l2,
test val validation_data eval_dataset"""
SYNONYMS = {other: name for name, *others in map(str.split, _MEANT.split(",")) for other in others}
"""names that others give to what is said otherwise here"""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name nobody registered, with the nearest one suggested.

    >>> str(unknown("method", "adadpig", ["adadpigu", "dpsgd"]))
    "unknown method 'adadpig'; did you mean 'adadpigu'? (known: adadpigu, dpsgd)"
    """
    names, asked = sorted(known), name.lower().lstrip("-").replace("-", "_")
    by_case = {known.lower().lstrip("-").replace("-", "_"): known for known in names}
    asked = SYNONYMS[asked] if SYNONYMS.get(asked) in by_case else asked
    many = len(names) > 20 and asked not in by_case
    near = [by_case[found] for found in difflib.get_close_matches(asked, by_case, n=1 + many, cutoff=0.66)]
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    listed = f"known: {', '.join(names) or 'none'}" if len(names) < (21 if near else 60) else f"{len(names)} are known"
    return InputError(f"unknown {kind} {name!r}{hint} ({listed})")


def check_known(kind: str, name: object, known: Iterable[str]) -> None:
    names = tuple(known)
    if name not in names:
        raise unknown(kind, str(name), names)


_RANGES: dict[str, Callable[[float], bool]] = {
    "at least 0": lambda value: value >= 0,
    "at least 1": lambda value: value >= 1,
    "a finite number": math.isfinite,
    "a finite number above 0": lambda value: 0 < value < math.inf,
    "a finite number of at least 0": lambda value: 0 <= value < math.inf,
    "in (0, 1)": lambda value: 0 < value < 1,
    "in (0, 1]": lambda value: 0 < value <= 1,
    "in [0, 1)": lambda value: 0 <= value < 1,
    "in [0, 1]": lambda value: 0 <= value <= 1,
}


def check_range(name: str, value: float | None, allowed: str) -> None:
    """Refuses a number outside its range, by name and value; None is a number that was not given.

    >>> check_range("warmup", 1.5, "in [0, 1)")
    Traceback (most recent call last):
        ...
    adadpigu.errors.InputError: warmup=1.5 is not in [0, 1)
    """
    if value is not None and not _RANGES[allowed](value):
        raise InputError(f"{name}={value} is not {allowed}")


def require(ok: object, message: str) -> None:
    """Refuses an input unless `ok`; the message names the value and what is allowed."""
    if not ok:
        raise InputError(message)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, short enough for a one-line message.

    >>> first_line(ValueError("too long\\nand more"))
    'too long'
    """
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return text if len(text) <= 200 else text[:197] + "..."
