"""Fixtures shared by all tests: a small real data set, sums and releases made the legal way."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adadpigu.accounting import Ledger, Plan, PlannedDraw, PlannedStage
from adadpigu.accounting.accountants import quick_epsilon
from adadpigu.core.bounding import BoundedSum, Bounder, GradientSum
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.randomness import Randomness, ReproducibleRandomness
from adadpigu.core.sampling import PoissonSampler
from adadpigu.core.sensitive import GradientBatch, PerSampleGradients
from adadpigu.training.earlier import earlier_runs

Call = tuple[int, str, str]


def gradients(rows: Tensor) -> PerSampleGradients:
    """Per-sample gradients as an engine would wrap them."""
    return PerSampleGradients(GradientBatch(rows, torch.zeros(len(rows))))


def bounded(rows: Tensor, query: GradientSum) -> BoundedSum:
    bounder = Bounder(query, rows.shape[1])
    bounder.add(gradients(rows))
    return bounder.result()


def one_draw_ledger(sigma: float, steps: int = 1, rate: float = 0.5) -> Ledger:
    draw = PlannedDraw(name="gradient", sample_rate=rate, noise_multiplier=sigma)
    return Ledger(Plan(stages=(PlannedStage(name="training", steps=steps, draws=(draw,)),)), budget=None, path=None)


def released(mechanism: GaussianMechanism, rows: Tensor, *queries: GradientSum, sigma: float) -> dict[str, Release]:
    """One charged draw of the given rows, released."""
    receipt = mechanism.charge(
        queries,
        source=PoissonSampler(sample_rate=0.5),
        noise_multiplier=sigma,
        size=rows.shape[1],
        stage="training",
        step=next(_STEPS),
        draw="gradient",
    )
    return mechanism.release([bounded(rows, query) for query in queries], receipt)


_STEPS = itertools.count()


@pytest.fixture
def release() -> Callable[..., Release]:
    """Makes a genuine release of given rows: `release(rows, query, sigma=…)`; without noise for sigma=0."""

    def make(
        rows: Tensor, query: GradientSum | None = None, sigma: float = 0.0, randomness: Randomness | None = None
    ) -> Release:
        query = query or GradientSum(clip_norm=float("inf") if sigma == 0 else 1.0)
        mechanism = GaussianMechanism(one_draw_ledger(sigma), randomness or ReproducibleRandomness(0))
        return released(mechanism, rows, query, sigma=sigma)[query.name]

    return make


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Call]:
    """Runs a command line in an empty folder and gives (exit code, stdout, stderr)."""
    from adadpigu.cli.app import run

    monkeypatch.chdir(tmp_path)

    def made(*arguments: str) -> Call:
        capfd.readouterr()
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return made


@pytest.fixture
def coarse_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an audit finds is turned into ε on the accountant's coarse grid, which saves half of an audit's time.

    The coarse grid's ε is up to 0.1 % too high, so 0.2 % is taken off: audits refute a little less, never more.
    """
    monkeypatch.setattr("adadpigu.audit.subject.epsilon", lambda event, delta: quick_epsilon(event, delta) / 1.002)


def _mend_interpreter() -> None:
    """Triton 3.6 makes an int of an array of one entry, which NumPy 2.4 refuses; later ones do as is done here."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_and_mend


_SLOW = (
    "audit/test_coverage.py",
    "audit/test_planted_bugs.py",
    "audit/test_replay_everything.py",
    "browser/",
    "cli/test_help_examples.py",
    "cli/test_terminal.py",
    "crash/",
    "training/distributed/",
    "docs/test_blocks.py",
    "docs/test_site.py",
    "examples/",
    "integrations/transformers/test_hf_audits.py",
    "core/kernels/",
    "release/",
    "papers/reproduce/",
    "papers/systems/test_harness.py",
)
"""what only `make test-all` runs: products of cases, kills, browsers, processes, releases, blocks of the docs"""
_ONE_OF_EACH = (
    "audit/test_planted_bugs.py::test_a_planted_bug_is_caught_by_an_audit_that_passes_without_it[clip ignoring C]",
    "core/kernels/test_kernels.py::test_every_kernel_agrees_with_its_oracle[one]",
    "examples/test_examples.py::test_an_example_runs_and_states_its_privacy[own_loop.py]",
    "training/distributed/test_several_processes.py::test_a_job_makes_the_update_of_one_process[2]",
)
"""cheap cases of these that `make test` runs all the same"""
_CASES = 2
"""of a test with more cases `make test` runs about so many, evenly spread; `make test-all` runs all"""


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what `make test` leaves to `make test-all`. Every test function outside `_SLOW` keeps its first case."""
    here = Path(__file__).parent
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid.endswith(_ONE_OF_EACH):
            continue
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
        if item.path.is_relative_to(here) and item.path.relative_to(here).as_posix().startswith(_SLOW):
            item.add_marker("slow")
    for cases in functions.values():
        for number, case in enumerate(cases):
            if number % -(-len(cases) // _CASES):
                case.add_marker("slow")


@pytest.hookimpl(tryfirst=True)  # before fixtures of whole files train
def pytest_runtest_setup() -> None:
    """Each test is a process of its own, as far as statements know of earlier runs."""
    earlier_runs.clear()


# Without a GPU kernels run in Triton's interpreter, which is chosen for a whole process and would change other tests.
# So their tests are collected only where TRITON_INTERPRET=1; `kernels/test_kernels.py` starts such a process.
if os.environ.get("TRITON_INTERPRET") == "1":
    _mend_interpreter()
else:
    collect_ignore_glob = ["core/kernels/test_kernel_*.py"]
