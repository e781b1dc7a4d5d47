"""Stand-ins for own data: random records in the form that training would see. On the public side of the line.

They are made from what is declared alone: a description, or the copies of the public facts in a finished run's folder.
No file or folder of the data itself is opened, so that an audit of the mechanism works where the data is not.
"""

import math
from dataclasses import replace
from pathlib import Path

import torch

from adadpigu.config import RunConfig
from adadpigu.core.sampling import Owners
from adadpigu.data import DataSet, TensorRecords
from adadpigu.data.description import ArrayFacts, ImageFacts, TableFacts
from adadpigu.data.own import KINDS, TABLES, find_description, is_own
from adadpigu.errors import InputError, require
from adadpigu.runs.reading import FACTS, json_of, read_data_facts

MOST_RECORDS = 20_000  # that are made, however many are declared: rates go by the declared count
MOST_NUMBERS = 1 << 26  # in all of them together: of large records there are fewer


def stand_ins_for(config: RunConfig, folder: Path | None = None) -> DataSet:
    """Random records in the place of a config's own data; `folder` is that of a finished run, whose facts then count.

    Inputs are uniform in [0, 1), float32 as all own data is once it is encoded; labels are uniform over the classes.
    At most 20,000 are there, while `records` stays the declared N.
    """
    made = _declared(config) if folder is None else _of_run(folder)
    for key, given, known in (("records", config.records, made.records), ("classes", config.classes, made.classes)):
        require(given in (None, known), f"{key}={given} contradicts the {known} that is declared for {made.name!r}")
    return made


def _declared(config: RunConfig) -> DataSet:
    """By the description that training would go by."""
    name = f"dataset={config.dataset!r}"
    require(is_own(config.dataset), f"{name} is neither known nor a path; allowed: {KINDS}")
    path = Path(config.dataset)
    found, suffix = find_description(path, None if config.describe is None else Path(config.describe)), path.suffix
    arrays, table = suffix.lower() == ".npz", suffix.lower() in TABLES
    facts, kind = ArrayFacts() if found is None else found.facts, ArrayFacts if arrays else ImageFacts
    fits = isinstance(facts, TableFacts if table else kind)
    require(fits, f"{found and found.path} does not describe what {name} is; allowed: its own facts")
    if found is None or isinstance(facts, ArrayFacts):
        raise InputError(
            f"{name}: the shape of a record is declared nowhere, and the file is not opened for it; allowed: the "
            "folder of a finished run, which tells it, or --diagnostics with an audit that looks at records"
        )
    own = path.resolve().stem if table else path.resolve().name
    cap = facts.owner_cap if isinstance(facts, TableFacts) else None
    return _random(own, found.records, len(found.classes), facts.shape, found.public, cap)


def _of_run(folder: Path) -> DataSet:
    """By the facts that a run's folder keeps; it may be a stranger's, so nothing in it is taken as it is."""
    fields, known = json_of(folder, FACTS), read_data_facts(folder)
    name, records = fields.text("name"), fields.count("records")
    fields.check(name.isprintable(), "name", "a text that can be printed")
    fields.check(records > 0, "records", "a whole number of at least 1")
    if not known.shape or not known.classes:
        told = "has no shape of a record or no classes, so nothing can stand in for one"
        raise InputError(f"run={str(folder)!r}: {FACTS} {told}")
    cap = fields.count("owner_cap") if "owner_cap" in fields.values else None
    return _random(name, records, known.classes, known.shape, fields.texts("public"), cap)


def _random(
    name: str, records: int, classes: int, shape: tuple[int, ...], public: tuple[str, ...], cap: int | None
) -> DataSet:
    count = min(records, MOST_RECORDS, max(1, MOST_NUMBERS // math.prod(shape)))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand((count, *shape), generator=generator)
    train = TensorRecords(inputs, torch.randint(classes, (count,), generator=generator), name=name)
    made = DataSet(name=name, train=train, records=records, classes=classes, shape=shape, public=public)
    return made if cap is None else replace(made, owners=Owners.of(range(count), cap=cap))
