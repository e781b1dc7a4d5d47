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
from torch import Tensor
from torch.nn import functional as F

from adadpigu.cli import app
from adadpigu.errors import InputError
from adadpigu.features.prior import Prior
from adadpigu.models import make_model
from adadpigu.priors.encoder import EncoderShape, read_weights
from adadpigu.priors.random_images import RandomImages
from adadpigu_paper import prior_files
from adadpigu_paper import probe as subject
from adadpigu_paper.encoder import Encoder, WideEncoder
from adadpigu_paper.pretraining import Pretrained, Pretraining, Store, pace, pretrain
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


def folded(made: Pretrained) -> dict[str, Tensor]:
    """The convolutions of the encoder that is used."""
    assert isinstance(made.encoder, Encoder)
    return made.encoder.folded()


def test_a_seed_fixes_the_encoder_and_the_callers_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, second = (folded(pretrain(SMALL, CPU)) for _ in range(2))
    other = folded(pretrain(dataclasses.replace(SMALL, seed=1), CPU))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_the_loss_falls() -> None:
    heard: list[tuple[int, float]] = []
    longer = dataclasses.replace(SMALL, steps=81, images=16, lr=1e-2, store=1, uses=100, fall=0.0)
    pretrain(longer, CPU, lambda step, loss: heard.append((step, loss)))
    assert [step for step, _ in heard] == [1, 51, 81]
    assert heard[-1][1] < heard[0][1] - 0.3


def test_weights_and_statistics_are_averaged_step_by_step() -> None:
    """By hand: a ← d a + (1 − d) w with d = min(average, (t + 1)/(t + 10)), from the first weights on."""
    level = dataclasses.replace(SMALL, fall=0.0)
    seen: list[Tensor] = []
    name = "units.stem.convolution.weight"
    first = pretrain(dataclasses.replace(level, lr=1e-30, average=0.5), CPU).encoder.state_dict()[name]
    for steps in (1, 2):  # of two planned
        told = dataclasses.replace(level, average=0.0)
        made = pretrain(told, CPU, seconds=1e-9 if steps == 1 else math.inf)
        assert made.step == steps
        seen.append(made.encoder.state_dict()[name])
    expected = first
    for step, now in enumerate(seen):
        decay = min(0.5, (step + 1) / (step + 10))
        expected = decay * expected + (1 - decay) * now
    found = pretrain(dataclasses.replace(level, average=0.5), CPU).encoder.state_dict()[name]
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_part_goes_on_from_the_checkpoint_of_the_one_before(tmp_path: Path) -> None:
    part = pretrain(dataclasses.replace(SMALL, steps=5, fall=0.0), CPU, seconds=1e-9)
    assert part.step == 1
    save_checkpoint(part, tmp_path)
    found = read_checkpoint(tmp_path)
    heard: list[int] = []
    again = pretrain(SMALL, CPU, lambda step, loss: heard.append(step), start=found)
    assert (again.step, heard) == (2, [2])
    save_checkpoint(again, tmp_path)
    assert read_checkpoint(tmp_path).step == 2


def test_a_checkpoint_holds_weights_their_average_and_what_adamw_knows(tmp_path: Path) -> None:
    """A half's, a byte's and a step of the code's precision: 2⁻¹¹ of the average, a 16th of its distance, 9 % of v."""
    made = pretrain(dataclasses.replace(SMALL, steps=8, lr=0.05, average=0.9, fall=0.0), CPU)
    save_checkpoint(made, tmp_path)
    found = read_checkpoint(tmp_path)
    assert found.step == 8
    for name, value in made.averaged.named_parameters():
        kept, now = (dict(learner.named_parameters())[name] for learner in (found.averaged, found.now))
        assert torch.allclose(kept, value, rtol=2**-11, atol=1e-7)
        apart = dict(made.now.named_parameters())[name].detach() - kept.detach()
        assert apart.abs().max() > 0
        assert torch.allclose(now.detach() - kept.detach(), apart, rtol=2**-4, atol=float(apart.abs().max()) * 2**-9)
    for square, again in zip(made.squares, found.squares, strict=True):
        seen = square > 1e-16
        assert (again[seen] / square[seen]).log2().abs().max() <= 1 / 8 + 1e-4
    for learner in (found.now, found.averaged):
        assert all(torch.isfinite(value).all() for value in learner.state_dict().values())


def test_the_optimiser_goes_on_with_the_mean_squares_that_it_was_given() -> None:
    """Weights move by about lr·m/√v: hardly at all where v is large."""
    moved = {}
    for square in (0.0, 1e12):
        made = pretrain(dataclasses.replace(SMALL, fall=0.0, average=0.0), CPU, seconds=1e-9)
        start = dataclasses.replace(made, squares=[torch.full_like(value, square) for value in made.squares])
        again = pretrain(dataclasses.replace(SMALL, average=0.0, weight_decay=0.0), CPU, start=start)
        name = "units.stem.convolution.weight"
        moved[square] = (again.encoder.state_dict()[name] - made.encoder.state_dict()[name]).abs().max()
    assert moved[1e12] < 1e-3 * moved[0.0]


