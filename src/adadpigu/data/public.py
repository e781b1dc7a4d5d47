"""Public records: what a method may look at freely, because no private record had a part in it. Public throughout.

Whoever declares records public vouches for them: they stand in the statement with their origin and hash. Images of
random processes with labels at random are public by themselves; a file is public because its owner says so.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from adadpigu.core.sensitive import Sensitive
from adadpigu.data.datasets import DataSet
from adadpigu.data.own import read_arrays
from adadpigu.errors import InputError, PrivacyLineError, require
from adadpigu.priors.random_images import images_like, takes_images
from adadpigu.tensors import digest

PROCESSES = "processes"
_MOST_BYTES, _LEAST_BYTES = 2**30, 2**12  # of all images of random processes, and of one while it is made


@final
@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PublicRecords:
    """Records [m, ...] and their labels [m], declared public.

    >>> PublicRecords(inputs=torch.zeros(2, 3), targets=torch.tensor([0, 1]), origin="made up").declared()
    'public records: 2, made up (sha256 ad6ac0f5f57f4b01): a private one among them would not be protected'
    """

    inputs: Tensor
    targets: Tensor
    origin: str
    processes: bool = False
    """images of random processes, which `anew` makes others of"""

    def __post_init__(self) -> None:
        for part in (self.inputs, self.targets):
            if isinstance(part, Sensitive) or not isinstance(part, Tensor):
                raise PrivacyLineError(f"public records are two tensors, got {type(part).__name__}")
        fits = 0 < len(self.inputs) == len(self.targets)
        require(fits, f"public records: {len(self.inputs)} with {len(self.targets)} labels; allowed: one label each")

    def __repr__(self) -> str:
        return f"<{self.declared()}>"

    @property
    def sha256(self) -> str | None:
        """By which a run knows them again; None: by their number and the run's seed."""
        return None if self.processes else digest({"x": self.inputs, "y": self.targets}.items())

    def declared(self, seed: int | None = None) -> str:
        """For the statement of a run with this public seed."""
        if self.sha256 is None:
            return f"public records: {len(self.inputs)} {self.origin}, by the run's public seed {seed or ''}".rstrip()
        known = f"{self.origin} (sha256 {self.sha256[:16]})"
        return f"public records: {len(self.inputs)}, {known}: a private one among them would not be protected"

    def anew(self, number: int, classes: int) -> "PublicRecords":
        """Other images of random processes, fixed by the number; declared records stay what they are."""
        return process_records(len(self.inputs), self.inputs[:1], classes, number) if self.processes else self

    def check(self, record: Tensor, label: Tensor, classes: int | None) -> None:
        """Refuses records that the model of these private ones does not take."""
        for name, given, own in (("records", self.inputs, record), ("labels", self.targets, label)):
            fits = (given.shape[1:], given.dtype) == (own.shape[1:], own.dtype) or not own.numel()
            found = f"public {name} of {given.dtype} {list(given.shape[1:])}"
            require(fits, f"{found}; allowed: as the private ones, {own.dtype} {list(own.shape[1:])}")
            finite = bool(torch.isfinite(given).all())
            require(finite, f"public {name} hold NaN or infinite values; allowed: finite ones")
        if classes is None or self.targets.is_floating_point():
            return
        low, high = int(self.targets.min()), int(self.targets.max())
        require(0 <= low <= high < classes, f"public labels from {low} to {high}; allowed: from 0 to {classes - 1}")


def process_records(count: int, record: Tensor, classes: int, seed: int) -> PublicRecords:
    """Images of random processes of a record's shape [1, channels, height, width], labels at random."""
    rng = torch.Generator().manual_seed(seed % 2**63)
    images = images_like(record, count, rng)
    labels = torch.randint(classes, (count,), generator=rng).to(record.device)
    origin = "images of random processes, labels at random"
    return PublicRecords(inputs=images, targets=labels, origin=origin, processes=True)


def read_public(asked: str, record: Tensor, data: DataSet) -> PublicRecords:
    """What `--public` names: `processes:COUNT`, or an .npz of records x and labels y, encoded as those of `data`."""
    kind, _, number = asked.partition(":")
    if kind == PROCESSES:
        classes, most = data.classes, _MOST_BYTES // max(_LEAST_BYTES, 4 * record.numel())
        known = number.isdecimal() and len(number) < 16 and 0 < int(number) <= most
        allowed = f"{PROCESSES}:COUNT with 1 to {most} such images, e.g. {PROCESSES}:2000, or an .npz file"
        require(known, f"public={asked!r}; allowed: {allowed}")
        if classes is None or not takes_images(record):
            fault = f"public={asked!r}: the records are no images of classes"
            raise InputError(f"{fault}; allowed: a public .npz file with x and y")
        return process_records(int(number), record, classes, 0)
    path = Path(asked)
    require(path.suffix == ".npz" and path.is_file(), f"public={asked!r} is no .npz file; allowed: one with x and y")
    private = any(file.exists() and path.samefile(file) for file in data.files)
    require(not private, f"public={asked!r} is the private data set itself; allowed: records that are public")
    arrays = read_arrays(path)
    require({"x", "y"} <= arrays.keys(), f"{path} holds {', '.join(sorted(arrays))}; allowed: x and y")
    inputs = arrays["x"] if data.encode is None else data.encode(arrays["x"])
    fits = inputs.is_floating_point() or not record.is_floating_point()
    require(fits, f"public={asked!r} holds x of {inputs.dtype}; allowed: as the model takes it, {record.dtype}")
    return PublicRecords(inputs=inputs.to(record), targets=arrays["y"].to(record.device), origin=path.name)
