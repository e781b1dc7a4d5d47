"""Exported models predict what the trained ones do, for any number of records, and carry their privacy statement."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.accounting import PrivacyReport
from adadpigu.data.augmentation import parse_views
from adadpigu.export import Synthetic, export_onnx, export_program
from adadpigu.export.subject import ExportedModel
from adadpigu.extras import import_extra
from adadpigu.features.front import Fronted, make_front, whole
from adadpigu.integrations.opacus import DPLSTM
from adadpigu.models import make_model

WORDS, LENGTH = 20, 7
Predict = Callable[[Tensor], Tensor]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.lstm = DPLSTM(8, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.lstm(self.words(x))[0][:, -1])
        return made


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.encoder(self.words(x)).mean(1))
        return made


def fronted(features: str, normalisation: str, shape: tuple[int, ...]) -> nn.Module:
    front, made = make_front(features, normalisation, shape)
    assert front is not None
    return Fronted(front, make_model("linear", shape=made, seed=3))


def viewed(views: str) -> nn.Module:
    return whole(None, make_model("linear", shape=(1, 8, 8), seed=3), parse_views(views))


TEXT = Synthetic(shape=(LENGTH,), below=WORDS)
CASES: dict[str, tuple[Callable[[], nn.Module], Synthetic]] = {
    "convolutions": (lambda: make_model("mnist-cnn", seed=1), Synthetic(shape=(1, 28, 28))),
    "lstm": (Recurrent, TEXT),
    "attention": (Attentive, TEXT),
    "normaliser": (lambda: fronted("none", "record", (1, 8, 8)), Synthetic(shape=(1, 8, 8))),
    "scattering": (lambda: fronted("scattering", "orders", (1, 8, 8)), Synthetic(shape=(1, 8, 8))),
    "views": (lambda: viewed("mirror+shift:1"), Synthetic(shape=(1, 8, 8))),
    "prior": (lambda: fronted("prior", "record", (3, 16, 16)), Synthetic(shape=(3, 16, 16))),
}


@pytest.fixture(scope="module")
def run() -> ad.Run:
    """A private run on synthetic tokens, whose report the tests embed."""
    chance = torch.Generator().manual_seed(0)
    records = torch.randint(WORDS, (32, LENGTH), generator=chance), torch.randint(3, (32,), generator=chance)
    torch.manual_seed(1)
    return ad.train(
        Recurrent(), records, records=32, method=ad.DPSGD(), noise_multiplier=1.0, batch_size=8, steps=2, lr=0.1
    )


def subject(name: str, run: ad.Run) -> tuple[ExportedModel, Synthetic]:
    make, synthetic = CASES[name]
    torch.manual_seed(2)
    return ExportedModel(model=make(), privacy=run.privacy, synthetic=synthetic), synthetic


def by_torch(path: Path) -> Predict:
    loaded = torch.export.load(path).module()
    return lambda x: loaded(x)


def by_onnxruntime(path: Path) -> Predict:
    session = import_extra("onnxruntime", group="onnx", purpose="").InferenceSession(str(path))
    return lambda x: torch.from_numpy(session.run(None, {"inputs": x.numpy()})[0])


FORMS = {"pt2": (export_program, by_torch), "onnx": (export_onnx, by_onnxruntime)}
SLOW = {("prior", "pt2"), ("scattering", "onnx")}
"""the prior holds a scattering, and its ONNX file is made from its program"""
PAIRS = [(name, form) for name in CASES for form in FORMS if (name, form) not in SLOW]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), PAIRS)
def test_a_file_predicts_what_the_model_does_for_any_number_of_records(
    name: str, form: str, run: ad.Run, tmp_path: Path
) -> None:
    """Records of other seeds than those of the check at export; the model stays as it was, in training mode too."""
    given, synthetic = subject(name, run)
    given.model.train()
    export, load = FORMS[form]
    made = export(given, tmp_path / f"model.{form}")
    assert given.model.training
    assert made.bytes == (tmp_path / f"model.{form}").stat().st_size
    assert made.difference < 1e-4
    predict = load(tmp_path / f"model.{form}")
    given.model.eval()
    for count in (1, 5, 33):
        inputs = synthetic.draw(count, seed=100 + count)
        with torch.no_grad():
            torch.testing.assert_close(predict(inputs), given.model(inputs), rtol=1e-4, atol=1e-5)


def statement_in(path: Path, form: str) -> tuple[str, dict[str, Any]]:
    if form == "onnx":
        found = {p.key: p.value for p in import_extra("onnx", group="onnx", purpose="").load(str(path)).metadata_props}
    else:
        found = {"adadpigu.statement.txt": "", "adadpigu.privacy.json": ""}
        torch.export.load(path, extra_files=found)
    return found["adadpigu.statement.txt"], json.loads(found["adadpigu.privacy.json"])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_file_carries_the_statement_and_the_report_and_no_line_of_code(
    form: str, run: ad.Run, tmp_path: Path
) -> None:
    FORMS[form][0](run, tmp_path / f"model.{form}", records=TEXT)
    statement, report = statement_in(tmp_path / f"model.{form}", form)
    assert statement == run.privacy.statement()
    assert PrivacyReport.from_json(report) == run.privacy
    content = (tmp_path / f"model.{form}").read_bytes()
    if form == "pt2":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            content = b"\n".join(archive.read(name) for name in archive.namelist())
    for word in (b"test_exported", b".py", b"site-packages", str(Path.cwd()).encode(), b"self.lstm"):
        assert word not in content


def test_a_program_is_saved_with_synthetic_inputs(run: ad.Run, tmp_path: Path) -> None:
    """What torch.export saves as an example must not be anybody's record."""
    export_program(run, tmp_path / "model.pt2", records=TEXT)
    ((kept,), _) = torch.export.load(tmp_path / "model.pt2").example_inputs
    assert torch.equal(kept, TEXT.draw(4))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_folder_and_the_run_at_hand_give_the_same_predictions(form: str, call: Any, tmp_path: Path) -> None:
    code, _, err = call("train", "--steps", "3", "--batch-size", "64", "--out", "run", "--json")
    assert code == 0, err
    target = {"pt2": "torch-export", "onnx": "onnx"}[form]
    code, out, err = call("export", "run", "--to", target, "--out", f"model.{form}", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["private"] is True
    assert told["difference"] <= 1e-4
    np.save(tmp_path / "some.npy", np.random.default_rng(0).random((5, 1, 8, 8)))
    code, out, _ = call("predict", "run", "some.npy", "--json")
    inputs = torch.from_numpy(np.load(tmp_path / "some.npy")).float()
    assert FORMS[form][1](tmp_path / f"model.{form}")(inputs).argmax(1).tolist() == json.loads(out)["predictions"]


class Counting(nn.Module):
    """Adds what depends on how many records there are."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1) + (1.0 if len(x) == 4 else 2.0)


class Two(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class Capricious(nn.Module):
    """Another output at every call."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(())


class Worldly(nn.Module):
    """Asks the value of a number, which no graph knows."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Counting(), "depends on how many records"),
        (Two(), "gives a tuple; allowed for export: one tensor"),
        (Capricious(), "from the model's on synthetic records; allowed: up to 0.0001"),
        (Worldly(), "cannot be exported for synthetic records of shape"),
    ],
)
def test_what_cannot_be_exported_as_it_is_is_refused_in_one_line(
    model: nn.Module, words: str, form: str, run: ad.Run, tmp_path: Path
) -> None:
    given = ExportedModel(model=model, privacy=run.privacy, synthetic=Synthetic(shape=(3,)))
    with pytest.raises(ad.ModelError, match=words) as caught:
        FORMS[form][0](given, tmp_path / f"model.{form}")
    assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_bad_requests_are_refused_by_name(run: ad.Run, tmp_path: Path) -> None:
    (tmp_path / "there.pt2").write_text("mine")
    with pytest.raises(ad.InputError, match="is there already"):
        export_program(run, tmp_path / "there.pt2", records=TEXT)
    assert (tmp_path / "there.pt2").read_text() == "mine"
    with pytest.raises(ad.InputError, match="there is no folder"):
        export_program(run, tmp_path / "no" / "model.pt2", records=TEXT)
    with pytest.raises(ad.InputError, match="does not say what a record looks like"):
        export_onnx(run, tmp_path / "model.onnx")
    with pytest.raises(ad.InputError, match=r"model\.pt' is no name for it; allowed: one that ends in \.pt2"):
        export_program(run, tmp_path / "model.pt", records=TEXT)
    for name in ("model", "model.pt2", "model.onnx.txt"):
        with pytest.raises(ad.InputError, match=rf"{name}' is no name for it; allowed: one that ends in \.onnx"):
            export_onnx(run, tmp_path / name, records=TEXT)
    with pytest.raises(ad.InputError, match="shape=\\(0,\\)"):
        Synthetic(shape=(0,))
    with pytest.raises(ad.InputError, match="below=0"):
        Synthetic(shape=(1,), below=0)


def test_a_run_without_a_guarantee_says_so_in_its_file(tmp_path: Path) -> None:
    data = torch.randn(16, 4), torch.zeros(16, 1)
    run = ad.train(nn.Linear(4, 1), data, records=16, method="sgd", batch_size=4, steps=2, loss=F.mse_loss)
    export_onnx(run, tmp_path / "model.onnx", records=Synthetic(shape=(4,)))
    statement, report = statement_in(tmp_path / "model.onnx", "onnx")
    assert statement.startswith("NOT PRIVATE")
    assert report["private"] is False