def test_what_is_kept_for_the_next_part_is_from_before_the_fall() -> None:
    kept: list[tuple[int, Tensor]] = []

    def keep(state: Pretrained) -> None:
        kept.append((state.step, folded(dataclasses.replace(state, averaged=state.now))["stem.weight"].clone()))

    falling = dataclasses.replace(SMALL, steps=4, fall=0.5, average=0.0)
    made = pretrain(falling, CPU, keep=keep)
    level = pretrain(dataclasses.replace(falling, fall=0.0), CPU, keep=keep)
    assert [step for step, _ in kept] == [3, 4]
    assert made.step == level.step == 4
    assert torch.equal(kept[1][1], folded(level)["stem.weight"])
    assert not torch.equal(kept[0][1], folded(made)["stem.weight"])


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


@pytest.mark.parametrize("fall", [0.2, 1.0])
def test_the_learning_rate_stays_and_then_falls_to_nothing(fall: float) -> None:
    course = [pace(done / 100, fall) for done in range(101)]
    level = round(100 * (1 - fall))
    assert course[: level + 1] == [1.0] * (level + 1)
    assert course == sorted(course, reverse=True)
    assert course[level + round(50 * fall)] == pytest.approx(0.5)
    assert course[-1] == pytest.approx(0)


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
    code, told, _ = program("train", "--out", str(out), "--steps", "2", "--seconds", "1e-6", "--fall", "0", *TINY)
    assert (code, told["step"], told["of"]) == (0, 1, 2)
    code, told, _ = program("train", "--out", str(out), "--steps", "2", *TINY)
    assert (code, told["step"]) == (0, 2)
    weights = read_weights(out / "prior.safetensors")
    assert "random processes" in weights.metadata["trained on"]
    assert (weights.metadata["steps made"], weights.fingerprint()) == ("2", told["sha256"])
    assert Prior(weights, (3, 32, 32))(torch.rand(2, 3, 32, 32)).shape == (2, 5, 4, 4)
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [1, 2]
    assert [(row["name"], row["step"]) for row in rows if "seconds" in row and "device" in row] == [
        ("made", 1),
        ("made", 2),
    ]
    assert len(list(out.glob("checkpoint-*"))) == 1
    code, _, error = program("train", "--out", str(out), "--steps", "2", *TINY)
    assert (code, error.count("\n")) == (2, 1)
    assert "is at step 2; allowed: more" in error
    code, _, error = program("train", "--out", str(out), "--steps", "3", *TINY, "--widths", "4,4")
    assert (code, error.count("\n")) == (2, 1)


def test_a_net_by_name_is_trained_in_parts_and_starts_a_model(tmp_path: Path, program: Any) -> None:
    out = tmp_path / "made"
    tiny = ["--net", "wrn-16-4", "--images", "2", "--processes", "leaves", "--fall", "0", "--json"]
    code, told, _ = program("train", "--out", str(out), "--steps", "1", *tiny)
    assert (code, told["prior"]) == (0, str(out / "start.safetensors"))
    code, _, _ = program("train", "--out", str(out), "--steps", "2", *tiny)
    assert code == 0
    learned = read_checkpoint(out).encoder
    assert isinstance(learned, WideEncoder)
    model = make_model("wrn-16-4", initialisation=str(out / "start.safetensors"), seed=0)
    for name, value in learned.net.named_parameters():
        assert torch.allclose(model.get_parameter(name), value, atol=1e-2)
    code, _, error = program("train", "--out", str(out), "--steps", "3", *tiny, "--probe", "mnist")
    assert (code, error.count("\n")) == (2, 1)
    code, _, error = program("train", "--out", str(out), "--steps", "3", *TINY)
    assert (code, error.count("\n")) == (2, 1)


BAD = [
    ("--steps", "0"),
    ("--images", "1"),
    ("--widths", "4;4"),
    ("--processes", "photographs"),
    ("--seconds", "-1"),
    ("--net", "wrn"),
]


@pytest.mark.parametrize("bad", [*BAD, ("--fall", "2"), ("--average", "1"), ("--seconds", "-1"), ("--net", "wrn")])
def test_what_cannot_be_trained_is_one_line(bad: tuple[str, str], tmp_path: Path, program: Any) -> None:
    code, _, error = program("train", "--out", str(tmp_path / "made"), *TINY, *bad)
    assert (code, error.count("\n")) == (2, 1)
    assert bad[0].strip("-") in error
    assert not (tmp_path / "made").exists()


def test_the_command_draws_images(tmp_path: Path, program: Any) -> None:
    path = tmp_path / "seen.png"
    code, told, _ = program("show", "--count", "20", "--side", "16", "--out", str(path), "--json")
    assert told.pop("images_per_second") > 0
    assert (code, told) == (0, {"file": str(path), "images": 20})
    assert Image.open(path).size == (16 * 16, 2 * 16)


def test_a_probe_tells_features_that_hold_the_class_from_those_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "noise", lambda epsilon, records, steps: 10.0 / epsilon)
    chance = torch.Generator().manual_seed(0)
    targets = torch.randint(10, (300,), generator=chance)
    images = F.one_hot(targets, 10).float()[:, :, None, None] + 0.1 * torch.randn(300, 10, 1, 1, generator=chance)
    split = Split(inputs=images[:200], targets=targets[:200], held_out=images[200:], labels=targets[200:], records=200)
    scores = probe(lambda x: x, split)
    assert scores["no noise"] == 100
    assert scores["ε = 8, averaged"] > 90
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
