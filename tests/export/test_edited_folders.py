"""One edited file of a run folder is found: each value of privacy.json, summary.json and config.toml in turn.

Fields are not listed but found, and each of their values is changed in every way that its type allows; what may pass
stands in `harmless`, with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adadpigu as ad
from adadpigu.accounting import Budget, PrivacyReport
from adadpigu.accounting.shared import create_shared
from adadpigu.export import facts_of_run, model_card
from adadpigu.export.subject import OTHERS, verified_privacy
from adadpigu.training.run import Facts, Metrics, Run

FIELDS = [field.name for field in fields(PrivacyReport)]
BESIDE = ("format", "steps_charged")
"""keys of privacy.json that are no fields"""


class Stopping:
    """Ends the process's work at a step."""

    def __init__(self, step: int, error: type[BaseException]) -> None:
        self.step, self.error = step, error

    def begin(self, facts: Facts) -> None: ...

    def update(self, metrics: Metrics) -> None:
        if metrics.step == self.step:
            raise self.error

    def end(self, run: Run) -> None: ...


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 3)


def trained(out: Path, **options: Any) -> Run:
    chance = torch.Generator().manual_seed(0)
    data = torch.randn(48, 4, generator=chance), torch.arange(48) % 3
    test = torch.randn(9, 4, generator=chance), torch.arange(9) % 3
    asked: dict[str, Any] = {"method": ad.AdaDPIGU(importance_steps=2), "batch_size": 6, "steps": 8, **options}
    if "noise_multiplier" not in asked:
        asked["privacy"] = Budget(epsilon=6.0)
    return ad.train(net(), data, records=48, test=test, out=out, **asked)


def shared(path: Path) -> Path:
    """A ledger that one run is on already."""
    create_shared(path / "s.ledger", Budget(epsilon=60.0), dataset="own data", records=48)
    trained(path / "first", ledger=path / "s.ledger", method="dpsgd", noise_multiplier=2.0)
    return path / "s.ledger"


def plain(path: Path) -> Path:
    trained(path / "run", noise_multiplier=1.0)
    return path / "run"


def resumed(path: Path) -> Path:
    """Failed, interrupted and then interrupted again, on a ledger that it shares."""
    how: dict[str, Any] = {"ledger": shared(path), "checkpoint_every": 1, "spare_steps": 4}
    with pytest.raises(ZeroDivisionError):
        trained(path / "run", observers=[Stopping(3, ZeroDivisionError)], **how)
    trained(path / "run", observers=[Stopping(5, KeyboardInterrupt)], resume=True, **how)
    trained(path / "run", observers=[Stopping(7, KeyboardInterrupt)], resume=True, **how)
    return path / "run"


KINDS = {"plain": plain, "resumed": resumed}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return KINDS[request.param](tmp_path_factory.mktemp(request.param))


