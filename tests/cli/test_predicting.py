"""`adadpigu predict` as a user meets it: classes by name, and files that cannot be used refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import adadpigu as ad
from adadpigu.cli.app import run as run_in_process

FACTS = """
records = 60
label = "y"
classes = ["won't", "will"]
[columns.age]
range = [0, 10]
[columns.job]
categories = ["a", "b"]
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the embedded digits."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    short = ["--method", "dpsgd", "--steps", "2", "--batch-size", "64", "--noise-multiplier", "1", "--seed", "0"]
    assert run_in_process(["train", "--model", "linear", *short, "--json", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a described table whose class follows the age."""
    home = tmp_path_factory.mktemp("people")
    rows = [(age % 11, "ab"[age % 2], "will" if age % 11 > 5 else "won't") for age in range(60)]
    (home / "people.csv").write_text("age,job,y\n" + "".join(f"{age},{job},{y}\n" for age, job, y in rows))
    (home / "people.toml").write_text(FACTS)
    short = ["--method", "sgd", "--steps", "60", "--batch-size", "30", "--model", "linear", "--seed", "0"]
    data = ["--dataset", str(home / "people.csv")]
    assert run_in_process(["train", *data, *short, "--json", "--out", str(home / "run")]) == 0
    return home / "run"


@pytest.fixture
def predict(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Predicts in an empty folder and gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def made(run: Path, *arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run_in_process(["predict", str(run), *arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return made


def refused(told: tuple[int, str, str]) -> str:
    code, out, err = told
    assert (code, out) == (2, "")
    assert err.startswith("adadpigu: error: ")
    assert len(err.strip().splitlines()) == 1, err
    return err


def test_predictions_are_the_largest_outputs_of_the_stored_weights(predict: Any, digits: Path) -> None:
    x = np.random.default_rng(0).random((5, 1, 8, 8)).astype(np.float32)
    np.save("x.npy", x)
    code, out, err = predict(digits, "x.npy", "--json")
    assert code == 0, err
    told = json.loads(out)
    stored = {name: value.double() for name, value in load_file(digits / "model.safetensors").items()}
    (weight,) = [value for name, value in stored.items() if name.endswith("weight")]
    (bias,) = [value for name, value in stored.items() if name.endswith("bias")]
    scores = torch.softmax(torch.from_numpy(x).double().flatten(1) @ weight.T + bias, dim=1)
    assert told["predictions"] == scores.argmax(dim=1).tolist()
    assert told["confidence"] == pytest.approx(scores.max(dim=1).values.tolist(), abs=1e-4)
    assert told["labels"] == [str(label) for label in told["predictions"]]
    assert told["records"] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 64), (3, 2, 8, 8), (0, 64)])
def test_records_of_another_shape_are_refused_with_both_shapes(
    predict: Any, digits: Path, shape: tuple[int, ...]
) -> None:
    np.save("x.npy", np.zeros(shape))
    assert f"holds records of shape {shape[1:]}; allowed: (1, 8, 8)" in refused(predict(digits, "x.npy"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_no_number_is_refused_by_its_position(predict: Any, digits: Path, value: float) -> None:
    x = np.zeros((5, 1, 8, 8))
    x[3, 0, 7, 7] = x[4] = value
    np.savez("x.npz", x=x)
    assert "record 3 has a NaN or infinite value" in refused(predict(digits, "x.npz"))


def test_a_file_without_records_has_no_predictions(predict: Any, digits: Path, people: Path) -> None:
    np.save("x.npy", np.zeros((0, 1, 8, 8)))
    Path("nobody.csv").write_text("age,job\n")
    for run, file in ((digits, "x.npy"), (people, "nobody.csv")):
        code, out, err = predict(run, file, "--json")
        assert code == 0, err
        told = json.loads(out)
        assert [told[key] for key in ("records", "predictions", "labels", "confidence")] == [[], [], [], []]
        assert predict(run, file)[:2] == (0, "")


def test_a_file_of_no_bytes_or_without_an_array_x_is_refused_by_name(predict: Any, digits: Path, people: Path) -> None:
    for name in ("x.npy", "x.npz", "x.csv"):
        Path(name).touch()
    assert "x.npy" in refused(predict(digits, "x.npy"))
    assert "x.npz" in refused(predict(digits, "x.npz"))
    assert "x.csv" in refused(predict(people, "x.csv"))
    np.savez("y.npz", y=np.zeros(3))
    assert "allowed: an array x" in refused(predict(digits, "y.npz"))


def test_a_described_tables_classes_are_called_by_their_names(predict: Any, people: Path) -> None:
    """The label column is absent, the ages far from where the classes meet."""
    Path("new.csv").write_text("job,age\na,10\nb,0\na,0\n")
    code, out, err = predict(people, "new.csv", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["predictions"] == [1, 0, 0]
    assert told["labels"] == ["will", "won't", "won't"]
    assert told["records"] == ["0", "1", "2"]
    code, out, err = predict(people, "new.csv")
    assert code == 0, err
    header, *rows = out.splitlines()
    assert header.split()[:3] == ["record", "class", "softmax"]
    lines = [line.split("\t") for line in rows]
    shares = [f"{share:.2%}" for share in told["confidence"]]
    assert lines == [["0", "will", shares[0]], ["1", "won't", shares[1]], ["2", "won't", shares[2]]]


@pytest.mark.slow
def test_a_run_from_python_with_a_model_by_name_is_evaluated_and_used(call: Any, tmp_path: Path) -> None:
    """The folder says how `make_model` built it, whatever loop trained it."""
    data = ad.load_dataset("digits")
    net = ad.make_model("digits-cnn", shape=data.shape, activation="relu", seed=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = ad.PrivateLoop(net, optimizer, data, batch_size=64, steps=2, out=tmp_path / "run", noise_multiplier=2.0)
    for batch in loop:
        batch.backward()
        optimizer.step()
    code, out, err = call("evaluate", "run", "--json")
    assert code == 0, err
    assert json.loads(out)["test_accuracy"] == pytest.approx(loop.run.accuracy)
    assert data.test is not None
    np.save(tmp_path / "new.npy", data.test.take(torch.arange(3))[0].numpy())
    assert call("predict", "run", "new.npy", "--json")[0] == 0


def test_evaluating_a_run_on_tensors_names_what_needs_no_data_set(call: Any, tmp_path: Path) -> None:
    data = torch.zeros(40, 1, 8, 8), torch.zeros(40, dtype=torch.long)
    net = ad.make_model("digits-mlp", shape=(1, 8, 8), classes=10)
    ad.train(net, data, records=40, batch_size=4, steps=1, out=tmp_path / "run", noise_multiplier=2.0, method="dpsgd")
    told = refused(call("evaluate", "run"))
    assert "data set 'own data' was made in Python" in told
    assert "`adadpigu predict run FILE`, or in Python adadpigu.load('run', model)" in told
    np.save(tmp_path / "new.npy", data[0].numpy())
    assert call("predict", "run", "new.npy", "--json")[0] == 0


@pytest.mark.slow
def test_a_run_of_a_model_of_ones_own_says_so_and_is_loaded_from_python(call: Any, tmp_path: Path) -> None:
    class Mine(nn.Sequential):
        pass

    def made() -> nn.Module:
        return Mine(nn.Flatten(), nn.Linear(64, 10))

    run = ad.train(
        made(), ad.load_dataset("digits"), batch_size=64, steps=2, out=tmp_path / "run", noise_multiplier=2.0
    )
    for words in (["evaluate", "run"], ["predict", "run", "x.npy"]):
        code, out, err = call(*words)
        assert (code, out) == (2, "")
        assert "was made in Python, with a model of your own (" in err
        assert "Mine)" in err
        assert "adadpigu.load('run', model)" in err
    again = ad.load(tmp_path / "run", made())
    assert all(torch.equal(one, other) for one, other in zip(again.parameters(), run.model.parameters(), strict=True))
    with pytest.raises(
        ad.InputError, match=r"'1.bias' is float32 of shape \(10,\); the model has float32 of shape \(3,\)"
    ):
        ad.load(tmp_path / "run", Mine(nn.Flatten(), nn.Linear(64, 3)))


def test_a_loops_run_on_tensors_is_used_with_a_model_that_was_made_for_a_shape(call: Any, tmp_path: Path) -> None:
    """Tensors declare neither shape nor classes; `make_model` was given both."""
    data = torch.randn(40, 6), torch.arange(40) % 3
    net = ad.make_model("mlp", shape=(6,), classes=3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    how: dict[str, Any] = {"records": 40, "batch_size": 4, "steps": 1, "noise_multiplier": 2.0, "method": "dpsgd"}
    for batch in ad.PrivateLoop(net, optimizer, data, out=tmp_path / "hub" / "private", **how):
        batch.backward()
        optimizer.step()
    np.save(tmp_path / "new.npy", data[0].numpy())
    code, out, err = call("predict", "hub/private", "new.npy", "--json")
    assert code == 0, err
    assert json.loads(out)["predictions"] == net(data[0]).argmax(1).tolist()
    assert "allowed: hub/private" in refused(call("predict", "hub", "new.npy"))


@pytest.mark.filterwarnings("ignore:test. most of these records")
def test_a_run_from_python_on_a_table_is_evaluated_and_used(call: Any, people: Path, tmp_path: Path) -> None:
    table = people.parent / "people.csv"
    (tmp_path / "facts.toml").write_text(f'test = "{table}.test.csv"\n' + FACTS)
    (people.parent / "people.csv.test.csv").write_text("age,job,y\n2,b,won't\n9,a,will\n")
    data = ad.load_dataset(str(table), describe=tmp_path / "facts.toml")
    net = ad.make_model("linear", shape=data.shape, classes=2)
    ad.train(net, data, batch_size=4, steps=1, out=tmp_path / "run", noise_multiplier=2.0, method="dpsgd")
    code, _, err = call("evaluate", "run")
    assert code == 0, err
    (tmp_path / "new.csv").write_text("job,age\na,10\n")
    assert call("predict", "run", "new.csv")[0] == 0


def test_a_run_with_a_front_is_loaded_behind_it(tmp_path: Path) -> None:
    data = torch.randn(40, 6), torch.arange(40) % 3
    front, head = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3)
    how: dict[str, Any] = {"records": 40, "batch_size": 4, "steps": 1, "noise_multiplier": 2.0, "method": "dpsgd"}
    run = ad.train(head, data, front=front, out=tmp_path / "run", **how)
    with pytest.raises(ad.InputError, match="had a front before such a model; allowed: front="):
        ad.load(tmp_path / "run", nn.Linear(5, 3))
    again = ad.load(tmp_path / "run", nn.Linear(5, 3), front=nn.Sequential(nn.Linear(6, 5), nn.Tanh()))
    assert torch.equal(again(data[0]), run.model(data[0]))
