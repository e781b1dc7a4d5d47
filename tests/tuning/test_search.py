"""A search: its draw stands before its first run and survives what ends it; the best run alone is ever kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadpigu.accounting import Budget, epsilon, event_from_json, read_ledger
from adadpigu.accounting.journal import Journal, read_journal
from adadpigu.accounting.repeating import Repeats
from adadpigu.config import RunConfig
from adadpigu.errors import InputError, LedgerError
from adadpigu.runs.loading import load_data
from adadpigu.runs.reading import privacy_of
from adadpigu.runs.verifying import verify
from adadpigu.tuning import Search, search, tune
from adadpigu.tuning.draws import FILE, Draws, Terms, has_drawn

BASE = RunConfig(model="mlp", steps=3, batch_size=64, private_validation=0.2, method="dpsgd", delta=1e-5)
CANDIDATES = (replace(BASE, lr=0.1), replace(BASE, lr=1.0), replace(BASE, lr=0.5, batch_size=128))


def asked(mean: float = 4.0, **changes: Any) -> Search:
    facts = {"candidates": CANDIDATES, "repeats": Repeats(mean=mean), "budget": Budget(epsilon=4.0)}
    return Search(**{**facts, **changes})


def lines(work: Path) -> list[dict[str, Any]]:
    return list(read_journal(work / FILE).bodies)


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Runs that take no time: each leaves a folder with a score of its own, if it is the best so far."""
    made: list[int] = []
    rng = np.random.default_rng(5)

    def run(_: Search, __: object, place: int, ___: object, best: Path | None, folder: Path) -> Path | None:
        score = int(rng.integers(1000))
        made.append(score)
        if best is not None and score <= search.score_of(best):
            return best
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps({"private_validation": {"right": score}}))
        return folder

    monkeypatch.setattr(search, "_run", run)
    return made


