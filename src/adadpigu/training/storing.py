"""What a run folder holds besides model and claim: config and public facts; and a whole run that was kept in memory."""

import json
from collections.abc import Mapping
from pathlib import Path

from adadpigu.accounting import Ledger
from adadpigu.accounting.ledger_reading import LEDGER_FILE
from adadpigu.config import to_toml
from adadpigu.models import made_as
from adadpigu.runs.run import Run, RunFolder
from adadpigu.training.preparation import Preparation


def store(run: Run, prepared: Preparation, ledger: Ledger, path: Path, config: str) -> None:
    """Writes a run that was made in memory into a new folder, with its ledger."""
    folder = RunFolder(path, config)
    write_facts(folder, prepared, facts_of_data(prepared, from_python=not config), {})
    ledger.store(path / LEDGER_FILE)
    folder.ledger = ledger
    folder.write_privacy(run.privacy)
    folder.end(run)


def write_facts(folder: RunFolder, prepared: Preparation, facts: str, files: Mapping[str, str]) -> None:
    told = {} if (path := prepared.data.description) is None else {"description.toml": path.read_text("utf-8")}
    for name, text in {"data.json": facts, **told, **files}.items():
        folder.write_text(name, text)


def facts_of_data(prepared: Preparation, *, from_python: bool) -> str:
    """What is public about the data set, for whoever uses the model without it; of a run from Python, the model too."""
    data = prepared.data
    facts = {name: getattr(data, name) for name in ("name", "records", "classes", "shape", "public")}
    if data.owners is not None:
        facts["owner_cap"] = data.owners.cap
    if from_python:  # built again by `make_model`, or else by the user, as their class
        again = {} if prepared.front is not None else made_as(prepared.model)
        facts |= {k: made for k in ("shape", "classes") if (made := again.pop(k, None)) and facts[k] is None}
        facts["built"] = again or {"class": type(prepared.model).__qualname__}
    return json.dumps(facts, indent=2) + "\n"


def described(prepared: Preparation) -> str:
    """The config of a run that was started from Python: a record, since a model object cannot be rerun from a file."""
    options = {k: v for k, v in vars(prepared.options).items() if v is not None and not callable(v)}
    said = "# started from Python: model and data were objects there\n"
    if callable(prepared.options.optimizer):
        said += "# the optimiser was an object too: its learning rate and momentum are not known here\n"
        options = {k: v for k, v in options.items() if k not in ("lr", "momentum", "weight_decay", "body_lr")}
    data, source = prepared.data, {}
    if data.files and data.name in (data.files[0].stem, data.files[0].name):  # read again by `adadpigu evaluate`
        source = {"dataset": data.files[0].resolve(), "records": data.records, "classes": data.classes}
        source |= {} if data.description is None else {"describe": data.description.resolve()}
    asked = {} if prepared.budget is None else {"epsilon": prepared.budget.epsilon}
    method = {"name": prepared.method.name, **prepared.method.options()}
    kept = {"dataset": data.name, **source, **asked, "delta": prepared.delta, **options, "method": method}
    return said + to_toml(kept)
