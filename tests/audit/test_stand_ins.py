"""Stand-ins: of the form that the real records have, made without opening a file of theirs."""

from __future__ import annotations

import builtins
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from adadpigu.audit import stand_ins
from adadpigu.audit.stand_ins import stand_ins_for
from adadpigu.config import RunConfig
from adadpigu.data import DataSet
from adadpigu.data.datasets import TensorRecords
from adadpigu.errors import InputError
from adadpigu.runs.loading import described, load_data
from adadpigu.training import train_prepared
from adadpigu.training.configured import configured

TABLE = """
records = 60
label = "y"
classes = ["no", "yes", "maybe"]
[columns.age]
range = [0, 10]
[columns.job]
categories = ["a", "b"]
other = true
"""


def table(place: Path) -> RunConfig:
    """Three records, though 60 are declared."""
    (place / "people.csv").write_text("age,job,y\n0,a,no\n5,b,yes\n10,a,maybe\n")
    (place / "people.toml").write_text(TABLE)
    return RunConfig(dataset=str(place / "people.csv"))


def owned(place: Path) -> RunConfig:
    """Three records of two persons."""
    (place / "visits.csv").write_text("age,job,y,who\n0,a,no,ann\n5,b,yes,bob\n10,a,maybe,ann\n")
    (place / "visits.toml").write_text('owner = "who"\nowner_cap = 2\n' + TABLE)
    return RunConfig(dataset=str(place / "visits.csv"))


def images(place: Path) -> RunConfig:
    """Two images of 3 × 2 pixels, the description in their folder."""
    for name, value in (("cat", 0), ("dog", 255)):
        (place / "pets" / name).mkdir(parents=True)
        Image.fromarray(np.full((3, 2), value, dtype=np.uint8)).save(place / "pets" / name / "1.png")
    facts = 'records = 60\nclasses = ["cat", "dog"]\nsize = [3, 2]\nchannels = 1\n'
    (place / "pets" / "description.toml").write_text(facts)
    return RunConfig(dataset=str(place / "pets"))


def described_arrays(place: Path) -> RunConfig:
    """Bytes, which a description scales."""
    np.savez(place / "rows.npz", x=np.arange(40, dtype=np.uint8).reshape(5, 2, 4), y=np.arange(5) % 3)
    (place / "facts.toml").write_text("records = 60\nclasses = 3\nrange = [0, 255]\n")
    return RunConfig(dataset=str(place / "rows.npz"), describe=str(place / "facts.toml"))


def plain_arrays(place: Path) -> RunConfig:
    """Whole numbers, with two numbers declared."""
    np.savez(place / "rows.npz", x=np.arange(40).reshape(5, 8), y=np.arange(5) % 3)
    return RunConfig(dataset=str(place / "rows.npz"), records=60, classes=3)


OWN = [table, owned, images, described_arrays, plain_arrays]


def finished(config: RunConfig, data: DataSet, place: Path) -> Path:
    """The public facts as a run folder keeps them."""
    folder = place / "run"
    folder.mkdir()
    facts: dict[str, Any] = {"name": data.name, "records": data.records, "classes": data.classes, "shape": data.shape}
    if data.owners is not None:
        facts["owner_cap"] = data.owners.cap
    (folder / "data.json").write_text(json.dumps({**facts, "public": data.public}))
    declared = described(config)
    if declared is not None:
        (folder / "description.toml").write_text(declared.path.read_text())
    return folder


