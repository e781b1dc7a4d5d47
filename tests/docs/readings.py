"""How each page is read by the tests: what it takes for granted, smaller sizes, and what is not run, with reasons."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import ROOT, blocks
from running import Reading
from torch import nn

import adadpigu as ad
from adadpigu.cli.app import run
from adadpigu.data import TensorRecords
from adadpigu.runs.run import Metrics, RunFolder

HOURS = "hours of a GPU, or of many cores"
PUBLISHED = "trains on a published data set, which has to be fetched"
NETWORK = "fetches from the network"
INSTALLS = "installs packages"
MINUTES = "minutes of a core; its own tests run it in a small form"
SMALL = {"records=60_000": "records=300", "batch_size=1000": "batch_size=100", "epochs=30": "epochs=2"}


def small(folder: Path) -> dict[str, Any]:
    """A model and records of two classes, as a reader would have at hand."""
    torch.manual_seed(0)
    inputs = torch.randn(300, 8)
    targets = (inputs[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return {
        "ad": ad,
        "torch": torch,
        "nn": nn,
        "Path": Path,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10),
        "inputs": inputs,
        "targets": targets,
        "test_inputs": inputs[:50],
        "test_targets": targets[:50],
    }


def digits(folder: Path) -> dict[str, Any]:
    """The digits and a net for them."""
    data = ad.load_dataset("digits")
    assert isinstance(data.train, TensorRecords)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    return {"ad": ad, "torch": torch, "data": data, "model": model, **_tensors(data.train)}


def _tensors(records: TensorRecords) -> dict[str, Any]:
    return {"inputs": records.inputs[:300], "targets": records.targets[:300]}


def results(folder: Path) -> dict[str, Any]:
    """The rows that were measured, as a copy: drawing writes beside them."""
    shutil.copytree(ROOT / "results", folder / "results")
    return {}


def stopped(folder: Path) -> dict[str, Any]:
    """A short run in `run/` that was sent SIGTERM after its fifth step."""
    genuine, handler = RunFolder.update, signal.getsignal(signal.SIGINT)

    def update(self: RunFolder, metrics: Metrics) -> None:
        genuine(self, metrics)
        if metrics.step == 5:
            signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "update", update)
        assert run(["train", "--method", "dpsgd", "--steps", "10", "--reserve", "1", "--out", "run"]) == 130
    signal.signal(signal.SIGINT, handler)
    return {}


def people(folder: Path) -> dict[str, Any]:
    """The page's own table and its description, as files."""
    shown = {block.language: block.text for block in reversed(blocks(ROOT / "docs" / "own-data.md"))}
    (folder / "people.csv").write_text(shown["csv"])
    (folder / "people.toml").write_text(shown["toml"])
    return {}


def with_run(folder: Path) -> dict[str, Any]:
    """A short run in `run/`, and the accuracies that were measured."""
    assert run(["train", "--method", "dpsgd", "--steps", "5", "--out", "run"]) == 0
    return {}


