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


def test_a_variable_that_changes_the_forward_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    told = "accelerate: mixed_precision='bf16'.*allowed: 'no'.*ACCELERATE_MIXED_PRECISION"
    with pytest.raises(ad.InputError, match=told):
        trainer(classifier(), arguments(tmp_path))