def kind(data: DataSet) -> tuple[object, ...]:
    """All that training sees of records beside their values."""
    inputs, targets = data.train.take(torch.arange(2))
    return (
        *(data.name, data.records, data.classes, data.shape, data.public),
        None if data.owners is None else data.owners.cap,
        *(inputs.shape, inputs.dtype, targets.shape, targets.dtype),
    )


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened but TOML and JSON."""
    opened, path_opened = builtins.open, io.open

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: Any, *rest: Any, **options: Any) -> Any:
            assert not str(file).endswith((".csv", ".npz", ".png")), f"{file} was opened"
            return real(file, *rest, **options)

        return watched

    monkeypatch.setattr(builtins, "open", refusing(opened))
    monkeypatch.setattr(io, "open", refusing(path_opened))  # which Path.open calls
    for loader in ("read_table", "read_folder", "read_images", "npz_dataset", "read_arrays"):
        monkeypatch.setattr(f"adadpigu.data.own.{loader}", lambda *_, **__: pytest.fail("the data was read"))


def test_opening_data_would_be_noticed(tmp_path: Path, closed: None) -> None:
    for read in (lambda: (tmp_path / "people.csv").open(), lambda: np.load(tmp_path / "rows.npz")):
        with pytest.raises(AssertionError, match="was opened"):
            read()


@pytest.mark.parametrize("make", [table, owned, images])
def test_described_records_are_stood_in_for_in_the_form_of_the_real_ones(
    make: Callable[[Path], RunConfig], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = make(tmp_path)
    real = load_data(config)
    request.getfixturevalue("closed")
    assert kind(stand_ins_for(config)) == kind(real)


@pytest.mark.parametrize("make", OWN)
def test_the_folder_of_a_run_tells_the_form_where_the_data_is_no_longer_there(
    make: Callable[[Path], RunConfig], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = make(tmp_path)
    real = load_data(config)
    folder = finished(config, real, tmp_path)
    request.getfixturevalue("closed")
    elsewhere = replace(config, dataset="gone/" + Path(config.dataset).name)
    assert kind(stand_ins_for(elsewhere, folder)) == kind(real)


def test_values_are_in_their_range_and_every_class_occurs(tmp_path: Path) -> None:
    """Fixed seed."""
    made = stand_ins_for(table(tmp_path)).train
    assert isinstance(made, TensorRecords)
    assert 0 <= float(made.inputs.min()) < 0.1 < 0.9 < float(made.inputs.max()) < 1
    assert set(made.targets.tolist()) == {0, 1, 2}


def test_there_are_no_more_than_20000_and_fewer_large_ones_while_the_declared_count_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = table(tmp_path)
    (tmp_path / "people.toml").write_text(TABLE.replace("60", "3_000_000_000"))
    made = stand_ins_for(config)
    assert (made.records, len(made.train)) == (3_000_000_000, 20_000)
    monkeypatch.setattr(stand_ins, "MOST_NUMBERS", 4 * 7)
    assert len(stand_ins_for(config).train) == 7


@pytest.mark.slow
@pytest.mark.parametrize("make", OWN)
def test_a_run_trains_on_them(make: Callable[[Path], RunConfig], tmp_path: Path) -> None:
    config = replace(make(tmp_path), model="linear", method="dpsgd", steps=2, batch_size=20, noise_multiplier=1.0)
    data = stand_ins_for(config, finished(config, load_data(config), tmp_path))
    ready = configured(config, data)
    assert ready.sample_rate == 20 / 60
    assert train_prepared(ready).steps == 2


def test_a_shape_that_is_declared_nowhere_is_asked_for_in_one_line(tmp_path: Path, closed: None) -> None:
    (tmp_path / "facts.toml").write_text("records = 60\nclasses = 3\n")
    for config in (
        RunConfig(dataset="rows.npz", records=60, classes=3),
        RunConfig(dataset="rows.npz", describe=str(tmp_path / "facts.toml")),
    ):
        with pytest.raises(InputError, match=r"declared nowhere.*finished run.*--diagnostics") as refused:
            stand_ins_for(config)
        assert "\n" not in str(refused.value)


def test_facts_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    config = table(tmp_path)
    folder = finished(config, load_data(config), tmp_path)
    with pytest.raises(InputError, match="records=61 contradicts the 60"):
        stand_ins_for(replace(config, records=61))
    with pytest.raises(InputError, match="does not describe"):
        stand_ins_for(replace(config, dataset="rows.npz", describe=str(tmp_path / "people.toml")))
    with pytest.raises(InputError, match="classes=4 contradicts the 3"):
        stand_ins_for(replace(config, classes=4), folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shape": None}, "no shape"),
        ({"shape": [2, 0]}, "shape is invalid"),
        ({"shape": [2.0]}, "shape is invalid"),
        ({"shape": [1 << 20, 1 << 20]}, "shape is invalid"),
        ({"classes": None}, "no classes"),
        ({"classes": True}, "classes is invalid"),
        ({"records": 0}, "records is invalid"),
        ({"name": "a\nb"}, "name is invalid"),
    ],
)
def test_odd_facts_in_a_folder_are_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    facts = {"name": "a", "records": 60, "classes": 2, "shape": [4]} | change
    (tmp_path / "data.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=said) as refused:
        stand_ins_for(RunConfig(dataset="a.npz"), tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [None, "{", "[" * 100_000, "3"])
def test_a_folder_without_readable_facts_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "data.json").write_text(text)
    with pytest.raises(InputError, match=r"data\.json"):
        stand_ins_for(RunConfig(dataset="a.npz"), tmp_path)
