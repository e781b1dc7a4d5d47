"""A run folder from a stranger: what is odd about it is one line, and nothing it names runs or is read unasked."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from adadpigu.cli.app import run as run_in_process
from adadpigu.config import to_toml
from adadpigu.errors import InputError
from adadpigu.runs import reading
from adadpigu.runs.loading import load_run

Change = Callable[[Path], object]
TENSORS = "model.safetensors"
SHORT = ["--method", "dpsgd", "--steps", "2", "--batch-size", "32", "--noise-multiplier", "1", "--seed", "0", "--json"]
FACTS = """
records = 60
label = "y"
classes = ["no", "yes"]
[columns.age]
range = [0, 10]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert run_in_process(["train", "--model", "linear", *SHORT, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a small run, to be spoilt."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a described table."""
    home = tmp_path_factory.mktemp("people")
    (home / "people.csv").write_text(
        "age,y\n" + "".join(f"{i % 11},{'yes' if i % 11 > 5 else 'no'}\n" for i in range(60))
    )
    (home / "people.toml").write_text(FACTS)
    data = ["--dataset", str(home / "people.csv"), "--model", "linear"]
    assert run_in_process(["train", *data, *SHORT, "--out", str(home / "run")]) == 0
    return home / "run"


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_run(folder, **options)
    message = str(caught.value)
    assert str(folder) in message
    assert len(message.splitlines()) == 1
    assert len(message) < 900
    return message


def retensored(**changes: torch.Tensor | None) -> Change:
    """Stores other tensors under some names; None takes one away."""

    def change(folder: Path) -> None:
        kept = load_file(folder / TENSORS) | changes
        save_file({name: tensor.clone() for name, tensor in kept.items() if tensor is not None}, folder / TENSORS)

    return change


def prefixed(prefix: bytes) -> Change:
    return lambda folder: (folder / TENSORS).write_bytes(prefix + (folder / TENSORS).read_bytes()[8:])


def reheaded(change: Callable[[dict[str, Any]], object]) -> Change:
    """Changes the header, and leaves the tensors' bytes."""

    def changed(folder: Path) -> None:
        content = (folder / TENSORS).read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        (folder / TENSORS).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])

    return changed


def renamed(name: str) -> Change:
    return reheaded(lambda header: header.update({name: header.pop("1.bias")}))


def facts(**changes: object) -> Change:
    def change(folder: Path) -> None:
        told = json.loads((folder / "data.json").read_text()) | changes
        (folder / "data.json").write_text(json.dumps(told))

    return change


def written(name: str, content: str | bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def outside(name: str) -> Change:
    """Moves a file out and puts a link to it in its place."""

    def change(folder: Path) -> None:
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)

    return change


