"""The user's own data from path to data set: what is declared is used, and what is not declared is asked for."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from adadpigu.accounting import Budget
from adadpigu.cli.app import run
from adadpigu.core.sensitive import unseal
from adadpigu.data.description import read_description
from adadpigu.data.own import find_description, is_own, own_dataset, read_inputs
from adadpigu.data.template import template
from adadpigu.errors import InputError
from adadpigu.methods import make_method
from adadpigu.models import make_model
from adadpigu.training import TrainingOptions, prepare, train_prepared

FACTS = """
records = 60
label = "y"
classes = ["no", "yes"]
[columns.age]
range = [0, 10]
[columns.job]
categories = ["a", "b"]
"""


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Three records, though 60 are declared, and a description beside them."""
    path = tmp_path / "people.csv"
    path.write_text("age,job,y\n0,a,no\n5,b,yes\n10,a,no\n")
    path.with_suffix(".toml").write_text(FACTS)
    return path


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two gray images and a description in their folder."""
    folder = tmp_path / "pets"
    for name, value in (("cat", 0), ("dog", 255)):
        (folder / name).mkdir(parents=True)
        Image.fromarray(np.full((2, 2), value, dtype=np.uint8)).save(folder / name / f"{name}.png")
    facts = 'records = 60\nclasses = ["cat", "dog"]\nsize = [2, 2]\nchannels = 1\n'
    (folder / "description.toml").write_text(facts)
    return folder


def test_a_described_csv_becomes_a_data_set(people: Path) -> None:
    data = own_dataset(people)
    assert (data.name, data.records, data.classes, data.shape) == ("people", 60, 2, (3,))
    inputs, targets = data.train.take(torch.arange(3))
    assert inputs.tolist() == [[-1, 1, 0], [0, 0, 1], [1, 1, 0]]
    assert targets.tolist() == [0, 1, 0]
    assert data.test is None


def test_the_declared_count_is_used_however_many_records_there_are(people: Path) -> None:
    """Neighbours must be described alike: all that is public stays the same without one record."""
    data = own_dataset(people)
    people.write_text("age,job,y\n0,a,no\n5,b,yes\n")
    less = own_dataset(people)
    assert (len(data.train), len(less.train)) == (3, 2)
    assert (less.records, less.classes, less.shape, less.public) == (
        data.records,
        data.classes,
        data.shape,
        data.public,
    )


def test_test_records_are_read_from_beside_the_description(people: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "public"
    elsewhere.mkdir()
    (elsewhere / "facts.toml").write_text('test = "held-out.csv"\n' + FACTS)
    (elsewhere / "held-out.csv").write_text("y,age,job\nyes,10,b\n")
    test = own_dataset(people, description=elsewhere / "facts.toml").test
    assert test is not None
    inputs, targets = test.take(torch.arange(1))
    assert (inputs.tolist(), targets.tolist()) == ([[1, 0, 1]], [1])
    (elsewhere / "held-out.csv").unlink()
    with pytest.raises(InputError, match=r"test='.*held-out\.csv' does not exist"):
        own_dataset(people, description=elsewhere / "facts.toml")


def test_a_column_names_whose_a_record_is(people: Path) -> None:
    """It is no feature, its names stay private, and only the cap is told; a missing owner is refused by its row."""
    people.write_text("age,job,y,who\n0,a,no,ann\n5,b,yes,bob\n10,a,no,ann\n1,a,no,ann\n")
    owned = 'owner = "who"\nowner_cap = 2\n' + FACTS
    people.with_suffix(".toml").write_text(owned)
    data = own_dataset(people)
    assert data.shape == (3,)
    assert data.owners is not None
    assert (data.owners.cap, unseal(data.owners).tolist()) == (2, [0, 1, 0, -1])
    assert data.public[-1] == "at most 2 records of one owner are trained on (declared)"
    assert not any("ann" in fact for fact in data.public)
    assert len(read_inputs(people, read_description(people.with_suffix(".toml"))).values) == 4
    for cell in ("", "nan", "NaN", "None", "<NA>"):  # each would be one owner of all such records
        people.write_text(f"age,job,y,who\n0,a,no,ann\n5,b,yes,{cell}\n")
        with pytest.raises(InputError, match=r"row 2 \(line 3\), column 'who': the owner is missing; allowed: a name"):
            own_dataset(people)
    people.write_text("age,job,y\n0,a,no\n")
    with pytest.raises(InputError, match="has no column 'who'"):
        own_dataset(people)


def test_test_records_of_owners_who_are_trained_on_are_refused_without_naming_them(people: Path) -> None:
    """Whatever is measured on them is exact; a test file without the column is taken."""
    people.write_text("age,job,y,who\n0,a,no,ann\n5,b,yes,bob\n10,a,no,ann\n1,a,no,cyd\n")
    people.with_suffix(".toml").write_text('owner = "who"\nowner_cap = 2\ntest = "test.csv"\n' + FACTS)
    test = people.with_name("test.csv")
    test.write_text("who,age,job,y\ndan,1,a,no\nbob,9,b,no\ncyd,9,b,yes\n")
    with pytest.raises(InputError, match="are of owners who are trained on; allowed: those of others") as no:
        own_dataset(people)
    assert not any(word in str(no.value).removeprefix(str(test)) for word in ("bob", "cyd", "2", "two"))
    for text in ("who,age,job,y\ndan,1,a,no\n", "age,job,y\n1,a,no\n"):
        test.write_text(text)
        assert own_dataset(people).test is not None


def test_the_command_line_protects_the_owners_of_a_table(people: Path, tmp_path: Path, capsys: Any) -> None:
    people.write_text("age,job,y,who\n" + "".join(f"{i % 10},{'ab'[i % 2]},no,p{i // 3}\n" for i in range(60)))
    people.with_suffix(".toml").write_text('owner = "who"\nowner_cap = 2\n' + FACTS)
    flags = ["--model", "linear", "--method", "dpsgd", "--steps", "40", "--batch-size", "20", "--json"]
    assert run(["train", "--dataset", str(people), *flags, "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["unit_of_privacy"] == (
        "one owner with up to 2 records"
    )
    capsys.readouterr()
    assert run(["audit", "noise", str(tmp_path / "run"), "--numbers", "10000", "--json"]) == 0
    assert run(["audit", "replay", str(tmp_path / "run"), "--json"]) == 0


def test_a_described_folder_becomes_a_data_set(pets: Path) -> None:
    data = own_dataset(pets)
    assert (data.name, data.records, data.classes, data.shape) == ("pets", 60, 2, (1, 2, 2))
    inputs, targets = data.train.take(torch.arange(2))
    assert inputs.flatten(1).tolist() == [[0] * 4, [1] * 4]
    assert targets.tolist() == [0, 1]


def test_a_folder_of_test_images_inside_is_no_class(pets: Path) -> None:
    file = pets / "description.toml"
    file.write_text('test = "test"\n' + file.read_text())
    for name in ("cat", "dog"):
        (pets / "test" / name).mkdir(parents=True)
        (pets / "test" / name / "x.png").write_bytes((pets / name / f"{name}.png").read_bytes())
    data = own_dataset(pets)
    assert len(data.train) == 2
    assert data.test is not None
    assert len(data.test) == 2


def test_an_npz_file_needs_two_numbers_or_a_description(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=np.array([[0], [255]], dtype=np.uint8), y=np.array([0, 1]))
    plain = own_dataset(path, records=60, classes=2)
    assert plain.train.take(torch.arange(2))[0].tolist() == [[0], [255]]
    with pytest.raises(InputError, match="--records"):
        own_dataset(path, classes=2)
    facts = tmp_path / "facts.toml"
    facts.write_text("records = 60\nclasses = 2\nrange = [0, 255]\n")
    scaled = own_dataset(path, description=facts)
    assert scaled.train.take(torch.arange(2))[0].tolist() == [[-1], [1]]
    assert (scaled.records, scaled.classes) == (60, 2)
    assert any("[0, 255]" in fact for fact in scaled.public)


def test_flags_may_not_contradict_the_description(people: Path) -> None:
    assert own_dataset(people, records=60, classes=2).records == 60
    with pytest.raises(InputError, match=r"records=3 contradicts the 60 .*people\.toml"):
        own_dataset(people, records=3)
    with pytest.raises(InputError, match=r"classes=3 contradicts the 2 .*people\.toml"):
        own_dataset(people, classes=3)


def test_without_a_description_the_refusal_says_how_to_write_one(people: Path, pets: Path) -> None:
    people.with_suffix(".toml").unlink()
    with pytest.raises(InputError, match=r"adadpigu data template \S*people\.csv > \S*people\.toml.*--describe"):
        own_dataset(people)
    (pets / "description.toml").unlink()
    with pytest.raises(InputError, match=r"adadpigu data template \S*pets > \S*pets/description\.toml"):
        own_dataset(pets)


def test_a_folder_with_one_class_is_refused_with_and_without_a_description(pets: Path) -> None:
    (pets / "dog" / "dog.png").unlink()
    (pets / "dog").rmdir()
    with pytest.raises(InputError, match="no sub-folder 'dog'"):
        own_dataset(pets)
    (pets / "description.toml").unlink()
    with pytest.raises(InputError, match=r"sub-folders \['cat'\]; allowed: 2 or more"):
        own_dataset(pets)


def test_a_description_of_another_kind_is_refused(people: Path, pets: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"dataset='.*people\.csv' is for a table, but .*description\.toml describes images"
    ):
        own_dataset(people, description=pets / "description.toml")
    with pytest.raises(InputError, match=r"dataset='.*pets' is for images, but .*people\.toml describes a table"):
        own_dataset(pets, description=people.with_suffix(".toml"))


def test_a_path_that_is_no_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv' does not exist"):
        own_dataset(tmp_path / "nowhere.csv")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"notes\.txt' is of no known kind; allowed: FILE\.csv"):
        own_dataset(tmp_path / "notes.txt")


def test_paths_are_own_data_and_names_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans").mkdir()
    assert all(is_own(name) for name in ("a.npz", "a.CSV", "a.parquet", "scans", "x/y", "./mnist", "."))
    assert not any(is_own(name) for name in ("digits", "mnist", "fashion-mnist", "nowhere"))


def test_inputs_to_predict_for_are_encoded_as_the_training_records(people: Path, pets: Path, tmp_path: Path) -> None:
    unlabelled = tmp_path / "new.csv"
    unlabelled.write_text("job,age\nb,5\n")
    found = read_inputs(unlabelled, find_description(people))
    assert (found.values.tolist(), found.names) == ([[0, 0, 1]], ("0",))
    found = read_inputs(pets, find_description(pets))
    assert (found.values.flatten(1).mean(1).tolist(), found.names) == ([0, 1], ("cat/cat.png", "dog/dog.png"))
    assert read_inputs(pets / "dog" / "dog.png", find_description(pets)).values.shape == (1, 1, 2, 2)
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    assert read_inputs(tmp_path / "x.npy").values.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_inputs_of_another_kind_are_refused(people: Path, pets: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "z.npz", z=np.ones((2, 3)))
    with pytest.raises(InputError, match="allowed: an array x"):
        read_inputs(tmp_path / "z.npz")
    with pytest.raises(InputError, match=r"z\.npz' is for arrays, but .* describes a table"):
        read_inputs(tmp_path / "z.npz", find_description(people))
    with pytest.raises(InputError, match=r"people\.csv' is for a table, but there is no description"):
        read_inputs(people)
    with pytest.raises(InputError, match=r"people\.csv' cannot be read: it is damaged, or not one of PNG"):
        read_inputs(people, find_description(pets))


def test_a_template_tells_structure_and_nothing_of_the_records(people: Path) -> None:
    text = template(people)
    people.write_text("age,job,y\n7777,secret,maybe\n")
    assert template(people) == text
    assert list(tomllib.loads(text)["columns"]) == ["age", "job", "y"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("34,F,yes\n35,M,no\n", "column 1 is named '34', a number"),
        ("F;yes;3,5\nM;no;2,5\n", "column 3 is named '3,5', a number"),
        ("F,-1.5e3\n", "column 2 is named '-1.5e3', a number"),
        ("F,NaN\n", "column 2 is named 'NaN', a number"),
        ("F,2024-01-31\n", "column 2 is named '2024-01-31', a number"),
    ],
)
def test_a_file_without_a_header_gets_no_template_of_its_first_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, named: str
) -> None:
    path = tmp_path / "people.csv"
    path.write_text(text)
    assert run(["data", "template", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"adadpigu: error: {path}: {named}")
    assert err.endswith("allowed: a first line that is the header, with the columns' names\n")
    assert err.count("\n") == 1


def test_a_template_says_first_what_was_taken_as_the_header(people: Path) -> None:
    assert template(people).startswith("# The first line of the file was taken as its header. If a [columns.…] below")


def test_a_described_table_may_have_numbers_for_names(tmp_path: Path) -> None:
    """Arrays that were saved as a table often do; whoever describes them has said that the names are public."""
    path = tmp_path / "saved.csv"
    path.write_text("0,1,y\n5,0,yes\n0,10,no\n")
    facts = 'records = 60\nlabel = "y"\nclasses = ["no", "yes"]\n[columns.0]\nrange = [0, 10]\n[columns.1]\n'
    path.with_suffix(".toml").write_text(facts + "range = [0, 10]\n")
    inputs, _ = own_dataset(path).train.take(torch.arange(2))
    assert inputs.tolist() == [[0, -1], [-1, 1]]


def test_a_template_of_parquet_tells_types_and_nothing_of_the_records(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    texts = []
    for age, job in ((3, "a"), (7777, "secret")):
        parquet.write_table(pyarrow.table({"age, in years": [age], "job": [job]}), path)
        texts.append(template(path))
    assert texts[0] == texts[1]
    assert list(tomllib.loads(texts[0])["columns"]) == ["age, in years", "job"]
    assert "int64" in texts[0]


@pytest.mark.parametrize("header", ["age,job,y", "age;job;y", "age\tjob\ty", 'age;"job";"y"'])
def test_a_template_is_refused_until_filled_in_and_then_reads_the_file(tmp_path: Path, header: str) -> None:
    path = tmp_path / "people.csv"
    separator = next(c for c in ",;\t" if c in header)
    path.write_text(f"{header}\n" + "5,b,yes\n0,a,no\n".replace(",", separator))
    facts = path.with_suffix(".toml")
    text = template(path)
    facts.write_text(text)
    with pytest.raises(InputError):
        own_dataset(path)
    for blank, filled in (
        ("records = 0", "records = 60"),
        ('label = ""', 'label = "y"'),
        ("classes = []", 'classes = ["no", "yes"]'),
        ("[columns.age]\n# range = [LOW, HIGH]", "[columns.age]\nrange = [0, 10]"),
        ("[columns.job]\n# range = [LOW, HIGH]\n# ", "[columns.job]\n"),
        ('categories = ["A", "B"]\n\n[columns.y]', 'categories = ["a", "b"]\n'),
    ):
        assert text.count(blank) == 1
        text = text.replace(blank, filled)
        facts.write_text(text)
    inputs, targets = own_dataset(path).train.take(torch.arange(2))
    assert (inputs.tolist(), targets.tolist()) == ([[0, 0, 1], [-1, 1, 0]], [1, 0])


def test_a_template_of_images_names_the_sub_folders(pets: Path) -> None:
    text = template(pets)
    assert tomllib.loads(text)["classes"] == ["cat", "dog"]
    (pets / "description.toml").write_text(text)
    with pytest.raises(InputError, match="records=0"):
        read_description(pets / "description.toml")


def test_the_template_command_prints_the_file_or_one_json_object(people: Path, call: Any) -> None:
    text = call("data", "template", str(people))[1]
    assert text == template(people)
    found = json.loads(call("data", "template", str(people), "--json")[1])
    assert found == {"file": str(people), "save_as": str(people.with_suffix(".toml")), "template": text}


@pytest.mark.slow
def test_own_records_are_trained_on_and_the_statement_tells_what_was_declared(people: Path, tmp_path: Path) -> None:
    data = own_dataset(people)
    model = make_model("linear", shape=data.shape, classes=2, seed=0)
    options = TrainingOptions(batch_size=6, steps=2)
    prepared = prepare(
        model,
        data,
        method=make_method("dpsgd", {}),
        budget=Budget(epsilon=4.0, delta=1e-5),
        delta=1e-5,
        options=options,
    )
    assert prepared.sample_rate == pytest.approx(6 / 60)  # of the 60 declared, not of the 3 there are
    train_prepared(prepared, out=tmp_path / "run")
    statement = (tmp_path / "run" / "statement.txt").read_text()
    for fact in ("60 records (declared)", "'no', 'yes'", "age [0, 10]", "job (2)"):
        assert fact in statement


def test_the_examples_of_the_documentation_are_read_as_it_says(tmp_path: Path) -> None:
    """(2·39 − 107)/73 = −0.397 and 2·40/99 − 1 = −0.192; the third record's empty cell stands for 40 as well."""
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")
    blocks = dict(enumerate(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)))
    assert len(blocks) == 3
    for number, block in blocks.items():
        (tmp_path / f"{number}.toml").write_text(block, encoding="utf-8")
        read_description(tmp_path / f"{number}.toml")
    example = re.search(r"```csv\n(.*?)```", page, re.DOTALL)
    assert example is not None
    (tmp_path / "0.csv").write_text(example[1], encoding="utf-8")
    inputs, targets = own_dataset(tmp_path / "0.csv").train.take(torch.arange(3))
    assert inputs[0].tolist() == pytest.approx([-0.397, 0, 1, 0, 0, -0.192], abs=5e-4)
    assert inputs[2, -1] == inputs[0, -1]
    assert targets.tolist() == [0, 1, 0]
