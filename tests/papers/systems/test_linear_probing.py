"""Linear probing on a frozen encoder of the user's own: what it trains is DP-SGD on features, and whose they are said.

The oracle: for a linear layer a record's gradient is the outer product of p − y and (φ, 1).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sensitive import Records, unseal
from adadpigu.data import TensorRecords
from adadpigu.features.front import Front, make_front
from adadpigu.features.prior import Parts
from adadpigu.methods import DPSGD
from adadpigu.priors.encoder import EncoderShape, Weights
from adadpigu.training import train_prepared
from adadpigu_paper.encoder import Encoder, encoder_constants, projection
from adadpigu_paper.prior_files import save_prior as save_prior_file
from trials import prepare_small, small_digits, weights

CODE = """
import torch
from torch import nn

def encoder():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten())

class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0)

class Keeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += x.sum()
        return x

def broken():
    raise RuntimeError("no weights here")

def flat():
    return nn.Flatten(0)

wrong = 3
"""
SHORT = ("--model", "linear", "--method", "dpsgd", "--steps", "3", "--batch-size", "40", "--seed", "1", "--json")


def encoder() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten()).eval()


def head() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 10))


def test_it_is_dp_sgd_on_precomputed_features_to_the_bit() -> None:
    whole = prepare_small(DPSGD(), net=head, front=Front.of(encoder()))
    data = small_digits()
    made: dict[str, TensorRecords] = {}
    for name in ("train", "test"):
        records = getattr(data, name)
        with torch.no_grad():
            made[name] = TensorRecords(encoder()(records.inputs), records.targets)
    plain = prepare_small(DPSGD(), replace(data, shape=(144,), **made), net=head)  # type: ignore[arg-type]
    runs = [train_prepared(ready, randomness=ReproducibleRandomness(7)) for ready in (whole, plain)]
    assert torch.equal(weights(runs[0].model.body), weights(runs[1].model))  # type: ignore[arg-type]


def test_a_records_gradient_is_the_outer_product_of_its_error_and_its_features() -> None:
    ready = prepare_small(DPSGD(), net=head, front=Front.of(encoder()))
    x, y = small_digits().train.take(torch.arange(20))
    with torch.no_grad():
        features = encoder()(x)
    found = unseal(ready.engine.per_sample_gradients(Records((features, y)))).gradients.double()
    linear = head()[1]  # type: ignore[index]
    error = (torch.softmax(linear(features), 1) - F.one_hot(y, 10)).detach().double()
    phi = features.double()
    torch.testing.assert_close(found[:, :1440], (error[:, :, None] * phi[:, None]).flatten(1), atol=1e-6, rtol=1e-5)
    norms = error.norm(dim=1) * (phi.norm(dim=1) ** 2 + 1).sqrt()
    torch.testing.assert_close(found.norm(dim=1), norms, rtol=1e-5, atol=0)


@pytest.fixture
def code(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own beside the run, under a name that no other test has imported."""
    name = "own_encoder_" + "".join(filter(str.isalnum, request.node.name))
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_an_encoder_by_code_is_declared_with_its_hash_and_needs_trust_later(call: Any, code: str) -> None:
    status, out, err = call("train", "--features", f"{code}:encoder", *SHORT, "--out", "run")
    assert status == 0, err
    accuracy = json.loads(out)["test_accuracy"]
    statement = " ".join(Path("run/statement.txt").read_text().split())
    assert f"the front Sequential (from {code}:encoder, weights of SHA-256 " in statement
    np.save("x.npy", np.zeros((2, 1, 8, 8), np.float32))
    for command in (["evaluate", "run"], ["predict", "run", "x.npy"]):
        status, _, err = call(*command)
        assert status == 2
        assert f"features='{code}:encoder' would import and run code" in err
        assert "--trust-model-code" in err
        assert len(err.splitlines()) == 1
    status, out, err = call("evaluate", "run", "--trust-model-code", "--json")
    assert status == 0, err
    assert json.loads(out)["test_accuracy"] == pytest.approx(accuracy)


REFUSED = {
    "Mixing": "front",
    "Keeping": "front",
    "broken": "raised RuntimeError: no weights here",
    "flat": "allowed: a row a record",
    "wrong": "gives a int; allowed: a function that returns an nn.Module",
    "lost": "cannot be imported",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_encoder_that_cannot_be_used_is_one_line_and_costs_nothing(name: str, call: Any, code: str) -> None:
    status, out, err = call("train", "--features", f"{code}:{name}", *SHORT, "--out", "run")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert REFUSED[name] in err
    assert not Path("run").exists()


def test_what_is_neither_a_name_nor_code_nor_a_file_says_what_is_allowed(call: Any) -> None:
    status, _, err = call("train", "--features", "resnet", *SHORT)
    assert status == 2
    assert "package.module:function" in err


SHAPE = (3, 16, 16)


@pytest.fixture(scope="module")
def save_prior(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    folder = tmp_path_factory.mktemp("prior")
    plan = EncoderShape(widths=(3, 4, 5), blocks=(1, 1, 1))

    def save(name: str, seed: int) -> Path:
        images = torch.rand(16, *SHAPE, generator=torch.Generator().manual_seed(seed))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            constants = encoder_constants(Encoder(plan), [images])
        found = projection(Parts(plan, constants, SHAPE), [images], keep=7, power=0.5)
        save_prior_file(Weights(plan=plan, tensors={**constants, **found}, metadata={}), folder / name)
        return folder / name

    return save


def test_a_file_of_the_packages_own_shape_is_a_front_and_no_other_file_takes_its_place(
    call: Any, save_prior: Callable[[str, int], Path]
) -> None:
    rng, path = np.random.default_rng(0), save_prior("mine.safetensors", 1)
    images, labels = rng.random((60, *SHAPE)).astype(np.float32), rng.integers(2, size=60)
    for name in ("own.npz", "own-test.npz"):
        np.savez(name, x=images, y=labels)
    own = ("--dataset", "own.npz", "--records", "60", "--classes", "2", "--features", str(path))
    short = [*SHORT[:7], "20", *SHORT[8:]]
    status, _, err = call("train", *own, *short, "--out", "run")
    assert status == 0, err
    assert "a feature extractor (weights of SHA-256 " in " ".join(Path("run/statement.txt").read_text().split())
    np.save("new.npy", images[:3])
    status, _, err = call("predict", "run", "new.npy")
    assert status == 2
    assert "would open a file" in err
    assert call("predict", "run", "new.npy", "--trust-model-code")[0] == 0
    save_prior("mine.safetensors", 2)
    status, _, err = call("predict", "run", "new.npy", "--trust-model-code")
    assert status == 2
    assert "SHA-256" in err


def test_another_file_says_what_is_allowed(call: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, str(tmp_path / "other.safetensors"))
    status, _, err = call("train", "--features", "other.safetensors", *SHORT)
    assert status == 2
    assert "any other encoder: package.module:function" in err
    assert len(err.splitlines()) == 1


def test_the_same_function_makes_the_same_encoder_and_leaves_the_generator_alone(
    code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    made = [make_front(f"{code}:encoder", "record", (1, 8, 8)) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert made[0][1] == (144,)
    fronts = [front for front, _ in made if front is not None]
    assert torch.equal(weights(fronts[0]), weights(fronts[1]))
    assert fronts[0].declared() == fronts[1].declared()
