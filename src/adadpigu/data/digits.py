"""scikit-learn's embedded digits: 1,797 real handwritten 8×8 digits, with a fixed public split (1,437 / 360).

The split is a permutation of positions fixed by a constant, so it looks at no record; pixels are divided by their
public maximum, 16.
"""

from __future__ import annotations

import numpy as np
import torch

from adadpigu.data.datasets import DataSet, TensorRecords

TRAIN = 1437
SHAPE = (1, 8, 8)


def digits() -> DataSet:
    """The embedded digits."""
    from sklearn.datasets import load_digits  # scikit-learn is slow to import

    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(labels))
    inputs = torch.tensor(images[order], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16.0
    targets = torch.tensor(labels[order], dtype=torch.long)
    return DataSet(
        name="digits",
        train=TensorRecords(inputs[:TRAIN], targets[:TRAIN], name="digits"),
        test=TensorRecords(inputs[TRAIN:], targets[TRAIN:], name="digits test"),
        records=TRAIN,
        classes=10,
        shape=SHAPE,
        public=("pixel range 0 to 16", "10 classes", f"{TRAIN:,} records"),
    )
