"""The ε on a page is the ledger's or a claim's that the ledger bears out; a stranger's numbers keep nobody waiting."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from adadpigu.accounting.ledger import Ledger
from adadpigu.accounting.ledger_reading import read_ledger
from adadpigu.accounting.wording import rounded_up
from adadpigu.report.curves import round_up
from adadpigu.report.run_reading import read_run
from adadpigu.runs import reading
from run_folders import changed, died, trained


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("kept") / "run")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with more noise, so that its honest claim is lower."""
    return trained(tmp_path_factory.mktemp("quiet") / "run", "--noise-multiplier", "3")


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return died(tmp_path_factory.mktemp("dead") / "run")


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "run"))


def charged(folder: Path) -> float:
    """ε as `adadpigu ledger show` tells it."""
    return read_ledger(folder / "ledger.log").epsilon()


def test_an_honest_claim_is_at_least_what_the_ledger_has_charged(kept: Path) -> None:
    found = read_run(kept)
    assert found.epsilon is not None
    assert found.epsilon >= charged(kept)
    assert (found.marks, found.missing) == ((), ())


def test_a_lower_claim_of_another_run_is_not_shown_beside_this_ones_ledger(run: Path, quiet: Path) -> None:
    assert (lower := read_run(quiet).epsilon) is not None
    assert lower < charged(run)
    shutil.copy(quiet / "privacy.json", run)
    found = read_run(run)
    assert (found.epsilon, found.privacy, found.to_json(9)["epsilon_text"]) == (None, None, "—")
    (line,) = found.missing
    assert "privacy.json is not as the run left it" in line
    assert found.marks == ("claim not trusted",)
    assert any("cannot be trusted" in caution for caution in found.warnings)


def test_a_claim_without_a_ledger_is_not_shown(run: Path) -> None:
    for name in ("ledger.log", "ledger.head"):
        (run / name).unlink()
    found = read_run(run)
    assert (found.epsilon, found.privacy, found.marks) == (None, None, ("claim not trusted",))
    (line,) = found.missing
    assert "has no ledger.log" in line


@pytest.mark.slow
def test_what_an_open_run_has_spent_is_told_by_its_ledger_whatever_its_metrics_say(dead: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(dead, tmp_path / "run"))
    lines = [json.loads(line) | {"epsilon": 0.001} for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_run(folder)
    assert found.epsilon == round_up(charged(folder))
    assert (found.delta, found.noise_multiplier, found.steps_done, found.steps) == (1e-5, 1.0, 8, 12)
    assert found.to_json(9)["epsilon_text"] == f"{rounded_up(charged(folder))} so far"
    for name in ("ledger.log", "ledger.head"):
        (folder / name).unlink()
    found = read_run(folder)
    assert (found.epsilon, found.delta, found.to_json(9)["epsilon_text"]) == (None, None, "—")


@pytest.mark.parametrize("gone", [("privacy.json",), ("privacy.json", "summary.json")])
def test_a_run_that_has_ended_without_a_claim_shows_what_was_charged_and_says_so(
    run: Path, gone: tuple[str, ...]
) -> None:
    for name in gone:
        (run / name).unlink()
    found = read_run(run)
    assert found.epsilon == round_up(charged(run))
    assert found.to_json(9)["epsilon_text"] == f"{rounded_up(charged(run))} charged"
    assert (found.state, found.private, found.marks) == ("finished", None, ("no claim",))
    (line,) = found.missing
    assert "has no privacy.json, and has ended" in line
    assert any("nothing is claimed for it" in caution for caution in found.warnings)


def _better_curves(run: Path) -> None:
    lines = [json.loads(line) | {"test_accuracy": 1.0} for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("also", ["", "config.toml"])
def test_a_score_that_was_edited_or_lost_is_not_shown_beside_the_claim(run: Path, also: str) -> None:
    """Nor is one of the curves, which nothing binds; what else was edited does not hide it."""
    _better_curves(run)
    assert read_run(run).accuracy == json.loads((run / "summary.json").read_text())["test_accuracy"] != 1.0
    if also:
        edited = (run / also).read_text().replace("batch_size = 64", "batch_size = 65")
        (run / also).write_text(edited)
    changed(run, "summary.json", test_accuracy=1.0)
    for _ in range(2):
        found = read_run(run)
        assert (found.accuracy, found.method, found.steps_done) == (None, "adadpigu", 12)
        assert any("summary.json" in line for line in found.missing)
        (run / "summary.json").unlink(missing_ok=True)


def test_an_emptied_ledger_is_told_beside_the_claim_that_it_no_longer_bears(run: Path) -> None:
    (run / "ledger.log").write_text("")
    found = read_run(run)
    assert (found.epsilon, found.privacy, found.marks) == (None, None, ("claim not trusted", "ledger damaged"))
    (line,) = found.missing
    assert "ledger.log" in line


def test_what_was_confessed_is_told_where_no_statement_tells_it(run: Path) -> None:
    with Ledger.resume(run / "ledger.log") as ledger:
        ledger.add_caveat("a look at the records")
    (run / "privacy.json").unlink()
    caveats = read_ledger(run / "ledger.log").caveats
    assert any("declared public of 'digits'" in caveat for caveat in caveats)
    assert caveats[-1] == "a look at the records"
    assert {f"Not covered: {caveat}." for caveat in caveats} <= set(read_run(run).warnings)


def test_a_ledger_too_long_to_read_or_with_a_head_elsewhere_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "ledger.head").rename(run.parent / "ledger.head")
    (run / "ledger.head").symlink_to(run.parent / "ledger.head")
    found = read_run(run)
    assert "ledger.head is a link out of the folder" in found.missing[0]
    assert (found.ledger, found.epsilon, found.marks) == (None, None, ("claim not trusted", "ledger damaged"))
    (run / "ledger.head").unlink()
    (run.parent / "ledger.head").rename(run / "ledger.head")
    size = (run / "ledger.log").stat().st_size
    monkeypatch.setattr(reading, "MOST_LEDGER", size)
    assert read_run(run).ledger is not None
    monkeypatch.setattr(reading, "MOST_LEDGER", size - 1)
    found = read_run(run)
    assert f"ledger.log has {size} bytes; allowed: up to {size - 1}" in found.missing[0]
    assert (found.ledger, found.epsilon) == (None, None)


def test_a_ledger_that_has_only_been_made_is_no_fault(dead: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(dead, tmp_path / "run"))
    for name in ("ledger.log", "ledger.head"):
        (folder / name).unlink()
        (folder / name).touch()
    found = read_run(folder)
    assert (found.ledger, found.missing, found.marks, found.epsilon) == (None, (), (), None)


def test_a_pipe_in_the_place_of_a_ledger_is_not_waited_for(run: Path) -> None:
    (run / "ledger.log").unlink()
    os.mkfifo(run / "ledger.log")
    found = read_run(run)
    assert "has no ledger.log" in found.missing[0]
    assert found.epsilon is None
