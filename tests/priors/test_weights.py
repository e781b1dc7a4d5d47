"""A prior's file: what is written is read, what was altered is refused, and the packaged one is the measured one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adadpigu.errors import InputError
from adadpigu.priors import named as subject
from adadpigu.priors.encoder import EncoderShape, Weights, read_weights
from adadpigu.priors.named import NAMED, NamedPrior, known_by, named_weights
from adadpigu_paper.prior_files import save_prior as save

SMALL = Weights(
    plan=EncoderShape(widths=(2,), blocks=(1,)),
    tensors={"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor([0.5])},
    metadata={"trained on": "nothing"},
)


def test_a_file_holds_what_was_saved_as_halves(tmp_path: Path) -> None:
    save(SMALL, tmp_path / "small.safetensors")
    found = read_weights(tmp_path / "small.safetensors")
    assert found.plan == SMALL.plan
    assert found.metadata == SMALL.metadata
    assert {name: value.dtype for name, value in found.tensors.items()} == {"a": torch.float16, "b": torch.float16}
    assert torch.equal(found.tensors["b"].float(), SMALL.tensors["b"])


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.tensor([0.5]), "b": torch.arange(6.0).reshape(3, 2)},
        {"a": torch.tensor([0.5]), "c": torch.arange(6.0).reshape(2, 3)},
        {"a": torch.tensor([-0.5]), "b": torch.arange(6.0).reshape(2, 3)},
        {"a": torch.tensor([0.5]).half(), "b": torch.arange(6.0).reshape(2, 3)},
    ],
)
def test_shapes_names_values_and_types_all_change_the_fingerprint(other: dict[str, torch.Tensor]) -> None:
    assert Weights(plan=SMALL.plan, tensors=other, metadata={}).fingerprint() != SMALL.fingerprint()


def test_an_altered_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    save(SMALL, path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"small\.safetensors.*SHA-256"):
        read_weights(path)


def test_a_file_that_is_no_prior_is_refused(tmp_path: Path) -> None:
    from adadpigu.tensors import write_tensors

    path = tmp_path / "other.safetensors"
    write_tensors(path, {"a": torch.ones(1)}, {"plan": json.dumps({"widths": [1]})})
    with pytest.raises(InputError, match="is no prior"):
        read_weights(path)


@pytest.mark.parametrize("name", NAMED)
def test_weights_by_name_are_the_measured_ones_and_say_what_they_were_trained_on(name: str) -> None:
    found = named_weights(name)
    assert known_by(found.fingerprint()) is NAMED[name]
    assert "no photograph, no record" in found.metadata["trained on"]
    assert "seed=0" in found.metadata["settings"]
    assert NAMED[name].path.stat().st_size < (6.5e6 if NAMED[name].packaged else 45e6)


def test_another_plan_or_other_words_are_another_fingerprint() -> None:
    plan = EncoderShape(widths=(3,), blocks=SMALL.plan.blocks)
    assert Weights(plan=plan, tensors=SMALL.tensors, metadata=SMALL.metadata).fingerprint() != SMALL.fingerprint()
    other = {**SMALL.metadata, "trained on": "photographs"}
    assert Weights(plan=SMALL.plan, tensors=SMALL.tensors, metadata=other).fingerprint() != SMALL.fingerprint()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the source repository has its priors; `small` is known, and not there yet."""
    monkeypatch.setattr(subject, "_REPOSITORY", tmp_path)
    made = replace(SMALL, tensors={name: value.half() for name, value in SMALL.tensors.items()})
    known = NamedPrior(file="small.safetensors", sha256=made.fingerprint(), chosen="nothing", packaged=False)
    monkeypatch.setitem(NAMED, "small", known)
    return tmp_path


def test_a_prior_of_the_repository_is_read_by_name_or_its_place_is_told(folder: Path) -> None:
    with pytest.raises(InputError, match=r"prior='small' is not in an installed.*priors/small\.safetensors") as refusal:
        named_weights("small")
    assert "\n" not in str(refusal.value)
    save(SMALL, folder / "small.safetensors")
    assert named_weights("small").plan == SMALL.plan


def test_other_weights_than_the_named_ones_are_refused(folder: Path) -> None:
    save(replace(SMALL, metadata={"trained on": "photographs"}), folder / "small.safetensors")
    with pytest.raises(InputError, match=f"is not {NAMED['small'].sha256}; install anew"):
        named_weights("small")
    with pytest.raises(InputError, match="small"):
        named_weights("smal")
