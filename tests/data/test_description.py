"""Descriptions of a person's own data: what is declared is what is read, and every wrong value is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from adadpigu.data.description import (
    ArrayFacts,
    CategoricalColumn,
    ImageFacts,
    NumericColumn,
    TableFacts,
    read_description,
)
from adadpigu.errors import InputError

PEOPLE = """
records = 32561
label = "income"
classes = ["<=50K", ">50K"]
test = "people-test.csv"
ignore = ["id"]
[columns.age]
range = [17, 90]
missing = 40
[columns.education]
categories = ["HS-grad", "Bachelors", "Masters"]
other = true
missing = "other"
"""

SCANS = """
records = 500
classes = ["cat", "dog"]
size = [4, 6]
channels = "rgb"
mean = [0.5, 0.4, 0.3]
std = [0.2, 0.2, 0.1]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "facts.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_is_described_as_declared(tmp_path: Path) -> None:
    found = read_description(written(tmp_path, PEOPLE))
    assert (found.records, found.classes, found.test) == (32561, ("<=50K", ">50K"), tmp_path / "people-test.csv")
    age = NumericColumn(name="age", low=17, high=90, missing=40)
    education = CategoricalColumn(
        name="education", categories=("HS-grad", "Bachelors", "Masters"), other=True, missing="other"
    )
    assert found.facts == TableFacts(label="income", columns=(age, education), ignore=("id",))
    assert found.facts.shape == (5,)  # a number, three categories, and other


def test_the_order_of_the_columns_is_the_order_of_the_file(tmp_path: Path) -> None:
    text = 'records = 9\nlabel = "y"\nclasses = 2\n' + "".join(f"[columns.{c}]\nrange=[0,1]\n" for c in "zbax")
    facts = read_description(written(tmp_path, text)).facts
    assert isinstance(facts, TableFacts)
    assert [column.name for column in facts.columns] == list("zbax")


def test_images_are_described_as_declared(tmp_path: Path) -> None:
    facts = read_description(written(tmp_path, SCANS)).facts
    assert facts == ImageFacts(height=4, width=6, channels=3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1))
    assert facts.shape == (3, 4, 6)


def test_a_number_of_classes_names_them_by_number(tmp_path: Path) -> None:
    found = read_description(written(tmp_path, "records = 9\nclasses = 3\nrange = [0, 255]"))
    assert (found.classes, found.facts) == (("0", "1", "2"), ArrayFacts(range=(0, 255)))


