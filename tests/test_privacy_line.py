"""The line by type: mypy --strict refuses each violating snippet, and the running code refuses the same objects."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adadpigu.core.bounding import GradientSum
from adadpigu.core.layout import Layout
from adadpigu.core.sensitive import Sensitive, unseal
from adadpigu.errors import PrivacyLineError
from adadpigu.methods.importance import Importance, LayerPower
from adadpigu.methods.statistics import Statistics, StatisticsOptions
from adadpigu.training.optimiser import MaskedOptimiser
from conftest import bounded, gradients

SOURCE = Path(__file__).parents[1] / "src" / "adadpigu"

PRELUDE = """
import torch
from adadpigu.core.bounding import BoundedSum
from adadpigu.core.sensitive import PerSampleGradients
from adadpigu.methods.importance import Importance, LayerPower
from adadpigu.core.mechanism import GaussianMechanism, Receipt, Release
from adadpigu.methods.statistics import Statistics
from adadpigu.features.front import ReleasedNorm
from adadpigu.training.learned import WeightAverage
from adadpigu.training.optimiser import MaskedOptimiser

def use(raw: torch.Tensor, g: PerSampleGradients, s: BoundedSum, r: Release, i: Importance, st: Statistics,
        p: LayerPower, o: MaskedOptimiser, m: GaussianMechanism, q: Receipt, n: ReleasedNorm,
        e: WeightAverage) -> None:
"""
VIOLATIONS = {
    "importance from per-sample gradients": "i.update(g)",
    "importance from a bounded sum": "i.update(s)",
    "importance from a raw tensor": "i.update(raw)",
    "statistics from a bounded sum": "st.update(s, noise_variance=raw)",
    "statistics from a raw tensor": "st.update(raw, noise_variance=raw)",
    "layer power from per-sample gradients": "p.update(g, noise_variance=0.0)",
    "optimiser from a raw tensor": "o.step(raw)",
    "normaliser from raw tensors": "n.fill(raw, raw)",
    "weight average from a raw tensor": "e.update(raw)",
    "optimiser from per-sample gradients": "o.step(g)",
    "arithmetic on a box": "s + 1",
    "noise on un-bounded gradients": "m.release([g], q)",
    "a charge for something else than a query": "m.charge([g], source=q, noise_multiplier=1.0)",
    "a sensitivity set by hand": "s.sensitivity = 0.0",
    "a float from a box": "float(s)",
}


def test_mypy_refuses_every_violation_and_accepts_the_legal_twin(tmp_path: Path) -> None:
    """One run of mypy over all snippets; each violating line must carry an error, the legal lines none.

    With the settings and the cache of `make types`, which has read torch and the package just before.
    """
    legal = ["i.update(r)", "st.update(r, noise_variance=raw)", "p.update(r, noise_variance=0.0)", "o.step(r)"]
    legal += ["n.fill(r, r)", "e.update(r)"]
    lines = [*legal, *VIOLATIONS.values()]
    file = tmp_path / "snippets.py"
    file.write_text(PRELUDE + "".join(f"    {line}\n" for line in lines))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=SOURCE.parents[1],
        env={"PATH": "/usr/bin:/bin"},
    )
    flagged = {
        int(line.split(":")[1]) for line in done.stdout.splitlines() if "snippets.py:" in line and ": error:" in line
    }
    first = len(PRELUDE.splitlines()) + 1
    expected = set(range(first + len(legal), first + len(lines)))
    assert flagged == expected, done.stdout + done.stderr


def _consumers() -> dict[str, object]:
    layers = torch.zeros(3, dtype=torch.long)
    model = torch.nn.Linear(3, 1, bias=False)
    return {
        "importance": Importance(3).update,
        "statistics": lambda v: Statistics(StatisticsOptions(), variance=torch.ones(3), groups=layers).update(
            v, noise_variance=torch.zeros(3)
        ),
        "layer power": lambda v: LayerPower(layers).update(v, noise_variance=0.0),
        "optimiser": MaskedOptimiser(model, Layout.of(model), lambda p: torch.optim.SGD(p, lr=1.0)).step,
    }


@pytest.mark.parametrize("consumer", ["importance", "statistics", "layer power", "optimiser"])
def test_learned_state_refuses_everything_but_a_release_at_run_time(consumer: str) -> None:
    rows = torch.ones(2, 3)
    take = _consumers()[consumer]
    assert callable(take)
    for violating in (rows, rows[0], gradients(rows), bounded(rows, GradientSum(clip_norm=1.0)), Sensitive(rows)):
        with pytest.raises(PrivacyLineError, match="takes a Release"):
            take(violating)


def test_a_box_lets_nothing_out() -> None:
    box = bounded(torch.full((2, 3), 0.4242), GradientSum(clip_norm=1.0))
    assert "0.4" not in repr(box) + str(box) + f"{box}"
    looks: tuple[Callable[[Any], object], ...] = (
        float,
        bool,
        len,
        list,
        pickle.dumps,
        lambda b: b + 1,
        lambda b: b[0],
        lambda b: torch.ones(3) * b,
        lambda b: torch.as_tensor(b),
        lambda b: b < 1,
    )
    for look in looks:
        with pytest.raises((PrivacyLineError, TypeError)):
            look(box)
    with pytest.raises(PrivacyLineError):
        unseal(torch.ones(3))  # type: ignore[arg-type]


def test_only_modules_on_the_line_open_boxes_or_mint_releases() -> None:
    allowed = {
        f"core/{name}" for name in ("sensitive", "sampling", "fixed_batch", "bounding", "mechanism", "diagnostics")
    }
    allowed |= {"training/micro_batches"}
    allowed |= {"integrations/opacus/script"}  # a script for Opacus sees its records, as the statement of its run says
    for path in SOURCE.rglob("*.py"):
        module = path.relative_to(SOURCE).with_suffix("").as_posix()
        names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
        attributes = {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
        if module not in allowed and not module.startswith(("core/gradients/", "audit/")):
            assert "unseal" not in names, module
        if module not in {"core/sensitive", "core/sampling", "core/bounding"}:
            assert "_content" not in attributes, module
        if module != "core/mechanism":
            assert "_MINT" not in names | attributes, module
        drawing = {"core/mechanism", "core/randomness", "core/gradients/mixing", "core/gradients/probing"}
        drawing |= {
            "audit/canaries",
            "audit/coins",
            "audit/keys",
            "audit/noise_capture",
        }  # they pass on what a generator draws
        if module not in drawing | {"models/standardised"}:  # which draws where weights start
            assert not {"normal", "standard_normal", "randn_like", "normal_"} & attributes, module
