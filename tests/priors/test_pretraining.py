"""Pre-training: reproducible, without a trace in the caller's generators, and learning to tell images apart."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from adadpigu.cli import app
from adadpigu.errors import InputError
from adadpigu.features.prior import Prior
from adadpigu.priors.encoder import EncoderShape, read_weights
from adadpigu.priors.random_images import RandomImages
from adadpigu_paper import prior_files
from adadpigu_paper.pretraining import Pretraining, Store, pace, pretrain
from adadpigu_paper.prior_command import add_to
from adadpigu_paper.prior_files import read_checkpoint, save_checkpoint
from adadpigu_paper.probe import Split, probe
from adadpigu_paper.views import Views

CPU = torch.device("cpu")
SMALL = Pretraining(
    plan=EncoderShape(widths=(4, 6), blocks=(1, 1)),
    processes=RandomImages(side=16, leaves=1),
    views=Views(side=16),
    steps=2,
    images=8,
    store=2,
    uses=1,
)


def test_a_seed_fixes_the_encoder_and_the_callers_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, second = (pretrain(SMALL, CPU).encoder.folded() for _ in range(2))
    other = pretrain(dataclasses.replace(SMALL, seed=1), CPU).encoder.folded()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_the_loss_falls() -> None:
    heard: list[tuple[int, float]] = []
    longer = dataclasses.replace(SMALL, steps=81, images=16, lr=1e-2, store=1, uses=100)
    pretrain(longer, CPU, lambda step, loss: heard.append((step, loss)))
    assert [step for step, _ in heard] == [0, 50, 80]
    assert heard[-1][1] < heard[0][1] - 0.3


def test_weights_and_statistics_are_averaged_step_by_step() -> None:
    """By hand: a ← d a + (1 − d) w with d = min(average, (t + 1)/(t + 10)), from the first weights on."""
    seen: list[dict[str, torch.Tensor]] = []
    first = pretrain(dataclasses.replace(SMALL, steps=1, lr=1e-30, average=0.5), CPU).encoder.state_dict()
    for steps in (1, 2):  # of two planned, so that the rates are the same
        told = dataclasses.replace(SMALL, steps=2, average=0.0)
        made = pretrain(told, CPU, seconds=1e-9 if steps == 1 else math.inf)
        assert made.step == steps
        seen.append(made.encoder.state_dict())
    expected = first["units.stem.convolution.weight"]
    for step, now in enumerate(seen):
        decay = min(0.5, (step + 1) / (step + 10))
        expected = decay * expected + (1 - decay) * now["units.stem.convolution.weight"]
    found = pretrain(dataclasses.replace(SMALL, average=0.5), CPU).encoder.state_dict()
    assert torch.allclose(found["units.stem.convolution.weight"], expected, atol=1e-6)


def test_a_part_goes_on_from_the_checkpoint_of_the_one_before(tmp_path: Path) -> None:
    part = pretrain(SMALL, CPU, seconds=1e-9)
    assert part.step == 1
    save_checkpoint(part, tmp_path)
    found = read_checkpoint(tmp_path)
    assert found.step == 1
    for name, value in part.encoder.state_dict().items():
        assert torch.allclose(found.encoder.state_dict()[name], value, atol=2e-3)
    heard: list[int] = []
    again = pretrain(SMALL, CPU, lambda step, loss: heard.append(step), start=found)
    assert (again.step, heard) == (2, [1])
    save_checkpoint(again, tmp_path)
    assert read_checkpoint(tmp_path).step == 2


def test_a_checkpoint_in_pieces_is_whole_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prior_files, "PIECE", 2000)
    paths = save_checkpoint(pretrain(SMALL, CPU), tmp_path)
    assert len(paths) > 2
    assert read_checkpoint(tmp_path).step == 2
    content = bytearray(paths[1].read_bytes())
    content[-1] ^= 1
    paths[1].write_bytes(content)
    with pytest.raises(InputError, match="step 2 lacks a piece or was altered"):
        read_checkpoint(tmp_path)
    paths[1].unlink()
    with pytest.raises(InputError, match=f"allowed: all {len(paths)} pieces"):
        read_checkpoint(tmp_path)
    with pytest.raises(InputError, match="no checkpoint"):
        read_checkpoint(tmp_path / "elsewhere")


def test_the_learning_rate_rises_and_then_falls_to_almost_nothing() -> None:
    course = [pace(step, 200) for step in range(200)]
    top = course.index(1.0)
    assert top == 5
    assert course[:6] == sorted(course[:6])
    assert course[6:] == sorted(course[6:], reverse=True)
    assert 0 < course[-1] < 1e-3


def test_the_store_gives_different_images_and_renews_them() -> None:
    told = dataclasses.replace(SMALL, images=4, store=2, uses=2)
    store = Store(told, torch.Generator().manual_seed(0))
    seen = [store() for _ in range(5)]
    first = torch.stack([image.flatten() for batch in seen[:1] for image in batch])
    assert len(torch.unique(first, dim=0)) == 4
    ever = {image.numpy().tobytes() for batch in seen for image in batch}
    assert 8 < len(ever) <= 16


@pytest.mark.parametrize("bad", [{"steps": 0}, {"images": 1}, {"store": 0}, {"uses": 0}, {"lr": 0.0}, {"seed": -1}])
def test_what_is_out_of_range_is_named(bad: dict[str, float]) -> None:
    name, value = next(iter(bad.items()))
    with pytest.raises(InputError, match=f"{name}={value}"):
        dataclasses.replace(SMALL, **bad)  # type: ignore[arg-type]


TINY = ["--images", "4", "--widths", "4,4,4", "--statistics", "8", "--keep", "5", "--processes", "leaves", "--json"]


def test_the_command_trains_in_parts_and_makes_a_prior_that_can_be_used(tmp_path: Path, program: Any) -> None:
    out = tmp_path / "made"
    code, told, _ = program("train", "--out", str(out), "--steps", "2", "--seconds", "1e-6", *TINY)
    assert (code, told["step"], told["of"]) == (0, 1, 2)
    code, told, _ = program("train", "--out", str(out), "--steps", "2", *TINY)
    assert (code, told["step"]) == (0, 2)
    weights = read_weights(out / "prior.safetensors")
    assert "random processes" in weights.metadata["trained on"]
    assert weights.metadata["steps made"] == "2"
    assert Prior(weights, (3, 32, 32))(torch.rand(2, 3, 32, 32)).shape == (2, 5, 4, 4)
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    code, _, error = program("train", "--out", str(out), "--steps", "2", *TINY)
    assert (code, error.count("\n")) == (2, 1)
    assert "is at step 2; allowed: more" in error
    code, _, error = program("train", "--out", str(out), "--steps", "3", *TINY, "--widths", "4,4")
    assert (code, error.count("\n")) == (2, 1)


BAD = [("--steps", "0"), ("--images", "1"), ("--widths", "4;4"), ("--processes", "photographs"), ("--seconds", "-1")]


@pytest.mark.parametrize("bad", [*BAD, ("--decay", "0"), ("--average", "1")])
def test_what_cannot_be_trained_is_one_line(bad: tuple[str, str], tmp_path: Path, program: Any) -> None:
    code, _, error = program("train", "--out", str(tmp_path / "made"), *TINY, *bad)
    assert (code, error.count("\n")) == (2, 1)
    assert bad[0].strip("-") in error
    assert not (tmp_path / "made").exists()


def test_the_command_draws_images(tmp_path: Path, program: Any) -> None:
    path = tmp_path / "seen.png"
    code, told, _ = program("show", "--count", "20", "--side", "16", "--out", str(path), "--json")
    assert (code, told) == (0, {"file": str(path), "images": 20})
    assert Image.open(path).size == (16 * 16, 2 * 16)


def test_a_probe_tells_features_that_hold_the_class_from_those_that_do_not() -> None:
    chance = torch.Generator().manual_seed(0)
    targets = torch.randint(10, (300,), generator=chance)
    images = F.one_hot(targets, 10).float()[:, :, None, None] + 0.1 * torch.randn(300, 10, 1, 1, generator=chance)
    split = Split(inputs=images[:200], targets=targets[:200], held_out=images[200:], labels=targets[200:], records=200)
    assert probe(lambda x: x, split)["no noise"] == 100
    assert probe(lambda x: torch.randn(x.shape, generator=chance), split)["no noise"] < 40


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Runs a command of `adadpigu prior` and gives (exit code, its JSON, standard error)."""

    def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
        capsys.readouterr()
        code = app.run(["prior", *arguments])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else {}, err

    if not any(group.name == "prior" for group in app.app.registered_groups):
        add_to(app.app)  # papers that were installed before the command was there
    return run
