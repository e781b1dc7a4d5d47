"""Tables as tensors: encodings against values worked out by hand, and every unusable cell named by row and column."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadpigu.core.sensitive import unseal
from adadpigu.data.datasets import TensorRecords
from adadpigu.data.description import CategoricalColumn, NumericColumn, TableFacts
from adadpigu.data.tabular import CHUNK, Rows, encode, read_features, read_owners, read_table
from adadpigu.errors import InputError

AGE = NumericColumn(name="age", low=20, high=60)
JOB = CategoricalColumn(name="job", categories=("nurse", "clerk", "smith"))
FACTS = TableFacts(label="income", columns=(AGE, JOB), ignore=("id",))
CLASSES = ("low", "high")


def csv_file(folder: Path, text: str) -> Path:
    path = folder / "people.csv"
    path.write_text(text, encoding="utf-8")
    return path


def parquet_file(folder: Path, columns: dict[str, object]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = folder / "people.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    return path


def refusal(path: Path, facts: TableFacts = FACTS) -> str:
    with pytest.raises(InputError) as caught:
        read_table(path, facts, CLASSES)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_csv_is_encoded_as_worked_out_by_hand(tmp_path: Path) -> None:
    """Columns in the order of the description, not of the file; ages 20, 40, 50 and, clamped, 99 and −3."""
    text = "id,income,job,age\n1,low,nurse,20\n2,high,clerk,40\n3,low,smith,50\n4,high,nurse,99\n5,low,clerk,-3\n"
    found = read_table(csv_file(tmp_path, text), FACTS, CLASSES)
    expected = [[-1, 1, 0, 0], [0, 0, 1, 0], [0.5, 0, 0, 1], [1, 1, 0, 0], [-1, 0, 1, 0]]
    assert torch.equal(found.inputs, torch.tensor(expected, dtype=torch.float32))
    assert found.targets.tolist() == [0, 1, 0, 1, 0]
    assert (found.inputs.dtype, found.targets.dtype) == (torch.float32, torch.int64)


def test_a_parquet_file_is_encoded_as_the_same_csv(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    jobs = pyarrow.array(["nurse", "clerk", "smith"]).dictionary_encode()
    columns: dict[str, object] = {"income": ["low", "high", "low"], "job": jobs, "age": [20, 40, 50], "id": [1, 2, 3]}
    found = read_table(parquet_file(tmp_path, columns), FACTS, CLASSES)
    text = "income,job,age\nlow,nurse,20\nhigh,clerk,40\nlow,smith,50\n"
    expected = read_table(csv_file(tmp_path, text), FACTS, CLASSES)
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)


@pytest.mark.parametrize(
    ("kind", "ids", "told"),
    [
        ("float64", [7.0, 8.0, 7.0], None),
        ("float64", [2.0**53, 8.0, 7.0], "cannot tell such numbers apart"),
        ("float32", [7.0, 8.0, 7.0], "owners 'who' are float, too coarse a type; allowed: integers, text"),
        ("int64", [2**53, 2**53 + 1, 2**53], None),
    ],
)
def test_owners_of_a_parquet_file_are_numbers_that_their_type_holds(
    kind: str, ids: list[float], told: str | None, tmp_path: Path
) -> None:
    """Two persons whose numbers are rounded to one would be one owner, whose noise covers neither."""
    path = parquet_file(tmp_path, {"who": np.array(ids, kind)})
    facts = TableFacts(label="y", columns=(), owner="who", owner_cap=2)
    if told is not None:
        with pytest.raises(InputError, match=told):
            read_owners(path, facts)
    else:
        owners = read_owners(path, facts)
        assert owners is not None
        assert unseal(owners).tolist() == [0, 1, 0]


def test_numbers_and_booleans_of_a_parquet_file_can_be_names(tmp_path: Path) -> None:
    """Whole numbers stored as floats, as they are beside an empty cell, keep the name of the whole number."""
    facts = TableFacts(
        label="y",
        columns=(
            CategoricalColumn(name="ward", categories=("1", "2"), missing="2"),
            CategoricalColumn(name="smoker", categories=("False", "True")),
        ),
    )
    columns: dict[str, object] = {"y": [1, 0], "ward": [1.0, None], "smoker": [True, False]}
    found = read_table(parquet_file(tmp_path, columns), facts, ("0", "1"))
    assert found.inputs.tolist() == [[1, 0, 0, 1], [0, 1, 1, 0]]
    assert found.targets.tolist() == [1, 0]


@given(
    st.lists(st.tuples(st.floats(-100, 100), st.sampled_from(["nurse", "clerk", "smith"])), min_size=2, max_size=8),
    st.data(),
)
def test_a_record_more_changes_no_other_records_encoding(rows: list[tuple[float, str]], data: st.DataObject) -> None:
    """Neighbours: without one row, the encodings of all others stay bit for bit."""
    left_out = data.draw(st.integers(0, len(rows) - 1))

    def encoded(some: list[tuple[float, str]]) -> torch.Tensor:
        cells = {"age": [repr(age) for age, _ in some], "job": [job for _, job in some]}
        return torch.from_numpy(encode(Rows(cells, str), FACTS.columns))

    kept = [row for row in range(len(rows)) if row != left_out]
    assert torch.equal(encoded(rows)[kept], encoded([rows[row] for row in kept]))


def test_every_encoded_number_is_within_minus_one_and_one(tmp_path: Path) -> None:
    ends = [-1e308, 1e308, 0.0, 1e-320, 5e307]
    path = csv_file(tmp_path, "age,income\n" + "".join(f"{end!r},low\n" for end in ends))
    column = NumericColumn(name="age", low=-1e308, high=1e308)
    found = read_table(path, TableFacts(label="income", columns=(column,)), CLASSES)
    assert found.inputs.flatten().tolist() == pytest.approx([-1, 1, 0, 0, 0.5])


def test_other_and_missing_are_encoded_only_where_declared(tmp_path: Path) -> None:
    job = CategoricalColumn(name="job", categories=("nurse", "clerk"), other=True, missing="clerk")
    age = NumericColumn(name="age", low=20, high=60, missing=30)
    facts = TableFacts(label="income", columns=(age, job))
    path = csv_file(tmp_path, "age,job,income\n,nurse,low\nnan,baker,high\n40,,low\n60,NaN,low\n")
    found = read_table(path, facts, CLASSES)
    assert found.inputs.tolist() == [[-0.5, 1, 0, 0], [-0.5, 0, 0, 1], [0, 0, 1, 0], [1, 0, 1, 0]]


def test_a_missing_category_can_be_the_other_one(tmp_path: Path) -> None:
    job = CategoricalColumn(name="job", categories=("nurse",), other=True, missing="other")
    found = read_table(csv_file(tmp_path, "job,income\n ,low\n"), TableFacts(label="income", columns=(job,)), CLASSES)
    assert found.inputs.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("30,baker,low", ["column 'job'", "'baker'", "nurse, clerk, smith", "other = true"]),
        ("30,,low", ["column 'job'", "missing", "nurse, clerk, smith"]),
        ("30,nurse,", ["column 'income'", "label is missing", "low, high"]),
        ("30,nurse,middling", ["column 'income'", "'middling' is not declared", "low, high"]),
        (",nurse,low", ["column 'age'", "missing", "[20, 60]"]),
        ("nan,nurse,low", ["column 'age'", "missing"]),
        ("thirty,nurse,low", ["column 'age'", "'thirty' is no number", "[20, 60]"]),
        ("1_0,nurse,low", ["column 'age'", "'1_0' is no number"]),
        ("1e999,nurse,low", ["column 'age'", "'1e999' is no number"]),
        ("30,nurse", ["2 cells", "allowed: 3"]),
        ("30,nurse,low,", ["4 cells", "allowed: 3"]),
    ],
)
def test_an_unusable_cell_is_refused_by_row_and_column(tmp_path: Path, row: str, named: list[str]) -> None:
    """The third record, on the fifth line, since a quoted cell before it holds a line break."""
    text = f'age,job,income\n20,nurse,low\n20,"clerk\n",high\n{row}\n50,clerk,high\n'
    message = refusal(csv_file(tmp_path, text))
    for words in ("row 3 (line 5)", *named):
        assert words in message


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"age": [30, None], "job": ["clerk", "clerk"], "income": ["low", "low"]}, ["row 2", "'age'", "missing"]),
        ({"age": [30, float("nan")], "job": ["clerk"] * 2, "income": ["low"] * 2}, ["row 2", "'age'", "missing"]),
        ({"age": [30, 31], "job": ["clerk", None], "income": ["low", "low"]}, ["row 2", "'job'", "missing"]),
        (
            {"age": [30, 31], "job": ["clerk", "clerk"], "income": ["low", None]},
            ["row 2", "'income'", "label is missing"],
        ),
        ({"age": [[30], [31]], "job": ["clerk"] * 2, "income": ["low"] * 2}, ["'age' has type list", "allowed"]),
        ({"age": [30, 31], "job": ["clerk", "clerk"]}, ["no column 'income'"]),
        ({"age": [1], "job": ["clerk"], "income": ["low"], "name": ["x"]}, ["'name' is not described", "ignore"]),
    ],
)
def test_an_unusable_parquet_cell_is_refused_by_row_and_column(
    tmp_path: Path, columns: dict[str, object], named: list[str]
) -> None:
    message = refusal(parquet_file(tmp_path, columns))
    for words in named:
        assert words in message


def test_the_row_is_named_beyond_the_first_chunk(tmp_path: Path) -> None:
    rows = CHUNK + 7
    text = "age,job,income\n" + "30,clerk,low\n" * (rows - 1) + "30,clerk,\n"
    assert f"row {rows} (line {rows + 1})" in refusal(csv_file(tmp_path, text))
    ages = [30.0] * (rows - 1) + [float("nan")]
    columns: dict[str, object] = {"age": ages, "job": ["clerk"] * rows, "income": ["low"] * rows}
    assert f"row {rows}," in refusal(parquet_file(tmp_path, columns))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no header"),
        ("age,job,income\n", "no record"),
        ("age,job,income,age\n", "column 4 of the header"),
        ("age,job,,income\n", "column 3 of the header"),
        ("age,income\n30,low\n", "no column 'job'"),
        ("age,job,income,name\n30,clerk,low,Ann\n", "column 'name' is not described"),
        ("age;job;income\n30;clerk;low\n", "separator"),
        ('age,job,income\n30,"clerk,low\n', "not CSV"),
        ('age,job,income\n30,"clerk"x,low\n', "not CSV"),
    ],
)
def test_a_table_that_does_not_fit_its_description_is_refused(tmp_path: Path, text: str, named: str) -> None:
    assert named in refusal(csv_file(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "nowhere.csv")
    path = tmp_path / "latin.csv"
    path.write_bytes("age,job,income\n30,Bäcker,low\n".encode("latin-1"))
    assert "not UTF-8" in refusal(path)
    pytest.importorskip("pyarrow")
    assert "No such file" in refusal(tmp_path / "nowhere.parquet")
    path = tmp_path / "text.parquet"
    path.write_text("age,job,income\n")
    assert "not Parquet" in refusal(path)


def test_a_damaged_parquet_file_is_refused_by_name(tmp_path: Path) -> None:
    columns: dict[str, object] = {"age": [30] * 500, "job": ["clerk", "smith"] * 250, "income": ["low"] * 500}
    path = parquet_file(tmp_path, columns)
    whole = bytearray(path.read_bytes())
    whole[8:60] = bytes(52)
    path.write_bytes(whole)
    assert "cannot be read" in refusal(path)


def test_without_pyarrow_the_refusal_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "pip install 'adadpigu[parquet]'" in refusal(tmp_path / "people.parquet")


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_declared_separator_is_used_and_a_mark_at_the_start_ignored(tmp_path: Path, separator: str) -> None:
    path = csv_file(tmp_path, "\ufeff" + "age,job,income\n 30 , clerk,low\n\n".replace(",", separator))
    facts = TableFacts(label="income", columns=(AGE, JOB), separator=separator)
    assert read_table(path, facts, CLASSES).inputs.tolist() == [[-0.5, 0, 1, 0]]


def test_features_are_the_same_without_a_label_column(tmp_path: Path) -> None:
    with_label = csv_file(tmp_path, "age,job,income\n30,clerk,low\n40,smith,\n")
    expected = [[-0.5, 0, 1, 0], [0, 0, 0, 1]]
    assert read_features(with_label, FACTS).tolist() == expected
    assert read_features(csv_file(tmp_path, "job,age\nclerk,30\nsmith,40\n"), FACTS).tolist() == expected
    assert read_features(csv_file(tmp_path, "job,age\n"), FACTS).shape == (0, 4)


def test_a_table_longer_than_a_chunk_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    rows = 2 * CHUNK + 3
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["age", "income"], *([20 + i % 41, CLASSES[i % 2]] for i in range(rows))])
    found = read_table(path, TableFacts(label="income", columns=(AGE,)), CLASSES)
    assert isinstance(found, TensorRecords)
    assert torch.equal(found.targets, torch.arange(rows) % 2)
    assert torch.allclose(found.inputs[:, 0], (torch.arange(rows) % 41 - 20) / 20)
