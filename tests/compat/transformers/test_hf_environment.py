"""What accelerate is told behind Trainer's back, by its own variables, is refused as if it were a setting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState
from small_models import arguments, classifier, trainer

import adadpigu as ad


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate reads its variables once a process."""
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("ACCELERATE_MIXED_PRECISION", "bf16", "mixed_precision='bf16'.*allowed: 'no'.*ACCELERATE_MIXED_PRECISION"),
        ("ACCELERATE_DYNAMO_BACKEND", "eager", "dynamo_backend='EAGER'.*allowed: 'NO'"),
    ],
)
def test_a_variable_that_changes_the_forward_is_refused(
    variable: str, value: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ad.InputError, match=rf"accelerate: {told}"):
        trainer(classifier(), arguments(tmp_path))


@pytest.mark.parametrize(
    ("name", "value"),
    [("_mixed_precision", "fp16"), ("distributed_type", "MULTI_CPU")],
)
def test_what_is_changed_between_making_and_training_is_refused(name: str, value: str, tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path))
    setattr(private.accelerator.state, name, value)
    with pytest.raises(ad.InputError, match=rf"accelerate: {name.removeprefix('_')}='{value}'"):
        private.train()
    assert not (tmp_path / "private").exists()


def test_accumulation_that_accelerate_was_set_to_is_refused(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path))
    private.accelerator.gradient_accumulation_steps = 3
    with pytest.raises(ad.InputError, match=r"accelerate: gradient_accumulation_steps=3.*allowed: 1"):
        private.train()


def test_without_such_variables_nothing_is_refused(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path))
    private.train()
    assert private.run.steps_done == 4
