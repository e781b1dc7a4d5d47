"""The sensitive side of the privacy line: boxes around values that depend on private records and carry no noise.

A box refuses everything that would let its content out by accident: printing, comparing, indexing, pickling.
Only the modules that stand on the line (`sampling`, `gradients`, `bounding`, `mechanism`, `diagnostics`,
`training.micro_batches`, `training.view`, `audit`) call `unseal`; and `compat.opacus.script`, whose users' scripts see
their records, as the statement then says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from adadpigu.errors import PrivacyLineError

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

    __slots__ = ("__content",)

    def __init__(self, content: T) -> None:
        self.__content = content

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: un-noised, outside the guarantee>"

    if not TYPE_CHECKING:  # mypy shall refuse these by their absence

        def __refuse(self, *_: object, **__: object) -> NoReturn:
            raise PrivacyLineError(
                f"a {type(self).__name__} value cannot be read: only the mechanism turns it into a Release"
            )

        __bool__ = __float__ = __int__ = __len__ = __iter__ = __getitem__ = __array__ = __refuse
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __refuse
        __matmul__ = __rmatmul__ = __lt__ = __le__ = __gt__ = __ge__ = __reduce_ex__ = __refuse
        __copy__ = __deepcopy__ = __getstate__ = __refuse
        __torch_function__ = classmethod(__refuse)

    def _open(self) -> T:
        return self.__content


def unseal(box: Sensitive[T]) -> T:
    """The content of a box. Only modules that stand on the privacy line may import this; a test holds them to it."""
    if not isinstance(box, Sensitive):
        raise PrivacyLineError(f"expected a Sensitive value, got {type(box).__name__}")
    return box._open()
