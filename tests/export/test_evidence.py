"""No statement is handed out beside weights that it was not made for, or with claims that its ledger contradicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adadpigu as ad
from adadpigu.accounting.statement import PrivacyReport
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.export import Synthetic, export_onnx, export_program, facts_of_run, read_exportable, write_card
from adadpigu.methods import all_methods, make_method
from adadpigu.tensors import read_tensors, write_tensors

RECORDS = Synthetic(shape=(4,))
Export = Callable[..., object]
EXPORTS: dict[str, Export] = {
    "model.pt2": lambda run, path: export_program(run, path, records=RECORDS),
    "model.onnx": lambda run, path: export_onnx(run, path, records=RECORDS),
    "README.md": write_card,
}


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def trained(out: Path | None = None, **options: Any) -> ad.Run:
    data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
    asked: dict[str, Any] = {"method": ad.DPSGD(), "noise_multiplier": 1.0, "batch_size": 6, "steps": 8, **options}
    return ad.train(net(), data, records=24, out=out, **asked)


def fine_tuned(model: nn.Module) -> None:
    """One step on somebody's record, without noise."""
    loss = nn.functional.cross_entropy(model(torch.ones(1, 4)), torch.tensor([1]))
    loss.backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(model.parameters(), lr=0.1).step()


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "fine-tuned": fine_tuned,
    "one weight, by the least": lambda model: model.get_parameter("0.weight").data.view(torch.int32)[0, 0].add_(1),
    "cast": lambda model: model.double(),
    "a layer more": lambda model: model.append(nn.Linear(3, 3)),  # type: ignore[operator]
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", EXPORTS)
def test_a_model_that_was_changed_after_training_is_not_exported(name: str, change: str, tmp_path: Path) -> None:
    run = trained()
    CHANGES[change](run.model)
    with pytest.raises(ad.InputError, match="were changed after training, so its statement is not about") as caught:
        EXPORTS[name](run, tmp_path / name)
    assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_change_of_weights_stays_exportable(tmp_path: Path) -> None:
    """Looks at the model, gradients, another mode, another line in the statement."""
    run = trained(ema=0.5)
    run.model.train()(torch.ones(2, 4)).sum().backward()
    told = replace(run, privacy=replace(run.privacy, not_covered=(*run.privacy.not_covered, "a scaler")))
    assert told.weights == run.weights
    EXPORTS["model.pt2"](told, tmp_path / "model.pt2")


def test_another_model_in_the_place_of_the_trained_one_is_refused() -> None:
    with pytest.raises(ad.InputError, match="were changed after training"):
        facts_of_run(replace(trained(), model=net()))


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("graph", torch.eye(4).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x)
        return made


def test_a_tensor_without_bytes_costs_no_run_but_is_not_exported() -> None:
    run = replace(trained(), model=Sparse(), weights=None)
    assert run.weights is None
    with pytest.raises(ad.ModelError, match="no bytes to hash"):
        read_exportable(run)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that the command line can load again."""
    from adadpigu.cli.app import run as command

    path = tmp_path_factory.mktemp("runs") / "run"
    asked = [
        "--method",
        "dpsgd",
        "--model",
        "linear",
        "--steps",
        "8",
        "--batch-size",
        "64",
        "--noise-multiplier",
        "1",
        "--json",
    ]
    assert command(["train", *asked, "--out", str(path)]) == 0
    return path


def copied(folder: Path, target: Path) -> Path:
    target.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())
    return target


@pytest.mark.parametrize("use", [read_exportable, facts_of_run])
def test_a_folder_is_taken_at_its_word_when_nothing_was_changed(use: Export, folder: Path, tmp_path: Path) -> None:
    made: Any = use(copied(folder, tmp_path / "run"))
    assert made.privacy == PrivacyReport.from_json(json.loads((folder / "privacy.json").read_text()))


@pytest.mark.parametrize("use", [read_exportable, facts_of_run])
def test_other_weights_in_a_folder_are_refused(use: Export, folder: Path, tmp_path: Path) -> None:
    run = copied(folder, tmp_path / "run")
    tensors = {name: value.clone() for name, value in read_tensors(run / "model.safetensors", "model").items()}
    next(iter(tensors.values())).view(-1)[0] += 0.5
    write_tensors(run / "model.safetensors", tensors)
    with pytest.raises(ad.InputError, match=r"model\.safetensors is not as the run left it"):
        use(run)


def test_a_statement_needs_its_ledger_whole(folder: Path, tmp_path: Path) -> None:
    run = copied(folder, tmp_path / "run")
    content = bytearray((run / "ledger.log").read_bytes())
    content[len(content) // 2] ^= 1
    (run / "ledger.log").write_bytes(content)
    with pytest.raises(ad.InputError, match=r"the ledger is damaged: .* \(ledger\.log\)"):
        read_exportable(run)
    (run / "ledger.log").unlink()
    with pytest.raises(ad.InputError, match=r"has no ledger\.log"):
        facts_of_run(run)


FITTING: dict[str, dict[str, Any]] = {"dpsur": {"test_batch_size": 6}, "quantile": {"count_noise": 1.0}}
"""options of methods whose defaults are for more records"""


@pytest.mark.parametrize(
    "options",
    [
        {"method": "sgd", "noise_multiplier": None},
        {"diagnostics": True},
        {"method": ad.AdaDPIGU(importance_steps=2)},
        {"spare_steps": 3},
        {"reserve": 4},
        {"delta": 0.1},
        {"randomness": ReproducibleRandomness(1)},
        *({"method": make_method(name, FITTING.get(name))} for name in all_methods() if name != "sgd"),
    ],
)
def test_every_kind_of_run_agrees_with_its_own_ledger(options: dict[str, Any], tmp_path: Path) -> None:
    run = trained(tmp_path / "run", **options)
    assert facts_of_run(tmp_path / "run").privacy == run.privacy


def test_a_loop_of_the_users_own_agrees_with_its_ledger_also_where_it_is_left_early(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(24, 4), torch.arange(24) % 3
    loop = ad.PrivateLoop(
        model, optimizer, data, records=24, noise_multiplier=1.0, batch_size=6, steps=8, out=tmp_path / "run"
    )
    with loop:
        for batch in loop:
            batch.backward()
            optimizer.step()
            if loop.done == 4:
                break
    assert loop.run.interrupted
    assert facts_of_run(tmp_path / "run").privacy == loop.run.privacy
