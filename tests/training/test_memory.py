"""How many records are processed at once: as many as fit, found without records; fewer where a GPU runs out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adadpigu as ad
from adadpigu.accounting import read_ledger
from adadpigu.cli.app import run as command
from adadpigu.config import read_config
from adadpigu.core.bounding import BoundedSum, GradientSum
from adadpigu.core.gradients import GradientEngine
from adadpigu.core.layout import Layout
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sensitive import PerRecordLosses, PerSampleGradients, Records, unseal
from adadpigu.data import TensorRecords
from adadpigu.errors import InputError
from adadpigu.methods import DPSGD, DPSUR, AdaDPIGU, Method, QuantileClipping
from adadpigu.training import Preparation, Run, TrainingOptions, train_prepared
from adadpigu.training.earlier import earlier_runs
from adadpigu.training.memory import MemoryWarning, Rehearsal, most_drawn, parse_memory, peak_memory
from adadpigu.training.micro_batches import records_at_once
from trials import SHORT, arrays, prepare_small, small_net, weights

CPU = torch.device("cpu")
NOISY: dict[str, Any] = {"records": 240, "method": DPSGD(), "noise_multiplier": 1.0, **SHORT}


def rehearsal() -> Rehearsal:
    ready = prepare_small(DPSGD())
    return Rehearsal(ready.data.train, ready.view)


def drop_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, 10))


MOST = 64
"""records of the small runs that are processed at once where memory allows: whole blocks of 40 + 8·√40"""


class Cramped:
    """An engine of a GPU without room for more than `fits` records at once, or (`fails_at`) for its n-th call."""

    def __init__(self, engine: GradientEngine, fits: int | None = None, fails_at: int | None = None) -> None:
        self._engine, self._fits, self._fails_at, self.sizes = engine, fits, fails_at, list[int]()

    def _room_for(self, records: Records) -> None:
        """Refuses after the work was done: what it drew at random and left behind must not count."""
        size = len(unseal(records)[1])
        self.sizes.append(size)
        if (self._fits is not None and size > self._fits) or len(self.sizes) == self._fails_at:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory amid a batch of {size} records")

    name = property(lambda self: self._engine.name)
    reason = property(lambda self: self._engine.reason)

    @property
    def layout(self) -> Layout:
        return self._engine.layout

    def replay_memory(self) -> object:
        return self._engine.replay_memory()

    @property
    def rows_alike(self) -> bool:
        return self._engine.rows_alike

    def slice_length(self, expected: float, copies: int) -> int:
        return self._engine.slice_length(expected, copies)

    def watched(self) -> AbstractContextManager[None]:
        return self._engine.watched()

    def per_sample_gradients(self, records: Records) -> PerSampleGradients:
        result = self._engine.per_sample_gradients(records)
        self._room_for(records)
        return result

    def clipped_sum(self, records: Records, query: GradientSum) -> BoundedSum:
        result = self._engine.clipped_sum(records, query)
        self._room_for(records)
        return result

    def per_record_losses(self, records: Records) -> PerRecordLosses:
        result = self._engine.per_record_losses(records)
        self._room_for(records)
        return result


def run_cramped(ready: Preparation, out: Path | None = None, **bounds: int | None) -> tuple[Run, Cramped, list[str]]:
    engine: Any = Cramped(ready.engine, **bounds)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = train_prepared(replace(ready, engine=engine), randomness=ReproducibleRandomness(7), out=out)
    return run, engine, [str(w.message) for w in caught if w.category is MemoryWarning]


@pytest.mark.parametrize(
    ("limit", "count"),
    [("4GiB", 4 * 2**30), ("800MB", 800 * 10**6), ("1.5 kB", 1500), ("2kib", 2048), (77, 77), ("77", 77), ("9 B", 9)],
)
def test_a_limit_is_bytes_or_a_number_with_a_unit(limit: int | str, count: int) -> None:
    assert parse_memory(limit) == count


@pytest.mark.parametrize("limit", ["4 apples", "-1", 0, "0", "", "GiB", "1e9", True, "4 Gi", -5, "0.2"])
def test_a_limit_that_is_no_amount_of_memory_is_refused_with_what_is_allowed(limit: Any) -> None:
    with pytest.raises(InputError, match=r"memory_limit=.* allowed: bytes, .* such as '4GiB'") as caught:
        TrainingOptions(steps=1, physical_batch_size="auto", memory_limit=limit)
    assert repr(limit) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", ["many", "12", 0, -3, "AUTO"])
def test_a_size_is_a_number_or_auto(size: Any) -> None:
    with pytest.raises(InputError, match=f"physical_batch_size={size!r} is neither at least 1 nor 'auto'"):
        TrainingOptions(steps=1, physical_batch_size=size)


def test_a_limit_alone_means_auto_and_with_a_number_it_is_refused() -> None:
    assert TrainingOptions(steps=1, memory_limit="1GiB").physical_batch_size == "auto"
    with pytest.raises(
        InputError, match="memory_limit='1GiB' does nothing with physical_batch_size=8; allowed: 'auto'"
    ):
        TrainingOptions(steps=1, memory_limit="1GiB", physical_batch_size=8)


def test_options_with_auto_can_be_replaced_and_follow_the_new_values() -> None:
    second = replace(TrainingOptions(steps=1, memory_limit=9), batch_size=400, memory_limit="2GiB")
    assert second.physical_batch_size == "auto"
    assert (second.memory_limit, most_drawn(second.batch_size)) == ("2GiB", 400 + 8 * 20)


def test_peak_memory_counts_what_lives_at_a_time_and_not_what_was_there() -> None:
    """4 MB and 8 MB, then 8 MB and 8 MB more; a view takes nothing, and what is changed in place was there before."""
    old = torch.zeros(1000, 1000)

    def work() -> Tensor:
        first = torch.ones(1000, 1000)
        second = first.double()
        del first
        total: Tensor = (second.view(-1) * 2).sum() + old.add_(1).view(-1)[0]
        return total

    assert 16_000_000 <= peak_memory(work, CPU) <= 16_001_000


def test_peak_memory_counts_what_backward_needs() -> None:
    layer = nn.Linear(100, 100)

    def work() -> None:
        y = layer(torch.ones(500, 100))
        z = y.tanh()
        torch.autograd.grad(z.sum(), list(layer.parameters()))

    assert peak_memory(work, CPU) >= 4 * 500 * 100 * 3


def test_a_larger_limit_takes_more_records_and_the_limit_is_kept() -> None:
    trial, tried = rehearsal(), list[int]()

    def work(records: Records) -> None:
        tried.append(len(unseal(records)[1]))
        torch.empty(10_000 + tried[-1] * 2_500)

    sizes = [trial.largest(work, limit, most_drawn(1000)) for limit in ("60kB", "200kB", "2MB", "4MB", "8MB")]
    for size, limit in zip(sizes, (60e3, 200e3, 2e6, 4e6, 8e6), strict=True):
        need = peak_memory(lambda at=size: work(trial.records(at)), CPU)  # type: ignore[misc]
        assert 0.8 * limit <= need <= limit
    assert sizes == sorted(set(sizes))
    tried.clear()
    assert trial.largest(work, "1TB", most_drawn(1000)) == 1000 + 253
    assert tried == [1, 4, 16, 64, 256, 512]


def test_what_saturates_is_found_to_fit_and_what_jumps_is_not_taken() -> None:
    trial = rehearsal()
    assert trial.largest(lambda records: torch.empty(50_000), "1MB", most_drawn(400)) == 400 + 160

    def jumps(records: Records) -> None:
        torch.empty(1_000_000 if len(unseal(records)[1]) > 37 else 1_000)

    assert 30 <= trial.largest(jumps, "1MB", most_drawn(400)) <= 37


def test_a_number_is_halved_until_synthetic_records_pass() -> None:
    def work(records: Records) -> None:
        if len(unseal(records)[1]) > 20:
            raise torch.cuda.OutOfMemoryError("full")

    assert [rehearsal().passing(work, size) for size in (64, 21, 20, 1)] == [16, 10, 20, 1]


def test_no_private_record_is_read_to_find_the_size() -> None:
    class Watched(TensorRecords):
        def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
            assert len(indices) == 0
            return super().take(indices)

    inputs, targets = arrays()
    ready = prepare_small(DPSGD(), physical_batch_size="auto", memory_limit="50MB")
    watched = replace(ready, data=replace(ready.data, train=Watched(inputs, targets)))
    assert records_at_once(watched) == MOST


@pytest.mark.parametrize("engine", ["ghost", "materialised", "functional", "loop"])
def test_every_engine_finds_more_records_for_more_memory(engine: str) -> None:
    def found(limit: str) -> int:
        size = records_at_once(prepare_small(DPSGD(), engine=engine, memory_limit=limit))
        assert size is not None
        return size

    assert 1 <= found("200kB") <= found("400kB") <= found("1GB") == (32 if engine == "loop" else MOST)


def test_without_a_named_limit_what_is_free_is_enough_for_a_small_net() -> None:
    assert records_at_once(prepare_small(DPSGD(), physical_batch_size="auto")) == MOST
    assert records_at_once(prepare_small(DPSGD(), physical_batch_size=7)) is None


@pytest.mark.slow
def test_a_limit_too_small_for_one_record_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match=r"memory_limit='2kB' is too small: one record at a time takes \d+ KiB"
    ) as told:
        ad.train(small_net(), arrays(), memory_limit="2kB", **NOISY)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "method",
    [DPSGD(), AdaDPIGU(importance_steps=2), QuantileClipping(), DPSUR(test_batch_size=60)],
    ids=lambda m: m.name,
)
def test_auto_changes_no_release_but_in_the_rounding(method: Method) -> None:
    def run(**options: Any) -> Tensor:
        ready = prepare_small(method, **options)
        return weights(train_prepared(ready, randomness=ReproducibleRandomness(7)).model)

    torch.testing.assert_close(run(), run(memory_limit="300kB"), rtol=1e-4, atol=1e-5)
    assert torch.equal(run(), run(physical_batch_size="auto"))


def test_finding_the_size_moves_no_random_stream_and_leaves_the_model_as_it_was() -> None:
    ready = prepare_small(DPSGD(), net=lambda: drop_net().eval(), physical_batch_size="auto")
    before, start = torch.random.get_rng_state(), weights(ready.model)
    records_at_once(ready)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(weights(ready.model), start)
    assert not any(module.training for module in ready.model.modules())


def test_features_computed_beforehand_are_made_up_too() -> None:
    from adadpigu.features.front import make_front

    front, _ = make_front("scattering", "record", (1, 8, 8))
    ready = prepare_small(
        DPSGD(),
        front=front,
        net=lambda: nn.Sequential(nn.Flatten(), nn.Linear(81 * 4, 10)),
        copies=2,
        flip=True,
        physical_batch_size="auto",
    )
    assert ready.view.variants is not None
    shown = Rehearsal(ready.data.train, ready.view).records(3)
    assert (shown.copies, len(unseal(shown)[0]), len(unseal(shown)[1])) == (2, 6, 3)
    assert records_at_once(ready) == MOST


CHILD = """
import re, sys, torch
from pathlib import Path
from adadpigu.config import RunConfig
from adadpigu.data import DataSet, TensorRecords
from adadpigu.core.gradients.engine import GradientEngine
from adadpigu.training import train_prepared
from adadpigu.training.configured import configured