READINGS: dict[str, Reading] = {
    "README": Reading(
        names=small,
        smaller={"make train": "adadpigu train"},
        not_run={"make test": "these tests are a part of it"},
    ),
    "accounting": Reading(names=with_run),
    "ablation": Reading(
        names=results,
        not_run={
            "adadpigu reproduce ablation-tuning": HOURS,
            "python experiments/choose_rates.py": "writes into the package's source",
            "adadpigu reproduce ablation --device": HOURS,
            "adadpigu reproduce frontier-regimes --device": HOURS,
        },
    ),
    "auditing": Reading(
        not_run={
            "adadpigu audit white-box RUN": "tests/cli/test_audit_command.py audits a finished run",
            "adadpigu audit noise --preset mnist": PUBLISHED,
            "adadpigu audit --full": HOURS,
            "adadpigu audit  ": "minutes of a core; tests/audit/test_suite.py runs this list",
        },
        smaller={
            "adadpigu audit white-box  ": "adadpigu audit white-box --observations 2000 --steps 40 ",
            "--epsilon 2  ": "--epsilon 2 --draws 200 --steps 20 ",
        },
    ),
    "best-recipes": Reading(
        not_run={
            "python experiments/tune.py": HOURS,
            "python experiments/choose_best.py": "writes presets of the package",
            "adadpigu reproduce frontier --device": HOURS,
        },
    ),
    "choosing": Reading(
        not_run={
            "python docs/tools/draw_plots.py": "half a minute of a core; tests/docs/test_plots.py holds its figures"
        }
    ),
    "prior": Reading(
        not_run={
            "adadpigu prior train": HOURS,
        }
    ),
    "data-sets": Reading(
        not_run={"adadpigu data get all": NETWORK, "from adadpigu.data import load_dataset, training_split": NETWORK}
    ),
    "gpu": Reading(smaller={"--preset mnist-adadpigu-eps4": "--steps 5"}),
    "hugging-face": Reading(
        not_run={
            "python examples/hf_": "tests/examples runs it",
            "python experiments/lora_memory.py": "minutes of a core: it compares fresh processes",
        },
    ),
    "index": Reading(
        smaller={
            "make train ARGS='--out runs/first'": "adadpigu train --out runs/first",
            "adadpigu audit replay runs/first ": "adadpigu audit replay runs/first --out audits ",
        }
    ),
    "install": Reading(
        not_run={
            "pip install": INSTALLS,
            "make release": "tests/release/test_release.py builds and installs one",
            "adadpigu --install-completion": "changes the shell's start file; tests/cli/test_completion.py installs it",
        },
        smaller={"make train": "adadpigu train --steps 5"},
    ),
    "ledger": Reading(
        names=stopped,
        smaller={
            "RUN": "run",
            "mnist.log": "digits.log",
            "--dataset mnist --records 60000": "--dataset digits --records 1437",
            "--preset mnist-quick": "--method dpsgd --steps 5 --epsilon 1",
        },
    ),
    "memory": Reading(
        smaller={
            "--preset mnist-dpsgd-eps4": "--steps 5 --out limited",
            "--preset cifar10-dpsgd-eps4": "--steps 5 --out fitted",
        }
    ),
    "methods": Reading(names=results),
    "new-method": Reading(
        names=lambda folder: {"steps": 5, "method": "dpsgd"},
        smaller={"@register\n": ""},
        not_run={"python examples/new_method.py": "tests/examples/test_examples.py runs it"},
    ),
    "own-data": Reading(names=people, smaller={"--epsilon 3": "--epsilon 3 --steps 5"}),
    "pitfalls": Reading(refused={"import torch": ad.ModelError}),
    "privacy-line": Reading(refused={"from adadpigu import Release": ad.PrivacyLineError}),
    "results": Reading(names=results),
    "own-loop": Reading(names=small, smaller=SMALL),
    "owners": Reading(names=small),
    "planted-bugs": Reading(
        not_run={
            "python tests/audit/planted_bugs.py": "minutes of a core; tests/audit/test_planted_bugs.py runs it",
        }
    ),
    "presets": Reading(names=results, not_run={"adadpigu reproduce accuracy-table --device": HOURS}),
    "published-leaks": Reading(not_run={"python tests/audit/published_leaks.py": MINUTES}),
    "reproducing": Reading(
        names=results,
        not_run={
            "adadpigu reproduce all --quick": MINUTES,
            "adadpigu reproduce retention energy": HOURS,
        },
    ),
    "several-processes": Reading(
        names=digits,
        smaller={"batch_size=1000": "batch_size=100", "epochs=30": "epochs=1"},
        not_run={
            "torchrun": "tests/training/distributed/test_torchrun.py starts such jobs",
            "from adadpigu.training.distributed import joined\nfrom": "tests/training/distributed runs it",
        },
    ),
    "speed": Reading(
        not_run={
            "pip install": INSTALLS,
            "adadpigu bench --suite all": MINUTES,
            "adadpigu bench --net cifar-big": MINUTES,
            "adadpigu bench --growth": MINUTES,
            "adadpigu bench  ": MINUTES,
            "adadpigu bench --ledger": MINUTES,
            "adadpigu bench --projection": MINUTES,
        }
    ),
    "systems": Reading(names=results, not_run={"adadpigu train --preset mnist-gep-eps4": PUBLISHED}),
    "theory": Reading(names=results),
    "tuning": Reading(
        not_run={
            "python experiments/tune.py": HOURS,
            "python experiments/choose_presets.py": "writes into the package's source",
            "adadpigu reproduce systems --device": HOURS,
        }
    ),
}
