"""The command and what it prints: promised keys, ratios to the baseline, absences with reasons, one-line errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from adadpigu_bench.contestants import BASELINE, Contestant, Task, Unavailable
from adadpigu_bench.counting import count
from adadpigu_bench.growth import fitted, level
from adadpigu_bench.nets import NETS, size
from adadpigu_bench.processes import Lap, interleaved
from adadpigu_bench.report import Absence, Report, Row
from adadpigu_bench.run import BenchOptions, run_bench

Call = tuple[int, str, str]
ROW = {"net", "batch", "method", "engine", "peer", "ms", "ratio_to_nonprivate", "peak_mib"}
SMALL = ("bench", "--net", "mnist-cnn", "--batch", "8", "--rounds", "2", "--steps", "1")


@pytest.mark.slow
def test_a_bench_gives_the_promised_rows_and_lists_what_is_missing(call: Callable[..., Call], tmp_path: Path) -> None:
    file = tmp_path / "table.md"
    code, out, _ = call(*SMALL, "--engine", "ghost", "--peer", "fastdp", "--json", "--markdown", str(file))
    found = json.loads(out)
    assert code == 0
    assert all(set(row) == ROW for row in found["rows"])
    assert [(row["method"], row["engine"], row["peer"]) for row in found["rows"][:4]] == [
        ("sgd", None, "torch eager"),
        ("sgd", None, "torch eager channels-last"),
        ("dpsgd", "ghost", None),
        ("adadpigu", "ghost", None),
    ]
    baseline = found["rows"][0]["ms"]
    for row in found["rows"]:
        assert row["ratio_to_nonprivate"] == pytest.approx(row["ms"] / baseline)
        assert row["peak_mib"] >= 0
    for absence in found["unavailable"]:
        assert set(absence) == {"peer", "net", "reason"}
    names = {row["peer"] for row in found["rows"]} | {absence["peer"].split()[0] for absence in found["unavailable"]}
    assert "fastdp" in names  # a row where it is installed, else an absence
    assert {"versions", "device", "threads", "date"} <= set(found)
    text = file.read_text(encoding="utf-8")
    assert all(found[key] in text for key in ("date", "device"))
    assert all(f"{name} {version}" in text for name, version in found["versions"].items())


class FakeStand:
    """In place of a process: DP-SGD cannot be built, the others take three times as long as the baseline."""

    def __init__(self, contestant: Contestant, task: Task) -> None:
        self._contestant = contestant

    def wait_until_built(self) -> None:
        if self._contestant.method == "dpsgd":
            raise Unavailable("for the test")

    def run(self, steps: int) -> Lap:
        return Lap(seconds=steps * (0.1 if self._contestant == BASELINE else 0.3), peak_mib=5.0)

    def close(self) -> None:
        return None


@pytest.mark.parametrize("memory", [True, False])
def test_what_cannot_be_built_is_an_absence_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, memory: bool) -> None:
    monkeypatch.setattr("adadpigu_bench.run.Stand", FakeStand)
    report = run_bench(BenchOptions(engines=("ghost",), peers=(), rounds=2, memory=memory))
    assert [row.method for row in report.rows] == ["sgd", "sgd", "adadpigu"]
    assert [row.ratio_to_nonprivate for row in report.rows] == [1.0, pytest.approx(3.0), pytest.approx(3.0)]
    assert [row.ms for row in report.rows] == [pytest.approx(100), pytest.approx(300), pytest.approx(300)]
    assert {row.peak_mib for row in report.rows} == ({5.0} if memory else {None})
    assert report.unavailable == (Absence(peer="ours dpsgd ghost", net="mnist-cnn", reason="for the test"),)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--net", "mnist-cn"), ("'mnist-cn'", "mnist-cnn", "transformer")),
        (("--engine", "gost"), ("'gost'", "ghost", "materialised")),
        (("--method", "sgdp"), ("'sgdp'", "adadpigu", "dpsgd")),
        (("--peer", "opacu"), ("'opacu'", "opacus", "jax", "none")),
        (("--peer", "none", "--peer", "jax"), ("'none,jax'", "none goes without others")),
        (("--suite", "fast"), ("'fast'", "quick", "paper")),
        (("--batch", "0"), ("'0'", "at least 1")),
        (("--rounds", "0"), ("rounds=0", "at least 1")),
        (("--device", "tpu"), ("'tpu'", "cpu")),
        (("--markdown", "nowhere/table.md"), ("nowhere/table.md", "folder")),
    ],
)
def test_a_bad_value_is_one_line_that_names_it_and_what_is_allowed(
    call: Callable[..., Call], arguments: tuple[str, ...], named: tuple[str, ...]
) -> None:
    code, out, err = call("bench", *arguments)
    assert code == 2
    assert not out
    assert len(err.splitlines()) == 1
    assert all(word in err for word in named)


class Told:
    """A runner whose laps are known, and that notes when it is called."""

    def __init__(self, name: str, seconds: list[float], calls: list[str]) -> None:
        self._name, self._seconds, self._calls = name, iter(seconds), calls

    def run(self, steps: int) -> Lap:
        self._calls.append(self._name)
        found = next(self._seconds, None)
        if found is None:
            raise Unavailable("no more laps")
        return Lap(seconds=found, peak_mib=None)


def test_rounds_are_interleaved_in_an_order_that_moves_on_and_a_failure_drops_out() -> None:
    calls: list[str] = []
    ours = Contestant(method="dpsgd", engine="ghost", peer=None)
    runners = {BASELINE: Told("base", [0.2, 0.4, 0.6], calls), ours: Told("ours", [0.8], calls)}
    found, failed = interleaved(runners, lambda _: None, rounds=3, steps=2)
    assert calls == ["base", "ours", "ours", "base", "base"]
    assert found == {BASELINE: [pytest.approx(100), pytest.approx(200), pytest.approx(300)]}
    assert failed == {ours: "no more laps"}


def test_no_further_round_begins_after_the_time_is_up_once_there_are_three() -> None:
    runners = {BASELINE: Told("base", [0.1] * 9, [])}
    found, _ = interleaved(runners, lambda _: None, rounds=9, steps=1, seconds=-1.0)
    assert len(found[BASELINE]) == 3


def test_the_markdown_table_holds_every_row_and_every_absence() -> None:
    row = Row(
        net="n", batch=7, method="dpsgd", engine="ghost", peer=None, ms=3.0, ratio_to_nonprivate=1.5, peak_mib=None
    )
    report = Report(
        rows=(row,),
        unavailable=(Absence(peer="opacus ew", net="n", reason="because"),),
        versions={"torch": "2.0"},
        device="a device",
        threads=2,
        date="2031-01-02",
        rounds=5,
        load=0.0,
    )
    text = report.markdown()
    assert "| ours dpsgd ghost | dpsgd | 3 | 1.50 | – |" in text
    assert "opacus ew on n: because" in text
    assert all(word in text for word in ("2031-01-02", "a device", "torch 2.0", "n, B = 7"))


@pytest.mark.parametrize("name", ["mnist-cnn", "scatter-linear", "cifar-small"])
def test_operations_and_bytes_grow_with_the_batch(name: str) -> None:
    one, two = count(name, 100), count(name, 200)
    assert two.operations == 2 * one.operations > 0
    assert one.bytes < two.bytes <= 2 * one.bytes
    assert one.per_sample_bytes == 400 * one.parameters
    assert one.parameters == size(NETS[name].model())


def test_operations_of_a_linear_net_are_those_of_its_two_matrix_products() -> None:
    assert count("scatter-linear", 3).operations == 2 * 2 * 3 * 3969 * 10


def test_counts_are_printed_for_every_net_of_a_suite(call: Callable[..., Call]) -> None:
    code, out, _ = call("bench", "--counts", "--suite", "all", "--json")
    assert code == 0
    assert [row["net"] for row in json.loads(out)["counts"]] == list(NETS)


def test_a_jump_is_not_linear_and_a_constant_part_is() -> None:
    assert fitted("B", [(100, 30.0), (200, 40.0), (400, 60.0)]).worst == pytest.approx(0, abs=1e-9)
    assert not fitted("B", [(100, 10.0), (200, 20.0), (400, 140.0)]).linear
    assert not level("T", [(10, 10.0), (20, 14.0), (30, 18.0)]).linear


@pytest.mark.slow
def test_the_projection_family_is_timed_beside_dpsgd_with_its_basis_spread_over_an_epoch(
    call: Callable[..., Call],
) -> None:
    small = ("--net", "mnist-cnn", "--batch", "8", "--rank", "4", "--rounds", "2", "--device", "cpu", "--json")
    code, out, err = call("bench", "--projection", *small)
    assert code == 0, err
    plain, *family = json.loads(out)["projection"]
    assert [plain["method"], *(row["method"] for row in family)] == ["dpsgd", "projected-dpsgd", "pcdp-sgd", "gep"]
    assert (plain["times"], plain["ms_basis"], plain["basis_mib"]) == (1, 0, 0)
    for row in family:
        assert row["ms_amortised"] == pytest.approx(row["ms"] + row["ms_basis"] * 8 / row["epoch"])
        assert row["times"] == pytest.approx(row["ms_amortised"] / plain["ms"])
        assert row["basis_mib"] == pytest.approx(26_010 * 4 * 8 / 2**20)  # float64 on a CPU
        assert row["within"] == (row["times"] <= 1.5 and row["peak_times"] <= 1.2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rank", "5"), "rank=5 does nothing without --projection"),
        (("--projection", "--rank", "0"), "rank=0: must be at least 1"),
    ],
)
def test_a_rank_that_cannot_be_is_one_line(call: Callable[..., Call], arguments: tuple[str, ...], said: str) -> None:
    code, out, err = call("bench", *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err
