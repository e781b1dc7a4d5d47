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
    ],
)
def test_a_variable_that_changes_the_forward_is_refused(
    variable: str, value: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ad.InputError, match=rf"accelerate: {told}"):
        trainer(classifier(), arguments(tmp_path))


def test_without_such_variables_nothing_is_refused(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path))
    private.train()
    assert private.run.steps_done == 4
