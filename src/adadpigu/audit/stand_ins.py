"""Stand-ins for own data: random records in the form that training would see. On the public side of the line.

They are made from what is declared alone: a description, or the copies of the public facts in a finished run's folder.
No file or folder of the data itself is opened, so that an audit of the mechanism works where the data is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import torch

from adadpigu.config import RunConfig
from adadpigu.data import DataSet, TensorRecords, is_named
from adadpigu.data.description import DESCRIPTION, ArrayFacts, Description, ImageFacts, TableFacts, read_description
from adadpigu.data.own import KINDS, TABLES, find_description, is_own
from adadpigu.errors import InputError
from adadpigu.report.loading import FACTS, facts_of, stored_facts

MOST_RECORDS = 20_000
"""that are made, however many are declared: rates go by the declared count"""
MOST_NUMBERS = 1 << 26
"""in all of them together: of large records there are fewer"""
_MOST_DECLARED = 1 << 53
"""records, so that a float holds their number"""


@dataclass(frozen=True, kw_only=True)
class _Public:
    """What records are made from."""

    name: str
    records: int
    classes: int
    shape: tuple[int, ...]
    told: tuple[str, ...]


def stand_ins_for(config: RunConfig, folder: Path | None = None) -> DataSet:
    """Random records in the place of a config's own data; `folder` is that of a finished run, whose facts then count.

    Inputs are uniform in [0, 1), float32 as all own data is once it is encoded; labels are uniform over the classes.
    At most 20,000 are there, while `records` stays the declared N.
    """
    if is_named(config.dataset) and folder is None:
        raise InputError(f"dataset={config.dataset!r} is public: nothing stands in for it; allowed: {KINDS}")
    public = _declared(config) if folder is None else _of_run(config, folder)
    for key, given, known in (
        ("records", config.records, public.records),
        ("classes", config.classes, public.classes),
    ):
        if given not in (None, known):
            raise InputError(f"{key}={given} contradicts the {known} that is declared for {public.name!r}")
    count = min(public.records, MOST_RECORDS, max(1, MOST_NUMBERS // math.prod(public.shape)))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand((count, *public.shape), generator=generator)
    labels = torch.randint(public.classes, (count,), generator=generator)
    return DataSet(
        name=public.name,
        train=TensorRecords(inputs, labels, name=public.name),
        records=public.records,
        classes=public.classes,
        shape=public.shape,
        public=public.told,
    )


def _declared(config: RunConfig) -> _Public:
    """By the description that training would go by."""
    if not is_own(config.dataset):
        raise InputError(f"dataset={config.dataset!r} is neither known nor a path; allowed: {KINDS}")
    path = Path(config.dataset)
    found = find_description(path, None if config.describe is None else Path(config.describe))
    arrays = path.suffix.lower() == ".npz"
    if found is not None and arrays != isinstance(found.facts, ArrayFacts):
        raise InputError(f"{found.path} does not describe what dataset={config.dataset!r} is; allowed: its own facts")
    if found is None or isinstance(found.facts, ArrayFacts):
        raise InputError(
            f"dataset={config.dataset!r}: the shape of a record is declared nowhere, and the file is not opened for "
            "it; allowed: the folder of a finished run, which tells it, or --diagnostics with an audit that looks at "
            "records"
        )
    table = path.suffix.lower() in TABLES
    if table != isinstance(found.facts, TableFacts):
        raise InputError(f"{found.path} does not describe what dataset={config.dataset!r} is; allowed: its own facts")
    return _Public(
        name=path.resolve().stem if table else path.resolve().name,
        records=found.records,
        classes=len(found.classes),
        shape=found.facts.shape,
        told=found.public,
    )


def _of_run(config: RunConfig, folder: Path) -> _Public:
    """By the facts that a run's folder keeps; a copy of the description beside them has to agree."""
    public = _stored(folder)
    copy = folder / DESCRIPTION
    if not copy.exists():
        if config.describe is not None:
            raise InputError(f"run={str(folder)!r} has no {DESCRIPTION}; allowed: as `adadpigu train` wrote it")
        return public
    found = read_description(copy)
    facts: tuple[object, ...] = (found.records, len(found.classes), _shape(found) or public.shape)
    if facts != (public.records, public.classes, public.shape):
        raise InputError(
            f"run={str(folder)!r}: {DESCRIPTION} and {FACTS} tell of different records, classes or shapes; allowed: "
            "as `adadpigu train` wrote them"
        )
    return public


def _shape(found: Description) -> tuple[int, ...] | None:
    return found.facts.shape if isinstance(found.facts, TableFacts | ImageFacts) else None


def _stored(folder: Path) -> _Public:
    """What data.json tells; a folder may be a stranger's, so nothing in it is taken as it is."""
    facts, known = stored_facts(folder), facts_of(folder)
    name, records, told = (facts.get(key) for key in ("name", "records", "public"))
    if not isinstance(name, str) or not name.isprintable() or not _whole(records) or known.classes is None:
        raise InputError(
            f"run={str(folder)!r}: {FACTS} has no name, records or classes; allowed: as `adadpigu train` wrote it"
        )
    if known.shape is None:
        raise InputError(f"run={str(folder)!r}: {FACTS} has no shape of a record, so nothing can stand in for one")
    lines = tuple(line for line in told if isinstance(line, str)) if isinstance(told, list) else ()
    return _Public(name=name, records=records, classes=known.classes, shape=known.shape, told=lines)


def _whole(value: object) -> TypeGuard[int]:
    return type(value) is int and 1 <= value <= _MOST_DECLARED