def changed(value: Any) -> list[Any]:
    """What else could stand in a place of JSON."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value // 2, value * 2 + 1]
    if isinstance(value, float):
        return [value / 2, value * 2 + 1]
    if isinstance(value, str):
        return [value + " indeed", ""]
    if isinstance(value, list):
        more = value[-1] if value and not isinstance(value[-1], str) else "made up"
        return [[], value[:-1], [*value, more]]
    if isinstance(value, dict):
        return [None, {}, *({k: v for k, v in value.items() if k != key} for key in value)]
    return [0.5]


def edits(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """A value of JSON with one thing changed in it: where, and the whole value with the change."""
    yield from ((path, new) for new in changed(value) if new != value)
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        for where, new in edits(part, (*path, key)):
            whole: Any = dict(value) if isinstance(value, dict) else list(value)
            whole[key] = new
            yield where, whole


def test_edits_change_one_thing_each_and_leave_out_none() -> None:
    found = list(edits([{"a": 2.0, "b": None}]))
    assert [where for where, _ in found] == [*[()] * 3, *[(0,)] * 4, (0, "a"), (0, "a"), (0, "b")]
    assert [new for where, new in found if where == (0, "a")] == [[{"a": 1.0, "b": None}], [{"a": 5.0, "b": None}]]


def harmless(name: str, where: tuple[str | int, ...], old: Any, new: Any, whole: PrivacyReport) -> str:
    """Why an edit may pass; empty where it may not."""
    if name.startswith("epsilon_") and new > old:
        return "a larger epsilon promises less than what holds"
    if name == "steps_charged":
        return "it is not read, but counted again from lives"
    if name == "shared" and where and isinstance(new, dict):
        return "the total is left out of whatever is exported"
    if name == "versions" and len(whole.lives) > 1:
        return "a ledger has those of the first process alone, and the card says that they are not verified"
    return ""


def taken(folder: Path, name: str, stored: Any) -> PrivacyReport | None:
    """The report that is handed out after an edit of one file; None where it is refused."""
    before = (folder / name).read_bytes()
    (folder / name).write_text(json.dumps(stored))
    try:
        return verified_privacy(folder)
    except ad.InputError:
        return None
    finally:
        (folder / name).write_bytes(before)


@pytest.mark.parametrize("name", [*FIELDS, *BESIDE])
def test_every_value_of_a_report_that_is_changed_is_found(name: str, folder: Path) -> None:
    stored, whole = json.loads((folder / "privacy.json").read_text()), verified_privacy(folder)
    assert stored.keys() == {*FIELDS, *BESIDE}
    tried = list(edits(stored[name]))
    assert tried
    for where, new in tried:
        found = taken(folder, "privacy.json", {**stored, name: new})
        reason = harmless(name, where, stored[name], new, whole)
        assert found is None or reason, (where, new)
        if name in ("shared", "steps_charged") and found is not None:
            assert found == whole


def test_what_is_exported_of_a_shared_total_is_that_it_is_left_out(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", ledger=shared(tmp_path), noise_multiplier=2.0, method="dpsgd")
    assert run.privacy.shared is not None
    facts = facts_of_run(tmp_path / "run")
    assert facts.privacy.shared is None
    assert facts.privacy.not_covered == (*run.privacy.not_covered, OTHERS)
    assert "whose total is left out here" in " ".join(model_card(facts).split())


def test_no_total_can_be_made_up_for_a_run_of_its_own(tmp_path: Path) -> None:
    folder = plain(tmp_path)
    stored = json.loads((folder / "privacy.json").read_text())
    total = {"epsilon": 0.1, "budget": 1.0, "delta": 1e-5, "order": 8.0, "runs": 9}
    assert taken(folder, "privacy.json", {**stored, "shared": total}) is None


def test_a_diagnostic_look_cannot_be_hidden(tmp_path: Path) -> None:
    """Neither by the flag, nor by it together with the line that names it."""
    trained(tmp_path / "run", diagnostics=True)
    stored = json.loads((tmp_path / "run" / "privacy.json").read_text())
    covered = [line for line in stored["not_covered"] if not line.startswith("diagnostics")]
    assert len(covered) < len(stored["not_covered"])
    for lie in ({"diagnostics_exposed": False}, {"diagnostics_exposed": False, "not_covered": covered}):
        assert taken(tmp_path / "run", "privacy.json", {**stored, **lie}) is None


def test_a_summary_that_is_edited_is_found_or_changes_nothing_but_what_is_called_unverified(folder: Path) -> None:
    path = folder / "summary.json"
    before, card = path.read_text(), model_card(facts_of_run(folder))
    stored, passed = json.loads(before), set()
    for name in stored:
        for _, new in edits(stored[name]):
            path.write_text(json.dumps({**stored, name: new}))
            try:
                found = model_card(facts_of_run(folder))
            except ad.InputError:
                continue
            passed.add(name)
            assert found == card or name == "test_accuracy", (name, new)
            assert name != "test_accuracy" or new is None or ", as the run recorded it, not verified." in found
    path.write_text(before)
    assert stored.keys() - passed == {"dataset", "weights"}


def test_a_config_that_is_edited_is_refused(folder: Path) -> None:
    path = folder / "config.toml"
    before = path.read_text()
    path.write_text(before.replace("batch_size", "batch_size ", 1))
    with pytest.raises(ad.InputError, match=r"its config\.toml was edited"):
        facts_of_run(folder)
    path.write_text(before)
    facts_of_run(folder)


def test_the_card_of_a_resumed_run_says_whose_versions_it_tells(folder: Path) -> None:
    facts = facts_of_run(folder)
    assert ("of the last process, as it recorded them" in model_card(facts)) == (len(facts.privacy.lives) > 1)
