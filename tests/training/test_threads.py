"""Threads are chosen by public facts, for the time of a run, and what the user has set stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from adadpigu.core.gradients import choice
from adadpigu.methods import DPSGD
from adadpigu.training import threads
from adadpigu.training.threads import SMALL, threads_for
from trials import run_small

CPU = torch.device("cpu")


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine with four cores whose user has set nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr(threads, "_FOUND", 4)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four")
def test_small_steps_have_one_thread_and_larger_ones_all() -> None:
    assert threads_for(CPU, SMALL - 1) == 1
    assert threads_for(CPU, SMALL) is None
    assert threads_for(torch.device("cuda"), 1) is None


@pytest.mark.usefixtures("four")
def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert threads_for(CPU, 1) is None
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(2)
    assert threads_for(CPU, 1) is None


@pytest.mark.usefixtures("four")
def test_a_run_says_its_threads_and_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_small(DPSGD(), steps=1)
    assert run.execution.endswith(", 1 CPU thread(s)")
    assert torch.get_num_threads() == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert "thread" not in run_small(DPSGD(), steps=1).execution


@pytest.mark.usefixtures("four")
def test_an_engine_is_tried_with_the_threads_that_train(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, genuine = [], choice._computes_rows_alike

    def watched(*given: Any) -> bool:
        seen.append(torch.get_num_threads())
        return genuine(*given)

    monkeypatch.setattr(choice, "_computes_rows_alike", watched)
    run_small(DPSGD(), steps=1)
    assert seen == [1]