def drawn(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(Repeats, "draw", lambda *_: count)


def test_a_search_keeps_the_best_run_and_claims_all_of_them(tmp_path: Path) -> None:
    out = tmp_path / "best"
    assert tune(asked(mean=2.0), out)
    report, header = privacy_of(out), lines(tmp_path / "best.tuning")[0]
    assert verify(out).bound
    assert {path.name for path in tmp_path.iterdir()} == {"best", "best.tuning"}
    assert {path.name for path in (tmp_path / "best.tuning").iterdir()} == {FILE, "tuning.head"}
    reserved = event_from_json(header["reserved"])
    assert report.epsilon == epsilon(reserved, 1e-5) == read_ledger(out / "ledger.log").epsilon()
    assert 3.9 < report.epsilon <= 4.0
    assert epsilon(report.event(), 1e-5) == report.epsilon
    assert [group.event["event"] for group in report.events] == ["RepeatAndSelect"]
    assert "the best of K runs by a private score" in " ".join(report.statement().split())
    assert len(header["turns"]) == sum("begun" in line for line in lines(tmp_path / "best.tuning"))
    told = "".join(path.read_text() for path in out.glob("*.*") if path.suffix in (".json", ".toml", ".txt", ".log"))
    assert "turns" not in told  # how many runs were made stands in the search's own folder alone
    assert "begun" not in told


def test_all_candidates_are_charged_as_one_plan(tmp_path: Path) -> None:
    found = asked()
    data = load_data(found.candidates[0])
    first = search._prepared(found, 0, data, found.repeats)
    others = [search._prepared(found, at, data, replace(found.repeats, run=first.plan)) for at in (1, 2)]
    assert others[0].noise_multiplier == pytest.approx(first.noise_multiplier, rel=2e-3)
    assert others[1].noise_multiplier > first.noise_multiplier  # a larger batch needs more noise
    assert {ready.epsilons["pld"] for ready in others} == {first.epsilons["pld"]}


def test_the_highest_score_wins(tmp_path: Path, scores: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn(monkeypatch, 9)
    assert tune(asked(), tmp_path / "best")
    assert len(scores) == 9
    assert search.score_of(tmp_path / "best") == max(scores)


@pytest.mark.parametrize("at", range(1, 14))
def test_whatever_ends_a_search_its_draw_stays_and_no_run_is_made_twice(
    at: int, tmp_path: Path, scores: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends before, or after, the journal's line number `at`, again and again, and goes on."""
    drawn(monkeypatch, 5)
    append, count = Journal.append, 0
    prepared = search._prepared(asked(), 0, load_data(CANDIDATES[0]), asked().repeats)
    monkeypatch.setattr(search, "_prepared", lambda *_: prepared)

    def ended(self: Journal, body: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count == at:
            if at % 2:
                append(self, body)
            raise SystemError("the power went out")
        append(self, body)

    monkeypatch.setattr(Journal, "append", ended)
    out, work, resuming, turns = tmp_path / "best", tmp_path / "best.tuning", False, None
    found = None
    while found is None:
        try:
            found = tune(asked(), out, resume=resuming)
        except SystemError:
            resuming = has_drawn(work)
            if not resuming:
                continue
            turns = turns or lines(work)[0]["turns"]
            assert lines(work)[0]["turns"] == turns
    told = lines(work)
    assert [line["begun"] for line in told if "begun" in line] == list(range(5))
    assert len(scores) <= 5
    assert found == bool([line for line in told if line.get("best")])
    assert not list(work.glob("best-*"))


def test_a_run_that_was_lost_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[int]
) -> None:
    drawn(monkeypatch, 3)
    whole, made = search._run, []

    def dies(*given: Any) -> Path | None:
        made.append(given[2])
        if len(made) == 2:
            raise RuntimeError("out of memory")
        return whole(*given)

    monkeypatch.setattr(search, "_run", dies)
    with pytest.raises(RuntimeError):
        tune(asked(), tmp_path / "best")
    assert tune(asked(), tmp_path / "best", resume=True)
    assert len(made) == 3
    assert search.score_of(tmp_path / "best") == max(scores)
    assert len(scores) == 2


def test_a_search_of_no_run_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[int]) -> None:
    drawn(monkeypatch, 0)
    assert not tune(asked(), tmp_path / "best")
    assert not scores
    assert not (tmp_path / "best").exists()


def test_a_search_goes_on_only_on_its_own_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[int]
) -> None:
    drawn(monkeypatch, 2)
    assert tune(asked(), tmp_path / "best")
    (tmp_path / "best").rename(tmp_path / "other")
    with pytest.raises(LedgerError, match="other terms: candidates"):
        tune(asked(candidates=CANDIDATES[:2]), tmp_path / "best", resume=True)
    with pytest.raises(LedgerError, match="other terms: repeats"):
        tune(asked(mean=5.0), tmp_path / "best", resume=True)
    with pytest.raises(InputError, match="has begun; allowed: --resume"):
        tune(asked(), tmp_path / "best")
    log = tmp_path / "best.tuning" / FILE
    log.write_bytes(log.read_bytes().replace(b'"turns":[', b'"turns":[0,'))
    with pytest.raises(LedgerError, match="cannot go on"):
        tune(asked(), tmp_path / "best", resume=True)
    assert len(scores) == 2


def test_a_line_that_was_cut_off_counts_as_a_run_that_began(tmp_path: Path) -> None:
    terms = Terms(candidates=("a",), repeats=Repeats(mean=3, run=search_plan()), budget=Budget(epsilon=1.0))
    draws = Draws.make(tmp_path, terms)
    draws.turns = [0, 0, 0]
    draws.begin()
    draws.end(best=False)
    draws.close()
    log = tmp_path / FILE
    log.write_bytes(log.read_bytes() + b"0000001a 12")
    again = Draws.resume(tmp_path, terms)
    assert again.begun == min(2, len(again.turns))
    again.close()


def search_plan() -> Any:
    from adadpigu.accounting import plan_for

    return plan_for(0.1, 10)(2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"private_validation": None}, "private_validation=None in a search"),
        ({"noise_multiplier": 2.0}, "noise_multiplier=2.0 in a search"),
        ({"ledger": "shared.log"}, "ledger='shared.log' in a search"),
        ({"diagnostics": True}, "diagnostics=True in a search"),
        ({"reproducible_noise": True}, "reproducible_noise=True in a search"),
    ],
)
def test_what_no_event_of_all_runs_could_cover_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        asked(candidates=(replace(BASE, **changes),))
    with pytest.raises(InputError, match="the same for all candidates"):
        asked(candidates=(BASE, replace(BASE, private_validation=0.3)))