def test_the_statement_is_told_all_that_was_declared(tmp_path: Path) -> None:
    told = "\n".join(read_description(written(tmp_path, PEOPLE)).public)
    for fact in ("32,561 records", "2 classes", "'<=50K'", "age [17, 90]", "education (3 and other)", "age 40", "id"):
        assert fact in told
    told = "\n".join(read_description(written(tmp_path, SCANS)).public)
    for fact in ("500 records", "'cat', 'dog'", "rgb images of 4 × 6", "mean 0.5, 0.4, 0.3", "deviation 0.2, 0.2, 0.1"):
        assert fact in told


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("records = 32561", "records = 0", ["records=0", "at least 1"]),
        ("records = 32561", "records = true", ["records=True", "whole number"]),
        ("records = 32561", "", ["records is missing"]),
        ("records = 32561", "record = 5", ["record", "did you mean 'records'"]),
        ('label = "income"', "label = 3", ["label=3"]),
        ('label = "income"', "", ["label is missing"]),
        ('label = "income"', 'label = "age"', ["'age'", "two roles"]),
        ('ignore = ["id"]', 'ignore = ["income"]', ["'income'", "two roles"]),
        ('ignore = ["id"]', 'ignore = "id"', ["ignore='id'", "a list"]),
        ('["<=50K", ">50K"]', '["one"]', ["classes=['one']", "at least 2"]),
        ('["<=50K", ">50K"]', '["a", "a"]', ["classes=['a', 'a']", "each once"]),
        ('["<=50K", ">50K"]', '["a", " b"]', ["' b'", "blanks"]),
        ('["<=50K", ">50K"]', "1", ["classes=1", "at least 2"]),
        ('classes = ["<=50K", ">50K"]', "", ["classes is missing", "as a number"]),
        ("range = [17, 90]", "range = [90, 17]", ["columns.age.range=[90, 17]", "low below high"]),
        ("range = [17, 90]", "range = [17, inf]", ["columns.age.range=[17, inf]"]),
        ("range = [17, 90]", "range = [17]", ["columns.age.range=[17]", "[low, high]"]),
        ("range = [17, 90]", "", ["columns.age.categories is missing", "or range"]),
        ("range = [17, 90]", 'range = [17, 90]\ncategories = ["a"]', ["unknown key 'columns.age.categories'"]),
        ("range = [17, 90]", "range = [17, 90]\nother = true", ["columns.age.other"]),
        ("range = [17, 90]", "span = [17, 90]", ["columns.age.span"]),
        ("missing = 40", "missing = 16", ["columns.age.missing=16", "from 17 to 90"]),
        ("missing = 40", 'missing = "x"', ["columns.age.missing='x'"]),
        ('missing = "other"', 'missing = "PhD"', ["columns.education.missing='PhD'", "HS-grad", "other"]),
        ("other = true", "other = 1", ["columns.education.other=1", "true or false"]),
        ('["HS-grad", "Bachelors", "Masters"]', "[]", ["columns.education.categories=[]"]),
        ("[columns.age]", "[columns.age", ["not TOML", "line"]),
        ('ignore = ["id"]', "ignore = " + "[" * 100_000, ["not TOML"]),
        ('ignore = ["id"]', 'separator = ";;"', ["separator=';;'", "one character"]),
        ('ignore = ["id"]', 'owner = "id"', ["owner='id'", "owner_cap=None", "both, or neither"]),
        ('ignore = ["id"]', "owner_cap = 2", ["owner=None", "owner_cap=2", "both, or neither"]),
        ('ignore = ["id"]', 'owner = "id"\nowner_cap = 0', ["owner_cap=0", "at least 1"]),
        ('ignore = ["id"]', 'owner = "age"\nowner_cap = 2', ["'age'", "two roles"]),
        ('ignore = ["id"]', 'owner = "income"\nowner_cap = 2', ["'income'", "two roles"]),
        ('ignore = ["id"]', 'owner = "id"\nowner_cap = 2\nignore = ["id"]', ["'id'", "two roles"]),
    ],
)
def test_a_wrong_value_is_named_with_file_key_and_what_is_allowed(
    tmp_path: Path, old: str, new: str, named: list[str]
) -> None:
    assert PEOPLE.count(old) == 1
    path = written(tmp_path, PEOPLE.replace(old, new))
    with pytest.raises(InputError) as caught:
        read_description(path)
    message = str(caught.value)
    assert "\n" not in message
    for words in (str(path), *named):
        assert words in message


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("size = [4, 6]", "size = [4.5, 6]", "size=[4.5, 6]"),
        ("size = [4, 6]", "size = [0, 6]", "size=[0, 6]"),
        ("size = [4, 6]", "size = 4", "size=4"),
        ("size = [4, 6]", "", "size is missing"),
        ('channels = "rgb"', "channels = 4", "channels=4; allowed: 1 or 'gray', 3 or 'rgb'"),
        ('channels = "rgb"', "channels = true", "channels=True"),
        ('channels = "rgb"', "channels = [3]", "channels=[3]"),
        (
            'channels = "rgb"',
            'channels = "gray"',
            "mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1); allowed: neither, or 1 numbers",
        ),
        ("std = [0.2, 0.2, 0.1]", "", "std=None; allowed: neither"),
        (
            "std = [0.2, 0.2, 0.1]",
            "std = [0.2, 0.0, 0.1]",
            "std=(0.2, 0.0, 0.1); allowed: neither, or 3 numbers each, one a channel, std above 0",
        ),
        ("std = [0.2, 0.2, 0.1]", 'label = "x"', "label"),
    ],
)
def test_a_wrong_fact_about_images_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    assert SCANS.count(old) == 1
    path = written(tmp_path, SCANS.replace(old, new))
    with pytest.raises(InputError) as caught:
        read_description(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_a_description_that_is_no_file_or_no_text_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.toml.*No such file"):
        read_description(tmp_path / "nowhere.toml")
    path = tmp_path / "latin.toml"
    path.write_bytes("label = 'Straße'".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.toml.*not UTF-8"):
        read_description(path)


def test_what_a_template_left_empty_is_told_at_once_and_is_no_second_role(tmp_path: Path) -> None:
    text = PEOPLE + "[columns.id]\n[columns.income]\n"
    assert read_description(written(tmp_path, text)).facts == read_description(written(tmp_path, PEOPLE)).facts
    with pytest.raises(InputError, match=r"for columns\.height, columns\.weight; .*under ignore"):
        read_description(written(tmp_path, PEOPLE + "[columns.height]\n[columns.weight]\n"))
