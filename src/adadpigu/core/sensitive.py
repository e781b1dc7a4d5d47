"""The sensitive side of the privacy line: boxes around values that depend on private records and carry no noise.

A box refuses everything that would let its content out by accident: printing, comparing, indexing, pickling.
Only the modules that stand on the line (`sampling`, `gradients`, `bounding`, `mechanism`, `diagnostics`,
`training.micro_batches`, `audit`) call `unseal`; and `integrations.opacus.script`, whose users' scripts see
their records, as the statement then says.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar, cast

import torch
from torch import Tensor

from adadpigu.core.trees import Tree, count_rows, map_tensors
from adadpigu.errors import AdaDPIGUError, ModelError, PrivacyLineError

T = TypeVar("T")


class Sensitive(Generic[T]):
    """A value on the un-noised side of the privacy line.

    >>> box = Sensitive(3.14)
    >>> box
    <Sensitive: un-noised, outside the guarantee>
    >>> float(box)
    Traceback (most recent call last):
        ...
    adadpigu.errors.PrivacyLineError: a Sensitive value cannot be read: only the mechanism turns it into a Release
    """

    __slots__ = ("_content",)

    def __init__(self, content: T) -> None:
        self._content = content

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: un-noised, outside the guarantee>"

    if not TYPE_CHECKING:  # mypy shall refuse these by their absence

        def __refuse(self, *_: object, **__: object) -> NoReturn:
            told = f"a {type(self).__name__} value cannot be read"
            raise PrivacyLineError(f"{told}: only the mechanism turns it into a Release")

        __bool__ = __float__ = __int__ = __len__ = __iter__ = __getitem__ = __array__ = __refuse
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __refuse
        __matmul__ = __rmatmul__ = __lt__ = __le__ = __gt__ = __ge__ = __reduce_ex__ = __refuse
        __copy__ = __deepcopy__ = __getstate__ = __refuse
        __torch_function__ = classmethod(__refuse)


def unseal(box: Sensitive[T], kind: type[Sensitive[T]] | None = None) -> T:
    """The content of a box, of this kind where one is named. Only modules on the privacy line may import this."""
    if not isinstance(box, kind or Sensitive):
        raise PrivacyLineError(f"expected {(kind or Sensitive).__name__}, got {type(box).__name__}")
    return box._content


class Presence(Sensitive[Tensor]):
    """Which rows of a batch of fixed size are records, [b] of bool: as sensitive as their number."""


class Records(Sensitive[tuple[Tree, Tensor]]):
    """Inputs [b·k, ...] (a tensor, or a tree of tensors) and targets [b, ...] of one Poisson draw; b is sensitive.

    With `losses(model, batch)`, inputs are the whole record and targets are [b, 0]. k, the number of (augmented) copies
    of a record, is public. Copies follow each other; a record's loss is their mean, so it is clipped once.
    """

    __slots__ = ("copies", "present")

    def __init__(self, content: tuple[Tree, Tensor], *, copies: int = 1, present: Presence | None = None) -> None:
        """`present` marks the rows that are records (None: all); the others only fill a batch of fixed size."""
        inputs, targets = content
        if (len(inputs) if isinstance(inputs, Tensor) else count_rows(inputs)) != copies * len(targets):
            raise PrivacyLineError(f"{copies} inputs a record are needed, or a record could be clipped as several")
        self._content, self.copies, self.present = content, copies, present


def padded(records: Records, rows: int) -> Records:
    """So many rows, of which those after the last record repeat the first and are absent; no records stay none."""
    inputs, targets = records._content
    more = rows - len(targets)
    if more == 0 or len(targets) == 0:
        return records
    here = targets.new_ones(len(targets), dtype=torch.bool) if records.present is None else records.present._content
    longer = _longer(inputs, more) if isinstance(inputs, Tensor) else map_tensors(partial(_longer, more=more), inputs)
    return Records((longer, _longer(targets, more)), present=Presence(torch.cat([here, here.new_zeros(more)])))


def _longer(rows: Tensor, more: int) -> Tensor:
    return torch.cat([rows, rows[:1].expand(more, *rows.shape[1:])])


@dataclass(frozen=True)
class GradientBatch:
    """Per-sample gradients [b, d] in the order of the layout, and the losses [b] they belong to."""

    gradients: Tensor
    losses: Tensor
    present: Tensor | None = None  # which rows are records, [b] of bool; None: all of them

    def records_only(self) -> "GradientBatch":
        if self.present is None:
            return self
        return GradientBatch(self.gradients[self.present], self.losses[self.present])


class PerSampleGradients(Sensitive[GradientBatch]):
    """The sealed gradients and losses of one batch."""


class PerRecordLosses(Sensitive[Tensor]):
    """The sealed losses [b] of one batch, or [b, k] at k parameter vectors."""


def losses_of(gradients: PerSampleGradients) -> PerRecordLosses:
    return PerRecordLosses(gradients._content.losses)


def withheld(work: Callable[[], T], *, shown: bool = False) -> T:
    """Does work amid private records. Unless `shown`, the text of an error is withheld, since it may quote them.

    It keeps its type, and the line of the user's code. What the package itself raises holds nothing private: it passes.
    """
    try:
        return work()
    except (Exception, SystemExit) as error:
        walked = traceback.walk_tb(error.__traceback__)  # frames hold records: none is kept
        steps = [(str(f.f_globals.get("__name__", "")), f" at {f.f_code.co_filename}:{line}") for f, line in walked]
        if shown or (isinstance(error, AdaDPIGUError) and steps[-1][0].split(".")[0] == "adadpigu"):
            raise
        theirs = [place for module, place in steps if module.split(".")[0] not in ("adadpigu", "torch")]
        refusal = _without_message(error, "".join(theirs[-1:]))
    raise refusal  # outside the except block, so that no traceback keeps the records


def _without_message(error: Exception | SystemExit, place: str) -> BaseException:
    """An error of the same type, which names the line of the user's code and withholds what was said there."""
    kind = type(error)
    text = (
        f"{kind.__name__}{place}: an error amid private records; its message is withheld, since it may quote them; "
        "reproduce it on synthetic records, or with diagnostics on"
    )
    if isinstance(error, SystemExit):
        return SystemExit(error.code if isinstance(error.code, int | None) else text)
    try:
        return cast(ModelError, type(kind.__name__, (ModelError, kind), {"__str__": lambda _: text})(text))
    except TypeError:  # a type that needs more than a text, or that no other can be joined with
        return ModelError(text)