def replaced(name: str, make: Change) -> Change:
    """Makes something else of a file's name."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def configured(**values: object) -> Change:
    return written("config.toml", to_toml({"model": "linear", **values}))


SPOILT: dict[str, tuple[Change, str]] = {
    "a header length of 2^64 - 1": (prefixed(b"\xff" * 8), "cannot be read as safetensors"),
    "a header length of NaN": (prefixed(struct.pack("<d", float("nan"))), "cannot be read as safetensors"),
    "a header longer than the file": (prefixed(struct.pack("<Q", 10**6)), "cannot be read as safetensors"),
    "no header": (prefixed(bytes(8)), "cannot be read as safetensors"),
    "a pickle": (
        written(TENSORS, b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n."),
        "cannot be read as safetensors",
    ),
    "doubles": (
        retensored(**{"1.bias": torch.zeros(10).double()}),
        "'1.bias' is float64 of shape (10,); the model has float32 of shape (10,)",
    ),
    "halves": (
        retensored(**{"1.bias": torch.zeros(10).half()}),
        "'1.bias' is float16 of shape (10,); the model has float32 of shape (10,)",
    ),
    "whole numbers": (
        retensored(**{"1.bias": torch.zeros(10).int()}),
        "'1.bias' is int32 of shape (10,); the model has float32 of shape (10,)",
    ),
    "another shape": (
        retensored(**{"1.bias": torch.zeros(11)}),
        "'1.bias' is float32 of shape (11,); the model has float32 of shape (10,)",
    ),
    "a shape that would broadcast": (
        retensored(**{"1.bias": torch.zeros(1)}),
        "'1.bias' is float32 of shape (1,); the model has float32 of shape (10,)",
    ),
    "a tensor missing": (retensored(**{"1.bias": None}), "'1.bias' is missing"),
    "a tensor too many": (retensored(more=torch.zeros(1)), "has 'more', which the model does not have"),
    "another name": (renamed("../x"), "'1.bias' is missing"),
    "a name with an escape": (renamed("\x1b[2J"), r"names a tensor '\x1b[2J'"),
    "one place for two": (reheaded(lambda h: h.update(more=h["1.bias"])), "cannot be read as safetensors"),
    "terabytes": (reheaded(lambda h: h["1.bias"].update(shape=[10**13])), "cannot be read as safetensors"),
    "an unknown dtype": (reheaded(lambda h: h["1.bias"].update(dtype="F33")), "F33"),
    "no tensors": (lambda folder: (folder / TENSORS).unlink(), f"has no {TENSORS}"),
    "a folder for tensors": (replaced(TENSORS, Path.mkdir), f"has no {TENSORS}"),
    "a pipe for tensors": (replaced(TENSORS, os.mkfifo), f"has no {TENSORS}"),
    "no config": (lambda folder: (folder / "config.toml").unlink(), "has no config.toml"),
    "no facts": (lambda folder: (folder / "data.json").unlink(), "has no data.json"),
    **{f"a link out of it for {n}": (outside(n), f"{n} is a link out") for n in (TENSORS, "config.toml", "data.json")},
    "a link to a device": (replaced("data.json", lambda p: p.symlink_to("/dev/zero")), "data.json is a link out"),
    "a link in a circle": (replaced("data.json", lambda p: p.symlink_to("data.json")), "has no data.json"),
    "facts that nest": (written("data.json", "[" * 200_000), "data.json cannot be read: it nests too deep"),
    "facts of many megabytes": (written("data.json", " " * (reading.MOST_TEXT + 1)), "data.json has 4194305 bytes"),
    "facts that are no text": (written("data.json", b"\xff\xfe"), "data.json cannot be read: it is not UTF-8"),
    "facts that are no JSON": (written("data.json", "{"), "data.json cannot be read"),
    "facts that are a list": (written("data.json", "[]"), "data.json cannot be read: it is not an object"),
    "a number of many digits": (
        written("data.json", '{"shape": null, "classes": ' + "9" * 5000 + "}"),
        "cannot be read",
    ),
    **{
        f"shape={shape}": (facts(shape=shape), "data.json: shape is invalid; allowed: null, or 1 to 8")
        for shape in ([], [-1, 8, 8], [0], [1.5], [True, 8, 8], "188", {"a": 1}, 64, [10**6] * 2, [10**30], [1] * 9)
    },
    **{
        f"classes={classes}": (
            facts(classes=classes),
            "data.json: classes is invalid; allowed: null, or a whole number",
        )
        for classes in (0, -1, 10**12, 10**30, 2.0, True, "10", [10], "inf")
    },
    "another shape in the facts": (
        facts(shape=[1, 9, 9]),
        "'1.weight' is float32 of shape (10, 64); the model has float32 of shape (10, 81)",
    ),
    "a model that takes gigabytes": (
        facts(shape=[2**26], classes=2**20),
        "'1.bias' is float32 of shape (10,); the model has float32 of shape (1048576,)",
    ),
    "another model": (
        configured(model="mlp"),
        "'1.bias' is float32 of shape (10,); the model has float32 of shape (64,)",
    ),
    "a front that was not there": (configured(normalisation="record"), "'body.1.bias' is missing"),
    "an unknown model": (configured(model="resnet-9000"), "unknown model 'resnet-9000'"),
    "an unknown activation": (configured(activation="__import__('os')"), "activation"),
    "a config that nests": (written("config.toml", "a = " + "[" * 100_000), "it nests too deep"),
    "a config that is no TOML": (written("config.toml", "model"), "config.toml"),
    "a config of many digits": (written("config.toml", "steps = " + "9" * 5000), "config.toml"),
    "a rate of 400 digits": (written("config.toml", "lr = 1" + "0" * 400), "line 1: lr=1000"),
    "a bound of 400 digits": (
        written("config.toml", '[method]\nname = "dpsgd"\nclip_norm = 1' + "0" * 400),
        "clip_norm",
    ),
    "an unknown key": (configured(run="me"), "unknown key 'run'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_folder_is_refused_in_one_line(case: str, run: Path) -> None:
    change, words = SPOILT[case]
    change(run)
    assert words in refusal(run)


def test_the_folder_itself_is_read(run: Path) -> None:
    loaded = load_run(run)
    stored = load_file(run / TENSORS)
    assert {name: tensor.tolist() for name, tensor in loaded.model.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in stored.items()
    }


@pytest.mark.slow
def test_a_model_cut_short_anywhere_is_refused(run: Path) -> None:
    content = (run / TENSORS).read_bytes()
    for kept in [*range(12), *np.linspace(12, len(content) - 1, 40).astype(int).tolist()]:
        (run / TENSORS).write_bytes(content[:kept])
        assert f"model={str(run / TENSORS)!r} cannot be read as safetensors: " in refusal(run)


def test_links_within_a_folder_are_followed(run: Path) -> None:
    (run / TENSORS).rename(run / "kept")
    (run / TENSORS).symlink_to("kept")
    (run.parent / "elsewhere").symlink_to(run)
    load_run(run.parent / "elsewhere")


@pytest.mark.parametrize("case", ["a header length of NaN", "doubles", "classes=1000000000000", "facts that nest"])
def test_the_command_line_says_the_same_and_exits_with_2(
    case: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    change, words = SPOILT[case]
    change(run)
    np.save(run.parent / "x.npy", np.zeros((1, 1, 8, 8)))
    for command in (["evaluate", str(run)], ["predict", str(run), str(run.parent / "x.npy")]):
        capfd.readouterr()
        assert run_in_process(command) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("adadpigu: error: ")
        assert words in err
        assert len(err.splitlines()) == 1


PLANTED = """
from pathlib import Path
from torch import nn
Path("ran").touch()
def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_strangers_code_runs_only_where_the_user_says_so(command: str, run: Path, tmp_path: Path) -> None:
    """In a process of its own: the module lies where it would be found, beside the folder."""
    (tmp_path / "planted.py").write_text(PLANTED)
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8)))
    configured(model="planted:net")(run)
    arguments = [sys.executable, "-m", "adadpigu", command, "run", *(["x.npy"] if command == "predict" else [])]
    refused = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "'planted:net' would import and run code" in refused.stderr
    assert "--trust-model-code" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()
    trusted = subprocess.run(
        [*arguments, "--trust-model-code"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert trusted.returncode == 0, trusted.stderr
    assert (tmp_path / "ran").exists()


WATCH = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from adadpigu.cli.app import run
code = run(sys.argv[1:])
print(*(path for path in opened if "stranger" in path), sep="\\n")
sys.exit(code)
"""


@pytest.mark.slow
def test_predict_opens_the_folder_and_the_users_file_and_no_path_that_the_folder_names(
    people: Path, tmp_path: Path
) -> None:
    """dataset, describe and public_model are paths that a stranger can choose; the audit hook sees every open()."""
    home = tmp_path / "stranger"
    shutil.copytree(people, home / "run")
    (home / "new.csv").write_text("age\n3\n")
    for name in ("secret.csv", "secret.toml", "secret.safetensors"):
        (home / name).write_text("")
    config = {"model": "linear", "dataset": str(home / "secret.csv"), "describe": str(home / "secret.toml")}
    method = {"name": "parameter-freezing", "select": "public-model", "public_model": str(home / "secret.safetensors")}
    (home / "run" / "config.toml").write_text(to_toml({**config, "method": method}))
    arguments = [sys.executable, "-c", WATCH, "predict", str(home / "run"), str(home / "new.csv")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    opened = {Path(line).name for line in done.stdout.splitlines() if "stranger" in line}
    bound = {"ledger.log", "ledger.head", "privacy.json", "statement.txt"}
    assert opened <= {"config.toml", "data.json", TENSORS, "description.toml", "new.csv", *bound}
    assert {"config.toml", "new.csv"} <= opened


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["no", "yes"]', '["no", "yes", "perhaps"]', "in 3 classes; allowed: what data.json tells, (1,) in 2"),
        ('["no", "yes"]', "1000000000000", "classes=1000000000000; allowed: "),
        ('["no", "yes"]', '["no", "\\u001b[2J"]', r"has a class '\x1b[2J'; allowed: printable names"),
        ("range = [0, 10]", 'categories = ["a", "b"]', "tells of records of shape (2,) in 2 classes"),
        ("records = 60", "records = " + "[" * 50_000, "it is damaged, or not TOML"),
        ("records = 60", "records = " + "9" * 5_000, "it is damaged, or not TOML"),
        ("[0, 10]", "[0, 1" + "0" * 400 + "]", "columns.age.range=[0, 1000"),
    ],
)
def test_a_description_that_does_not_fit_the_model_is_refused(
    old: str, new: str, words: str, people: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(people, tmp_path / "run"))
    text = (folder / "description.toml").read_text()
    assert old in text
    (folder / "description.toml").write_text(text.replace(old, new))
    assert words in refusal(folder)
    outside("description.toml")(folder)
    assert "description.toml is a link out" in refusal(folder)
