"""Folds for cross-validation in which no record decides where another one goes.

fold(record) = SHA-256(seed, record) mod k. With folds that are cut by position or label, one record more moves others
from one training part to another, so neighbouring data sets would differ by more than one record in each of them. Here
they differ by that record alone, and what the fits cost adds up as a shared ledger says.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from adadpigu.errors import require


class RecordFolds:
    """A splitter for `cv=`; equal records go together, and folds are of about equal size."""

    def __init__(self, n_splits: int = 5, *, seed: int = 0) -> None:
        for name, value, least in (("n_splits", n_splits, 2), ("seed", seed, 0)):
            fits = isinstance(value, int | np.integer) and least <= value < 2**32
            require(fits, f"{name}={value!r} is not a whole number from {least} to {2**32 - 1}")
        self.n_splits, self.seed = int(n_splits), int(seed)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """How many folds there are."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The positions of training and test records, fold by fold."""
        folds = self.folds(X)
        for fold in range(self.n_splits):
            yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)

    def folds(self, X: Any) -> NDArray[np.int64]:
        """The fold of each record, by its features alone."""
        cells = check_array(X, dtype=object, ensure_all_finite=False)
        return np.array([self._fold(row) for row in cells.tolist()], dtype=np.int64)

    def _fold(self, row: list[object]) -> int:
        # a number is one whatever its type: that may depend on other records of the column
        cells = [float(cell) if isinstance(cell, int | float) else str(cell) for cell in row]
        digest = sha256(self.seed.to_bytes(4, "little") + repr(cells).encode()).digest()
        return int.from_bytes(digest[:8], "little") % self.n_splits
