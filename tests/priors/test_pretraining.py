"""Pre-training: reproducible, without a trace in the caller's generators, and learning to tell images apart."""

from __future__ import annotations

import dataclasses
import runpy
import sys
from pathlib import Path

import pytest
import torch

from adadpigu.errors import InputError
from adadpigu.features.prior import Prior
from adadpigu.priors.encoder import EncoderShape, read_weights
from adadpigu.priors.random_images import RandomImages
from adadpigu_paper.encoder import Encoder
from adadpigu_paper.pretraining import Pretraining, Store, pace, pretrain
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
    first, second = (pretrain(SMALL, CPU).folded() for _ in range(2))
    other = pretrain(dataclasses.replace(SMALL, seed=1), CPU).folded()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_the_loss_falls() -> None:
    heard: list[tuple[int, float]] = []

    def hear(step: int, loss: float, encoder: Encoder) -> None:
        heard.append((step, loss))

    longer = dataclasses.replace(SMALL, steps=81, images=16, lr=1e-2, store=1, uses=100)
    pretrain(longer, CPU, hear)
    assert [step for step, _ in heard] == [0, 50, 80]
    assert heard[-1][1] < heard[0][1] - 0.3


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


def test_the_script_makes_a_prior_that_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, again = tmp_path / "prior.safetensors", tmp_path / "again.safetensors"
    run_script(monkeypatch, "--out", str(made))
    weights = read_weights(made)
    assert "random processes" in weights.metadata["trained on"]
    assert "steps=1," in weights.metadata["settings"]
    assert Prior(weights, (3, 32, 32))(torch.rand(2, 3, 32, 32)).shape == (2, 5, 4, 4)
    run_script(monkeypatch, "--encoder", str(made), "--out", str(again))
    assert read_weights(again).fingerprint() == weights.fingerprint()


def run_script(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """`experiments/pretrain.py`, tiny."""
    script = Path(__file__).parents[2] / "experiments" / "pretrain.py"
    tiny = ["--steps", "1", "--images", "4", "--widths", "4,4,4", "--statistics", "8", "--keep", "5"]
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # the script sets it
    monkeypatch.setattr(sys, "argv", [str(script), *tiny, *flags])
    runpy.run_path(str(script), run_name="__main__")