torch.set_num_threads(1)
train = TensorRecords(torch.rand(1300, 1, 28, 28), torch.zeros(1300).long())
data = DataSet(name="made", train=train, records=1300, classes=10, shape=(1, 28, 28))
keys = dict(method="dpsgd", model="mnist-cnn", noise_multiplier=1.0, steps=1, batch_size=1200)
GradientEngine.slice_length = lambda engine, expected, copies: 1280 if expected > 1 else 32
keys |= dict(engine="functional", device="cpu")
def peak(**more):
    train_prepared(configured(RunConfig(**keys, **more), data))
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
base = peak(physical_batch_size=40)
print(peak(memory_limit="120MB") - base, peak(physical_batch_size=1200) - base)
"""


@pytest.mark.slow
def test_a_process_keeps_to_the_limit_that_one_without_it_exceeds() -> None:
    """Resident memory at its peak, over that with forty records at once; generously: half as much again.

    Freed tensors go back to the system here, or it would show how the heap is fragmented.
    """
    heap = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    child = subprocess.run([sys.executable, "-c", CHILD], env=heap, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    bounded, unbounded = map(int, child.stdout.split())
    assert bounded <= 1.5 * 120e6 < 0.75 * unbounded


RETRIED: list[tuple[Method, Callable[[], nn.Module]]] = [
    (DPSGD(), small_net),
    (DPSGD(), drop_net),
    (AdaDPIGU(importance_steps=2), drop_net),
    (QuantileClipping(), drop_net),
    (DPSUR(test_batch_size=60), small_net),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "net"), RETRIED, ids=lambda value: str(getattr(value, "name", value.__class__)))
def test_a_draw_that_ran_out_of_memory_is_released_as_if_it_had_not(
    method: Method, net: Callable[[], nn.Module], tmp_path: Path
) -> None:
    """From 32 to 8 records at once, bit for bit as with 8 from the start: dropout included, one event a draw."""
    calm, _, quiet = run_cramped(prepare_small(method, net=net, physical_batch_size=8), tmp_path / "calm")
    earlier_runs.clear()
    hit, engine, told = run_cramped(prepare_small(method, net=net, physical_batch_size=32), tmp_path / "hit", fits=8)
    assert torch.equal(weights(hit.model), weights(calm.model))
    assert (len(quiet), len(told)) == (0, 1)
    assert [size for size in engine.sizes if size > 8] == [max(engine.sizes), 16]

    def events(name: str) -> list[Any]:
        return list(read_ledger(tmp_path / name / "ledger.log").charges)

    assert events("hit") == events("calm")
    found, expected = hit.privacy.to_json(), calm.privacy.to_json()
    more = set(hit.privacy.not_covered) - set(calm.privacy.not_covered)
    assert more == {"that the GPU ran out of memory over a draw, and when: that is not noised"}
    assert found | {"not_covered": None} == expected | {"not_covered": None}


@pytest.mark.parametrize("fails_at", [2, 3, 7])
def test_a_failure_in_the_middle_of_a_draw_counts_no_record_twice(fails_at: int) -> None:
    """The n-th micro-batch fails once; every draw before it was with 16, all from its own start are with 8."""

    def end(fails_at: int | None) -> Tensor:
        ready = prepare_small(DPSGD(), sigma=1e-9, physical_batch_size=16)
        return weights(run_cramped(ready, fails_at=fails_at)[0].model)

    torch.testing.assert_close(end(None), end(fails_at), rtol=1e-4, atol=1e-6)


def test_diagnostics_show_each_record_of_a_repeated_draw_once(tmp_path: Path) -> None:
    def rows(name: str, size: int, **bounds: int) -> str:
        ready = prepare_small(DPSGD(), physical_batch_size=size, diagnostics=True)
        run_cramped(ready, tmp_path / name, **bounds)
        return (tmp_path / name / "diagnostics.jsonl").read_text()

    assert rows("calm", 8) == rows("hit", 16, fails_at=2) != ""


def test_all_records_at_once_become_a_number_that_does_not_tell_the_draw() -> None:
    _, engine, told = run_cramped(prepare_small(DPSGD()), fits=10)
    assert told == ["the GPU ran out of memory; physical_batch_size is 8 from here on"]
    assert max(engine.sizes[-5:]) <= 8


def test_one_record_too_many_is_one_line_that_quotes_nothing() -> None:
    with pytest.raises(InputError, match="physical_batch_size=1: the GPU ran out of memory over one record") as caught:
        run_cramped(prepare_small(DPSGD(), physical_batch_size=4), fits=0)
    assert "batch of" not in str(caught.value)
    assert caught.value.__context__ is None
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_command_line_tells_the_size_and_a_run_can_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    flags = ["--steps", "2", "--physical-batch-size", "auto", "--memory-limit", "500kB", "--out", str(first)]
    assert command(["train", "--method", "dpsgd", *flags]) == 0
    told = json.loads((first / "memory.json").read_text())
    assert told["memory_limit"] == "500kB"
    assert 1 <= told["physical_batch_size"] < 256
    assert f"up to {told['physical_batch_size']} records at once" in capsys.readouterr().err
    kept = read_config(first / "config.toml")
    assert (kept["physical_batch_size"], kept["memory_limit"]) == ("auto", "500kB")
    assert command(["train", "--config", str(first / "config.toml"), "--out", str(second)]) == 0
    assert (second / "memory.json").read_text() == (first / "memory.json").read_text()
    assert read_config(second / "config.toml") == kept


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--physical-batch-size", "many"], "physical_batch_size='many' is neither at least 1 nor 'auto'"),
        (["--memory-limit", "4 apples"], "memory_limit='4 apples' is not an amount of memory"),
        (["--memory-limit", "-1"], "memory_limit=-1 is not an amount of memory"),
        (["--memory-limit", "1kB"], "memory_limit='1kB' is too small"),
    ],
)
def test_the_command_line_refuses_in_one_line_and_writes_nothing(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["train", "--method", "dpsgd", "--steps", "2", *flags, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len([line for line in error.splitlines() if "adadpigu" in line]) == 1
    assert list(tmp_path.iterdir()) == []
