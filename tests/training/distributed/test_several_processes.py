"""One model, several processes: the same update as one makes, every record clipped where it lives, one ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest
import scenes
import torch

from adadpigu.accounting.ledger_reading import LEDGER_FILE, read_ledger
from method_cases import OWN

NAMES = tuple(OWN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def pair(folder: Path) -> list[dict[str, Any]]:
    """What both processes of a job of two have found."""
    found = jobs.job(2, scenes.everything, folder, NAMES)
    assert all(isinstance(one, dict) for one in found), found
    return found


@pytest.mark.parametrize("method", NAMES)
def test_two_processes_make_the_update_of_one(method: str, pair: list[dict[str, Any]]) -> None:
    alone = jobs.weights(jobs.train(method))
    for found in pair:
        torch.testing.assert_close(found["methods"][method], alone, rtol=0, atol=1e-6)
    assert torch.equal(pair[0]["methods"][method], pair[1]["methods"][method])


@pytest.mark.parametrize("processes", [2, 4])
def test_a_job_makes_the_update_of_one_process(processes: int) -> None:
    found = jobs.job(processes, scenes.methods, "adadpigu")
    alone = jobs.weights(jobs.train("adadpigu"))
    for one in found:
        torch.testing.assert_close(one["adadpigu"], alone, rtol=0, atol=1e-6)
        assert torch.equal(one["adadpigu"], found[0]["adadpigu"])


def test_a_loop_of_ones_own_makes_the_update_of_one_process(pair: list[dict[str, Any]]) -> None:
    alone = scenes.stepwise()
    for found in pair:
        torch.testing.assert_close(found["stepwise"], alone, rtol=0, atol=1e-6)


def test_each_record_is_read_by_the_one_process_it_lives_on(pair: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(pair):
        read = [position for part in found["witnessed"]["read"] for position in part]
        assert len(read) > 100
        assert {position % 2 for position in read} == {rank}


def test_no_process_looks_at_a_draw_before_it_is_charged(pair: list[dict[str, Any]]) -> None:
    for found in pair:
        assert found["witnessed"]["charged"] == list(range(1, 13))


def test_the_ledger_is_charged_once_a_step_and_the_first_process_alone_speaks(
    pair: list[dict[str, Any]], folder: Path
) -> None:
    ledger = read_ledger(folder / "run" / LEDGER_FILE)
    assert sum(ledger.spent().values()) == 12
    assert ledger.header["facts"]["processes"] == 2
    assert [found["witnessed"]["told"] for found in pair] == [14, 0]
    assert [found["witnessed"]["folder"] for found in pair] == [folder / "run", None]
    assert pair[0]["witnessed"]["epsilon"] == pair[1]["witnessed"]["epsilon"]


def test_weights_that_start_apart_end_alike_under_secret_noise(pair: list[dict[str, Any]]) -> None:
    assert torch.equal(*(found["witnessed"]["weights"] for found in pair))


def test_noise_is_drawn_once_a_coordinate_at_full_variance(pair: list[dict[str, Any]]) -> None:
    """Both bounds hold with a chance of 1 − 1e-6: five standard errors of a variance and of a correlation."""
    values = pair[0]["noise"]
    assert torch.equal(values, pair[1]["noise"])
    assert abs(float(values[0]) - 0.5) < 7  # each process has put in a half of it
    drawn = values[1:].double()
    assert abs(float(drawn.var()) - 1) < 5 * (2 / len(drawn)) ** 0.5
    halves = drawn.chunk(2)  # of two owners: numbers that both draw alike would be the same here
    assert abs(float(torch.corrcoef(torch.stack(halves))[0, 1])) < 5 / len(halves[0]) ** 0.5


@pytest.mark.parametrize(
    ("misfit", "told"),
    [
        ("other records", "rank 1 sees other records than rank 0"),
        ("one record less", "rank 1 sees other records than rank 0"),
        ("other items", "rank 1 sees other records than rank 0"),
        ("other noise", "noise_multiplier=2.0 on rank 1, 1.0 on rank 0"),
        ("known noise", "randomness='reproducible noise fixed by a seed: not private' on rank 1, 'ChaCha20"),
        ("other net", "on rank 1"),
        ("diagnostics", "diagnostics=True in a job of 2 processes"),
        ("taken folder", "already holds a run or other files"),
        ("wrapped", "DistributedDataParallel"),
        ("weights by hand", "the weights of rank 1 are not those of rank 0"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name_everywhere(
    misfit: str, told: str, pair: list[dict[str, Any]]
) -> None:
    for found in pair:
        assert told in found["refusals"][misfit]
        assert "\n" not in found["refusals"][misfit]


def test_a_process_may_train_by_itself(pair: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(pair):
        assert torch.equal(found["by oneself"], jobs.weights(jobs.train(steps=2 + rank)))


def test_a_sharded_model_is_updated_as_a_whole_one(pair: list[dict[str, Any]], folder: Path) -> None:
    """Weights and momentum are split between the processes; a coordinate's noise is the same whoever owns it."""
    alone = jobs.weights(jobs.train(model=scenes.blocks(), momentum=0.9))
    for found in pair:
        torch.testing.assert_close(found["sharded"]["weights"], alone, rtol=0, atol=1e-6)
        by_losses = torch.cat([tensor.double().flatten() for tensor in found["sharded"]["by losses"].values()])
        torch.testing.assert_close(by_losses, alone, rtol=0, atol=1e-6)
    for what in ("held", "momentum"):
        assert sum(found["sharded"][what] for found in pair) == len(alone)
        assert max(found["sharded"][what] for found in pair) < 0.6 * len(alone)
    assert sum(read_ledger(folder / "sharded" / LEDGER_FILE).spent().values()) == 12
    assert "hook" in pair[0]["sharded"]["not covered"]


@pytest.mark.parametrize(
    ("misfit", "told"),
    [
        ("no rule", "no layer rule for '0' (Scale); allowed with shards: engine='ghost'"),
        ("no size", "physical_batch_size=None"),
        ("an average", "ema=0.9"),
        ("sharded before", "sharded by fully_shard already"),
        ("train", "sharded by fully_shard already"),
    ],
)
def test_what_cannot_be_sharded_is_refused_by_name(misfit: str, told: str, pair: list[dict[str, Any]]) -> None:
    for found in pair:
        assert told in found["sharded"]["refused"][misfit]


@pytest.mark.parametrize("audit", ["white-box", "replay"])
def test_audits_pass_through_a_job(audit: str, pair: list[dict[str, Any]]) -> None:
    """They refute a valid claim with a chance of at most 1e-6."""
    passed, lower, claimed, findings = pair[0]["audits"][audit]
    assert pair[1]["audits"][audit] == pair[0]["audits"][audit]
    assert passed, findings
    assert lower > 0.5 * claimed
