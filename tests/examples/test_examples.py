"""Every example runs, in a small form, as a user would start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "own_loop.py": ("--steps", "20"),
    "opacus_digits.py": ("--epochs", "2"),
    "opacus_char_lstm.py": ("--epochs", "2", "--records", "1000"),
    "hf_sequence_classification.py": ("--records", "400", "--epochs", "2"),
    "hf_causal_lm_lora.py": ("--epochs", "1"),
    "lightning_module.py": ("--epochs", "5"),
    "several_processes.py": ("--steps", "40"),
    "loggers.py": ("--steps", "20"),
    "export_model.py": ("--steps", "20"),
}
"""arguments that make an example short"""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs_and_states_its_privacy(path: Path, tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, str(path), *SMALL.get(path.name, ())],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert told.returncode == 0, told.stderr
    assert "epsilon" in told.stdout
